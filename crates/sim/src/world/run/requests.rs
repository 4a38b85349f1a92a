//! Requests: arrival, decision, answer, release.

use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;

use tidegate::store::{Batch, Charge, LimitOptions, Tier};
use tidegate::{Key, Scope};
use tidegate_core::{Decision, LeaseId, Limit, Op, Rate};

use super::{Done, Held, LONGEST_STAY, MOST_SERVED, Owner, World};
use crate::world::machine::executor::lock;
use crate::world::machine::network::{DEADLINE, Event};
use crate::world::machine::stack::{NodeParts, NodeStack};
use crate::world::request::{Outcome, Request};
use crate::world::setup::Stack;

impl<S: NodeStack, F: Fn(NodeParts) -> io::Result<S>> World<'_, S, F> {
    /// A request arrives.
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
        let is_pre_limited = self.setup.pre_limit.is_some()
            && self.setup.stack != Stack::Bare
            && refund.is_none()
            && !is_each;
        let request = Request { node: number, key, revision, op, also, is_each, is_pre_limited };
        self.requests.push(request);
        self.judge.asked(request);
        let also = also.map_or(0, |(_, units)| units);
        self.report.asked(if refund.is_some() { 0 } else { cost + also });
        self.report.pairs += u64::from(also > 0);
        self.put(now, request, self.requests.len() - 1);
    }

    /// The second key of a request, if it has one.
    fn also(&mut self, key: usize, cost: u64) -> Option<(usize, u64)> {
        let is_pair = self.setup.keys > 1 && self.traffic.permille(self.setup.pairs);
        is_pair.then(|| {
            let other = (key + 1 + self.traffic.index(self.setup.keys - 1)) % self.setup.keys;
            (other, if cost == 1 { self.traffic.between(2, 3) } else { 1 })
        })
    }

    /// Has a node decide a request.
    fn put(&mut self, now: u64, request: Request, number: usize) {
        let Request { node, revision, is_each, .. } = request;
        let Some(local) = self.nodes[node].tick(now) else { return };
        let Some(body) = &self.nodes[node].body else { return };
        let (store, limit, scope) = (Arc::clone(&body.store), self.limits[revision], self.scope);
        let is_leased = self.setup.stack == Stack::Leased && self.is_leased[revision];
        let tier = if is_leased { Tier::Leased } else { Tier::Exact };
        let mut options =
            LimitOptions::default().on_store_failure(self.setup.on_store_failure).tier(tier);
        options.shards = NonZeroU16::new(self.setup.shards).filter(|it| it.get() > 1);
        let pre_limit = self.pre_limit.filter(|_| request.is_pre_limited);
        let work = Box::pin(async move {
            let texts: Vec<String> = request.charges().map(|(key, _)| key.to_string()).collect();
            let keys = texts.iter().map(|text| Key::new(scope, text.as_bytes()));
            let charges = keys.zip(request.charges());
            let mut charges: Vec<_> =
                charges.map(|(key, (_, op))| Charge::new(key, &limit, op).on(options)).collect();
            let asked = charges.len();
            if let Some((scope, limit)) = &pre_limit {
                let key = Key::new(*scope, texts[0].as_bytes());
                let local = Charge::new(key, limit, request.op);
                charges.push(local.on(LimitOptions::default().tier(Tier::Local)));
            }
            let mut decisions = Vec::with_capacity(charges.len());
            let batch = if is_each { Batch::each(&charges) } else { Batch::together(&charges) };
            let batch = batch.revision(revision as u64);
            let source = store.decide(local, batch, &mut decisions).await;
            let are_all = decisions.iter().all(Decision::is_allowed);
            let is_one = |it: usize| decisions.get(it).is_some_and(Decision::is_allowed);
            let is_allowed = |it| source.is_ok() && (are_all || is_each && is_one(it));
            let is_allowed: Vec<bool> = (0..asked).map(is_allowed).collect();
            let lease = decisions.first().and_then(|decision| decision.lease);
            Done::Answered(Outcome { source, is_allowed }, lease)
        });
        let task = self.adopt(Owner { node, request: Some(number) }, work);
        let mut network = lock(&self.ground.network);
        if let Some(gives_up_after) = network.gives_up_after() {
            network.add(now + gives_up_after, Event::GiveUp(number));
            self.impatient.insert(number, task);
        }
    }

    /// A request is answered.
    pub(super) fn answered(
        &mut self,
        now: u64,
        number: usize,
        outcome: &Outcome,
        lease: Option<LeaseId>,
    ) {
        let request = self.requests[number];
        let node = &mut self.nodes[request.node];
        let may_be_late = now <= node.still_until + DEADLINE;
        self.judge.answered(number, outcome, lease, may_be_late);
        let charges = request.charges().zip(&outcome.is_allowed);
        let admitted: Vec<(usize, u64)> = charges
            .filter_map(|((key, op), is_allowed)| match op {
                Op::Take(units) if *is_allowed => Some((key, units)),
                _ => None,
            })
            .collect();
        self.report.answered(outcome, admitted.iter().map(|(_, units)| units).sum());
        let room = MOST_SERVED.saturating_sub(node.served.len());
        node.served.extend(admitted.into_iter().take(room));
        if let Some(lease) = lease {
            let (life, key, node) = (node.life, request.key, request.node);
            let stay = self.traffic.below(LONGEST_STAY);
            lock(&self.ground.network).add(now + stay, Event::Release(self.held.len()));
            self.held.push(Held { node, life, request: number, key, lease });
        }
    }

    /// A request has been served, and its place is released.
    pub(super) fn release(&mut self, now: u64, place: usize) {
        let Held { node, life, request, key, lease } = self.held[place];
        let it = &self.nodes[node];
        if it.life != life || it.body.is_none() {
            return;
        }
        if it.still_until > now {
            return lock(&self.ground.network).add(it.still_until, Event::Release(place));
        }
        let (Some(local), Some(body)) = (it.tick(now), &it.body) else { return };
        let (store, limit, scope) = (Arc::clone(&body.store), self.limits[it.revision], self.scope);
        self.judge.leaves(key, lease);
        let work = Box::pin(async move {
            let text = key.to_string();
            let charge = Charge::new(Key::new(scope, text.as_bytes()), &limit, Op::Release(lease));
            let _ = store.decide(local, Batch::one(&charge), &mut Vec::with_capacity(1)).await;
            Done::Worked
        });
        self.adopt(Owner { node, request: Some(request) }, work);
    }
}

/// The pre-limit of each node, and its scope.
pub(super) fn pre_limit((count, burst): (u64, u64)) -> Option<(Scope, Limit)> {
    let limit = Limit::token_bucket(Rate::per_second(count)).burst(burst).build().ok()?;
    Some((Scope::new("pre-limit", &limit), limit))
}
