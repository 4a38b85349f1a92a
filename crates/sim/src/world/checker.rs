//! Whether a world kept its promises. It watches what nodes let in and what the store carries out, and
//! knows the limit's numbers; it shares no code with what decides.
//!
//! # Promises
//! 1. No interval admits more than its envelope, by the store's clock. What a fault may add is added at
//!    the instant of that fault, to that key: a failover gives back the units that it lost, at most what
//!    has been used; a clock set back gives a window its count once more if it is set back further than
//!    one window. Nothing else gives anything.
//! 2. Every admission rests on a charge that the store has carried out for that very request, and no
//!    request is charged twice.
//! 3. The store denies nobody whom the limit has to admit.
//! 4. A request is answered within the deadline, unless its node stood still.
//! 5. Two seconds after the last fault, everybody is answered by the store.
//! 6. Every request is answered, or ends with its node.

use std::collections::VecDeque;
use std::fmt;

use tidegate::store::{Basis, StoreError};
use tidegate_core::Timestamp;

use super::meter::Meter;
use super::network::DEADLINE;
use super::setup::WorldSetup;

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) basis: Result<Basis, StoreError>,
    pub(crate) is_allowed: bool,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Microseconds after the world began.
    pub at: u64,
    /// Which, and by whom.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}.{:06}s: {}", self.at / 1_000_000, self.at % 1_000_000, self.what)
    }
}

#[derive(Debug)]
struct Request {
    key: usize,
    cost: u64,
    asked: u64,
    fate: Fate,
    is_charged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Admitted,
    /// Denied, failed, or gone with its node.
    Out,
}

/// What happened to a key, in the order it happened at the store.
#[derive(Debug)]
enum Entry {
    Taken { request: usize, at: Timestamp },
    Lost(u64),
    Set { before: Timestamp, after: Timestamp },
}

#[derive(Debug)]
struct Ledger {
    /// What was let in.
    admitted: Meter,
    /// What was charged, be it that nobody learned of it; none if that cannot be told any more.
    booked: Option<Meter>,
    /// What cannot be judged yet, because the fate of some request before it is open.
    pending: VecDeque<Entry>,
}

/// The judge of one world.
#[derive(Debug)]
pub(crate) struct Checker {
    requests: Vec<Request>,
    ledgers: Vec<Ledger>,
    calm_from: u64,
    was_set_back: bool,
    broken: Option<Broken>,
}

impl Checker {
    pub(crate) fn new(setup: &WorldSetup) -> Self {
        let ledger = |_| Ledger {
            admitted: Meter::new(setup),
            booked: Some(Meter::new(setup)),
            pending: VecDeque::new(),
        };
        Self {
            requests: Vec::new(),
            ledgers: (0..setup.keys).map(ledger).collect(),
            calm_from: setup.faults_end() + WorldSetup::RECOVERY,
            was_set_back: false,
            broken: None,
        }
    }

