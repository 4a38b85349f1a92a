//! The counters of every limit, under the names that envoyproxy/ratelimit uses.
//!
//! # Bounds
//! A limit without requests takes one pointer. There are at most [`MAX_NAMES`] counter names that
//! contain values of requests (`detailed_metric`, `value_to_metric`), and at most [`MAX_DOMAINS`]
//! unknown domains; further ones are counted under [`OVERFLOW`].

pub(in crate::policy) mod retry_spread;
pub(in crate::policy) mod shadow;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use foldhash::quality::RandomState;
use tidegate_core::{Decision, Op};

use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::matching::matched_limits::MatchedLimits;
use crate::policy::model::descriptor::{Entry, Request};
use crate::policy::model::rule::{Domain, MetricDetail, Rule};
use crate::store::Store;
use crate::verdict::{Details, LimitSource, Record, Standing};

/// Maximum number of names that contain values of requests.
pub const MAX_NAMES: usize = 10_000;

/// Maximum number of unknown domains with counters of their own.
pub const MAX_DOMAINS: usize = 100;

/// The name of everything beyond the maximum number of names.
pub const OVERFLOW: &str = "_overflow";

/// The longest name; longer names are cut off.
const MAX_NAME: usize = 512;

/// Number of threads that can count without sharing a cache line.
const LINES: usize = 4;

/// The counters of one limit, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitStats {
    /// Units requested.
    pub total_hits: u64,
    /// Units over the limit. A denied request counts entirely.
    pub over_limit: u64,
    /// Units within the limit, but above the near-limit percentage.
    pub near_limit: u64,
    /// Units allowed.
    pub within_limit: u64,
    /// Units that would have been denied if the limit were not in shadow mode.
    pub shadow_mode: u64,
    /// Units returned.
    pub total_negative_hits: u64,
    /// Requests that skipped an in-flight limit, because their call cannot release.
    pub skipped: u64,
}

impl std::ops::AddAssign for LimitStats {
    fn add_assign(&mut self, more: Self) {
        self.total_hits += more.total_hits;
        self.over_limit += more.over_limit;
        self.near_limit += more.near_limit;
        self.within_limit += more.within_limit;
        self.shadow_mode += more.shadow_mode;
        self.total_negative_hits += more.total_negative_hits;
        self.skipped += more.skipped;
    }
}

/// The counters of a limit. Memory is allocated at the first count.
#[derive(Debug, Default)]
pub(in crate::policy) struct Counter(OnceLock<Box<[Line; LINES]>>);

/// The counters of some threads, on one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 6]);

impl Counter {
    /// Adds each unit to one counter only, so that sums and differences never decrease while other
    /// threads count.
    fn add(&self, stats: LimitStats) {
        let line = &self.0.get_or_init(Box::default)[line_of_this_thread()];
        let counts = [
            stats.within_limit - stats.near_limit,
            stats.near_limit,
            stats.over_limit - stats.shadow_mode,
            stats.shadow_mode,
            stats.total_negative_hits,
            stats.skipped,
        ];
        for (counter, units) in line.0.iter().zip(counts) {
            if units > 0 {
                counter.fetch_add(units, Ordering::Relaxed);
            }
        }
    }

    /// The current counts.
    pub(in crate::policy) fn stats(&self) -> LimitStats {
        let Some(lines) = self.0.get() else { return LimitStats::default() };
        let sum = |which: usize| {
            let counts = lines.iter().map(|line| line.0[which].load(Ordering::Relaxed));
            counts.fold(0, u64::wrapping_add)
        };
        let [below, near_limit, denied, shadow_mode] = [0, 1, 2, 3].map(sum);
        let (within_limit, over_limit) =
            (below.wrapping_add(near_limit), denied.wrapping_add(shadow_mode));
        LimitStats {
            total_hits: within_limit.wrapping_add(over_limit),
            over_limit,
            near_limit,
            within_limit,
            shadow_mode,
            total_negative_hits: sum(4),
            skipped: sum(5),
        }
    }
}

/// Assigns cache lines to threads in turn.
fn line_of_this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static LINE: Cell<usize> = const { Cell::new(LINES) };
    }
    LINE.with(|line| {
        if line.get() == LINES {
            line.set(NEXT.fetch_add(1, Ordering::Relaxed) % LINES);
        }
        line.get()
    })
}

