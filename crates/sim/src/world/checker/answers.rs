//! Judges answers.

use tidegate::store::lease::TURN;
use tidegate::store::{DecisionSource, OnStoreFailure};
use tidegate_core::Op;

use super::request::{Part, Request};
use super::{Checker, MOST_CALLS};
use crate::world::evidence::{Verdict, When};
use crate::world::ledger::Fate;
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
        self.nodes[it.question.node].owing.supposes(when.supposed);
        let (asked, parts) = (it.asked, it.parts.len());
        let calls = if self.stack == Stack::Leased { MOST_CALLS * parts as u64 } else { 1 };
        let now = when.now;
        if now > asked + calls * DEADLINE && !may_be_late {
            self.blame(now, || format!("request {request} waited {} us", now - asked));
        }
        if verdict.decision_source != Ok(DecisionSource::Store) && asked >= self.calm_from {
            let decision_source = &verdict.decision_source;
            self.blame(now, || {
                format!("request {request} was answered by {decision_source:?} in calm")
            });
        }
        if let Err(error) = &verdict.decision_source
            && self.stack != Stack::Bare
        {
            self.blame(now, || format!("request {request} was told: {error}"));
        }
        let alone = self.decide_fates(when, request, verdict);
        match verdict.decision_source {
            Ok(DecisionSource::Store) => self.denied(when, request, verdict),
            Ok(DecisionSource::Fallback(mode)) => {
                let parts = alone.iter().map(|part| (*part, verdict.is_allowed[*part]));
                self.fell_back(when, request, mode, &parts.collect::<Vec<_>>());
            }
            Err(_) => {}
        }
        if verdict.decision_source == Ok(DecisionSource::Store) {
            self.ran_dry(when, request);
        }
        let it = &self.requests[request];
        let node = it.question.node;
        it.parts.iter().for_each(|part| self.nodes[node].owing.passed_by(part.key, request));
        self.settle_all(now, request);
        if self.stack == Stack::Leased {
            self.agree(when, node, &verdict.leases);
        }
    }

    /// On what each part of a request was let in. Says which were not let in by the store.
    fn decide_fates(&mut self, when: When, request: usize, verdict: &Verdict) -> Vec<usize> {
        let (now, polls) = (when.now, self.polls);
        let is_answered = verdict.decision_source.is_ok();
        let is_on_store = verdict.decision_source == Ok(DecisionSource::Store);
        let (mut alone, mut wrong) = (Vec::new(), None);
        let it = &mut self.requests[request];
        let (question, is_pair) = (it.question, it.parts.len() > 1);
        for (number, part) in it.parts.iter_mut().enumerate() {
            let (key, units) = (part.key, part.units());
            let leases = &mut self.nodes[question.node].leases;
            let is_let_in = is_answered && verdict.is_allowed[number];
            part.fate = match (&part.spending, part.own) {
                _ if !is_let_in || !matches!(part.op, Op::Take(_)) => Fate::Out,
                // What was spent before is lost, if another answer was given in the end. Only who asks for
                // another key waits after it.
                (Some((poll, _)), _) if *poll == polls || is_on_store && is_pair => Fate::Spent,
                (None, Some(call)) => {
                    leases.let_in(key, request, units);
                    Fate::Charged(call)
                }
                _ => Fate::Out,
            };
            if part.fate != Fate::Out {
                continue;
            }
            alone.push(number);
            let is_take = matches!(part.op, Op::Take(_));
            if is_let_in && is_on_store && is_take {
                wrong = Some(format!("request {request} on key {key} was let in for nothing"));
            }
            if !is_let_in && part.own.is_some() {
                wrong = Some(format!("request {request} was charged for key {key}, and kept out"));
            }
            if let Some((_, spending)) = &part.spending {
                let ledger = &self.ledgers[key];
                let present = ledger.term(&self.tables.store[0], now, when.at_store);
                // A node that stood still finds that nobody has asked for the key, and keeps no purse for it.
                let is_kept = now <= it.asked + TURN.as_micros();
                let is_there =
                    is_kept && leases.is_there((key, question.revision), spending, present);
                if !is_pair || is_there {
                    wrong = Some(format!(
                        "request {request} was kept out, and {units} of key {key} with it"
                    ));
                }
            }
        }
        if let Some(what) = wrong {
            self.blame(now, || what);
        }
        alone
    }

    /// A request was answered on the store's word, which it may have given earlier. Something of what was
    /// denied was not free.
    fn denied(&mut self, when: When, request: usize, verdict: &Verdict) {
        let is_each = self.requests[request].question.is_each;
        let denied = (0..verdict.is_allowed.len()).filter(|it| !verdict.is_allowed[*it]);
        let free: Vec<Option<(usize, u64)>> =
            denied.map(|part| self.denied_part(when, request, part)).collect();
        let is_wrong = if is_each {
            free.iter().any(Option::is_some)
        } else {
            !free.is_empty() && free.iter().all(Option::is_some)
        };
        if let Some((key, units)) = free.into_iter().flatten().next().filter(|_| is_wrong) {
            self.blame(when.now, || {
                format!("key {key} was denied {units} that were free, without asking")
            });
        }
    }

    /// The store has less than was asked for: its node may know, and not ask again for a while.
    fn ran_dry(&mut self, when: When, request: usize) {
        let Request { question, parts, .. } = &self.requests[request];
        let by = &self.tables.store[question.revision];
        let asks = |part: &&Part| matches!(part.op, Op::Take(_));
        let is_out = |part: &&Part| matches!(part.fate, Fate::Out | Fate::Open);
        for part in parts.iter().filter(asks).filter(is_out) {
            let (key, units) = (part.key, part.units());
            if !self.ledgers[key].booked.fits_surely(by, when.at_store, units) {
                self.nodes[question.node].leases.ran_dry(when.now, key);
            }
        }
    }

    /// Whoever asks for two keys may be denied one of them before the other is decided.
    pub(super) fn may_deny(&mut self, when: When, request: usize) {
        let Some(it) = self.requests.get(request).filter(|it| it.parts.len() > 1 && it.is_open())
        else {
            return;
        };
        for part in 0..it.parts.len() {
            if self.denied_part(when, request, part).is_none() {
                self.requests[request].parts[part].is_scarce = true;
            }
        }
        self.ran_dry(when, request);
    }

    /// The key and its units, if they were free and nobody has to be told so yet.
    fn denied_part(&self, when: When, request: usize, part: usize) -> Option<(usize, u64)> {
        let it = &self.requests[request];
        let (question, part) = (it.question, &it.parts[part]);
        let (key, units) = (part.key, part.units());
        let is_denied = part.is_denied || part.is_scarce;
        let ledger = &self.ledgers[key];
        let by = &self.tables.store[question.revision];
        let is_free = ledger.booked.fits_surely(by, when.at_store, units);
        let leases = &self.nodes[question.node].leases;
        let is_dry = self.stack == Stack::Leased && leases.is_dry(when.now, key);
        let may_be_stale =
            is_dry || ledger.freed_at.is_some_and(|at| when.now < at + self.staleness);
        (is_free && !is_denied && !may_be_stale).then_some((key, units))
    }

    /// A request was answered without the store, or some parts of it were.
    fn fell_back(
        &mut self,
        when: When,
        request: usize,
        mode: OnStoreFailure,
        alone: &[(usize, bool)],
    ) {
        if mode != self.mode {
            let expected = self.mode;
            self.blame(when.now, || {
                format!("request {request} was answered by {mode:?} instead of {expected:?}")
            });
        }
        let it = &self.requests[request];
        let (question, is_whole) = (it.question, alone.len() == it.parts.len());
        let at = when.supposed;
        // What needs nobody goes first, and then the store is waited for.
        let was_first = it.is_together() && when.now > it.asked && !is_whole;
        let (node, mut excess) = (question.node, None);
        let owing = &mut self.nodes[node].owing;
        for (part, is_allowed) in alone.iter().map(|(part, it_is)| (&it.parts[*part], *it_is)) {
            let units = part.units();
            let place = (part.key, question.revision);
            if let Op::Return(units) = part.op {
                owing.returned(&self.tables, place, at, units);
                continue;
            }
            match mode {
                OnStoreFailure::Local if was_first && is_allowed => {
                    owing.took_first(part.key, request, units);
                }
                OnStoreFailure::Local => {
                    owing.let_go(part.key, request, units, at);
                    owing.shared(place, request, at, is_allowed.then_some(units));
                }
                OnStoreFailure::Allow => {}
                OnStoreFailure::Deny if is_allowed => excess = Some((part.key, units)),
                OnStoreFailure::Deny => {}
            }
            if is_allowed {
                owing.let_in(&self.tables, place, at, units);
            }
        }
        if let Some((key, units)) = excess {
            self.blame_share(when.now, node, key, (request, units));
        }
    }
}
