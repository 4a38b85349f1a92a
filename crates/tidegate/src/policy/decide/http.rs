//! HTTP requests, decided in one call.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use tidegate_core::Timestamp;

use crate::clock::Clock;
use crate::concurrency::{Class, Shed, identity};
use crate::limiter::permit::{Admission, Permit};
use crate::policy::decide::acquire::Granted;
use crate::policy::decide::check_error::CheckError;
use crate::policy::decide::limiter::{Decided, PolicyLimiter};
use crate::policy::decide::token::leases::Leases;
use crate::policy::decide::token::reservations::Reservations;
use crate::policy::http::{Described, HeaderTexts, HttpRequest, peer};
use crate::policy::matching::intent::Intent;
use crate::policy::model::descriptor::{Descriptor, Entry, Request};
use crate::policy::model::overload::Guard;
use crate::policy::model::rule::Domain;
use crate::store::{Store, StoreError};
use crate::verdict::{Origin, Verdict};

/// Facts that the request does not contain.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpOptions {
    /// The address of the peer that opened the connection; if `None`, the `IpAddr` or `SocketAddr` in the
    /// extensions of the request.
    pub peer: Option<IpAddr>,
    /// The cost of the request; `None` means the cost that each limit sets.
    pub hits: Option<u64>,
}

impl<S: Store> PolicyLimiter<S> {
    /// Turns an HTTP request into descriptors by the `requests` rules of a domain, decides and charges
    /// them. A request that no rule describes is allowed.
    ///
    /// Rules that read the client's address need the peer: put its `SocketAddr` or `IpAddr` into the
    /// extensions of the request.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use tidegate::policy::{Merging, Policy, PolicyLimiter};
    ///
    /// let file = "
    /// domain: api
    /// requests:
    ///   rules:
    ///     - path: /login
    ///       descriptors:
    ///         - entries: [{key: login_from, client_ip: true}]
    /// descriptors:
    ///   - key: login_from
    ///     rate: 1/min
    /// ";
    /// let policy = Policy::load(&[("policy.yaml", file)], Merging::Refuse).policy.expect("no errors");
    /// let limiter = PolicyLimiter::in_memory(policy)?;
    ///
    /// let (mut parts, ()) = http::Request::post("/login").body(())?.into_parts();
    /// parts.extensions.insert(IpAddr::from([192, 0, 2, 1]));
    /// assert!(limiter.check_http_now("api", &parts)?.is_allowed());
    /// let verdict = limiter.check_http_now("api", &parts)?;
    /// assert!(verdict.is_denied());
    /// assert_eq!(verdict.headers().retry_after(), Some(60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the domain does not exist or has no `requests` rules, if a rule needs the peer and it is
    /// unknown, if servers would read the request in different ways ([`CheckError::Request`], a 400), or if
    /// the store gives no decision.
    pub async fn check_http(&self, domain: &str, parts: &Parts) -> Result<Verdict, CheckError> {
        self.check_http_with(domain, parts, HttpOptions::default()).await
    }

    /// Like [`PolicyLimiter::check_http`], with the peer or the cost given by the caller.
    ///
    /// # Errors
    /// As [`PolicyLimiter::check_http`].
    pub async fn check_http_with(
        &self,
        domain: &str,
        parts: &Parts,
        options: HttpOptions,
    ) -> Result<Verdict, CheckError> {
        Ok(match self.decide_http(domain, parts, options, Intent::Take).await? {
            Some((details, _, now)) => details.fold(now),
            None => Verdict::unlimited(self.now()),
        })
    }

    /// Decides an HTTP request; `None` if no rule describes it.
    async fn decide_http(
        &self,
        domain: &str,
        parts: &Parts,
        options: HttpOptions,
        intent: Intent,
    ) -> Result<Option<Decided>, CheckError> {
        let domain = self.domain(domain)?;
        let texts = HeaderTexts::new(&parts.headers);
        let described = domain.describe_parts(parts, &texts, options.peer)?;
        self.decide_described((&domain, &described), parts, options, intent).await
    }

