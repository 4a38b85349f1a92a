//! What was let in without the store, and still has to be booked there.
//!
//! For each key a state is kept that knows of nothing but that. It is charged as the store's would have
//! been, by the same numbers, and so forgets as that would have: what has been refilled by the time that
//! the store is back, or lies in a window that is over, is not booked.
//!
//! # Bounds
//! At most [`MAX_KEYS`] keys and [`MAX_BYTES`] of their texts; what comes on top is let in all the same,
//! is never booked, and is counted.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use tidegate_core::{Algorithm, Limit, Op, Rate, State, Timestamp};

use crate::key::{Key, Scope};
use crate::store::{Charge, LimitOptions, StoreError};

/// The most keys.
pub(super) const MAX_KEYS: usize = 1 << 16;
/// The most bytes of their texts and tags.
const MAX_BYTES: usize = 16 << 20;
/// Keys looked at in one go for some whose server is back, as nobody can note anything meanwhile.
const MOST_LOOKED_AT: usize = 512;

/// What all keys owe the store.
#[derive(Debug, Default)]
pub(super) struct PendingDebits(Mutex<Accounts>);

#[derive(Debug, Default)]
struct Accounts {
    keys: HashMap<Arc<Name>, Account, RandomState>,
    /// Every key once, in the order in which they are booked.
    queue: VecDeque<Arc<Name>>,
    bytes: usize,
    /// Units that there was no room for.
    forgotten: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Name {
    scope: Scope,
    text: Box<[u8]>,
    tag: Box<[u8]>,
}

#[derive(Debug)]
struct Account {
    limit: Limit,
    /// Which tell where the store keeps it.
    options: LimitOptions,
    /// By the numbers of its [`twin`].
    state: State,
    /// Units that were let in, by the same numbers. Where the store's clock is thought to have gone back, as it
    /// is by some milliseconds for the time that messages take, the state seems to hold more than that.
    let_in: u64,
    /// The store refused to book it the last time.
    is_refused: bool,
}

/// What one key owes, on its way to the store.
#[derive(Debug)]
pub(super) struct Debit {
    name: Arc<Name>,
    limit: Limit,
    options: LimitOptions,
    pub(super) units: u64,
    is_refused: bool,
}

impl Name {
    fn key(&self) -> Key<'_> {
        Key::new(self.scope, &self.text).tagged(&self.tag)
    }
}

impl Debit {
    /// What books it: never denied, and never more than there is.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge::new(self.name.key(), &self.limit, Op::Force(self.units)).on(self.options)
    }

    /// The same, after this came of it.
    pub(super) fn refused_by(self, error: &StoreError) -> Self {
        Self { is_refused: !error.is_outage(), ..self }
    }
}

impl PendingDebits {
    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key has been let in with so many units more.
    pub(super) fn owe(&self, now: Timestamp, charge: &Charge<'_>, units: u64) {
        // A place is not spent: whoever holds it gives it back.
        if units == 0 || matches!(charge.limit, Limit::InFlight(_)) {
            return;
        }
        let Key { scope, text, tag } = charge.key;
        let name = Name { scope, text: text.into(), tag: tag.into() };
        self.lock().book(now, Arc::new(name), (*charge.limit, charge.options), units);
    }

    /// A key has got so many units back. What it does not owe is nobody's here.
    pub(super) fn give_back(&self, now: Timestamp, charge: &Charge<'_>, units: u64) {
        self.change(now, charge, Op::Return(units));
    }

    /// A key starts afresh.
    pub(super) fn forget(&self, now: Timestamp, charge: &Charge<'_>) {
        self.change(now, charge, Op::Reset);
    }

    fn change(&self, now: Timestamp, charge: &Charge<'_>, op: Op) {
        let mut owed = self.lock();
        // Most of the time there is nobody.
        if owed.keys.is_empty() {
            return;
        }
        let Key { scope, text, tag } = charge.key;
        let name = Name { scope, text: text.into(), tag: tag.into() };
        if let Some(account) = owed.keys.get_mut(&name) {
            twin(&account.limit).decide(&mut account.state, now, op);
            account.let_in = match op {
                Op::Return(units) => account.let_in.saturating_sub(units),
                _ => 0,
            };
        }
    }

