//! What every listener asks: one store, one clock and one policy for the whole process.

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
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::SharedOptions;
use tidegate::store::{DecisionSource, Misconfigured, Nodes, Store, StoreError};
use tidegate::{
    AlgorithmName, Clock, Hashing, Limit, MemoryStats, Op, Rate, Span, Timestamp, Verdict,
};
use tidegate_tower::Event;

use crate::observability::hot_keys::KeyText;
use crate::observability::log::Log;
use crate::observability::status::{Counters, Status};
use crate::observability::unmatched;
use crate::store::{AnyStore, SharedStore, StoreThread};
use crate::transport::Protocol;

/// For so long after the store has last refused the daemon is not ready: reading may go well where writing
/// is refused.
const REFUSED_LATELY: Span = Span::from_secs(10);

/// Decides for every listener. Cheap to share: clones are handles to the same service.
#[derive(Clone, Debug)]
pub struct RateLimitService {
    limiter: PolicyLimiter<AnyStore>,
    clock: Clock,
    /// The bucket that takes longest to refill: any other's debt fits into it.
    widest: Limit,
    status: Arc<Status>,
    /// Those of the thread that asks.
    counters: Arc<Counters>,
    /// The listener that it asks for.
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

    /// The same, on another clock.
    pub fn with_clock(clock: Clock) -> io::Result<Self> {
        Self::in_memory(MemoryStore::DEFAULT_BYTES, clock)
    }

    /// A service whose state is in this process and takes at most so many bytes.
    pub fn in_memory(bytes: u64, clock: Clock) -> io::Result<Self> {
        let store = MemoryStore::new(bytes, Hashing::Fast)?.with_clock(clock.clone());
        Self::with_store(AnyStore::Memory(store), clock, None).map_err(io::Error::other)
    }

    /// A service whose state is in Redis or Valkey, by the clock of those.
    pub fn connect(config: RedisConfig) -> Result<Self, StoreError> {
        Self::connect_with(config, SharedOptions::default())
    }

    /// The same, answering so while those are away.
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

    /// The same with this log. For the start: the counters are new.
    #[must_use]
    pub fn logging(mut self, log: Log) -> Self {
        self.status = Arc::new(Status::new(self.clock.now(), log));
        self.counters = self.status.for_thread();
        self
    }

    /// What the daemon knows about itself.
    pub const fn status(&self) -> &Arc<Status> {
        &self.status
    }

    /// The same service, counting for the thread that this is called in.
    pub(crate) fn for_thread(&self) -> Self {
        Self { counters: self.status.for_thread(), ..self.clone() }
    }

    /// The same service, counting for a listener.
    pub(crate) fn behind(&self, listener: Protocol) -> Self {
        Self { listener, ..self.clone() }
    }

    /// The same service, leaving it to the listener to time decisions.
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

    /// What the thread counts.
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

    /// From how many hundredths of a limit on what is taken counts as near.
    pub fn count_near_from(&self, percent: u64) {
        self.limiter.set_near_percent(percent);
    }

    /// Counts what the layer of the gateway decided.
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
            // Was counted as admitted, before its delay.
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

    /// The limiter, for those who run the daemon.
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

    /// Now. A listener asks once for all the requests that came together.
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

