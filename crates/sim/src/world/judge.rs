//! Checks from outside whether a world kept its promises.
//!
//! The judge knows the limit's numbers and the faults. It sees which requests arrive, how each is
//! answered, and which commands the store carries out; it knows nothing of the layers in between.
//! One file per promise:
//!
//! | file | promise |
//! |---|---|
//! | [`bound`] | no interval admits more than the limit, plus a stated term for each fault |
//! | [`shares`] | a node without the store admits its share; a `local:` pre-limit holds on each node |
//! | [`grants`] | a node spends and returns no more than the store granted it, and not after the lease time |
//! | [`charges`] | a request is charged at most once, and not at all if it is denied |
//! | [`denials`] | no request is denied that the store has room for |
//! | [`debits`] | what was admitted without the store is debited when it recovers, once |
//! | [`answers`] | every request is answered in time, and by the store once it has recovered |

mod answers;
mod bound;
mod charges;
mod debits;
mod denials;
mod grants;
mod meter;
mod promise;
mod shares;

use tidegate::store::{DecisionSource, OnStoreFailure};
use tidegate_core::{LeaseId, Limit, Op, Timestamp};

use self::answers::Answers;
use self::bound::Bound;
use self::charges::Charges;
use self::debits::Debits;
use self::denials::Denials;
use self::grants::Grants;
use self::meter::{Admission, Moment};
use self::promise::{Kind, Promise};
use self::shares::Shares;
use super::faults::Fault;
use super::machine::network::{Answer, Call};
use super::machine::server::Lost;
use super::request::{Broken, Outcome, Request};
use super::setup::{Revision, Stack, WorldSetup};

/// Maximum number of commands that a leased request waits for, one after the other: it waits for
/// units that another request asks for, and may then have to send its own command. A key with
/// several shards may wait for two commands.
const MOST_CALLS: u64 = 3;
/// Time after which, once all nodes have new numbers, they have spent the units leased under the
/// old numbers, and no command with old numbers is in transit. In microseconds.
const SETTLES: u64 = 200_000;

/// A request and its arrival.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: Request,
    at: Moment,
}

/// The judge of one world.
#[derive(Debug)]
pub(crate) struct Judge {
    stack: Stack,
    mode: OnStoreFailure,
    /// Whether debits are judged: only if the limit keeps its numbers, and keys have no shards.
    judges_debits: bool,
    /// The promise of each revision of the policy.
    promises: Vec<Promise>,
    /// The newest revision, and the revision of each node.
    revision: usize,
    revisions: Vec<usize>,
    /// The time until which requests may be decided by old numbers, in microseconds.
    unsettled_until: u64,
    /// The time from which the bound counts requests of the newest revision, in microseconds.
    bound_from: u64,
    /// True if no fault delays commands or debits with old numbers.
    settles_fast: bool,
    calm_from: u64,
    has_recovered: bool,
    present: Moment,
    requests: Vec<Asked>,
    bound: Bound,
    shares: Shares,
    grants: Grants,
    charges: Charges,
    denials: Denials,
    debits: Debits,
    answers: Answers,
    broken: Option<Broken>,
}

