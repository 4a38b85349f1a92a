//! Whether a world kept its promises. It watches what nodes let in, what they send and what the store
//! carries out, and knows the limit's numbers; it shares no code with what decides.
//!
//! # Promises
//! 1. No interval admits more than its envelope, by the store's clock. What a fault may add is added at
//!    the instant of that fault, to that key: a failover gives back the units that it lost, at most what
//!    has been used, and the places whose holders it forgot; a clock set back gives a window its count once
//!    more if it is set back further than one window; a clock that is set lets nodes spend what they then
//!    hold, of a window until that would have ended, of a bucket as far as it was refilled by that; and
//!    places end by the new time. Everybody is decided by the numbers that the node knows, and judged by them; by the
//!    larger of two only while units may be spent that were granted by those. A debt is kept as time: what
//!    nodes that have had their numbers for long enough cut of it is forgiven. Nothing else gives anything.
//! 2. Every admission on the store's word rests on a charge that it has carried out for that very
//!    request, and no request is charged twice.
//! 3. Nobody is denied whom the limit has to admit; without asking the store, for at most a second after
//!    something has freed units, and where units are taken ahead for [`QUANTUM`] more.
//! 4. A request is answered within the deadline, unless its node stood still.
//! 5. What is answered without the store is what the policy says for that case: nothing is let in with
//!    `deny`, with `local` no more than the share of the node (a node that crashes forgets what it has let
//!    in), and all that is let in is booked, once. What was taken first for a request of two keys counts from then.
//! 6. A store that is known to be away is left alone but for probes, which no request waits for. Nothing
//!    is given back that nobody asked to give back, nor a place that is in use.
//! 7. Units that a node took ahead are granted, spent, given back or expired, and add up; none is granted
//!    that the store has not charged, none is spent a lease time later or in another window. They are spent
//!    at the instant that a request is answered; if it asks for another key, perhaps before that is decided.
//! 8. Two seconds after the last fault, everybody is answered by the store and nothing is owed.
//! 9. Every request is answered, or ends with its node or its caller; whoever waits for another's units goes
//!    on when that one is gone.

mod answers;
mod leases;
mod request;

use std::collections::BTreeSet;

use tidegate::store::OnStoreFailure;
use tidegate::store::lease::{LEASE, LeaseStats, QUANTUM};
use tidegate_core::{Decision, LeaseId, Op, Timestamp};

use self::request::{Part, Request};
use super::circuit::CircuitWatch;
use super::evidence::{Broken, Question, When};
use super::fault::Fault;
use super::lease_watch::{LeaseWatch, Term};
use super::ledger::{Entry, Fate, Ledger};
use super::network::{Answer, Call, Sent};
use super::numbers::Tables;
use super::owing::Owing;
use super::server::Lost;
use super::setup::{Stack, WorldSetup};

/// What is known of a node.
#[derive(Debug)]
struct Watch {
    circuit: CircuitWatch,
    owing: Owing,
    leases: LeaseWatch,
}

impl Watch {
    fn new(tables: &Tables, keys: usize) -> Self {
        let (owing, leases) = (Owing::new(tables, keys), LeaseWatch::new(keys));
        Self { circuit: CircuitWatch::default(), owing, leases }
    }
}

/// Who waits for somebody else's units to come may have to ask after all, so often.
const MOST_CALLS: u64 = 3;
/// For so long a denial may be repeated that does not hold any more, in microseconds; and a little, for
/// clocks that run slow.
const STALENESS: u64 = 1_000_000 + 1_000;

/// The judge of one world.
#[derive(Debug)]
pub(crate) struct Checker {
    stack: Stack,
    mode: OnStoreFailure,
    /// For so long a denial may be repeated that does not hold any more; places are never denied without
    /// asking.
    staleness: u64,
    tables: Tables,
    requests: Vec<Request>,
    ledgers: Vec<Ledger>,
    nodes: Vec<Watch>,
    /// Places that their holders have left.
    left: BTreeSet<(usize, LeaseId)>,
    calm_from: u64,
    /// The store may forget what it wrote last.
    may_forget: bool,
    /// How often a node has done something.
    polls: u64,
    broken: Option<Broken>,
}

