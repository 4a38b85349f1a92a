//! Judges units that are taken ahead.

use tidegate::store::lease::LeaseStats;
use tidegate_core::Op;

use super::Checker;
use super::request::worth;
use crate::world::evidence::When;
use crate::world::lease_watch::Moved;
use crate::world::ledger::{Entry, Fate};
use crate::world::network::{Answer, Call};
use crate::world::setup::Stack;

impl Checker {
    /// A node has done something, for a request or for itself: what it has spent meanwhile was for that.
    pub(crate) fn polled(
        &mut self,
        when: When,
        (node, request): (usize, Option<usize>),
        says: &LeaseStats,
    ) {
        self.polls += 1;
        request.into_iter().for_each(|request| self.may_deny(when, request));
        if self.stack != Stack::Leased {
            return;
        }
        let moved = self.nodes[node].leases.moved(says);
        let mut it = request.and_then(|request| self.requests.get_mut(request));
        let parts = moved.and_then(|Moved { granted, spent, unspent }| {
            let mut parts = it.as_mut().map(|it| &mut it.parts);
            if let Some(parts) = parts.as_mut().filter(|_| granted > 0) {
                // What was charged just now was taken ahead.
                parts.iter_mut().for_each(|part| part.own = None);
            }
            if (spent, unspent) == (0, 0) {
                return Some(Default::default());
            }
            let parts = parts?;
            let is_open =
                |it: usize| parts[it].fate == Fate::Open && matches!(parts[it].op, Op::Take(_));
            let spent = worth(parts, spent, |it| is_open(it) && parts[it].spending.is_none())?;
            // Some of it may have been taken back at once.
            let is_spent = |it: usize| parts[it].spending.is_some() || spent.contains(&it);
            let unspent = worth(parts, unspent, is_spent)?;
            Some((spent, unspent))
        });
        let Some((spent, unspent)) = parts else {
            self.blame(when.now, || {
                format!("node {node} spent or took back what request {request:?} did not ask for: {says:?}")
            });
            return;
        };
        let Some(request) = request else { return };
        spent.into_iter().for_each(|part| self.spent(when, request, part));
        unspent.into_iter().for_each(|part| self.unspent(request, part));
    }

    fn spent(&mut self, when: When, number: usize, part: usize) {
        let request = &mut self.requests[number];
        let question = request.question;
        let (key, units) = (request.parts[part].key, request.parts[part].units());
        let present = self.ledgers[key].term(&self.tables.store[0], when.now, when.at_store);
        let Some(spending) = self.nodes[question.node].leases.spend(key, units, present) else {
            let node = question.node;
            self.blame(when.now, || {
                format!("node {node} spent {units} of key {key} that had ended")
            });
            return;
        };
        let by = self.ledgers[key].judges(&self.tables, question.revision, present);
        let (spent, at) = (spending.spent, when.at_store);
        if spent.counted > 0 {
            self.ledgers[key].note(Entry::Spent { request: number, spent, at, by });
        }
        request.parts[part].spending = Some((self.polls, spending));
    }

    fn unspent(&mut self, number: usize, part: usize) {
        let request = &mut self.requests[number];
        let (node, part) = (request.question.node, &mut request.parts[part]);
        if let Some((_, spending)) = part.spending.take() {
            self.nodes[node].leases.unspend(part.key, &spending);
        }
    }

    /// A node has got new numbers.
    pub(crate) fn learned(&mut self, node: usize, revision: usize) {
        self.nodes[node].leases.learned(revision);
    }

    /// A node hears what was granted to a request, or not.
    pub(super) fn granted(&mut self, when: When, call: &Call, answer: &Answer, by: &[usize]) {
        let Some(number) = call.request else { return };
        let Some(request) = self.requests.get_mut(number) else { return };
        let leases = &mut self.nodes[call.node].leases;
        for part in &mut request.parts {
            let key = part.key;
            let units = call.granted(answer, key);
            if units > 0 && units == part.units() && call.piece(key) == Some(units) {
                part.own = Some(call.number);
            }
            let of_key = |it: &usize| {
                call.charges[*it].number() == Some(key)
                    && matches!(call.charges[*it].op, Op::Take(_))
            };
            let charges: Vec<usize> = (0..call.charges.len()).filter(of_key).collect();
            let Some(first) = charges.first() else { continue };
            let asked: u64 = charges.iter().map(|it| call.units(*it)).sum();
            // Not as many as were asked for, or the last of them. If it had less than a node may ask for, the
            // node may have known that from a denial, and have asked for less.
            let few = asked.max(self.tables.ahead[by[*first]].saturating_sub(units));
            let is_dry = part.is_denied
                || charges.iter().any(|it| {
                    let decision = &answer.decisions[*it];
                    !decision.is_allowed() || decision.remaining < few
                });
            if is_dry {
                leases.ran_dry(when.now, key);
            }
            if let Some(term) = call.options.get(*first) {
                let by = &self.tables.store[0];
                let present = self.ledgers[key].term(by, when.now, when.at_store);
                leases.heard((key, number), units, *term, present);
            }
        }
    }

    /// What a node says of its leases is what was counted, now that a request is answered.
    pub(super) fn agree(&mut self, when: When, node: usize, says: &LeaseStats) {
        let presents: Vec<_> = (0..self.ledgers.len()).map(|key| self.term(when, key)).collect();
        if let Err(what) = self.nodes[node].leases.agrees(&presents, says) {
            self.blame(when.now, || format!("node {node} {what}"));
        }
    }
}