/// All counters of a limiter that do not belong to one limit.
#[derive(Debug)]
pub(in crate::policy) struct StatsRegistry {
    /// The percentage of a limit from which a request counts as near the limit.
    near_percent: AtomicU64,
    names: Named<Counter>,
    unknown_domains: Named<AtomicU64>,
}

/// Values by name, bounded in number.
#[derive(Debug)]
struct Named<T> {
    by_name: RwLock<HashMap<Box<str>, Arc<T>, RandomState>>,
    most: usize,
}

impl Default for StatsRegistry {
    fn default() -> Self {
        Self {
            near_percent: AtomicU64::new(80),
            names: Named::new(MAX_NAMES),
            unknown_domains: Named::new(MAX_DOMAINS),
        }
    }
}

impl<T: Default> Named<T> {
    fn new(most: usize) -> Self {
        Self { by_name: RwLock::default(), most }
    }

    fn get(&self, name: &str) -> Arc<T> {
        let known = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(name) {
            return Arc::clone(found);
        }
        drop(known);
        let mut known = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = known.len() >= self.most && !known.contains_key(name);
        let name = if is_full { OVERFLOW } else { name };
        Arc::clone(known.entry(name.into()).or_default())
    }

    fn all(&self) -> Vec<(String, Arc<T>)> {
        let known = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> =
            known.iter().map(|(name, value)| (name.to_string(), Arc::clone(value))).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }
}

impl StatsRegistry {
    pub(in crate::policy) fn set_near_percent(&self, percent: u64) {
        self.near_percent.store(percent.min(100), Ordering::Relaxed);
    }

    /// Counts a request for an unknown domain.
    pub(in crate::policy) fn count_unknown(&self, domain: &str) {
        let name = sanitized(domain);
        self.unknown_domains.get(&name).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the decisions of every limit on a charged request.
    pub(in crate::policy) fn count(
        &self,
        domain: &Domain,
        details: &Details,
        matched_limits: &MatchedLimits,
        request: &Request<'_>,
    ) {
        let near_percent = self.near_percent.load(Ordering::Relaxed);
        for record in details.records.iter().filter(|it| it.standing == Standing::Skipped) {
            if let Some((_, limit)) = details.rule(record) {
                limit.counter.add(LimitStats { skipped: 1, ..LimitStats::default() });
            }
        }
        for matched in matched_limits.iter() {
            let part = &details.records[matched.record];
            // The decision is counted with the live limit of the shadow, or with the limit behind
            // the pre-limit.
            if part.standing == Standing::Beside || matched.in_front {
                continue;
            }
            let Some(decision) = &part.decision else { continue };
            // A limit and its part for other classes count a request once, where it was denied.
            let others = details.records.get(matched.record + 1);
            let denied_as_other = others.is_some_and(|it| it.is_for_others() && it.denies());
            if (matched.is_for_others && !part.denies()) || denied_as_other {
                continue;
            }
            let counted = tally_of(matched.op, decision, part, near_percent);
            let entries = request.descriptors.get(part.descriptor).map_or(&[][..], |it| it.entries);
            match part.source {
                LimitSource::Policy { rule, limit, .. } => {
                    let rule = domain.rule(rule);
                    match rule.stat_name(domain, entries) {
                        None => {
                            if let Some(limit) = rule.limits().get(limit) {
                                limit.counter.add(counted);
                            }
                        }
                        Some(name) => self.names.get(&sanitized(&name)).add(counted),
                    }
                }
                _ => {
                    let name = whole_name(domain.name(), entries);
                    self.names.get(&sanitized(&name)).add(counted);
                }
            }
        }
    }

    /// The counters whose names contain values of requests, by name.
    pub(in crate::policy) fn named(&self) -> Vec<(String, LimitStats)> {
        self.names.all().into_iter().map(|(name, counter)| (name, counter.stats())).collect()
    }

    /// Number of requests for each unknown domain.
    pub(in crate::policy) fn unknown_domains(&self) -> Vec<(String, u64)> {
        let all = self.unknown_domains.all().into_iter();
        all.map(|(name, count)| (name, count.load(Ordering::Relaxed))).collect()
    }
}

#[doc(hidden)]
impl<S: Store> PolicyLimiter<S> {
    /// The counters of every limit, by the name that envoyproxy/ratelimit uses: the domain and the
    /// steps of its rule, and the limit's own name if the rule has several.
    pub fn limit_stats(&self) -> Vec<(String, LimitStats)> {
        let policy = self.policy();
        // Several limits may have the same name, once values and characters that statsd forbids are
        // removed.
        let mut all: BTreeMap<String, LimitStats> = BTreeMap::new();
        for domain in policy.domains() {
            for rule in domain.rules() {
                for limit in rule.limits() {
                    let mut name = format!("{}.{}", domain.name(), rule.stat());
                    if rule.limits().len() > 1 {
                        name.extend([".", limit.name().unwrap_or_default()]);
                    }
                    *all.entry(sanitized(&name)).or_default() += limit.stats();
                }
            }
        }
        for (name, stats) in self.0.stats_registry.named() {
            *all.entry(name).or_default() += stats;
        }
        all.into_iter().collect()
    }

