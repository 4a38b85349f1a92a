//! What nodes are asked, and what becomes of it.

use std::io;
use std::sync::Arc;

use tidegate::Key;
use tidegate::store::{Charge, LimitOptions, Tier};
use tidegate_core::{Decision, LeaseId, Op};

use super::{Done, Held, LONGEST_STAY, MOST_SERVED, Owner, World};
use crate::world::evidence::{Question, Verdict};
use crate::world::executor::lock;
use crate::world::network::{DEADLINE, Event};
use crate::world::setup::Stack;
use crate::world::stack::{NodeParts, NodeStack};

impl<S: NodeStack, F: Fn(NodeParts) -> io::Result<S>> World<'_, S, F> {
    /// A request comes in.
    pub(super) fn ask(&mut self, now: u64, number: usize, life: u32) {
        let node = &mut self.nodes[number];
        if node.body.is_none() || node.life != life || node.is_closing {
            return;
        }
        let mut network = lock(&self.ground.network);
        if node.still_until > now {
            return network.add(node.still_until, Event::Ask { node: number, life });
        }
        let gap = 1 + self.traffic.below(2 * self.setup.gap());
        if now + gap < self.setup.end() {
            network.add(now + gap, Event::Ask { node: number, life });
        }
        drop(network);
        let key = self.traffic.index(self.setup.keys);
        let is_large = self.traffic.permille(100) && !self.setup.in_flight;
        let cost = if is_large { self.traffic.between(2, 4) } else { 1 };
        let is_refund = self.setup.refunds > 0 && self.traffic.permille(self.setup.refunds);
        let refund = if is_refund { node.served.pop() } else { None };
        let (key, op) = match refund {
            Some((key, units)) => (key, Op::Return(units)),
            None => (key, Op::Take(cost)),
        };
        let also = refund.is_none().then(|| self.also(key, cost)).flatten();
        let is_each = also.is_some() && self.traffic.permille(300);
        let revision = self.nodes[number].revision;
        let question = Question { node: number, key, revision, op, also, is_each };
        let request = self.questions.len();
        self.questions.push(question);
        self.checker.asked(self.when(now, number), question);
        let also = also.map_or(0, |(_, units)| units);
        self.report.asked(if refund.is_some() { 0 } else { cost + also });
        self.report.pairs += u64::from(also > 0);
        self.put(now, question, request);
    }

    /// Another key that the same request asks for, sometimes. It asks for another number of units, so that
    /// one can tell which of the two they were spent on.
    fn also(&mut self, key: usize, cost: u64) -> Option<(usize, u64)> {
        let is_pair = self.setup.keys > 1 && self.traffic.permille(self.setup.pairs);
        is_pair.then(|| {
            let other = (key + 1 + self.traffic.index(self.setup.keys - 1)) % self.setup.keys;
            (other, if cost == 1 { self.traffic.between(2, 3) } else { 1 })
        })
    }

    /// Lets a node decide on something.
    fn put(&mut self, now: u64, question: Question, request: usize) {
        let Question { node, revision, is_each, .. } = question;
        let local = self.when(now, node).at_node;
        let Some(body) = &self.nodes[node].body else { return };
        let (store, limit, scope) = (Arc::clone(&body.store), self.limits[revision], self.scope);
        let is_leased = self.setup.stack == Stack::Leased && self.is_leased[revision];
        let tier = if is_leased { Tier::Leased } else { Tier::Exact };
        let options =
            LimitOptions::default().on_store_failure(self.setup.on_store_failure).tier(tier);
        let work = Box::pin(async move {
            let texts: Vec<String> = question.charges().map(|(key, _)| key.to_string()).collect();
            let keys = texts.iter().map(|text| Key::new(scope, text.as_bytes()));
            let charges = keys.zip(question.charges());
            let charges: Vec<_> =
                charges.map(|(key, (_, op))| Charge::new(key, &limit, op).on(options)).collect();
            let mut decisions = Vec::with_capacity(charges.len());
            let decision_source = match is_each {
                true => store.decide_each(local, &charges, &mut decisions).await,
                false => store.decide(local, &charges, &mut decisions).await,
            };
            let are_all = decisions.iter().all(Decision::is_allowed);
            let is_one = |it: usize| decisions.get(it).is_some_and(Decision::is_allowed);
            let is_allowed = |it| decision_source.is_ok() && (are_all || is_each && is_one(it));
            let is_allowed: Vec<bool> = (0..charges.len()).map(is_allowed).collect();
            let lease = decisions.first().and_then(|decision| decision.lease);
            Done::Answered(decision_source, is_allowed, lease)
        });
        let task = self.adopt(Owner { node, request: Some(request) }, work);
        let mut network = lock(&self.ground.network);
        if let Some(patience) = network.patience() {
            network.add(now + patience, Event::GiveUp(request));
            self.impatient.insert(request, task);
        }
    }

    pub(super) fn answered(
        &mut self,
        now: u64,
        request: usize,
        verdict: &Verdict,
        lease: Option<LeaseId>,
    ) {
        let question = self.questions[request];
        let when = self.when(now, question.node);
        let node = &mut self.nodes[question.node];
        let may_be_late = now <= node.still_until + DEADLINE;
        self.checker.answered(when, request, verdict, may_be_late);
        let charges = question.charges().zip(&verdict.is_allowed);
        let admitted: Vec<(usize, u64)> = charges
            .filter_map(|((key, op), is_allowed)| match op {
                Op::Take(units) if *is_allowed => Some((key, units)),
                _ => None,
            })
            .collect();
        self.report.answered(verdict, admitted.iter().map(|(_, units)| units).sum());
        let owing = node.body.as_ref().map_or(0, |body| body.store.owing_keys());
        if owing > self.setup.keys {
            self.checker.blame(now, || format!("{owing} keys owe, and there are not so many"));
        }
        let room = MOST_SERVED.saturating_sub(node.served.len());
        node.served.extend(admitted.into_iter().take(room));
        if let Some(lease) = lease {
            let (life, key, number) = (node.life, question.key, question.node);
            let stay = self.traffic.below(LONGEST_STAY);
            lock(&self.ground.network).add(now + stay, Event::Release(self.held.len()));
            self.held.push(Held { node: number, life, request, key, lease });
        }
    }

    /// Somebody has been served, and gives a place back.
    pub(super) fn release(&mut self, now: u64, place: usize) {
        let Held { node, life, request, key, lease } = self.held[place];
        let it = &self.nodes[node];
        if it.life != life || it.body.is_none() {
            return;
        }
        if it.still_until > now {
            return lock(&self.ground.network).add(it.still_until, Event::Release(place));
        }
        let (local, Some(body)) = (self.when(now, node).at_node, &it.body) else { return };
        let (store, limit, scope) = (Arc::clone(&body.store), self.limits[it.revision], self.scope);
        self.checker.leaves(key, lease);
        let work = Box::pin(async move {
            let text = key.to_string();
            let charge = Charge::new(Key::new(scope, text.as_bytes()), &limit, Op::Release(lease));
            let _ = store.decide(local, &[charge], &mut Vec::with_capacity(1)).await;
            Done::Worked
        });
        self.adopt(Owner { node, request: Some(request) }, work);
    }
}
