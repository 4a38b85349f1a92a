//! What is decided without the store.

use std::sync::atomic::Ordering;

use tidegate_core::{Algorithm, Decision, LeaseId, Limit, Op, Outcome, Span, State, Timestamp};

use super::Inner;
use crate::scaling::{first_share_of_node, share_of_node};
use crate::store::breaker::USUAL_WAIT;
use crate::store::{Charge, DecisionSource, OnStoreFailure, Store, StoreError};

/// Marks the numbers of leases that were given without the store. Its own are below 2^53.
const LOCAL_LEASE: u64 = 1 << 63;
/// How long to wait for somebody to act.
const REFUSED: Span = Span::from_secs(1);

/// Whether a charge is about a lease that was given here.
pub(super) fn is_local(charge: &Charge<'_>) -> bool {
    matches!(charge.op, Op::Release(it) | Op::Renew(it) if it.number() >= LOCAL_LEASE)
}

/// What is to be done with a charge.
enum FallbackAction {
    /// Its share decides.
    Share(Limit),
    /// This is the answer.
    Said(Decision),
}

impl<S: Store> Inner<S> {
    /// Decides charges as their policies say for a store that failed with `error`: what asks all or
    /// nothing, the rest each alone.
    pub(super) fn decide_alone(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        error: &StoreError,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if charges.len() == 1 || !charges.iter().all(Charge::is_deniable) {
            return self.decide_each_alone(now, charges, error, decisions);
        }
        let before = decisions.len();
        let (_, decision_source) = self.take_alone(now, charges, error, decisions);
        if decisions[before..].iter().all(Decision::is_allowed) {
            self.owe(now, charges);
        }
        Ok(decision_source)
    }

    /// The same of charges that all ask, and nothing is owed yet for what is let in. Says when that was, by the
    /// store's clock.
    pub(super) fn take_alone(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        error: &StoreError,
        decisions: &mut Vec<Decision>,
    ) -> (Timestamp, DecisionSource) {
        self.note(now, error);
        let now = self.time(now);
        let words: Vec<FallbackAction> =
            charges.iter().map(|it| self.word(now, it, error)).collect();
        let is_denied =
            |word: &FallbackAction| matches!(word, FallbackAction::Said(it) if !it.is_allowed());
        let is_denied = words.iter().any(is_denied);
        let shares: Vec<Charge<'_>> = charges.iter().zip(&words).filter_map(share).collect();
        let shares: Vec<Charge<'_>> =
            shares.into_iter().map(|it| if is_denied { read(it) } else { it }).collect();
        let mut own = Vec::with_capacity(shares.len());
        match &shares[..] {
            [] => {}
            [one] => own.push(self.local.decide(now, one)),
            several => {
                self.local.decide_together(now, several, |decision| own.push(decision));
            }
        }
        let (mut own, mut decision_source) = (own.into_iter(), DecisionSource::Store);
        for (charge, word) in charges.iter().zip(&words) {
            let decision = match word {
                FallbackAction::Said(decision) => Some(*decision),
                FallbackAction::Share(_) => own.next().map(mark),
            };
            decisions.extend(decision);
            decision_source = decision_source.max(self.count(charge, error));
        }
        (now, decision_source)
    }