    /// The same with the state of each limit. Changes nothing.
    pub(crate) async fn explain_inline(
        &self,
        now: Timestamp,
        inline: &[InlineLimit<'_>],
    ) -> Result<Verdict, StoreError> {
        self.limiter.explain_inline(now, inline).await
    }

    /// Takes note of an answer that the store did not give.
    fn count_source(&self, decision_source: DecisionSource) {
        let DecisionSource::Fallback(_) = decision_source else { return };
        if let Some((_, error)) = self.shared_store().and_then(SharedStore::failure) {
            self.counters.count_store_error(&error);
        }
    }

    /// Counts what limits that came with a request decided, if they were charged.
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

    /// The time of the clock that decides, when it is `now` here.
    pub(crate) fn time(&self, now: Timestamp) -> Timestamp {
        self.limiter.store().clock(now)
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.limiter.policy()
    }

    /// Forgets a key of a bucket that came with a request, and says whether there was something.
    pub(crate) async fn forget(&self, now: Timestamp, key: &[u8]) -> Result<bool, StoreError> {
        let (algorithm, limit) = (AlgorithmName::TokenBucket, &self.widest);
        let inline = |op| InlineLimit { key, algorithm, limit, op };
        let state = self.check_inline(now, &inline(Op::Read(0))).await?;
        self.check_inline(now, &inline(Op::Reset)).await?;
        Ok(!state.reset_after().is_zero())
    }

    /// Decides by the policy, and charges. Limits that are settled later count the request in full.
    pub(crate) async fn check(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        make_mistake(request);
        let before = self.started();
        let answer = self.limiter.check(request).await;
        self.count_check(before, request, answer.as_ref());
        answer
    }

    /// When a decision starts, if it is timed.
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
                // Other reasons are its sender's.
                if let CheckError::Store(error) = error {
                    self.counters.count_undecided(self.listener);
                    self.counters.count_store_error(error);
                }
            }
        }
    }

    /// Whether the store answers, unless it is known to be away. Changes nothing.
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

    /// The servers that keep the state, and what stands in for them; `None` if it is in this process.
    pub(crate) fn shared_store(&self) -> Option<&SharedStore> {
        match self.limiter.store() {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(store) => Some(store),
        }
    }

    /// What has become of the units that were taken ahead; `None` if the state is in this process.
    pub(crate) fn leases(&self) -> Option<LeaseStats> {
        self.shared_store().map(|store| store.stats().leases)
    }

    /// Returns leased units to Redis; for the end, when no more requests come.
    pub async fn give_back(&self) {
        if let Some(store) = self.shared_store() {
            store.return_leases().await;
        }
    }

    /// Whether some of the servers that keep the state are not asked at the moment.
    pub(crate) fn is_degraded(&self) -> bool {
        let is_open = |circuit: &CircuitReport| circuit.state != CircuitState::Closed;
        let is_degraded =
            |store: &SharedStore| store.drill().is_some() || store.circuits().iter().any(is_open);
        self.shared_store().is_some_and(is_degraded)
    }

    /// How many charges were denied without asking Redis, and how many denials are remembered; `None` if
    /// the state is in this process.
    pub(crate) fn deny_cache(&self) -> Option<(u64, usize)> {
        let stats = self.shared_store()?.stats();
        Some((stats.deny_cache_hits, stats.deny_cache_entries))
    }

    /// What this node has decided by itself; `None` if all state is in this process.
    pub(crate) fn local(&self) -> Option<LocalStats> {
        self.shared_store().map(|store| store.stats().local)
    }

    /// Number of nodes that share the limits; `None` if all state is in this process.
    pub(crate) fn nodes(&self) -> Option<&Nodes> {
        self.shared_store().map(SharedStore::nodes)
    }

    /// What the store in this process holds; `None` if the state is elsewhere.
    pub(crate) fn memory(&self) -> Option<MemoryStats> {
        match self.limiter.store() {
            AnyStore::Memory(store) => Some(store.stats()),
            AnyStore::Redis(_) => None,
        }
    }

    /// What [`RateLimitService::check`] would say.
    pub(crate) async fn peek(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.limiter.peek(request).await
    }

    /// Gives back what a request was charged.
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

    /// What every limit of the policy would say, and how it stands.
    pub(crate) async fn explain(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.limiter.explain(request).await
    }
}

/// That a mistake of ours costs one connection and no more is shown by making one.
#[cfg_attr(not(feature = "fuzzing"), expect(unused_variables, reason = "made by tests only"))]
fn make_mistake(request: &Request<'_>) {
    #[cfg(feature = "fuzzing")]
    assert!(request.domain != crate::fuzzing::MISTAKE, "a mistake, as asked for");
}

/// The value of a future that waits for nothing, as all are that ask a [local](RateLimitService::is_local) service.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
