//! The store as the production code sees it: a client of the simulated server.

use std::future::poll_fn;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidegate::Explanation;
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate_core::{Decision, Timestamp};

use super::executor::lock;
use super::network::{Answer, Network};

/// How long a node does not repair states after a policy change, in microseconds, because other nodes may still
/// have the old policy. Shorter than with Redis, to fit into a world.
const SETTLES: u64 = 1_000_000;

/// A store behind a simulated network. It decides by its own clock and ignores the caller's, as Redis does.
#[derive(Clone, Debug)]
pub struct SimStore {
    network: Arc<Mutex<Network>>,
    node: usize,
    life: u32,
    known: Arc<Known>,
}

/// A node's knowledge of the store.
#[derive(Debug)]
struct Known {
    /// The difference between the store's clock and the node's at the last answer.
    skew: AtomicI64,
    /// The greatest revision of the limits so far.
    revision: AtomicU64,
    /// When the node begins to repair states.
    settled_at: AtomicU64,
}

impl SimStore {
    pub(crate) fn new(network: Arc<Mutex<Network>>, node: usize, life: u32) -> Self {
        let settled_at = AtomicU64::new(lock(&network).now + SETTLES);
        let known =
            Arc::new(Known { skew: AtomicI64::new(0), revision: AtomicU64::new(0), settled_at });
        Self { network, node, life, known }
    }
}

impl Store for SimStore {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let (charges, is_each) = (batch.charges, !batch.is_all_or_nothing());
        let call = {
            let mut network = lock(&self.network);
            if batch.revision > self.known.revision.fetch_max(batch.revision, Ordering::Relaxed) {
                self.known.settled_at.store(network.now + SETTLES, Ordering::Relaxed);
            }
            let repairs = network.now >= self.known.settled_at.load(Ordering::Relaxed);
            network.ask(self.node, self.life, (charges, is_each), repairs)
        };
        let reply = poll_fn(|context| lock(&self.network).poll_answer(call, context)).await;
        let Answer { at, decisions: mut own, denied_states } = reply?;
        let skew = at.as_micros().wrapping_sub(now.as_micros()).cast_signed();
        self.known.skew.store(skew, Ordering::Relaxed);
        for (charge, denied_state) in charges.iter().zip(denied_states) {
            if let (Some(wanted), Some(denied_state)) = (charge.denied_state, denied_state) {
                let _ = wanted.set(denied_state);
            }
        }
        decisions.append(&mut own);
        Ok(DecisionSource::Store)
    }

    async fn explain(
        &self,
        _now: Timestamp,
        _charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Err(StoreError::Protocol("the simulated store decides, and explains nothing".into()))
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        let skew = self.known.skew.load(Ordering::Relaxed);
        Timestamp::from_micros(local.as_micros().saturating_add_signed(skew))
    }
}