    /// A request is let in by what was decided alone.
    pub(super) fn owe(&self, now: Timestamp, charges: &[Charge<'_>]) {
        let now = self.time(now);
        for charge in charges {
            if let Op::Take(cost) = charge.op {
                self.owed.owe(now, charge, cost);
            }
        }
    }

    /// The same, each alone.
    pub(super) fn decide_each_alone(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        error: &StoreError,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if !charges.iter().all(is_local) {
            self.note(now, error);
        }
        let now = self.time(now);
        let (before, mut decision_source) = (decisions.len(), DecisionSource::Store);
        for charge in charges {
            match self.decide_one(now, charge, error) {
                Some(decision) => decisions.push(decision),
                None => {
                    decisions.truncate(before);
                    return Err(error.clone());
                }
            }
            decision_source = decision_source.max(self.count(charge, error));
        }
        Ok(decision_source)
    }

    /// `None` if nobody but the store can do it.
    fn decide_one(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        error: &StoreError,
    ) -> Option<Decision> {
        let word = self.word(now, charge, error);
        // It may have arrived: units that come back twice are units too many.
        let is_lost = matches!(charge.op, Op::Return(_)) && may_have_arrived(error);
        let own = match (&word, charge.op) {
            (_, Op::Release(_) | Op::Renew(_)) if !is_local(charge) => return None,
            (_, Op::Release(lease) | Op::Renew(lease)) => {
                let lease = LeaseId::new(lease.number() & !LOCAL_LEASE)?;
                let op = match charge.op {
                    Op::Release(_) => Op::Release(lease),
                    _ => Op::Renew(lease),
                };
                let limit = self.share_of(charge);
                return Some(mark(
                    self.local.decide(now, &Charge { op, limit: &limit, ..*charge }),
                ));
            }
            (_, Op::Reset) => {
                let limit = self.share_of(charge);
                self.local.decide(now, &Charge { limit: &limit, ..*charge });
                self.owed.forget(now, charge);
                return None;
            }
            (FallbackAction::Share(limit), op) => {
                let op = if is_lost { Op::Read(0) } else { op };
                mark(self.local.decide(now, &Charge { limit, op, ..*charge }))
            }
            (FallbackAction::Said(decision), _) => *decision,
        };
        match charge.op {
            _ if is_lost => {}
            Op::Take(cost) if own.is_allowed() => self.owed.owe(now, charge, cost),
            Op::Force(units) => self.owed.owe(now, charge, units),
            Op::Return(units) => self.owed.give_back(now, charge, units),
            _ => {}
        }
        Some(own)
    }

    /// What is answered to a charge of which nobody knows anything.
    fn word(&self, now: Timestamp, charge: &Charge<'_>, error: &StoreError) -> FallbackAction {
        let idle = charge.limit.decide(&mut State::default(), now, charge.op);
        match self.mode(charge, error) {
            // What a key never seen is denied, everybody is.
            _ if !idle.is_allowed() && charge.is_deniable() => FallbackAction::Said(idle),
            OnStoreFailure::Local => FallbackAction::Share(self.share_of(charge)),
            OnStoreFailure::Allow => {
                FallbackAction::Said(Decision { unbooked: 0, lease: None, ..idle })
            }
            OnStoreFailure::Deny => {
                let wait = match error {
                    StoreError::Away { retry_after } => *retry_after,
                    error if error.is_outage() => USUAL_WAIT,
                    _ => REFUSED,
                };
                // Even if it is tried at this very moment, the answer takes its time.
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

    /// What the policy says. `allow` is for a store that is unavailable: a store that refuses, and more
    /// requests than may wait for it, admit no more than the node's share.
    pub(super) fn mode(&self, charge: &Charge<'_>, error: &StoreError) -> OnStoreFailure {
        match charge.options.on_store_failure.unwrap_or(self.config.otherwise) {
            OnStoreFailure::Allow
                if !error.is_outage() || matches!(error, StoreError::Overloaded) =>
            {
                OnStoreFailure::Local
            }
            mode => mode,
        }
    }

    /// This node's share of a charge's limit; the limit itself if it cannot be divided. The smaller share
    /// until the server of the charge has answered.
    pub(super) fn share_of(&self, charge: &Charge<'_>) -> Limit {
        match self.has_answered(charge) {
            true => share_of_node(charge.limit, self.config.nodes.count()),
            false => first_share_of_node(charge.limit, self.config.nodes.count()),
        }
    }

    fn count(&self, charge: &Charge<'_>, error: &StoreError) -> DecisionSource {
        // A lease that was given here is none of the store's.
        if is_local(charge) {
            return DecisionSource::Store;
        }
        let mode = self.mode(charge, error);
        self.answered[mode as usize].fetch_add(1, Ordering::Relaxed);
        DecisionSource::Fallback(mode)
    }
}

/// Whether the store may have carried out what it gave no answer to.
const fn may_have_arrived(error: &StoreError) -> bool {
    !matches!(error, StoreError::Away { .. } | StoreError::Overloaded)
}

fn share<'a>((charge, word): (&Charge<'a>, &'a FallbackAction)) -> Option<Charge<'a>> {
    match word {
        FallbackAction::Share(limit) => Some(Charge { limit, ..*charge }),
        FallbackAction::Said(_) => None,
    }
}

/// The same, taking nothing.
fn read(charge: Charge<'_>) -> Charge<'_> {
    match charge.op {
        Op::Take(cost) => Charge { op: Op::Read(cost), ..charge },
        _ => charge,
    }
}

/// The place of a decision by the number that it was given here.
pub(super) fn place(decision: &Decision) -> Option<LeaseId> {
    decision.lease.and_then(|lease| LeaseId::new(lease.number() & !LOCAL_LEASE))
}

/// Marks the lease as one that was given here.
fn mark(decision: Decision) -> Decision {
    let lease = decision.lease.and_then(|lease| LeaseId::new(lease.number() | LOCAL_LEASE));
    Decision { lease, ..decision }
}