    /// Decides a request whose descriptors are known.
    async fn decide_described(
        &self,
        (domain, described): (&Arc<Domain>, &Described<'_>),
        parts: &Parts,
        options: HttpOptions,
        intent: Intent,
    ) -> Result<Option<Decided>, CheckError> {
        if described.descriptors().len() == 0 {
            return Ok(None);
        }
        let class = Some(domain.class_of(described, parts, options.peer));
        let decide = async |descriptors: &[Descriptor<'_>]| {
            let request = Request { domain: domain.name(), descriptors, hits: options.hits };
            self.decide_in(Arc::clone(domain), &request, intent).await.map(Some)
        };
        // Most requests have one descriptor with one entry, for which nothing is allocated.
        if let Some(only) = described.only_entry() {
            return decide(&[Descriptor { class, ..Descriptor::new(&[only]) }]).await;
        }
        let entries = described.entries();
        let mut descriptors = described.split(&entries);
        descriptors.iter_mut().for_each(|descriptor| descriptor.class = class);
        decide(&descriptors).await
    }

    /// A domain of the policy in force.
    fn domain(&self, name: &str) -> Result<Arc<Domain>, CheckError> {
        self.0.policy.load().shared_domain(name).ok_or(CheckError::UnknownDomain)
    }

    /// Returns the units of a request that was allowed with `verdict` and then not served, like
    /// [`PolicyLimiter::cancel`].
    ///
    /// # Errors
    /// As [`PolicyLimiter::check_http`]; the units stay taken.
    #[doc(hidden)]
    pub async fn cancel_http(
        &self,
        parts: &Parts,
        options: HttpOptions,
        verdict: &Verdict,
    ) -> Result<(), CheckError> {
        let Some(Origin::Domain(domain)) = verdict.details().map(|details| &details.origin) else {
            return Ok(());
        };
        let texts = HeaderTexts::new(&parts.headers);
        let described = domain.describe_parts(parts, &texts, options.peer)?;
        let entries = described.entries();
        let descriptors = described.split(&entries);
        let (domain, descriptors) = (domain.name(), &descriptors[..]);
        self.cancel(&Request { domain, descriptors, hits: options.hits }, verdict).await
    }
}

impl<S: Store + 'static> PolicyLimiter<S> {
    /// Like [`PolicyLimiter::check_http`], in-flight limits included: the permit holds the
    /// request's places until it is dropped, see [`PolicyLimiter::acquire`]. A request that no rule
    /// describes gets a permit that holds nothing.
    pub async fn acquire_http(
        &self,
        domain: &str,
        parts: &Parts,
        options: HttpOptions,
    ) -> Result<Admission, CheckError> {
        let (granted, asked_at) = self.acquire_http_leases(domain, parts, options).await?;
        Ok(self.admission(granted, asked_at))
    }

    /// Like [`PolicyLimiter::acquire_http`], with a permit only if the request holds places or is
    /// settled, and with the concurrency limiter that must admit the request next. If that limiter
    /// would shed the request in any case, the request is shed before a shared store is called.
    #[doc(hidden)]
    pub async fn admit_http(
        &self,
        domain: &str,
        parts: &Parts,
        options: HttpOptions,
    ) -> Result<AdmittedHttp, CheckError> {
        let domain = self.domain(domain)?;
        let texts = HeaderTexts::new(&parts.headers);
        let described = domain.describe_parts(parts, &texts, options.peer)?;
        let guard = domain.guard(&described, parts, options.peer, &self.0.clock);
        if let Some(guard) = guard.as_ref().filter(|_| !self.0.store.is_local())
            && let Err(shed) = guard.limiter.shed_early(guard.class)
        {
            return Ok(AdmittedHttp::Shed(shed));
        }
        let asked_at = self.now();
        let domain = (&domain, &described);
        let decided = self.decide_described(domain, parts, options, Intent::Acquire).await;
        let decided = match decided {
            Err(CheckError::Store(error)) => return Ok(AdmittedHttp::Undecided { error, guard }),
            decided => decided?,
        };
        let granted = self.granted(decided, asked_at).await;
        if granted.leases.is_empty() && granted.reservations.is_empty() {
            return Ok(AdmittedHttp::Decided { verdict: granted.verdict, permit: None, guard });
        }
        let verdict = granted.verdict.clone();
        let permit = self.admission(granted, asked_at).permit();
        Ok(AdmittedHttp::Decided { verdict, permit, guard })
    }

