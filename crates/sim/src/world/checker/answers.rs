//! Judges answers.

use tidegate::store::lease::LeaseStats;
use tidegate::store::{Basis, OnStoreFailure};
use tidegate_core::Op;

use super::{Checker, MOST_CALLS, Request};
use crate::world::evidence::{Question, Verdict, When};
use crate::world::lease_watch::Spent;
use crate::world::ledger::{Entry, Fate};
use crate::world::network::DEADLINE;
use crate::world::setup::Stack;

impl Checker {
    /// A request is answered. Nodes that stood still may be late.
    pub(crate) fn answered(
        &mut self,
        when: When,
        request: usize,
        verdict: &Verdict,
        may_be_late: bool,
    ) {
        let Some(it) = self.requests.get(request) else { return };
        let (question, asked, is_charged) = (it.question, it.asked, it.is_charged);
        let is_on_store = verdict.basis == Ok(Basis::Store);
        let (key, now, cost) = (question.key, when.now, question.cost());
        let is_let_in = verdict.is_allowed && is_on_store;
        let admitted = Some(cost).filter(|_| is_let_in && matches!(question.op, Op::Take(_)));
        let spent = match self.stack {
            Stack::Leased => self.spent(when, request, admitted, &verdict.leases),
            Stack::Bare | Stack::Guarded => None,
        };
        let Some(it) = self.requests.get_mut(request) else { return };
        it.fate = if is_let_in && spent.is_none() { Fate::Admitted } else { Fate::Out };
        let calls = if self.stack == Stack::Leased { MOST_CALLS } else { 1 };
        if now > asked + calls * DEADLINE && !may_be_late {
            self.blame(now, || format!("request {request} waited {} us", now - asked));
        }
        if !is_on_store && asked >= self.calm_from {
            let basis = &verdict.basis;
            self.blame(now, || format!("request {request} was answered by {basis:?} in calm"));
        }
        match (&verdict.basis, spent) {
            (Ok(Basis::Store), Some(spent)) => {
                let (present, ledger) = (self.term(when, key), &mut self.ledgers[key]);
                let by = ledger.judges(&self.tables, question.revision, present);
                if spent.counted > 0 {
                    ledger.note(Entry::Spent { request, spent, at: when.at_store, by });
                }
            }
            (Ok(Basis::Store), None) if verdict.is_allowed => {
                if !is_charged && matches!(question.op, Op::Take(_)) {
                    self.blame(now, || {
                        format!("request {request} on key {key} was let in for nothing")
                    });
                }
            }
            (Ok(Basis::Store), None) => self.denied(when, request),
            (Ok(Basis::Fallback(mode)), _) => {
                self.fell_back(when, request, *mode, verdict.is_allowed);
            }
            (Err(error), _) if self.stack != Stack::Bare => {
                self.blame(now, || format!("request {request} for {cost} was told: {error}"));
            }
            (Err(_), _) => {}
        }
        self.settle(now, key);
    }

    /// Which units taken ahead a request was let in on; none if it was not.
    fn spent(
        &mut self,
        when: When,
        request: usize,
        admitted: Option<u64>,
        says: &LeaseStats,
    ) -> Option<Spent> {
        let Question { node, key, .. } = self.requests[request].question;
        let presents: Vec<_> = (0..self.ledgers.len()).map(|key| self.term(when, key)).collect();
        let leases = &mut self.nodes[node].leases;
        let spent = leases.answered((key, request), admitted, &presents, says);
        spent.unwrap_or_else(|what| {
            self.blame(when.now, || format!("node {node} {what}"));
            None
        })
    }

    /// A request was denied on the store's word, which it may have given earlier.
    fn denied(&mut self, when: When, request: usize) {
        let Request { question, is_denied, .. } = &self.requests[request];
        let Question { key, revision, .. } = *question;
        let (ledger, cost) = (&self.ledgers[key], question.cost());
        let by = &self.tables.store[revision];
        let is_free = ledger.booked.fits_surely(by, when.at_store, cost);
        let leases = &mut self.nodes[question.node].leases;
        let is_dry = self.stack == Stack::Leased && leases.is_dry(when.now, key);
        if !is_free {
            leases.ran_dry(when.now, key);
        }
        let may_be_stale =
            is_dry || ledger.freed_at.is_some_and(|at| when.now < at + self.staleness);
        if *is_denied || may_be_stale {
            return;
        }
        if is_free {
            self.blame(when.now, || {
                format!("key {key} was denied {cost} that were free, without asking")
            });
        }
    }

    /// A request was answered without the store.
    fn fell_back(&mut self, when: When, request: usize, mode: OnStoreFailure, is_allowed: bool) {
        let question = self.requests[request].question;
        let Question { node, key, revision, .. } = question;
        let (place, cost, at) = ((key, revision), question.cost(), when.supposed);
        if mode != self.mode {
            let expected = self.mode;
            self.blame(when.now, || {
                format!("request {request} was answered by {mode:?} instead of {expected:?}")
            });
        }
        let owing = &mut self.nodes[node].owing;
        if let Op::Return(units) = question.op {
            return owing.returned(&self.tables, place, at, units);
        }
        let admitted = is_allowed.then_some(cost);
        let fits = match mode {
            OnStoreFailure::Local => owing.shared(&self.tables, place, at, admitted),
            OnStoreFailure::Allow => true,
            OnStoreFailure::Deny => !is_allowed,
        };
        if is_allowed {
            owing.let_in(&self.tables, place, at, cost);
        }
        if !fits {
            self.blame(when.now, || {
                format!(
                    "request {request} took {cost} of key {key} above what node {node} may let in"
                )
            });
        }
    }
}
