//! The service that every listener calls: one store, one clock and one policy for the whole
//! process.

mod held;

use std::io;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::policy::{
    CheckError, ControlError, EnforceSecret, InlineLimit, Policy, PolicyLimiter, Request, Switch,
};
use tidegate::store::circuits::{CircuitReport, CircuitState};
use tidegate::store::lease::LeaseStats;
use tidegate::store::local::LocalStats;
use tidegate::store::memory::{MemoryStats, MemoryStore};
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::SharedOptions;
use tidegate::store::{DecisionSource, Misconfigured, Nodes, Store, StoreError};
use tidegate::{AlgorithmName, Clock, Hashing, Limit, Op, Rate, Span, Timestamp, Verdict};
use tidegate_tower::Event;

use crate::observability::hot_keys::KeyText;
use crate::observability::log::Log;
use crate::observability::status::{Counters, Status};
use crate::observability::unmatched;
use crate::store::{AnyStore, SharedStore, StoreThread};
use crate::transport::Protocol;

/// Time after the last refusal by the store in which the daemon is not ready. Reads may succeed
/// while writes are refused.
const REFUSED_LATELY: Span = Span::from_secs(10);

/// Decides requests for all listeners. Clones are handles to the same service.
#[derive(Clone, Debug)]
pub struct RateLimitService {
    limiter: PolicyLimiter<AnyStore>,
    clock: Clock,
    /// The bucket with the longest refill time, so the debt of every other bucket fits into it.
    widest: Limit,
    status: Arc<Status>,
    /// The counters of the calling thread.
    counters: Arc<Counters>,
    /// The listener that calls.
    listener: Protocol,
    /// Whether each decision is timed, or the listener [times](Self::time_together) those that it makes
    /// together.
    times_each: bool,
    /// Kept as long as the service exists.
    _store_thread: Option<Arc<StoreThread>>,
}

impl RateLimitService {
    /// A service with an empty policy, on the machine's clock and a store of the default size.
    pub fn new() -> io::Result<Self> {
        Self::in_memory(MemoryStore::DEFAULT_BYTES, Clock::default())
    }

    /// Like [`RateLimitService::new`], on another clock.
    pub fn with_clock(clock: Clock) -> io::Result<Self> {
        Self::in_memory(MemoryStore::DEFAULT_BYTES, clock)
    }

    /// A service with state in this process, in at most `bytes` bytes.
    pub fn in_memory(bytes: u64, clock: Clock) -> io::Result<Self> {
        let store = MemoryStore::new(bytes, Hashing::Fast)?.with_clock(clock.clone());
        Self::with_store(AnyStore::Memory(store), clock, None).map_err(io::Error::other)
    }

    /// A service with state in Redis or Valkey, on the clock of the server.
    pub fn connect(config: RedisConfig) -> Result<Self, StoreError> {
        Self::connect_with(config, SharedOptions::default())
    }

    /// Like [`RateLimitService::connect`], with options for the layers in front of Redis.
    pub fn connect_with(config: RedisConfig, options: SharedOptions) -> Result<Self, StoreError> {
        let clock = Clock::default();
        let (thread, store) = StoreThread::connect(config, options, clock.clone())?;
        Self::with_store(AnyStore::Redis(store), clock, Some(Arc::new(thread)))
            .map_err(|wrong| StoreError::Protocol(wrong.to_string().into()))
    }

    fn with_store(
        store: AnyStore,
        clock: Clock,
        store_thread: Option<Arc<StoreThread>>,
    ) -> Result<Self, tidegate::InvalidLimit> {
        let limiter = PolicyLimiter::new(Policy::default(), store, clock.clone());
        if let AnyStore::Redis(store) = limiter.store() {
            limiter.publish_revisions(&store.store().revisions());
        }
        // A hundred years of one unit each second.
        let widest = Limit::token_bucket(Rate::per_second(1)).burst(100 * 365 * 86_400).build()?;
        let status = Arc::new(Status::new(clock.now(), Log::default()));
        let counters = status.for_thread();
        Ok(Self {
            limiter,
            clock,
            widest,
            status,
            counters,
            listener: Protocol::Http,
            times_each: true,
            _store_thread: store_thread,
        })
    }