    async fn acquire_http_leases(
        &self,
        domain: &str,
        parts: &Parts,
        options: HttpOptions,
    ) -> Result<(Granted, Timestamp), CheckError> {
        let asked_at = self.now();
        let decided = self.decide_http(domain, parts, options, Intent::Acquire).await?;
        Ok((self.granted(decided, asked_at).await, asked_at))
    }

    /// The grant of a request; an unlimited verdict if no rule describes the request.
    async fn granted(&self, decided: Option<Decided>, asked_at: Timestamp) -> Granted {
        match decided {
            Some((details, matched, now)) => self.keep(details, &matched, now).await,
            None => Granted {
                verdict: Verdict::unlimited(asked_at),
                leases: Leases::default(),
                reservations: Reservations::default(),
            },
        }
    }
}

/// The answer to [`PolicyLimiter::admit_http`].
#[derive(Debug)]
#[doc(hidden)]
pub enum AdmittedHttp {
    /// The rate and in-flight limits have decided.
    Decided {
        /// Their verdict.
        verdict: Verdict,
        /// The places that the request holds.
        permit: Option<Permit>,
        /// The concurrency limiter that must admit the request next.
        guard: Option<Guard>,
    },
    /// The concurrency limiter has shed the request.
    Shed(Shed),
    /// The store gave no decision.
    Undecided {
        /// Why.
        error: StoreError,
        /// The concurrency limiter that has to admit the request, if it is admitted all the same.
        guard: Option<Guard>,
    },
}

impl Domain {
    /// The descriptors of a request whose headers are already read.
    fn describe_parts<'a>(
        &'a self,
        parts: &'a Parts,
        texts: &'a HeaderTexts<'a>,
        known_peer: Option<IpAddr>,
    ) -> Result<Described<'a>, CheckError> {
        let rules = self.requests();
        if rules.is_empty() && self.protections().is_empty() {
            return Err(CheckError::NoRequestRules);
        }
        let peer = known_peer.or_else(|| peer(parts));
        if peer.is_none() && rules.needs_peer() {
            return Err(CheckError::NoPeer);
        }
        let request = HttpRequest {
            method: parts.method.as_str(),
            path: parts.uri.path_and_query().map_or("/", |target| target.as_str()),
            host: parts.uri.authority().map(|authority| authority.as_str()),
            headers: &[],
            peer,
        };
        rules.describe_texts(&request, texts).map_err(CheckError::Request)
    }

    /// The class of a request.
    fn class_of(
        &self,
        described: &Described<'_>,
        parts: &Parts,
        known_peer: Option<IpAddr>,
    ) -> Class {
        let header = self.classes().header_read();
        let values = header.into_iter().flat_map(|name| parts.headers.get_all(name));
        let values = values.map(|value| value.as_bytes());
        self.class_of_request(described, values, known_peer.or_else(|| peer(parts)))
    }

    /// The concurrency limiter that protects the route of a request.
    fn guard(
        &self,
        described: &Described<'_>,
        parts: &Parts,
        known_peer: Option<IpAddr>,
        clock: &Clock,
    ) -> Option<Guard> {
        let protection = self.protection(described.protect())?;
        Some(Guard {
            limiter: protection.limiter(clock).clone(),
            class: self.class_of(described, parts, known_peer),
            hold: protection.hold(),
            identity: described.user().map(|user| identity(user.as_bytes())),
        })
    }
}

impl Described<'_> {
    /// The entry of a request with one descriptor of one entry.
    fn only_entry(&self) -> Option<Entry<'_>> {
        let mut descriptors = self.descriptors();
        match (descriptors.next(), descriptors.next()) {
            (Some([(key, value)]), None) => Some(Entry { key, value }),
            _ => None,
        }
    }

    /// The entries of all descriptors, one after the other.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let pairs = self.descriptors().flatten();
        pairs.map(|(key, value)| Entry { key, value }).collect()
    }

    /// The descriptors as slices of `entries`, for a [`Request`].
    pub fn split<'e>(&self, mut entries: &'e [Entry<'e>]) -> Vec<Descriptor<'e>> {
        let descriptor = |own: &[_]| {
            let (own, others) = entries.split_at_checked(own.len()).unwrap_or_default();
            entries = others;
            Descriptor::new(own)
        };
        self.descriptors().map(descriptor).collect()
    }
}
