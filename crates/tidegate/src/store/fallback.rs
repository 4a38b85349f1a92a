//! Decides charges while the store is unavailable, by the `on_store_failure` of each limit.
//!
//! | `on_store_failure` | decision | admitted at most, while the store is unavailable |
//! |---|---|---|
//! | `local` | by this node's share of the limit, from the last state that the store returned | what the shares refill: 1.5 times the limit over all nodes, and at least one unit on each |
//! | `allow` | admitted, unless the limit admits nothing at all | everything |
//! | `deny` | denied until the store is tried again | nothing |
//!
//! A share is 1.5 times rate and burst, divided by the number of nodes. It starts with the fraction
//! of the limit that was free when the store last answered for the key, so an exhausted key stays
//! exhausted until it would have refilled. A key that this node has never sent to the store starts
//! with the whole share. So does every in-flight limit, because this node does not see other nodes
//! release their places. A sliding window counts all used units as used in the current window.
//!
//! Until a server has decided its first charge for this process, a share is a sixth of that: rate
//! and burst divided by four times the number of nodes, at least one unit. A process that restarts
//! during an outage forgets the units that it admitted, so each restart admits this smaller share
//! again.
//!
//! Admitted units become pending debits. When the store recovers, at most [`AT_ONCE`] keys are
//! debited every [`PAUSE`], never below empty ([`Op::Force`](tidegate_core::Op::Force)). A charge
//! whose answer was lost may have been carried out, and is debited anyway: denying too much is
//! safer than admitting too much (F22). For the same reason, a debit whose answer was lost is
//! repeated.
//!
//! # Promise
//! Takes, reads, returns and debits never fail. Resets, releases and renewals of leases that the
//! store granted, and settlements of reservations fail while the store is unavailable, and a batch
//! with one of them takes no units. Returned units reduce the pending debit of their
//! key; units beyond it are dropped. A return whose answer was lost is dropped, because the store
//! may have carried it out.
//!
//! In an all-or-nothing batch, the charges of an unavailable server are first read from their
//! shares, and taken last. If a share denies, nothing is taken from the store; if the store denies,
//! nothing is taken from a share. If another request exhausts a share in between, the units taken
//! from the store are returned.
//!
//! A store that refuses (a wrong password, no memory: [`StoreError::is_outage`] is false) is not unavailable:
//! `allow` then means `local`.

mod alone;
mod known;
mod pending_debits;

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, Op, Span, Timestamp};

pub(super) use self::alone::is_own_lease;
use self::pending_debits::{Debit, PendingDebits};
use super::background::Background;
use super::circuits::USUAL_WAIT;
use super::memory::MemoryStore;
use super::partition::{Partition, all_allowed, fresh, returning};
use super::shared::Layers;
use super::{Batch, Charge, DecisionSource, Nodes, OnStoreFailure, Store, StoreError};
use crate::sync::{Mutex, lock};

/// Keys that are debited in one call when the store recovers.
pub const AT_ONCE: usize = 64;
/// The pause between such calls.
pub const PAUSE: Span = Span::from_millis(10);
/// The pause if no key could be debited.
const LONG_PAUSE: Span = Span::from_millis(250);
/// The memory bound of the last known states: about a million keys.
pub(super) const LOCAL_BYTES: u64 = 32 << 20;

/// State for decisions without the store.
#[derive(Debug)]
pub(super) struct Fallback {
    nodes: Nodes,
    /// The mode of limits without `on_store_failure`.
    otherwise: OnStoreFailure,
    /// The last known state of each key, as the state of this node's share. While the store is
    /// unavailable, it includes the units that this node admits.
    pub(super) shares: MemoryStore,
    pending: PendingDebits,
    /// Decisions by mode.
    answered: [AtomicU64; OnStoreFailure::ALL.len()],
    booked_keys: AtomicU64,
    booked_units: AtomicU64,
    /// The endpoints that have decided a charge since the start, one bit each.
    answered_endpoints: AtomicU64,
    /// The last failure of the store, and when it was.
    failed: Mutex<Option<(Timestamp, StoreError)>>,
}

/// Decisions made without the store, and their debits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Charges by mode, in the order of [`OnStoreFailure::ALL`].
    pub answered: [u64; OnStoreFailure::ALL.len()],
    /// Keys with pending debits.
    pub owing_keys: usize,
    /// Debits made.
    pub booked_keys: u64,
    /// Units debited.
    pub booked_units: u64,
    /// Units that are never debited, because there was no room for their keys.
    pub dropped_units: u64,
}

