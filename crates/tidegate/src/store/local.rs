//! Limits that a node decides by itself: `local:` pre-limits, and keys with a local override.
//!
//! # Promise
//! A pre-limit can only deny more, so the limit behind it keeps its promise. A request that it denies costs no
//! store call, and each node sends at most burst + rate × time of the pre-limit. It denies too much if one node
//! gets more than its bucket while the limit still has units.
//!
//! All or nothing: units of the pre-limit are returned if the limit behind it denies or gives no decision.
//!
//! A key with a local override is decided only by this node's share of its limits: 1.5 times the
//! limit divided by the number of nodes, at least one unit. Each node with the override admits at
//! most its share, in addition to the units that the store admits for other nodes.
//!
//! # Bound
//! [`BYTES`] of state in this process; a full table evicts as any [`MemoryStore`] does.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, Op, Timestamp};

use super::memory::MemoryStore;
use super::partition::{Partition, Undo, all_allowed, fresh, returning};
use super::shared::Layers;
use super::{Batch, Charge, DecisionSource, Store, StoreError, Tier};

/// The memory bound: about a million keys.
pub const BYTES: u64 = 32 << 20;

/// The local limits of this node.
#[derive(Debug)]
pub(super) struct LocalLimits {
    pub(super) memory: MemoryStore,
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// Charges decided on this node alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalStats {
    /// Charges that were admitted, or passed on to the limit behind.
    pub allowed: u64,
    /// Charges that were denied.
    pub denied: u64,
}

/// Whether a charge is decided on this node alone.
#[inline(always)]
pub(super) fn is_local(charge: &Charge<'_>) -> bool {
    charge.options.tier == Tier::Local
}

impl LocalLimits {
    pub(super) const fn new(memory: MemoryStore) -> Self {
        Self { memory, allowed: AtomicU64::new(0), denied: AtomicU64::new(0) }
    }

    pub(super) fn stats(&self) -> LocalStats {
        LocalStats {
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
        }
    }

    fn decide(&self, now: Timestamp, batch: Batch<'_>) -> Vec<Decision> {
        let charges = batch.charges;
        let mut own = Vec::with_capacity(charges.len());
        if batch.is_all_or_nothing() {
            self.memory.decide_together(now, charges, |decision| own.push(decision));
        } else {
            own.extend(charges.iter().map(|charge| self.memory.decide(now, charge)));
        }
        for (charge, decision) in charges.iter().zip(&own) {
            let counter = if decision.is_allowed() { &self.allowed } else { &self.denied };
            counter.fetch_add(u64::from(matches!(charge.op, Op::Take(1..))), Ordering::Relaxed);
        }
        own
    }
}

impl<S: Store + 'static> Layers<S> {
    /// Decides the charges of local limits, and passes the others on.
    pub(super) async fn decide_local(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let partition = Partition::new(batch.charges, |i| is_local(&batch.charges[i]));
        let (here, there) = (batch.of(&partition.here), batch.of(&partition.there));
        if there.charges.is_empty() {
            decisions.append(&mut self.local.decide(now, here));
            return Ok(DecisionSource::Store);
        }
        let (mut others, mut source) = (Vec::new(), DecisionSource::Store);
        if !batch.is_all_or_nothing() {
            source = self.decide_or_fall_back(now, there, &mut others).await?;
            partition.merge(self.local.decide(now, here), others, decisions);
            return Ok(source);
        }
        let own = self.local.decide(now, here);
        let is_denied = !all_allowed(&own);
        if is_denied && there.charges.iter().any(|charge| matches!(charge.op, Op::Take(_))) {
            others = fresh(there.charges, self.store.clock(now));
        } else {
            let taken = here.charges.iter().zip(&own);
            let give_back = || {
                for charge in taken.clone().filter_map(|(charge, own)| returning(charge, own)) {
                    self.local.memory.decide(now, &charge);
                }
            };
            let undo = (!is_denied).then(|| Undo::new(give_back));
            source = self.decide_or_fall_back(now, there, &mut others).await?;
            if let Some(undo) = undo.filter(|_| all_allowed(&others)) {
                undo.keep();
            }
        }
        partition.merge(own, others, decisions);
        Ok(source)
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