impl Judge {
    /// The judge of a world whose limit gets these numbers one after the other. `limit` is the
    /// store's first limit.
    pub(crate) fn new(setup: &WorldSetup, limit: Limit, revisions: &[Revision]) -> Self {
        let is_leased = setup.stack == Stack::Leased;
        let promises: Vec<Promise> = revisions.iter().map(|it| promise(setup, *it)).collect();
        let (nodes, keys) = (setup.nodes, setup.keys);
        let is_harmless = |it: &Fault| {
            matches!(
                it,
                Fault::PolicyPush
                    | Fault::NodeClock
                    | Fault::Duplication
                    | Fault::Pause
                    | Fault::Crash
            )
        };
        let at_once =
            if is_leased { revisions.iter().map(|it| setup.taken_ahead(it)).max() } else { None };
        let calls = if is_leased { MOST_CALLS } else { 1 };
        let calls = if setup.shards > 1 { 2 * calls } else { calls };
        let pre_limit = setup.pre_limit.map(|(count, burst)| {
            // A node's clock drifts against the store's.
            Promise { kind: Kind::Bucket, units: burst + 1, count, per: 1_000_000 }
        });
        let share = promises[0].share(nodes as u64);
        Self {
            stack: setup.stack,
            mode: setup.on_store_failure,
            judges_debits: promises.len() == 1 && setup.shards == 1,
            revision: 0,
            revisions: vec![0; nodes],
            unsettled_until: 0,
            bound_from: 0,
            settles_fast: setup.faults.iter().all(is_harmless),
            calm_from: setup.calm_from(),
            has_recovered: false,
            present: Moment::default(),
            requests: Vec::new(),
            bound: Bound::new(promises[0], keys, is_leased),
            shares: Shares::new(setup.on_store_failure, share, pre_limit, (nodes, keys)),
            grants: Grants::new(nodes, keys, promises[0].kind == Kind::Bucket),
            charges: Charges::default(),
            denials: Denials::new(keys, setup.in_flight, at_once.unwrap_or(0)),
            debits: Debits::new(limit, nodes, keys),
            answers: Answers::new(calls, setup.stack == Stack::Bare, setup.calm_from()),
            broken: None,
            promises,
        }
    }