impl Checker {
    pub(crate) fn new(setup: &WorldSetup, tables: Tables) -> Self {
        let ledgers = (0..setup.keys).map(|_| Ledger::new(&tables.policy)).collect();
        let watch = |_| Watch::new(&tables, setup.keys);
        Self {
            stack: setup.stack,
            mode: setup.on_store_failure,
            staleness: match (setup.in_flight, setup.stack) {
                (true, _) => 0,
                (false, Stack::Bare | Stack::Guarded) => STALENESS,
                // The store's denial may be the last that is repeated, and then stand for the next ones.
                (false, Stack::Leased) => STALENESS + QUANTUM.as_micros(),
            },
            requests: Vec::new(),
            ledgers,
            nodes: (0..setup.nodes).map(watch).collect(),
            left: BTreeSet::new(),
            calm_from: setup.calm_from(),
            may_forget: setup.faults.contains(&Fault::Failover),
            polls: 0,
            broken: None,
            tables,
        }
    }

    /// The first promise that was not kept.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    pub(crate) fn blame(&mut self, at: u64, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(Broken { at, what: what() });
        }
    }

    /// A request comes in; they are numbered as they come.
    pub(crate) fn asked(&mut self, when: When, question: Question) {
        let (node, request) = (&mut self.nodes[question.node], Request::new(when, question));
        node.owing.supposes(when.supposed);
        for part in &request.parts {
            node.circuit.asked(when.at_node, part.key);
            if request.is_together() {
                let place = (part.key, question.revision);
                node.owing.opened(place, self.requests.len(), when.supposed);
            }
        }
        self.requests.push(request);
    }

    /// A node sends something.
    pub(crate) fn sent(&mut self, when: When, call: &mut Call, leases: &LeaseStats) {
        let (node, keys) = (call.node, call.charges.iter().filter_map(Sent::number));
        if let Some(request) = call.request.and_then(|it| self.requests.get_mut(it)) {
            // What was charged before is not what it is let in on.
            keys.clone()
                .for_each(|key| request.part_mut(key).into_iter().for_each(Part::ask_again));
        }
        if self.stack == Stack::Bare {
            return;
        }
        let watch = &mut self.nodes[node].leases;
        for charge in call.charges.iter().filter(|_| call.request.is_none()) {
            if let Op::Return(units) = charge.op {
                watch.returns(units);
            }
        }
        if let Err(what) = watch.returned(leases) {
            self.blame(when.now, || format!("node {node} {what}"));
        }
        let sent = self.nodes[node].circuit.sent(when.at_node, keys, call.is_probe());
        match sent {
            Ok(times) => call.times = times,
            Err(what) => self.blame(when.now, || format!("node {node} {what}")),
        }
    }

    /// A node hears what came of a call.
    pub(crate) fn heard(&mut self, when: When, call: &Call, is_silent: bool, by: &[usize]) {
        let answer = call.reply.as_ref().filter(|_| !is_silent).and_then(|it| it.as_ref().ok());
        answer.into_iter().for_each(|answer| self.granted(when, call, answer, by));
        if self.stack == Stack::Bare {
            return;
        }
        let node = &mut self.nodes[call.node];
        node.owing.supposes(when.supposed);
        let heard = node.circuit.heard(when.at_node, call.times, call.is_probe(), is_silent);
        let mut excess = None;
        for (charge, revision) in call.charges.iter().zip(by) {
            if let (false, Op::Force(units), Some(key)) = (is_silent, charge.op, charge.number()) {
                let place = (key, *revision);
                let above = node.owing.booked(&self.tables, place, when.supposed, units);
                // New numbers make other units of a debt, which is kept as time.
                let is_judged = above > 0 && self.tables.policy.len() == 1;
                excess = excess.or(is_judged.then_some((key, above)));
            }
        }
        let number = call.node;
        if let Err(what) = heard {
            self.blame(when.now, || format!("node {number} {what}"));
        }
        if let Some((key, units)) = excess {
            self.blame(when.now, || {
                format!("node {number} booked {units} of key {key} more than it let in")
            });
        }
    }

    /// The store has carried out a command.
    pub(crate) fn carried_out(
        &mut self,
        when: When,
        call: &mut Call,
        answer: &Answer,
        by: &[usize],
    ) {
        let goes_through = call.goes_through(answer);
        for ((charge, decision), revision) in call.charges.iter().zip(&answer.decisions).zip(by) {
            let Some(key) = charge.number() else { continue };
            let (is_allowed, place) = (decision.is_allowed(), (key, *revision));
            if self.may_forget {
                self.ledgers[key].remember(when.now);
            }
            match (charge.op, call.request) {
                (Op::Take(units), Some(request)) => {
                    self.knows(when.now, request, *revision);
                    // What is let in is written, on what was seen: there is room, so nothing is cut.
                    match is_allowed {
                        true if goes_through => _ = self.repair(when, place),
                        // Nothing is written if it is nothing for all.
                        true => {}
                        false => self.repaired(when, place, charge.repairs),
                    }
                    if goes_through || !is_allowed {
                        self.taken(when, place, (request, call.number, units), decision);
                    }
                }
                (Op::Force(units), _) => {
                    self.repaired(when, place, true);
                    let by = &self.tables.store[*revision];
                    self.ledgers[key].booked.force(by, when.at_store, units);
                }
                (Op::Return(units), request) => {
                    let by = &self.tables.store[*revision];
                    let is_blank = self.ledgers[key].booked.is_blank(by, when.at_store);
                    self.repaired(when, place, !is_blank);
                    self.returned(when, place, request, units);
                }
                (Op::Release(place), _) => self.released(when, key, place),
                _ => {}
            }
            call.options.push(self.term(when, key));
            self.settle(when.now, key);
        }
    }

    /// How long units of a key may be spent that are charged now; windows of all revisions are as long.
    fn term(&self, when: When, key: usize) -> Term {
        self.ledgers[key].term(&self.tables.store[0], when.now, when.at_store)
    }

    /// A decision by these numbers may have cut a debt down.
    fn repaired(&mut self, when: When, (key, revision): (usize, usize), repairs: bool) {
        let time = if repairs { self.repair(when, (key, revision)) } else { 0 };
        let (ledger, at) = (&mut self.ledgers[key], when.at_store);
        if time > 0 && self.tables.policy.len() > 1 {
            ledger.note(Entry::Repaired { at, revision, time });
            ledger.freed_at = Some(when.now);
        }
    }

    fn repair(&mut self, when: When, (key, revision): (usize, usize)) -> u128 {
        self.ledgers[key].booked.repair(&self.tables.store[revision], when.at_store)
    }

    /// A request is decided by these numbers, which its node has to know.
    fn knows(&mut self, now: u64, request: usize, revision: usize) {
        let known = self.requests.get(request).map_or(revision, |it| it.question.revision);
        if self.tables.store[known] != self.tables.store[revision] {
            self.blame(now, || {
                format!("request {request} was decided by numbers {revision} instead of {known}")
            });
        }
    }

    fn taken(
        &mut self,
        when: When,
        (key, revision): (usize, usize),
        (request, call, units): (usize, usize, u64),
        decision: &Decision,
    ) {
        let (ledger, by, at) =
            (&mut self.ledgers[key], &self.tables.store[revision], when.at_store);
        let it = self.requests.get_mut(request).and_then(|it| it.part_mut(key));
        let Some(it) = it else { return };
        if !decision.is_allowed() {
            it.is_denied = true;
            if ledger.booked.fits_surely(by, at, units) {
                self.blame(when.now, || format!("key {key} was denied {units} that were free"));
            }
            return;
        }
        ledger.booked.add(by, at, units, decision.lease);
        let term = ledger.term(by, when.now, at);
        ledger.grant(revision, by, units, term);
        // What is taken ahead counts when it is spent.
        if self.stack == Stack::Leased && it.units() != units {
            return;
        }
        let by = ledger.judges(&self.tables, revision, term);
        ledger.note(Entry::Taken { request, call, units, at, by, place: decision.lease });
        if std::mem::replace(&mut it.is_charged, true) && self.stack != Stack::Leased {
            self.blame(when.now, || format!("request {request} on key {key} was charged twice"));
        }
    }

    fn returned(
        &mut self,
        when: When,
        (key, revision): (usize, usize),
        request: Option<usize>,
        units: u64,
    ) {
        let (ledger, at, lease) = (&mut self.ledgers[key], when.at_store, LEASE.as_micros());
        let by = &self.tables.store[revision];
        if !ledger.booked.is_blank(by, at) {
            ledger.booked.forgive(by, at, units, 0);
        }
        let it = request.and_then(|request| self.requests.get_mut(request));
        let is_asked_for = it.and_then(|it| it.part_mut(key)).is_some_and(|it| {
            let is_first = !std::mem::replace(&mut it.is_charged, true);
            is_first && matches!(it.op, Op::Return(asked) if asked == units)
        });
        if request.is_none() && self.stack == Stack::Leased {
            // Nobody was let in on it.
            ledger.freed_at = Some(when.now);
        } else if is_asked_for {
            ledger.freed_at = Some(when.now);
            let until = if self.stack == Stack::Leased { at.as_micros() + lease } else { 0 };
            ledger.note(Entry::Returned { units, at, revision, until });
        } else {
            self.blame(when.now, || {
                format!("{units} of key {key} were given back that nobody gave back")
            });
        }
    }

    /// Somebody leaves a place.
    pub(crate) fn leaves(&mut self, key: usize, place: LeaseId) {
        self.left.insert((key, place));
    }

    fn released(&mut self, when: When, key: usize, place: LeaseId) {
        if !self.left.contains(&(key, place)) {
            self.blame(when.now, || format!("a place of key {key} was given back that is in use"));
        }
        let ledger = &mut self.ledgers[key];
        ledger.booked.release(place);
        ledger.freed_at = Some(when.now);
        ledger.note(Entry::Released { place });
    }

    /// A request is gone, with its node or its caller; false if it was answered before.
    pub(crate) fn dropped(&mut self, when: When, request: usize) -> bool {
        let Some(it) = self.requests.get_mut(request) else { return false };
        if !it.is_open() {
            return false;
        }
        it.parts.iter_mut().for_each(|part| part.fate = Fate::Out);
        let owing = &mut self.nodes[it.question.node].owing;
        owing.supposes(when.supposed);
        for part in &it.parts {
            owing.let_go(part.key, request, part.units(), when.supposed);
        }
        self.settle_all(when.now, request);
        true
    }

    /// Judges what can be judged by now of the keys of a request.
    fn settle_all(&mut self, now: u64, request: usize) {
        let it = &self.requests[request];
        let (node, keys) = (it.question.node, it.parts.iter().map(|part| part.key));
        for key in keys.collect::<Vec<_>>() {
            self.settle(now, key);
            let excess = self.nodes[node].owing.settle(&self.tables, key);
            excess.into_iter().for_each(|excess| self.blame_share(now, node, key, excess));
        }
    }

    fn blame_share(&mut self, now: u64, node: usize, key: usize, (request, units): (usize, u64)) {
        self.blame(now, || {
            format!("request {request} took {units} of key {key} above what node {node} may let in")
        });
    }

    /// A node starts again, and knows nothing.
    pub(crate) fn reborn(&mut self, node: usize) {
        self.nodes[node] = Watch::new(&self.tables, self.ledgers.len());
    }

    /// The store has forgotten what it wrote since then.
    pub(crate) fn failed_over(&mut self, when: When, since: u64) {
        for ledger in &mut self.ledgers {
            ledger.go_back(&self.tables.store[0], since, when.at_store);
            ledger.freed_at = Some(when.now);
        }
    }

    /// Among them was this, which was decided by these numbers.
    pub(crate) fn lost(&mut self, when: When, lost: &Lost, revision: usize) {
        let text = std::str::from_utf8(&lost.text).unwrap_or_default();
        let Ok(key) = text.parse::<usize>() else { return };
        let ledger = &mut self.ledgers[key];
        let (units, at) = (lost.units, when.at_store);
        let lease = if self.stack == Stack::Leased { LEASE.as_micros() } else { 0 };
        let until = at.as_micros() + lease;
        let place = lost.lease;
        ledger.note(Entry::Lost { place, units, at, revision, until });
        self.settle(when.now, key);
    }

    /// The store's clock was set.
    pub(crate) fn clock_set(&mut self, when: When, before: Timestamp) {
        let after = when.at_store;
        for key in 0..self.ledgers.len() {
            self.ledgers[key].set_clock(&self.tables.store[0], when.now, (before, after));
            self.ledgers[key].freed_at = Some(when.now);
            self.settle(when.now, key);
        }
    }

    /// Judges what can be judged by now.
    fn settle(&mut self, now: u64, key: usize) {
        let (requests, Some(ledger)) = (&self.requests, self.ledgers.get_mut(key)) else { return };
        let fate = |request: usize| {
            let part = requests.get(request).and_then(|it| it.part(key));
            part.map_or(Fate::Out, |part| part.fate)
        };
        if let Some((request, units)) = ledger.settle(&self.tables, fate) {
            self.blame(now, || {
                format!("request {request} took {units} of key {key} above the envelope")
            });
        }
    }

    /// Nothing goes wrong any more, for long enough: this node owes nothing.
    pub(crate) fn calm(&mut self, when: When, node: usize, revision: usize) {
        let owing = &mut self.nodes[node].owing;
        owing.supposes(when.supposed);
        let owed = owing.unbooked(&self.tables, revision, when.supposed);
        if let Some((key, units)) = owed {
            self.blame(when.now, || format!("node {node} never booked {units} of key {key}"));
        }
    }

    /// The world is over: nothing may be left open.
    pub(crate) fn end(&mut self, now: u64) {
        if let Some(request) = self.requests.iter().position(Request::is_open) {
            self.blame(now, || format!("request {request} was never answered"));
        }
    }
}