    /// The same service with this log. To be called at start, because the counters are new.
    #[must_use]
    pub fn logging(mut self, log: Log) -> Self {
        self.status = Arc::new(Status::new(self.clock.now(), log));
        self.counters = self.status.for_thread();
        self
    }

    /// The state of the daemon: counters, policy, readiness.
    pub const fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// The same service, with the counters of the current thread.
    pub(crate) fn for_thread(&self) -> Self {
        Self { counters: self.status.for_thread(), ..self.clone() }
    }

    /// The same service, counting for a listener.
    pub(crate) fn behind(&self, listener: Protocol) -> Self {
        Self { listener, ..self.clone() }
    }

    /// The same service without timing, which the listener then does.
    pub(crate) fn untimed(&self) -> Self {
        Self { times_each: false, ..self.clone() }
    }

    /// The same service, timing each decision.
    pub(crate) fn timing_each(&self) -> Self {
        Self { times_each: true, ..self.clone() }
    }

    /// Number of requests that this thread has decided for the listener.
    pub(crate) fn decided(&self) -> u64 {
        self.counters.requests(self.listener)
    }

    /// Records the latency of requests that were read at `since` and decided together, after
    /// [`decided`](Self::decided) returned `before`. Reads the clock once for all of them.
    pub(crate) fn time_together(&self, since: Timestamp, before: u64) {
        let requests = self.decided().wrapping_sub(before);
        if requests > 0 {
            let times = self.counters.times(self.listener);
            times.add_many(self.now().since(since), requests);
        }
    }

    /// The counters of the thread.
    pub(crate) const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Puts limits into shadow mode: they are decided and counted, not enforced.
    pub fn switch_off(&self, switch: &Switch) -> Result<(), ControlError> {
        self.limiter.switch_off(switch)
    }

    /// Chooses the keys of `enforce: 25%` with this secret.
    pub fn set_enforce_secret(&self, secret: Option<EnforceSecret>) {
        self.limiter.set_enforce_secret(secret);
    }

    /// Sets the percentage of a limit from which requests count as near the limit.
    pub fn count_near_from(&self, percent: u64) {
        self.limiter.set_near_percent(percent);
    }

    /// Counts a decision of the gateway's layer.
    pub(crate) fn count_event(&self, event: &Event<'_>) {
        match event {
            Event::Admitted(verdict) | Event::WouldDeny(verdict) => {
                self.count_source(verdict.source());
                self.counters.count(self.listener, Ok(true));
            }
            Event::Denied(verdict) => {
                self.count_source(verdict.source());
                self.counters.count(self.listener, Ok(false));
            }
            // The request was counted as admitted, before its delay.
            Event::TooLate(_) | Event::Shed(_) => {}
            Event::Failed(error) => {
                self.counters.count(self.listener, Err(()));
                if let CheckError::Store(error) = error {
                    self.counters.count_undecided(self.listener);
                    self.counters.count_store_error(error);
                }
            }
            _ => {}
        }
    }

    /// The limiter, for the admin API and metrics.
    pub(crate) const fn limiter(&self) -> &PolicyLimiter<AnyStore> {
        &self.limiter
    }

    /// Replaces the policy; the state of every key is kept.
    pub fn replace(&self, policy: Policy) {
        self.limiter.replace(policy);
        if let Some(store) = self.shared_store() {
            store.store().limits_changed();
        }
    }

    /// Limits whose keys would have their whole quota again under another policy, one message each.
    pub fn fresh_starts(&self, policy: &Policy) -> Vec<String> {
        policy.fresh_starts(&self.limiter.policy())
    }