impl Fallback {
    pub(super) fn new(nodes: Nodes, otherwise: OnStoreFailure, shares: MemoryStore) -> Self {
        Self {
            nodes,
            otherwise,
            shares,
            pending: PendingDebits::default(),
            answered: Default::default(),
            booked_keys: AtomicU64::new(0),
            booked_units: AtomicU64::new(0),
            answered_endpoints: AtomicU64::new(0),
            failed: Mutex::default(),
        }
    }

    pub(super) const fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(super) fn stats(&self) -> FallbackStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (owing_keys, dropped_units) = self.pending.tally();
        FallbackStats {
            answered: [0, 1, 2].map(|mode: usize| load(&self.answered[mode])),
            owing_keys,
            booked_keys: load(&self.booked_keys),
            booked_units: load(&self.booked_units),
            dropped_units,
        }
    }

    /// The last failure of the store, and when it was.
    pub(super) fn failure(&self) -> Option<(Timestamp, StoreError)> {
        lock(&self.failed).clone()
    }

    /// Records a failure. An open circuit does not replace the error that names the cause.
    pub(super) fn record_failure(&self, now: Timestamp, error: &StoreError) {
        let mut failed = lock(&self.failed);
        match (&mut *failed, error) {
            (Some((at, known)), StoreError::CircuitOpen { .. })
                if !matches!(known, StoreError::CircuitOpen { .. }) =>
            {
                *at = now;
            }
            (failed, error) => *failed = Some((now, error.clone())),
        }
    }

    fn count_booked(&self, debits: &[Debit]) -> usize {
        let units = debits.iter().map(|debit| debit.units).sum();
        self.booked_keys.fetch_add(debits.len() as u64, Ordering::Relaxed);
        self.booked_units.fetch_add(units, Ordering::Relaxed);
        debits.len()
    }
}