    /// The first promise that was broken.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    fn note(&mut self, what: Option<String>) {
        if let (Some(what), None) = (what, &self.broken) {
            self.broken = Some(Broken { at: self.present.now, what });
        }
    }

    /// Time passes, by the store's clock.
    pub(crate) fn tick(&mut self, now: u64, clock: Timestamp) {
        let ahead = self.present.time - self.present.clock;
        let clock = clock.as_micros();
        self.present = Moment { now, clock, time: clock + ahead, ..self.present };
        if !self.has_recovered && now >= self.calm_from {
            self.has_recovered = true;
            if self.judges_debits {
                let pending = self.debits.recovered(self.present.time);
                self.note(pending);
            }
        }
    }

    /// The store's clock is set.
    pub(crate) fn clock_set(&mut self, clock: Timestamp) {
        let (before, clock) = (self.present.clock, clock.as_micros());
        let step = clock.saturating_sub(before);
        let time = self.present.time + step;
        self.present = Moment { clock, time, steps: self.present.steps + 1, ..self.present };
        self.bound.clock_set(self.present, step);
        self.shares.clock_set(self.present);
        if step > 0 {
            self.debits.set_forward();
        }
        self.denials.all_disturbed(self.present.now);
    }

    /// A request arrives; requests are numbered as they arrive.
    pub(crate) fn asked(&mut self, request: Request) {
        self.answers.asked(self.requests.len());
        if let Op::Return(units) = request.op {
            self.shares.returned(self.present, (request.node, request.key), units);
        }
        self.requests.push(Asked { request, at: self.present });
    }

    /// When the oldest request arrived that is not answered yet.
    fn oldest(&self) -> u64 {
        let oldest = self.answers.oldest().and_then(|it| self.requests.get(it));
        oldest.map_or(self.present.time, |it| it.at.time)
    }

    fn is_settled(&self, asked: u64) -> bool {
        asked >= self.unsettled_until
    }

    /// A request is answered. `may_be_late` if its node has been paused.
    pub(crate) fn answered(
        &mut self,
        number: usize,
        outcome: &Outcome,
        place: Option<LeaseId>,
        may_be_late: bool,
    ) {
        let Asked { request, at } = self.requests[number];
        let charges: Vec<(usize, Op)> = request.charges().collect();
        let times = (at.now, self.present.now);
        let keys = (!may_be_late).then_some(charges.len());
        let answer = self.answers.answered(number, times, keys, &outcome.source);
        self.note(answer);
        let is_admitted = |it: usize| outcome.is_allowed.get(it).copied().unwrap_or(false);
        for (charge, (key, op)) in charges.iter().enumerate() {
            let Op::Take(units) = *op else {
                self.returned(&request, outcome, *op);
                continue;
            };
            match is_admitted(charge) {
                true => {
                    let it = Admission { units, asked: at, answered: self.present, place };
                    self.admitted(&request, *key, &it, outcome);
                }
                false if outcome.source == Ok(DecisionSource::Store) => {
                    let charged = self.charges.denied((number, *key));
                    self.note(charged.filter(|_| self.stack != Stack::Leased));
                }
                false => {}
            }
        }
        if let Some(key) = request.pre_limited().filter(|_| !is_admitted(0)) {
            self.shares.gave_back(self.present, (request.node, key), self.present.time - at.time);
        }
        if outcome.source == Ok(DecisionSource::Store) && !may_be_late {
            self.denied(number, outcome);
        }
    }

    fn admitted(&mut self, request: &Request, key: usize, it: &Admission, outcome: &Outcome) {
        let (place, oldest) = ((request.node, key), self.oldest());
        let is_single = request.also.is_none();
        match outcome.source {
            Ok(DecisionSource::Store) => {
                let spent = self.grants.spent(place, it.units, it.asked.now);
                self.note(spent);
                if it.asked.now >= self.bound_from && request.revision == self.revision {
                    let excess = self.bound.admitted(key, it, oldest);
                    self.note(excess);
                }
            }
            Ok(DecisionSource::Fallback(mode)) => {
                if mode != self.mode {
                    self.note(Some(format!("a request got {mode:?} instead of {:?}", self.mode)));
                }
                self.debits.admitted(place, it.units, it.answered.time, is_single);
                // Of two keys, the store may have decided one.
                let is_alone = is_single || self.mode == OnStoreFailure::Deny && !request.is_each;
                if self.is_settled(it.asked.now) && is_alone {
                    let excess = self.shares.admitted(place, it, oldest);
                    self.note(excess);
                }
            }
            Err(_) => {}
        }
        if request.pre_limited() == Some(key) {
            let excess = self.shares.passed(place, it, oldest);
            self.note(excess);
        }
    }

    /// A caller returns units, to the store or against pending debits.
    fn returned(&mut self, request: &Request, outcome: &Outcome, op: Op) {
        if let (Op::Return(units), Ok(DecisionSource::Fallback(_))) = (op, &outcome.source) {
            self.debits.returned((request.node, request.key), units, self.present.time);
        }
    }

    /// The store has denied charges of a request: at least one of them, if they are all or nothing,
    /// had no room.
    fn denied(&mut self, number: usize, outcome: &Outcome) {
        let Asked { request, at } = self.requests[number];
        if !self.is_settled(at.now) || request.pre_limited().is_some() {
            return;
        }
        let each = request.charges().zip(&outcome.is_allowed);
        let mut denied =
            each.filter(|(_, is_allowed)| !**is_allowed).map(|((key, op), _)| match op {
                Op::Take(units) => (key, self.denials.had_room(key, units, at.now)),
                _ => (key, false),
            });
        let wrong = match request.is_each {
            true => denied.find(|(_, had_room)| *had_room),
            false => {
                let all: Vec<_> = denied.collect();
                all.first().copied().filter(|_| all.iter().all(|(_, had_room)| *had_room))
            }
        };
        let what = wrong.map(|(key, _)| {
            format!("request {number} was denied key {key}, which the store had room for")
        });
        self.note(what);
    }

    /// A request is dropped with its node or by its caller; false if it was answered before.
    pub(crate) fn dropped(&mut self, number: usize) -> bool {
        self.answers.dropped(number)
    }

    /// A node sends a command.
    pub(crate) fn sent(&mut self, call: &Call) {
        for charge in call.charges.iter().filter(|_| call.request.is_none()) {
            if let (Op::Return(units), Some(key)) = (charge.op, charge.number()) {
                let spent = self.grants.spent((call.node, key), units, self.present.now);
                self.note(spent);
            }
        }
    }

    /// The store carried out a command.
    pub(crate) fn carried_out(&mut self, call: &Call, answer: &Answer) {
        for (charge, decision) in call.charges.iter().zip(&answer.decisions) {
            let Some(key) = charge.number() else { continue };
            let now = self.present.now;
            self.denials.carried_out(now, key, charge.scope, decision.remaining);
            if let Op::Return(units) = charge.op {
                self.denials.disturbed(now, key);
                if self.may_return(call, key) {
                    self.bound.returned(self.present, key, units);
                }
            }
        }
        let Some(number) = call.request.filter(|_| self.stack != Stack::Leased) else { return };
        for (key, op) in self.requests[number].request.charges() {
            if let Op::Take(cost) = op {
                let taken = call.granted(answer, key);
                let charged = self.charges.taken((number, key), taken, cost);
                self.note(charged);
            }
        }
    }

    /// Whether a command may return units: a caller's refund, or a node's leases.
    fn may_return(&self, call: &Call, key: usize) -> bool {
        match call.request.and_then(|it| self.requests.get(it)) {
            None => self.stack == Stack::Leased,
            Some(it) => it.request.key == key && matches!(it.request.op, Op::Return(_)),
        }
    }

    /// A node receives the store's answer to a command.
    pub(crate) fn heard(&mut self, call: &Call, answer: &Answer) {
        for (charge, place) in
            call.charges.iter().filter_map(|it| Some((it, (call.node, it.number()?))))
        {
            if let Op::Force(units) = charge.op {
                let debited = self.debits.debited(place, units);
                self.note(debited.filter(|_| self.judges_debits));
            }
        }
        let Some(number) = call.request else { return };
        let keys: Vec<usize> =
            self.requests[number].request.charges().map(|(key, _)| key).collect();
        for key in keys {
            let units = call.granted(answer, key);
            self.grants.granted((call.node, key), units, call.sent);
            self.charges.heard((number, key), units);
        }
    }

    /// A holder begins to release its place.
    pub(crate) fn leaves(&mut self, key: usize, place: LeaseId) {
        self.bound.leaves(key, place);
    }

    /// A server takes over without these writes.
    pub(crate) fn failed_over(&mut self, lost: &[Lost]) {
        for it in lost {
            if let Some(key) = it.number() {
                self.bound.lost(self.present, key, it.units, it.lease);
            }
        }
        self.denials.all_disturbed(self.present.now);
    }

    /// The limit gets new numbers, which nodes learn one after the other.
    pub(crate) fn published(&mut self, revision: usize) {
        let is_smaller = self.promises[revision].is_within(&self.promises[self.revision]);
        let is_judged = self.settles_fast && is_smaller && self.is_settled(self.present.now);
        self.bound_from = if is_judged { self.present.now } else { u64::MAX };
        self.revision = revision;
        self.unsettled_until = u64::MAX;
        self.bound.restart(self.promises[revision]);
        (0..self.revisions.len()).for_each(|node| self.shares.restart(node, self.share()));
    }

    /// A node has the newest numbers, or will have them when it starts.
    pub(crate) fn learned(&mut self, node: usize) {
        self.revisions[node] = self.revision;
        let have_all = self.revisions.iter().all(|it| *it == self.revision);
        if have_all && self.unsettled_until == u64::MAX {
            let until = self.present.now + SETTLES;
            self.unsettled_until =
                if self.settles_fast { until } else { until.max(self.calm_from) };
            self.bound_from = self.bound_from.min(self.unsettled_until);
        }
    }

    fn share(&self) -> Promise {
        self.promises[self.revision].share(self.revisions.len() as u64)
    }

    /// A node crashes or stops, and loses all its state.
    pub(crate) fn restarted(&mut self, node: usize) {
        self.shares.restart(node, self.share());
        self.grants.restart(node);
        self.debits.restart(node);
        self.learned(node);
    }

    /// The world ends.
    pub(crate) fn end(&mut self) {
        let unanswered = self.answers.end(|it| self.requests[it].at.now, self.present.now);
        self.note(unanswered);
    }
}

/// The promise of a limit with these numbers.
fn promise(setup: &WorldSetup, Revision { count, burst }: Revision) -> Promise {
    if setup.in_flight {
        return Promise::places(burst, setup.ttl());
    }
    let promise = Promise::new(setup.algorithm, count, setup.rate.per.as_micros(), burst);
    // Each shard of a sliding window rounds the counted part of the previous period.
    let slack = if promise.kind == Kind::SlidingWindow { u64::from(setup.shards) - 1 } else { 0 };
    Promise { units: promise.units + slack, ..promise }
}
