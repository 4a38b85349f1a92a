//! Pending debits: units that were admitted without the store, to be debited when it recovers.
//!
//! Each key has a separate state that counts only these units, under the same limit. Units that
//! refill before the store recovers, and units of a window that has ended, are therefore not
//! debited.
//!
//! # Bounds
//! At most [`MAX_KEYS`] keys and [`MAX_BYTES`] of their texts. Units of further keys are counted and never
//! debited.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::quality::RandomState;
use tidegate_core::{Algorithm, Limit, Op, Rate, State, Timestamp};

use crate::key::OwnedKey;
use crate::store::{Charge, LimitOptions, StoreError};
use crate::sync::{Mutex, lock};

/// The most keys.
pub(super) const MAX_KEYS: usize = 1 << 16;
/// The most bytes of their texts and tags.
const MAX_BYTES: usize = 16 << 20;
/// The most keys examined under the lock in one search for keys whose server is available.
const MOST_LOOKED_AT: usize = 512;

/// The pending debits of all keys.
#[derive(Debug, Default)]
pub(super) struct PendingDebits(Mutex<Accounts>);

#[derive(Debug, Default)]
struct Accounts {
    keys: HashMap<Arc<OwnedKey>, Account, RandomState>,
    /// Every key once, in the order in which they are debited.
    queue: VecDeque<Arc<OwnedKey>>,
    bytes: usize,
    /// Units that were dropped for lack of room.
    forgotten: u64,
}

#[derive(Debug)]
struct Account {
    limit: Limit,
    /// Determines which of the store's keys and servers the debit goes to.
    options: LimitOptions,
    /// The state under the limit that [`twin`] returns.
    state: State,
    /// Admitted units, the most that may be debited. The estimate of the store's clock varies with
    /// the network delay; if it goes back, the state seems to owe more.
    admitted: u64,
    /// The store refused the last attempt.
    is_refused: bool,
}

/// The debit of one key, on its way to the store.
#[derive(Debug)]
pub(super) struct Debit {
    key: Arc<OwnedKey>,
    limit: Limit,
    options: LimitOptions,
    pub(super) units: u64,
    is_refused: bool,
}

impl Debit {
    /// The charge that makes the debit. It is never denied, and never takes the key below empty.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge::new(self.key.key(), &self.limit, Op::Force(self.units)).on(self.options)
    }

    /// The debit after a failed attempt; marked as refused unless the store was unavailable.
    pub(super) fn refused_by(self, error: &StoreError) -> Self {
        Self { is_refused: !error.is_outage(), ..self }
    }
}

impl PendingDebits {
    /// Adds units that were admitted.
    pub(super) fn owe(&self, now: Timestamp, charge: &Charge<'_>, units: u64) {
        // A place is not spent: its holder releases it.
        if units == 0 || matches!(charge.limit, Limit::InFlight(_)) {
            return;
        }
        let (key, limit) = (Arc::new(OwnedKey::of(charge.key)), *charge.limit);
        let debit = Debit { key, limit, options: charge.options, units, is_refused: false };
        lock(&self.0).book(now, debit);
    }

    /// Subtracts returned units. Units beyond the key's pending debit are dropped.
    pub(super) fn give_back(&self, now: Timestamp, charge: &Charge<'_>, units: u64) {
        let mut owed = lock(&self.0);
        // Nearly always there are no pending debits.
        if owed.keys.is_empty() {
            return;
        }
        if let Some(account) = owed.keys.get_mut(&OwnedKey::of(charge.key)) {
            twin(&account.limit).decide(&mut account.state, now, Op::Return(units));
            account.admitted = account.admitted.saturating_sub(units);
        }
    }

    /// Drops the debit of a key that was reset.
    pub(super) fn forget(&self, charge: &Charge<'_>) {
        let mut owed = lock(&self.0);
        let key = OwnedKey::of(charge.key);
        if owed.keys.remove(&key).is_some() {
            owed.bytes -= key.bytes();
            owed.queue.retain(|queued| **queued != key);
        }
    }

    /// Takes out the debits of at most `most` keys whose servers are available.
    pub(super) fn due(
        &self,
        now: Timestamp,
        most: usize,
        is_back: impl Fn(&Charge<'_>) -> bool,
    ) -> Vec<Debit> {
        let (mut owed, mut due) = (lock(&self.0), Vec::new());
        for _ in 0..owed.queue.len().min(MOST_LOOKED_AT) {
            if due.len() == most {
                break;
            }
            let Some(key) = owed.queue.pop_front() else { break };
            let Some(account) = owed.keys.get_mut(&key) else { continue };
            let units = units(account, now);
            let Account { limit, options, is_refused, .. } = *account;
            let debit = Debit { key, limit, options, units, is_refused };
            // A refused debit is tried alone.
            let is_beside = is_refused && !due.is_empty();
            if units > 0 && (is_beside || !is_back(&debit.charge())) {
                owed.queue.push_back(debit.key);
                continue;
            }
            owed.keys.remove(&debit.key);
            owed.bytes -= debit.key.bytes();
            if units > 0 {
                due.push(debit);
            }
            if units > 0 && is_refused {
                break;
            }
        }
        due
    }

    /// Puts back debits that could not be made.
    pub(super) fn owe_again(&self, now: Timestamp, debits: Vec<Debit>) {
        let mut owed = lock(&self.0);
        debits.into_iter().for_each(|debit| owed.book(now, debit));
    }

    /// Number of keys, and of units dropped for lack of room.
    pub(super) fn tally(&self) -> (usize, u64) {
        let owed = lock(&self.0);
        (owed.keys.len(), owed.forgotten)
    }
}

impl Accounts {
    fn book(&mut self, now: Timestamp, debit: Debit) {
        let Debit { key, limit, options, units, is_refused } = debit;
        if !self.keys.contains_key(&key) {
            if self.keys.len() == MAX_KEYS || self.bytes + key.bytes() > MAX_BYTES {
                self.forgotten = self.forgotten.saturating_add(units);
                return;
            }
            self.bytes += key.bytes();
            self.queue.push_back(Arc::clone(&key));
        }
        let account = self.keys.entry(key).or_insert_with(|| Account {
            limit,
            options,
            state: State::default(),
            admitted: 0,
            is_refused,
        });
        if account.limit != limit {
            // A bucket's debt is stored as time, which is another number of units under another
            // limit.
            (account.limit, account.admitted) = (limit, u64::MAX);
            account.admitted = self::units(account, now);
        }
        (account.options, account.is_refused) = (options, account.is_refused || is_refused);
        account.admitted = account.admitted.saturating_add(units);
        twin(&limit).decide(&mut account.state, now, Op::Force(units));
    }
}

/// The units that the store would still count.
fn units(account: &mut Account, now: Timestamp) -> u64 {
    let read = twin(&account.limit).decide(&mut account.state, now, Op::Read(0));
    read.limit.saturating_sub(read.remaining).min(account.admitted)
}

/// The limit of an account's state. A sliding log would need memory for every request, so a sliding
/// window replaces it. The window assumes evenly spaced requests, and drops some units of a late
/// burst sooner than the log would.
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
