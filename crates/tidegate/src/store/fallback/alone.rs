//! Decisions without the store.

use std::sync::atomic::Ordering;

use tidegate_core::{Algorithm, Decision, LeaseId, Limit, Op, Outcome, Span, State, Timestamp};

use crate::scaling::{first_share_of_node, share_of_node};
use crate::store::circuits::USUAL_WAIT;
use crate::store::partition::all_allowed;
use crate::store::shared::Layers;
use crate::store::{Batch, Charge, DecisionSource, OnStoreFailure, Reserving, Store, StoreError};

/// Marks the ids of leases that the fallback granted. The store's ids are below 2^53.
const OWN_LEASE: u64 = 1 << 63;
/// The wait of a denial if the store is misconfigured and an operator has to act.
const REFUSED: Span = Span::from_secs(1);

/// Whether a charge releases or renews a lease that the fallback granted.
pub(in crate::store) fn is_own_lease(charge: &Charge<'_>) -> bool {
    matches!(charge.op, Op::Release(it) | Op::Renew(it) if it.number() >= OWN_LEASE)
}

/// Whether only the store can decide a charge.
fn needs_store(charge: &Charge<'_>) -> bool {
    match charge.op {
        // Only the store knows whether the reservation is open.
        _ if Reserving::closes(charge.reserving) => true,
        Op::Release(_) | Op::Renew(_) => !is_own_lease(charge),
        Op::Reset => true,
        _ => false,
    }
}

/// How a charge is decided.
enum FallbackAction {
    /// By this node's share of the limit.
    Share(Limit),
    /// With this decision.
    Said(Decision),
}

