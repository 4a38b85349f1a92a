//! Classes of requests, and the concurrency limiters that protect a domain's servers.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate_core::shed::UtilisationLevels;

#[cfg(feature = "http")]
use crate::clock::Clock;
use crate::concurrency::{Class, ConcurrencyLimiter, ConcurrencyStats, Shares};
use crate::policy::matching::network::Network;
use crate::policy::model::limit::Mode;

/// The classes of a domain, most important first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    pub(in crate::policy) classes: Vec<ClassRule>,
    pub(in crate::policy) shares: Shares,
    pub(in crate::policy) default: Class,
    pub(in crate::policy) header: Option<ClassHeader>,
}

/// One class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct ClassRule {
    pub(in crate::policy) name: Box<str>,
    /// Plans whose requests belong to it.
    pub(in crate::policy) plans: Box<[Box<str>]>,
}

/// The header in which a request names its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct ClassHeader {
    pub(in crate::policy) name: Box<str>,
    /// Peers that may raise the class of a request.
    pub(in crate::policy) trusted: Box<[Network]>,
}

impl Default for Classes {
    /// All requests are equally important.
    fn default() -> Self {
        let (shares, default) = (Shares::graded(1), Class::CRITICAL);
        Self { classes: Vec::new(), shares, default, header: None }
    }
}

impl Classes {
    /// The class of this name.
    pub fn named(&self, name: &str) -> Option<Class> {
        self.class_where(|class| *class.name == *name)
    }

    /// The name of a class; `None` if the policy has no classes.
    pub fn name(&self, class: Class) -> Option<&str> {
        self.classes.get(class.rank()).map(|class| &*class.name)
    }

    /// The names of all classes, most important first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|class| &*class.name)
    }

    /// The shares of the classes.
    pub const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The class of requests whose rules and plans name none.
    pub const fn default_class(&self) -> Class {
        self.default
    }

    /// The class of a plan.
    pub(in crate::policy) fn of_plan(&self, plan: &str) -> Option<Class> {
        self.class_where(|class| class.plans.iter().any(|known| **known == *plan))
    }

    fn class_where(&self, is_it: impl Fn(&ClassRule) -> bool) -> Option<Class> {
        let rank = self.classes.iter().position(is_it)?;
        u8::try_from(rank).ok().map(Class::new)
    }

    /// The name of the header in which a request names its class. `None` for `priority`, which names none.
    pub fn header(&self) -> Option<&str> {
        self.header_read().filter(|name| *name != PRIORITY)
    }

    /// The name of the header that may change the class of a request.
    pub fn header_read(&self) -> Option<&str> {
        self.header.as_ref().map(|header| &*header.name)
    }

    /// The class of a request whose header has these values: a less important class than `class`,
    /// or any class if the peer is trusted. Of several values the least important counts; values
    /// that name no class are ignored.
    pub(in crate::policy) fn by_header<'v>(
        &self,
        class: Class,
        values: impl Iterator<Item = &'v [u8]>,
        peer: Option<IpAddr>,
    ) -> Class {
        let values = values.filter_map(|value| std::str::from_utf8(value).ok());
        if self.header_read() == Some(PRIORITY) {
            return self.by_urgency(class, values.filter_map(urgency).max());
        }
        let Some(named) = values.filter_map(|value| self.named(value.trim())).max() else {
            return class;
        };
        let is_trusted = self.header.as_ref().zip(peer).is_some_and(|(header, peer)| {
            header.trusted.iter().any(|network| network.contains(peer))
        });
        if is_trusted { named } else { named.max(class) }
    }

    /// The class of a request with this urgency of RFC 9218; 3 is the default.
    fn by_urgency(&self, class: Class, urgency: Option<usize>) -> Class {
        let steps = urgency.unwrap_or(3).saturating_sub(3);
        let last = self.classes.len().saturating_sub(1).max(class.rank());
        u8::try_from((class.rank() + steps).min(last)).map_or(class, Class::new)
    }
}

/// The header of RFC 9218.
pub(in crate::policy) const PRIORITY: &str = "priority";

/// `u` of a `priority` such as `u=5, i`, from 0 to 7; the last one, if it is repeated.
fn urgency(value: &str) -> Option<usize> {
    let members = value.split(',').filter_map(|member| member.trim().strip_prefix("u="));
    let mut digits =
        members.map(|member| member.split_once(';').map_or(member, |(item, _)| item).trim());
    match digits.next_back()?.as_bytes() {
        [digit @ b'0'..=b'7'] => Some(usize::from(digit - b'0')),
        _ => None,
    }
}