    /// Takes out what some keys owe whose servers are back, at most so many.
    pub(super) fn due(
        &self,
        now: Timestamp,
        most: usize,
        is_back: impl Fn(&Charge<'_>) -> bool,
    ) -> Vec<Debit> {
        let (mut owed, mut due) = (self.lock(), Vec::new());
        for _ in 0..owed.queue.len().min(MOST_LOOKED_AT) {
            if due.len() == most {
                break;
            }
            let Some(name) = owed.queue.pop_front() else { break };
            let Some(account) = owed.keys.get_mut(&name) else { continue };
            let units = units(account, now);
            let Account { limit, options, is_refused, .. } = *account;
            let debit = Debit { name, limit, options, units, is_refused };
            // What was refused is tried with nobody beside it.
            let is_beside = is_refused && !due.is_empty();
            if units > 0 && (is_beside || !is_back(&debit.charge())) {
                owed.queue.push_back(debit.name);
                continue;
            }
            owed.keys.remove(&debit.name);
            owed.bytes -= bytes(&debit.name);
            if units > 0 {
                due.push(debit);
            }
            if units > 0 && is_refused {
                break;
            }
        }
        due
    }

    /// What could not be booked is owed again.
    pub(super) fn owe_again(&self, now: Timestamp, debits: Vec<Debit>) {
        let mut owed = self.lock();
        for Debit { name, limit, options, units, is_refused } in debits {
            owed.book(now, Arc::clone(&name), (limit, options), units);
            if let Some(account) = owed.keys.get_mut(&name).filter(|_| is_refused) {
                account.is_refused = true;
            }
        }
    }

    /// How many keys owe something, and how many units there was no room for.
    pub(super) fn tally(&self) -> (usize, u64) {
        let owed = self.lock();
        (owed.keys.len(), owed.forgotten)
    }
}

impl Accounts {
    fn book(
        &mut self,
        now: Timestamp,
        name: Arc<Name>,
        (limit, options): (Limit, LimitOptions),
        units: u64,
    ) {
        let op = Op::Force(units);
        if let Some(account) = self.keys.get_mut(&name) {
            if account.limit != limit {
                // A debt is kept as time, which is another number of units by other numbers.
                (account.limit, account.let_in) = (limit, u64::MAX);
                account.let_in = self::units(account, now);
            }
            account.options = options;
            account.let_in = account.let_in.saturating_add(units);
            twin(&limit).decide(&mut account.state, now, op);
            return;
        }
        if self.keys.len() == MAX_KEYS || self.bytes + bytes(&name) > MAX_BYTES {
            self.forgotten = self.forgotten.saturating_add(units);
            return;
        }
        let state = State::default();
        let mut account = Account { limit, options, state, let_in: units, is_refused: false };
        twin(&limit).decide(&mut account.state, now, op);
        self.bytes += bytes(&name);
        self.queue.push_back(Arc::clone(&name));
        self.keys.insert(name, account);
    }
}

fn bytes(name: &Name) -> usize {
    name.text.len() + name.tag.len()
}

/// What the store would still know of.
fn units(account: &mut Account, now: Timestamp) -> u64 {
    let read = twin(&account.limit).decide(&mut account.state, now, Op::Read(0));
    read.limit.saturating_sub(read.remaining).min(account.let_in)
}

/// The numbers that an account is kept by: the limit's own. Only a log would take room for every request.
/// The counter in its place takes them to be spread evenly over their window: of what came late in it, some
/// is forgotten sooner than by the log, and never booked.
fn twin(limit: &Limit) -> Limit {
    match limit {
        Limit::SlidingLog(log) => {
            let window = Limit::sliding_window(Rate::new(log.limit(), log.length()));
            window.build().unwrap_or(*limit)
        }
        other => *other,
    }
}

#[cfg(test)]
#[path = "pending_debits_tests.rs"]
mod tests;