impl<S: Store + 'static> Layers<S> {
    /// Decides a batch by the policies for a store that failed with `error`. Fails with that error
    /// if only the store can decide one of the charges.
    pub(in crate::store) fn decide_alone(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        error: &StoreError,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        if !charges.iter().all(is_own_lease) {
            self.fallback.record_failure(now, error);
        }
        let now = self.time(now);
        if batch.is_all_or_nothing() {
            let mut own = self.take_shares(now, charges, error);
            for charge in charges {
                if let (Op::Take(cost), true) = (charge.op, all_allowed(&own)) {
                    self.fallback.pending.owe(now, charge, cost);
                }
            }
            decisions.append(&mut own);
        } else {
            self.check_decidable(now, charges.iter().map(|charge| (charge, error)))?;
            let each = charges.iter().map(|charge| self.decide_one(now, charge, error));
            let own: Option<Vec<Decision>> = each.collect();
            decisions.extend(own.ok_or_else(|| error.clone())?);
        }
        Ok(self.count(charges, error))
    }

    /// Fails if only the store can decide one of these charges, each beside the error of its server: the caller
    /// gets no decision then, so no charge may take units. A reset still applies to this node's share and
    /// pending debits, and a lease that was granted here is still released.
    pub(super) fn check_decidable<'a>(
        &self,
        now: Timestamp,
        charges: impl Iterator<Item = (&'a Charge<'a>, &'a StoreError)> + Clone,
    ) -> Result<(), StoreError> {
        let Some((_, refusal)) = charges.clone().find(|(charge, _)| needs_store(charge)) else {
            return Ok(());
        };
        for (charge, error) in charges {
            if is_own_lease(charge) || charge.op == Op::Reset {
                let _ = self.decide_one(now, charge, error);
            }
        }
        Err(refusal.clone())
    }

    /// Decides takes and reads without taking units.
    pub(super) fn read_shares(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        error: &StoreError,
    ) -> Vec<Decision> {
        let reads = charges.iter().map(|charge| Charge { op: read(charge.op), ..*charge });
        let reads: Vec<Charge<'_>> = reads.collect();
        self.take_shares(self.time(now), &reads, error)
    }

    /// Decides takes and reads all or nothing, without a pending debit for admitted units.
    fn take_shares(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        error: &StoreError,
    ) -> Vec<Decision> {
        let actions: Vec<FallbackAction> =
            charges.iter().map(|it| self.action(now, it, error)).collect();
        let is_denied =
            actions.iter().any(|it| matches!(it, FallbackAction::Said(it) if !it.is_allowed()));
        let shares = charges.iter().zip(&actions).filter_map(|(charge, action)| match action {
            FallbackAction::Share(limit) => {
                let op = if is_denied { read(charge.op) } else { charge.op };
                Some(Charge { limit, op, ..*charge })
            }
            FallbackAction::Said(_) => None,
        });
        let (shares, mut own): (Vec<Charge<'_>>, _) = (shares.collect(), Vec::new());
        self.fallback.shares.decide_together(now, &shares, |decision| own.push(mark(decision)));
        let mut own = own.into_iter();
        let each = actions.iter().filter_map(|action| match action {
            FallbackAction::Said(decision) => Some(*decision),
            FallbackAction::Share(_) => own.next(),
        });
        each.collect()
    }

    /// Decides a charge without the store. A reset applies to this node only. `None` for an invalid
    /// lease.
    fn decide_one(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        error: &StoreError,
    ) -> Option<Decision> {
        let own = |lease: LeaseId| LeaseId::new(lease.number() & !OWN_LEASE);
        let op = match charge.op {
            Op::Release(lease) => Op::Release(own(lease)?),
            Op::Renew(lease) => Op::Renew(own(lease)?),
            // The store may have returned the units already, and they must not be returned twice.
            Op::Return(_) if may_have_arrived(error) => Op::Read(0),
            op => op,
        };
        let action = match op {
            Op::Release(_) | Op::Renew(_) | Op::Reset => {
                FallbackAction::Share(self.share_of(charge))
            }
            _ => self.action(now, charge, error),
        };
        let decision = match &action {
            FallbackAction::Share(limit) => {
                mark(self.fallback.shares.decide(now, &Charge { limit, op, ..*charge }))
            }
            FallbackAction::Said(decision) => *decision,
        };
        match op {
            Op::Take(cost) if decision.is_allowed() => {
                self.fallback.pending.owe(now, charge, cost);
            }
            Op::Force(units) => self.fallback.pending.owe(now, charge, units),
            Op::Return(units) => self.fallback.pending.give_back(now, charge, units),
            Op::Reset => self.fallback.pending.forget(charge),
            _ => {}
        }
        Some(decision)
    }

    /// How a charge is decided.
    fn action(&self, now: Timestamp, charge: &Charge<'_>, error: &StoreError) -> FallbackAction {
        let idle = charge.limit.decide(&mut State::default(), now, charge.op);
        match self.mode(charge, error) {
            // A charge that is denied for an idle key is denied for every key.
            _ if !idle.is_allowed() && charge.is_deniable() => FallbackAction::Said(idle),
            OnStoreFailure::Local => FallbackAction::Share(self.share_of(charge)),
            OnStoreFailure::Allow => {
                FallbackAction::Said(Decision { unbooked: 0, lease: None, ..idle })
            }
            OnStoreFailure::Deny => {
                let wait = match error {
                    StoreError::CircuitOpen { retry_after } | StoreError::Drill { retry_after } => {
                        *retry_after
                    }
                    error if error.is_outage() => USUAL_WAIT,
                    _ => REFUSED,
                };
                // Even if a request is sent to the store now, the answer takes some time.
                let wait = wait.max(Span::from_millis(1));
                let outcome = match charge.is_deniable() {
                    true => Outcome::Deny { retry_after: Some(wait) },
                    false => Outcome::Allow,
                };
                let (remaining, unbooked, lease) = (0, 0, None);
                FallbackAction::Said(Decision {
                    outcome,
                    remaining,
                    reset_after: wait,
                    unbooked,
                    lease,
                    ..idle
                })
            }
        }
    }

    /// The mode of a charge. `allow` applies only if the store is unavailable. If the store refuses
    /// or this process is overloaded, the node's share bounds what is admitted.
    fn mode(&self, charge: &Charge<'_>, error: &StoreError) -> OnStoreFailure {
        match charge.options.on_store_failure.unwrap_or(self.fallback.otherwise) {
            OnStoreFailure::Allow
                if !error.is_outage() || matches!(error, StoreError::Overloaded) =>
            {
                OnStoreFailure::Local
            }
            mode => mode,
        }
    }

    /// This node's share of a charge's limit; the limit itself if it cannot be divided. It is the
    /// smaller first share until the charge's server has answered.
    pub(super) fn share_of(&self, charge: &Charge<'_>) -> Limit {
        match self.has_answered(charge) {
            true => share_of_node(charge.limit, self.fallback.nodes.count()),
            false => first_share_of_node(charge.limit, self.fallback.nodes.count()),
        }
    }

    /// Counts charges by their modes; returns the worst.
    pub(super) fn count(&self, charges: &[Charge<'_>], error: &StoreError) -> DecisionSource {
        // Leases that the fallback granted do not concern the store.
        let charges = charges.iter().filter(|charge| !is_own_lease(charge));
        let sources = charges.map(|charge| {
            let mode = self.mode(charge, error);
            self.fallback.answered[mode as usize].fetch_add(1, Ordering::Relaxed);
            DecisionSource::Fallback(mode)
        });
        sources.max().unwrap_or_default()
    }
}

/// Whether the store may have carried out a charge that it gave no answer to.
const fn may_have_arrived(error: &StoreError) -> bool {
    let is_unsent = matches!(
        error,
        StoreError::CircuitOpen { .. } | StoreError::Drill { .. } | StoreError::Overloaded
    );
    !is_unsent
}

/// The operation without taking units.
const fn read(op: Op) -> Op {
    match op {
        Op::Take(cost) => Op::Read(cost),
        op => op,
    }
}

/// Marks the lease as granted by the fallback.
fn mark(decision: Decision) -> Decision {
    let lease = decision.lease.and_then(|lease| LeaseId::new(lease.number() | OWN_LEASE));
    Decision { lease, ..decision }
}

#[cfg(test)]
#[path = "alone_tests.rs"]
mod tests;