/// A concurrency limiter of a domain.
#[derive(Clone, Debug)]
pub struct Protection {
    pub(in crate::policy) name: Box<str>,
    pub(in crate::policy) numbers: ProtectionNumbers,
    /// Built when the first request needs it. Successive policies share the limiter as long as its
    /// numbers stay the same.
    pub(in crate::policy) limiter: Arc<OnceLock<ConcurrencyLimiter>>,
    /// The limiter of the previous policy, if it had other numbers.
    pub(in crate::policy) before: Option<ConcurrencyLimiter>,
}

/// The numbers of a concurrency limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct ProtectionNumbers {
    pub(in crate::policy) estimator: EstimatorKind,
    pub(in crate::policy) min_limit: Option<u32>,
    pub(in crate::policy) max_limit: Option<u32>,
    /// Per cent.
    pub(in crate::policy) tolerance: Option<u32>,
    /// Per cent.
    pub(in crate::policy) queue: u32,
    pub(in crate::policy) queue_timeout: Duration,
    pub(in crate::policy) hold: HoldUntil,
    pub(in crate::policy) slow_after: Option<Duration>,
    pub(in crate::policy) utilisation: Option<UtilisationLevels>,
    pub(in crate::policy) mode: Mode,
    pub(in crate::policy) shares: Shares,
}

/// How the limit is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum EstimatorKind {
    Adaptive,
    Fixed(u32),
    Aimd,
    Gradient2,
}

/// When a request ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum HoldUntil {
    /// With its response body.
    #[default]
    Body,
    /// With the head of its response.
    Head,
}

impl Protection {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is enforced.
    pub const fn mode(&self) -> Mode {
        self.numbers.mode
    }

    /// When a request ends.
    pub const fn hold(&self) -> HoldUntil {
        self.numbers.hold
    }

    /// The state of the limiter, for metrics; `None` before the first request.
    pub fn stats(&self) -> Option<ConcurrencyStats> {
        self.limiter.get().map(ConcurrencyLimiter::stats)
    }

    /// The limiter.
    #[cfg(feature = "http")]
    pub(in crate::policy) fn limiter(&self, clock: &Clock) -> &ConcurrencyLimiter {
        self.limiter.get_or_init(|| self.numbers.build(clock, self.before.as_ref()))
    }

    /// Takes over the limiter of the previous policy.
    pub(in crate::policy) fn continuing(&mut self, old: &Self) {
        if self.numbers == old.numbers {
            self.limiter = Arc::clone(&old.limiter);
            self.before.clone_from(&old.before);
        } else {
            self.before = old.limiter.get().cloned().or_else(|| old.before.clone());
        }
    }
}

#[cfg(feature = "http")]
impl ProtectionNumbers {
    fn build(&self, clock: &Clock, before: Option<&ConcurrencyLimiter>) -> ConcurrencyLimiter {
        let mut builder = match self.estimator {
            EstimatorKind::Adaptive => ConcurrencyLimiter::adaptive(),
            EstimatorKind::Fixed(limit) => ConcurrencyLimiter::fixed(limit),
            EstimatorKind::Aimd => ConcurrencyLimiter::aimd(),
            EstimatorKind::Gradient2 => ConcurrencyLimiter::gradient2(),
        };
        builder = builder.clock(clock.clone()).shares(self.shares);
        builder = builder.queue(self.queue, self.queue_timeout);
        if let Some(limit) = self.min_limit {
            builder = builder.min_limit(limit);
        }
        if let Some(limit) = self.max_limit {
            builder = builder.max_limit(limit);
        }
        if let Some(percent) = self.tolerance {
            builder = builder.tolerance(percent);
        }
        if let Some(latency) = self.slow_after {
            builder = builder.slow_after(latency);
        }
        if let Some(levels) = self.utilisation {
            builder = builder.utilisation(levels);
        }
        if self.mode == Mode::Shadow {
            builder = builder.shadow();
        }
        match before {
            Some(before) => builder.build_after(before),
            None => builder.build(),
        }
    }
}

/// The concurrency limiter that must admit a request, with the facts that it needs.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Guard {
    /// The limiter.
    pub limiter: ConcurrencyLimiter,
    /// How important the request is.
    pub class: Class,
    /// When the request ends.
    pub hold: HoldUntil,
    /// A hash of the user, if known, so that either all requests of a user are served or none.
    pub identity: Option<u64>,
}