impl<S: Store + 'static> Layers<S> {
    /// The present time, for a request that arrived at `now` and has waited for the store since. At
    /// the old time, a share that other requests have charged meanwhile would look impossible, and
    /// a repair would refill it.
    pub(super) fn later(&self, now: Timestamp) -> Timestamp {
        self.clock.now().max(now)
    }

    /// The bit of the endpoint that decides a charge.
    fn endpoint_bit(&self, charge: &Charge<'_>) -> u64 {
        1 << self.endpoint(charge)
    }

    /// Whether the endpoint of a charge has answered since the start.
    pub(super) fn has_answered(&self, charge: &Charge<'_>) -> bool {
        let answered = self.fallback.answered_endpoints.load(Ordering::Relaxed);
        answered & self.endpoint_bit(charge) != 0
    }

    /// Asks the store, and records from its answers that the endpoints are known and which states
    /// the keys have.
    pub(super) async fn ask(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let before = decisions.len();
        let source = self.decide_leased(now, batch, decisions).await?;
        let (charges, answered) = (batch.charges, &self.fallback.answered_endpoints);
        let bits = charges.iter().fold(0, |bits, charge| bits | self.endpoint_bit(charge));
        if answered.load(Ordering::Relaxed) & bits != bits {
            answered.fetch_or(bits, Ordering::Relaxed);
        }
        let at = self.time(now);
        for (charge, decision) in charges.iter().zip(&decisions[before..]) {
            self.learn(at, charge, decision);
        }
        Ok(source)
    }

    /// The error of a charge that cannot be sent to the store; `None` if it can be sent.
    fn unavailable(&self, now: Timestamp, charge: &Charge<'_>) -> Option<StoreError> {
        if is_own_lease(charge) {
            // The store does not know leases that the fallback granted.
            return Some(StoreError::CircuitOpen { retry_after: USUAL_WAIT });
        }
        let error = self.is_shard_sendable(charge).err()?;
        (!self.is_held(now, charge)).then_some(error)
    }

    /// Decides charges in the store where it is available, and by the fallback elsewhere.
    pub(super) async fn decide_or_fall_back(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let of = |charge| self.unavailable(now, charge);
        let unavailable: Vec<Option<StoreError>> = batch.charges.iter().map(of).collect();
        let partition = Partition::new(batch.charges, |i| unavailable[i].is_some());
        let errors: Vec<StoreError> = unavailable.into_iter().flatten().collect();
        let there = batch.of(&partition.there);
        if let (true, Some(error)) = (batch.is_all_or_nothing(), errors.first()) {
            return match there.charges {
                [] => self.decide_alone(now, batch, error, decisions),
                _ => self.decide_divided(now, batch, (&partition, error), decisions).await,
            };
        }
        if let Err(error) = self.check_decidable(self.time(now), partition.here.iter().zip(&errors))
        {
            // The caller gets no decision, so the store takes no units either.
            let is_free = |charge: &&Charge<'_>| !matches!(charge.op, Op::Take(_) | Op::Force(_));
            let free: Vec<_> = there.charges.iter().filter(is_free).copied().collect();
            if !free.is_empty() {
                let _ = self.ask(now, batch.of(&free), &mut Vec::new()).await;
            }
            return Err(error);
        }
        let (mut own, mut others, mut source) = (Vec::new(), Vec::new(), DecisionSource::Store);
        if !there.charges.is_empty() {
            source = match self.ask(now, there, &mut others).await {
                Err(error) => self.decide_alone(self.later(now), there, &error, &mut others)?,
                Ok(source) => source,
            };
        }
        // The store may have taken a while, and shares need the present time.
        let now = self.later(now);
        for (charge, error) in partition.here.iter().zip(&errors) {
            source = source.max(self.decide_alone(now, Batch::one(charge), error, &mut own)?);
        }
        partition.merge(own, others, decisions);
        Ok(source)
    }

    /// Decides charges all or nothing, some by their shares and some in the store.
    async fn decide_divided(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        (partition, error): (&Partition<'_>, &StoreError),
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let (here, there) = (batch.of(&partition.here), batch.of(&partition.there));
        let takes = batch.charges.iter().any(|charge| matches!(charge.op, Op::Take(_)));
        let (mut own, mut others) = (self.read_shares(now, here.charges, error), Vec::new());
        if takes && !all_allowed(&own) {
            partition.merge(own, fresh(there.charges, self.time(now)), decisions);
            return Ok(self.count(here.charges, error));
        }
        if let Err(error) = self.ask(now, there, &mut others).await {
            return self.decide_alone(self.later(now), batch, &error, decisions);
        }
        let now = self.later(now);
        let source = if all_allowed(&others) {
            own.clear();
            let source = self.decide_alone(now, here, error, &mut own)?;
            if !all_allowed(&own) {
                let taken = there.charges.iter().zip(&others);
                let taken: Vec<Charge<'_>> =
                    taken.filter_map(|(charge, decision)| returning(charge, decision)).collect();
                // Units that cannot be returned are lost.
                let _ = self.ask(now, Batch::each(&taken), &mut Vec::new()).await;
                others = fresh(there.charges, self.time(now));
            }
            source
        } else {
            self.count(here.charges, error)
        };
        partition.merge(own, others, decisions);
        Ok(source)
    }

    /// Makes some pending debits; returns how many.
    async fn debit_some(&self) -> usize {
        let local = self.clock.now();
        let now = self.time(local);
        let is_sendable = |charge: &Charge<'_>| self.is_shard_sendable(charge).is_ok();
        let debits = self.fallback.pending.due(now, AT_ONCE, is_sendable);
        if debits.is_empty() {
            return 0;
        }
        let charges: Vec<Charge<'_>> = debits.iter().map(Debit::charge).collect();
        let mut decisions = Vec::with_capacity(charges.len());
        match self.ask(local, Batch::each(&charges), &mut decisions).await {
            Ok(_) => self.fallback.count_booked(&debits),
            Err(error) if error.is_outage() => {
                self.fallback.pending.owe_again(now, debits);
                0
            }
            // One by one, so that a key that the store refuses does not make it debit the others
            // repeatedly.
            Err(_) => self.debit_each(local, debits).await,
        }
    }

    /// Makes debits one by one; returns how many.
    async fn debit_each(&self, local: Timestamp, debits: Vec<Debit>) -> usize {
        let (mut booked, mut rest) = (0, Vec::new());
        for debit in debits {
            let (charge, mut decisions) = (debit.charge(), Vec::with_capacity(1));
            match self.ask(local, Batch::one(&charge), &mut decisions).await {
                Ok(_) => booked += self.fallback.count_booked(std::slice::from_ref(&debit)),
                Err(error) => rest.push(debit.refused_by(&error)),
            }
        }
        self.fallback.pending.owe_again(self.time(local), rest);
        booked
    }
}

/// Makes pending debits until the store is dropped.
pub(super) async fn keep_debiting<S: Store + 'static>(
    layers: Weak<Layers<S>>,
    background: Background,
) {
    let mut pause = LONG_PAUSE;
    loop {
        background.sleep(pause).await;
        let Some(layers) = layers.upgrade() else { return };
        pause = match layers.debit_some().await {
            0 => LONG_PAUSE,
            _ => PAUSE,
        };
    }
}