    /// The first promise that was not kept.
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    fn blame(&mut self, at: u64, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(Broken { at, what: what() });
        }
    }

    /// A request comes in; they are numbered as they come.
    pub(crate) fn asked(&mut self, now: u64, key: usize, cost: u64) {
        let fate = Fate::Open;
        self.requests.push(Request { key, cost, asked: now, fate, is_charged: false });
    }

    /// The store has decided on taking units for a request.
    pub(crate) fn decided(&mut self, now: u64, at: Timestamp, request: usize, is_allowed: bool) {
        let Some(it) = self.requests.get_mut(request) else { return };
        let (key, cost) = (it.key, it.cost);
        let Some(ledger) = self.ledgers.get_mut(key) else { return };
        if let Some(booked) = &mut ledger.booked {
            booked.repair(at);
        }
        if !is_allowed {
            if ledger.booked.as_ref().and_then(|it| it.must_admit(at, cost)) == Some(true) {
                self.blame(now, || format!("key {key} was denied {cost} that were free"));
            }
            return;
        }
        if let Some(booked) = &mut ledger.booked {
            booked.add(at, cost);
        }
        let is_second = std::mem::replace(&mut it.is_charged, true);
        ledger.pending.push_back(Entry::Taken { request, at });
        if is_second {
            self.blame(now, || format!("request {request} on key {key} was charged twice"));
        }
        self.settle(now, key);
    }

    /// A request is answered. Nodes that stood still may be late.
    pub(crate) fn answered(
        &mut self,
        now: u64,
        request: usize,
        verdict: &Verdict,
        may_be_late: bool,
    ) {
        let Some(it) = self.requests.get_mut(request) else { return };
        it.fate = if verdict.is_allowed { Fate::Admitted } else { Fate::Out };
        let (key, asked, is_charged) = (it.key, it.asked, it.is_charged);
        if verdict.is_allowed && !is_charged {
            self.blame(now, || format!("request {request} on key {key} was let in for nothing"));
        }
        if now > asked + DEADLINE && !may_be_late {
            self.blame(now, || format!("request {request} waited {} us", now - asked));
        }
        if let (Err(error), true) = (&verdict.basis, asked >= self.calm_from) {
            self.blame(now, || format!("request {request} failed in calm: {error}"));
        }
        self.settle(now, key);
    }

    /// A request is gone with its node.
    pub(crate) fn dropped(&mut self, now: u64, request: usize) {
        if let Some(it) = self.requests.get_mut(request) {
            it.fate = Fate::Out;
            let key = it.key;
            self.settle(now, key);
        }
    }

    /// The store has forgotten its last writes, units of some keys among them.
    pub(crate) fn failed_over(&mut self, now: u64, lost: &[(usize, u64)]) {
        // A state from before the clock was set back may be back, and keep more against somebody than
        // what came after it.
        if self.was_set_back {
            self.ledgers.iter_mut().for_each(|ledger| ledger.booked = None);
        }
        for (key, units) in lost {
            if let Some(ledger) = self.ledgers.get_mut(*key) {
                ledger.pending.push_back(Entry::Lost(*units));
                self.settle(now, *key);
            }
        }
    }

    /// The store's clock was set.
    pub(crate) fn clock_set(&mut self, now: u64, before: Timestamp, after: Timestamp) {
        self.was_set_back |= after < before;
        for key in 0..self.ledgers.len() {
            if let Some(booked) = &mut self.ledgers[key].booked {
                booked.owe_again(before, after);
            }
            self.ledgers[key].pending.push_back(Entry::Set { before, after });
            self.settle(now, key);
        }
    }

    /// Judges what can be judged by now.
    fn settle(&mut self, now: u64, key: usize) {
        let Some(ledger) = self.ledgers.get_mut(key) else { return };
        let mut excess = None;
        while let Some(entry) = ledger.pending.front() {
            match *entry {
                Entry::Taken { request, at } => match &self.requests[request] {
                    Request { fate: Fate::Open, .. } => break,
                    Request { fate: Fate::Out, .. } => {}
                    Request { cost, .. } => {
                        let fits = ledger.admitted.fits(at, *cost);
                        excess = excess.or((!fits).then_some((request, *cost)));
                        ledger.admitted.add(at, *cost);
                    }
                },
                Entry::Lost(units) => ledger.admitted.forgive(units),
                Entry::Set { before, after } => ledger.admitted.set_clock(before, after),
            }
            ledger.pending.pop_front();
        }
        if let Some((request, cost)) = excess {
            self.blame(now, || {
                format!("request {request} took {cost} of key {key} above the envelope")
            });
        }
    }

    /// The world is over: nothing may be left open.
    pub(crate) fn end(&mut self, now: u64) {
        if let Some(request) = self.requests.iter().position(|it| it.fate == Fate::Open) {
            self.blame(now, || format!("request {request} was never answered"));
        }
    }
}
