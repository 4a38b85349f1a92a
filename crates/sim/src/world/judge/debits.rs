//! Units that a node admitted without the store are debited when the store recovers, once.
//!
//! A debit whose answer is lost is made again, so only debits that the node hears of count. Units that would have
//! been refilled meanwhile are not debited. A node that crashes forgets its pending debits. With a policy change,
//! debits are not judged: the same debt is another number of units then. Nor are they for keys with several shards:
//! there, a lost answer repeats the debits of other keys, too.

use tidegate_core::{Algorithm, Limit, Op, State, Timestamp};

#[derive(Debug)]
pub(crate) struct Debits {
    limit: Limit,
    /// By node and key.
    keys: Vec<Vec<Pending>>,
    /// True if the store's clock was set forward, which refills units that a node admitted before
    /// it noticed the step.
    may_be_refilled: bool,
}

#[derive(Clone, Debug, Default)]
struct Pending {
    /// Units admitted without the store, and units debited for them.
    admitted: u64,
    debited: u64,
    /// The units that need no debit, as the state of a key of its own: they refill with time.
    state: State,
}

impl Debits {
    pub(crate) fn new(limit: Limit, nodes: usize, keys: usize) -> Self {
        Self { limit, keys: vec![vec![Pending::default(); keys]; nodes], may_be_refilled: false }
    }

    /// A node answered a request without the store, or a part of the request (`is_whole` is false).
    pub(crate) fn admitted(
        &mut self,
        (node, key): (usize, usize),
        units: u64,
        time: u64,
        is_whole: bool,
    ) {
        let it = &mut self.keys[node][key];
        it.admitted += units;
        if is_whole {
            self.limit.decide(&mut it.state, Timestamp::from_micros(time), Op::Force(units));
        }
    }

    /// A caller returned units to a node.
    pub(crate) fn returned(&mut self, (node, key): (usize, usize), units: u64, time: u64) {
        let state = &mut self.keys[node][key].state;
        self.limit.decide(state, Timestamp::from_micros(time), Op::Return(units));
    }

    /// A node learns that units were debited.
    pub(crate) fn debited(&mut self, (node, key): (usize, usize), units: u64) -> Option<String> {
        let it = &mut self.keys[node][key];
        it.debited += units;
        it.state = State::default();
        let Pending { admitted, debited, .. } = *it;
        (debited > admitted).then(|| {
            format!("node {node} admitted {admitted} of key {key} without the store, and debited {debited}")
        })
    }

    /// The store has been available for long enough.
    pub(crate) fn recovered(&mut self, time: u64) -> Option<String> {
        let (limit, at) = (self.limit, Timestamp::from_micros(time));
        // The pending debits of a log are kept by window, which ends sooner.
        let is_log = matches!(limit, Limit::SlidingLog(_) | Limit::InFlight(_));
        if self.may_be_refilled || is_log {
            return None;
        }
        for (node, keys) in self.keys.iter_mut().enumerate() {
            for (key, it) in keys.iter_mut().enumerate() {
                let read = limit.decide(&mut it.state, at, Op::Read(0));
                let pending = read.limit - read.remaining;
                // The node's clock differs slightly.
                if pending > 1 {
                    return Some(format!("node {node} never debited {pending} of key {key}"));
                }
            }
        }
        None
    }

    /// The store's clock was set forward.
    pub(crate) const fn set_forward(&mut self) {
        self.may_be_refilled = true;
    }

    /// A node crashes.
    pub(crate) fn restart(&mut self, node: usize) {
        self.keys[node].fill(Pending::default());
    }
}