    /// Number of requests for each unknown domain, by name.
    pub fn unknown_domains(&self) -> Vec<(String, u64)> {
        self.0.stats_registry.unknown_domains()
    }

    /// Sets the percentage of a limit from which requests count as near the limit; 80 by default.
    pub fn set_near_percent(&self, percent: u64) {
        self.0.stats_registry.set_near_percent(percent);
    }
}

/// The counts that one decision adds.
fn tally_of(op: Op, decision: &Decision, part: &Record, near_percent: u64) -> LimitStats {
    let cost = match op {
        Op::Take(cost) => cost,
        Op::Return(units) => {
            return LimitStats { total_negative_hits: units, ..LimitStats::default() };
        }
        _ => return LimitStats::default(),
    };
    let counted = LimitStats { total_hits: cost, ..LimitStats::default() };
    if !decision.is_allowed() {
        let is_shadow = part.standing == Standing::Shadow;
        let shadow_mode = if is_shadow { cost } else { 0 };
        return LimitStats { over_limit: cost, shadow_mode, ..counted };
    }
    let near = u128::from(decision.limit) * u128::from(near_percent) / 100;
    let near = u64::try_from(near).unwrap_or(u64::MAX);
    let after = decision.limit.saturating_sub(decision.remaining);
    let near_limit = after.saturating_sub(near).min(cost);
    LimitStats { within_limit: cost, near_limit, ..counted }
}

impl Rule {
    /// The counter name, if it contains values of the request; otherwise `None`.
    fn stat_name(&self, domain: &Domain, entries: &[Entry<'_>]) -> Option<String> {
        let whole = self.metric == MetricDetail::Everything;
        if !whole && !self.varies {
            return None;
        }
        let mut name = domain.name().to_owned();
        let mut level = &domain.first;
        for entry in entries {
            let Some(id) = level.find(entry.key, entry.value) else { continue };
            let rule = domain.rule(id);
            name.push('.');
            match &rule.shared_as {
                Some(shared) => name.extend([entry.key, "_", shared]),
                None if whole || rule.metric != MetricDetail::Names => {
                    name.extend([entry.key, "_", entry.value]);
                }
                None => name.push_str(&rule.step),
            }
            level = &rule.next;
        }
        Some(name)
    }
}

/// The counter name of a limit that came with a request.
fn whole_name(domain: &str, entries: &[Entry<'_>]) -> String {
    let mut name = domain.to_owned();
    for Entry { key, value } in entries {
        name.extend([".", key]);
        if !value.is_empty() {
            name.extend(["_", value]);
        }
    }
    name
}

/// Replaces characters with a meaning in statsd: `:`, `|` and the dots of IPv4 addresses become
/// `_`.
pub(in crate::policy) fn sanitized(name: &str) -> String {
    let end = name.char_indices().nth(MAX_NAME).map_or(name.len(), |(at, _)| at);
    let mut bytes: Vec<char> = name[..end].chars().collect();
    for c in &mut bytes {
        if matches!(c, ':' | '|') {
            *c = '_';
        }
    }
    let mut at = 0;
    while at < bytes.len() {
        match address_at(&bytes[at..]) {
            Some(length) => {
                for c in bytes[at..at + length].iter_mut().filter(|c| **c == '.') {
                    *c = '_';
                }
                at += length;
            }
            None => at += 1,
        }
    }
    bytes.into_iter().collect()
}

/// The length of the IPv4 address that begins here: four groups of one to three digits.
fn address_at(text: &[char]) -> Option<usize> {
    let mut at = 0;
    for group in 0..4 {
        if group > 0 {
            if text.get(at) != Some(&'.') {
                return None;
            }
            at += 1;
        }
        let digits = text[at..].iter().take(3).take_while(|c| c.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        at += digits;
    }
    Some(at)
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
