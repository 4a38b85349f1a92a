//! A node admits at most its share without the store.
//!
//! While the store is unavailable, a node admits what `on_store_failure` says:
//! - `local`: at most its share in any interval, 1.5 x limit / nodes, from its start on. A node
//!   that crashes forgets what it admitted. Each step of the store's clock adds two shares: a node
//!   learns of the step with the store's next answer, and its windows are not the store's until
//!   then. Units that callers return are added. A policy change restarts the count.
//! - `deny`: nothing.
//! - `allow`: everything.
//!
//! A `local:` pre-limit is a bucket of each node, independent of the store. If the store denies a
//! request, the bucket's units are returned; the units that the bucket refilled in the meantime are
//! added, because it may get both.

use tidegate::store::OnStoreFailure;

use super::meter::{Admission, Meter, Moment};
use super::promise::Promise;
use crate::world::machine::network::DEADLINE;

/// Error of a node's estimate of the store's clock, in microseconds: the duration of an answer.
const CLOCK_ERROR: u64 = DEADLINE + 1_000;

#[derive(Debug)]
pub(crate) struct Shares {
    mode: OnStoreFailure,
    share: Promise,
    /// By node and key.
    shares: Vec<Vec<Meter>>,
    pre_limit: Option<Promise>,
    pre_limits: Vec<Vec<Meter>>,
}

impl Shares {
    pub(crate) fn new(
        mode: OnStoreFailure,
        share: Promise,
        pre_limit: Option<Promise>,
        (nodes, keys): (usize, usize),
    ) -> Self {
        let meters = |promise: Promise| -> Vec<Vec<Meter>> {
            (0..nodes).map(|_| (0..keys).map(|_| Meter::new(promise)).collect()).collect()
        };
        let pre_limits = pre_limit.map(meters).unwrap_or_default();
        Self { mode, share, shares: meters(share), pre_limit, pre_limits }
    }

    /// A node admitted a request without the store.
    pub(crate) fn admitted(
        &mut self,
        (node, key): (usize, usize),
        it: &Admission,
        oldest: u64,
    ) -> Option<String> {
        match self.mode {
            OnStoreFailure::Allow => None,
            OnStoreFailure::Deny => {
                Some(format!("node {node} admitted key {key} without the store"))
            }
            OnStoreFailure::Local => {
                let (it, oldest) = (it.widened(CLOCK_ERROR), oldest - CLOCK_ERROR);
                let excess = self.shares[node][key].admit(&it, oldest);
                (excess > 0)
                    .then(|| format!("node {node} admitted {excess} of key {key} above its share"))
            }
        }
    }

    /// A node admitted a request that its pre-limit counts.
    pub(crate) fn passed(
        &mut self,
        (node, key): (usize, usize),
        it: &Admission,
        oldest: u64,
    ) -> Option<String> {
        let excess = self.pre_limits.get_mut(node)?[key].admit(it, oldest);
        (excess > 0)
            .then(|| format!("node {node} admitted {excess} of key {key} above its pre-limit"))
    }

    /// A request that passed the pre-limit was denied in the end, `wait` microseconds later.
    pub(crate) fn gave_back(&mut self, at: Moment, (node, key): (usize, usize), wait: u64) {
        if let Some(meters) = self.pre_limits.get_mut(node) {
            meters[key].add_refill(at, wait);
        }
    }

    /// A caller returns units.
    pub(crate) fn returned(&mut self, at: Moment, (node, key): (usize, usize), units: u64) {
        self.shares[node][key].add(at, u64::MAX, units);
    }

    /// The store's clock was set.
    pub(crate) fn clock_set(&mut self, at: Moment) {
        for meter in self.shares.iter_mut().flatten() {
            meter.clock_set();
            meter.add(at, u64::MAX, 2 * self.share.units);
        }
    }

    /// A node starts again, or has new numbers.
    pub(crate) fn restart(&mut self, node: usize, share: Promise) {
        self.share = share;
        self.shares[node].iter_mut().for_each(|meter| meter.restart(share));
        if let (Some(promise), Some(meters)) = (self.pre_limit, self.pre_limits.get_mut(node)) {
            meters.iter_mut().for_each(|meter| meter.restart(promise));
        }
    }
}