    /// Whether the state is in this process, so that no decision waits.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.limiter.store(), AnyStore::Memory(_))
    }

    /// The current time. A listener reads it once for all requests that arrived together.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Decides one limit that came with the request.
    pub(crate) async fn check_inline(
        &self,
        now: Timestamp,
        inline: &InlineLimit<'_>,
    ) -> Result<Verdict, StoreError> {
        let before = (!self.is_local()).then(|| self.clock.now());
        let verdict = self.limiter.check_inline(now, inline).await;
        if let Some(before) = before {
            self.counters.store_times.add(self.clock.now().since(before));
        }
        self.count_inline(now, slice::from_ref(inline), &verdict);
        verdict
    }

    /// Decides limits that came with one request, all or nothing, with one part for each.
    pub(crate) async fn report_inline(
        &self,
        now: Timestamp,
        inline: &[InlineLimit<'_>],
    ) -> Result<Verdict, StoreError> {
        let verdict = self.limiter.report_inline(now, inline).await;
        self.count_inline(now, inline, &verdict);
        verdict
    }

    /// Like [`report_inline`](Self::report_inline), with the state of each limit. Changes nothing.
    pub(crate) async fn explain_inline(
        &self,
        now: Timestamp,
        inline: &[InlineLimit<'_>],
    ) -> Result<Verdict, StoreError> {
        self.limiter.explain_inline(now, inline).await
    }

    /// Counts a decision that the store did not make.
    fn count_source(&self, decision_source: DecisionSource) {
        let DecisionSource::Fallback(_) = decision_source else { return };
        if let Some((_, error)) = self.shared_store().and_then(SharedStore::failure) {
            self.counters.count_store_error(&error);
        }
    }

    /// Counts the decisions of limits that came with the request, if they were charged.
    fn count_inline(
        &self,
        since: Timestamp,
        inline: &[InlineLimit<'_>],
        verdict: &Result<Verdict, StoreError>,
    ) {
        if let Ok(verdict) = verdict {
            self.count_source(verdict.source());
        }
        if !inline.iter().any(|limit| matches!(limit.op, Op::Take(_))) {
            return;
        }
        if self.times_each {
            self.counters.times(self.listener).add(self.now().since(since));
        }
        let is_allowed = verdict.as_ref().map(Verdict::is_allowed).map_err(|_| ());
        self.counters.count(self.listener, is_allowed);
        match verdict {
            Ok(verdict) => {
                for (number, limit) in inline.iter().enumerate() {
                    let is_denied = verdict.denied_by().any(|denied| denied == number);
                    self.counters.hot_keys.note(is_denied, || KeyText::InlineLimit(limit.key));
                }
            }
            Err(error) => {
                self.counters.count_undecided(self.listener);
                self.counters.count_store_error(error);
            }
        }
    }

    /// The time of the store's clock at the instant `now` of this process.
    pub(crate) fn time(&self, now: Timestamp) -> Timestamp {
        self.limiter.store().clock(now)
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.limiter.policy()
    }

    /// Resets the key of a bucket that came with a request; true if the key had a debt.
    pub(crate) async fn forget(&self, now: Timestamp, key: &[u8]) -> Result<bool, StoreError> {
        let (algorithm, limit) = (AlgorithmName::TokenBucket, &self.widest);
        let inline = |op| InlineLimit { key, algorithm, limit, op };
        let state = self.check_inline(now, &inline(Op::Read(0))).await?;
        self.check_inline(now, &inline(Op::Reset)).await?;
        Ok(!state.reset_after().is_zero())
    }

    /// Decides a request by the policy, and charges it. Limits that are settled after the response
    /// count the request in full.
    pub(crate) async fn check(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        make_mistake(request);
        let before = self.started();
        let answer = self.limiter.check(request).await;
        self.count_check(before, request, answer.as_ref());
        answer
    }

    /// The start of a decision, if it is timed.
    fn started(&self) -> Option<Timestamp> {
        (self.times_each || !self.is_local()).then(|| self.clock.now())
    }

    /// Counts a decision by the policy.
    fn count_check(
        &self,
        before: Option<Timestamp>,
        request: &Request<'_>,
        answer: Result<&Verdict, &CheckError>,
    ) {
        if let Some(before) = before {
            let time = self.clock.now().since(before);
            if self.times_each {
                self.counters.times(self.listener).add(time);
            }
            if !self.is_local() {
                self.counters.store_times.add(time);
            }
        }
        match answer {
            Ok(answer) => {
                let is_allowed = answer.is_allowed();
                self.count_source(answer.source());
                self.counters.count(self.listener, Ok(is_allowed));
                self.counters.hot_keys.note(!is_allowed, || KeyText::Policy(request));
                unmatched::note(self, request, answer);
            }
            Err(error) => {
                self.counters.count(self.listener, Err(()));
                // Other errors are mistakes of the caller.
                if let CheckError::Store(error) = error {
                    self.counters.count_undecided(self.listener);
                    self.counters.count_store_error(error);
                }
            }
        }
    }

    /// Checks whether the store answers, unless the store is known to be unavailable. Changes
    /// nothing.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        let Some(store) = self.shared_store() else { return Ok(()) };
        if let Some(fault) = store.store().fault()
            && !fault.is_outage()
        {
            return Err(fault);
        }
        let now = self.now();
        if let Some((at, error)) = store.failure()
            && !error.is_outage()
            && !matches!(error, StoreError::Misconfigured(Misconfigured::WrongType, _))
            && now.since(at) < REFUSED_LATELY
        {
            return Err(error);
        }
        let (key, algorithm, limit) = (b"probe", AlgorithmName::TokenBucket, &self.widest);
        let inline = InlineLimit { key, algorithm, limit, op: Op::Read(0) };
        store.ask(now, &inline.charge()).await.map(drop)
    }

    /// The shared store and its layers; `None` if the state is in this process.
    pub(crate) fn shared_store(&self) -> Option<&SharedStore> {
        match self.limiter.store() {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(store) => Some(store),
        }
    }

    /// Statistics of leased units; `None` if the state is in this process.
    pub(crate) fn leases(&self) -> Option<LeaseStats> {
        self.shared_store().map(|store| store.stats().leases)
    }

    /// Returns leased units to Redis; called at shutdown, after the last request.
    pub async fn give_back(&self) {
        if let Some(store) = self.shared_store() {
            store.return_leases().await;
        }
    }

    /// Whether the circuit of some server is open.
    pub(crate) fn is_degraded(&self) -> bool {
        let is_open = |circuit: &CircuitReport| circuit.state != CircuitState::Closed;
        let is_degraded =
            |store: &SharedStore| store.drill().is_some() || store.circuits().iter().any(is_open);
        self.shared_store().is_some_and(is_degraded)
    }

    /// Number of charges denied from the deny cache, and number of entries; `None` if the state is
    /// in this process.
    pub(crate) fn deny_cache(&self) -> Option<(u64, usize)> {
        let stats = self.shared_store()?.stats();
        Some((stats.deny_cache_hits, stats.deny_cache_entries))
    }

    /// Statistics of local decisions; `None` if the state is in this process.
    pub(crate) fn local(&self) -> Option<LocalStats> {
        self.shared_store().map(|store| store.stats().local)
    }

    /// Number of nodes that share the limits; `None` if all state is in this process.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.shared_store().map(SharedStore::nodes)
    }

    /// Statistics of the memory store; `None` if the state is in a shared store.
    pub(crate) fn memory(&self) -> Option<MemoryStats> {
        match self.limiter.store() {
            AnyStore::Memory(store) => Some(store.stats()),
            AnyStore::Redis(_) => None,
        }
    }

    /// The verdict of [`RateLimitService::check`], without charging.
    pub(crate) async fn peek(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.limiter.peek(request).await
    }

    /// Returns the units that a request was charged.
    pub(crate) async fn refund(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.limiter.refund(request).await
    }

    /// Resets the keys of a request.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.limiter.reset(request).await
    }

    /// Blocks the keys of a request under limits with `block_for`; zero lifts their blocks. Returns the
    /// number of limits.
    pub(crate) async fn block(
        &self,
        request: &Request<'_>,
        span: Span,
    ) -> Result<usize, CheckError> {
        self.limiter.block(request, span).await
    }

    /// The decision of every limit of the policy, with its state.
    pub(crate) async fn explain(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.limiter.explain(request).await
    }
}

/// Panics on purpose, so that tests can show that a bug ends only one connection.
#[cfg_attr(not(feature = "fuzzing"), expect(unused_variables, reason = "made by tests only"))]
fn make_mistake(request: &Request<'_>) {
    #[cfg(feature = "fuzzing")]
    assert!(request.domain != crate::fuzzing::MISTAKE, "a mistake, as asked for");
}

/// Polls a future that never waits, as those of a [local](RateLimitService::is_local) service, and
/// returns its value.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
