//! A store that counts the calls it receives over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::store::redis::RedisStore;
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate::{Decision, Explanation, Timestamp};
use tokio::time::Instant;

/// How long one count lasts.
const BIN: Duration = Duration::from_millis(250);
/// Twenty minutes; later calls are counted in the last bin.
const BINS: usize = 4_800;

/// A store, with the number of calls over time.
#[derive(Debug)]
pub(crate) struct Counted {
    store: RedisStore,
    sent: Arc<Sent>,
}

/// Charges sent, by time.
#[derive(Debug)]
pub(crate) struct Sent {
    start: Instant,
    bins: Box<[AtomicU64]>,
}

impl Sent {
    pub(crate) fn total(&self) -> u64 {
        self.bins.iter().map(|bin| bin.load(Ordering::Relaxed)).sum()
    }

    fn add(&self, charges: usize) {
        let bin = self.start.elapsed().as_nanos() / BIN.as_nanos();
        let bin = usize::try_from(bin).unwrap_or(BINS).min(BINS - 1);
        self.bins[bin].fetch_add(charges as u64, Ordering::Relaxed);
    }

    /// The complete bins of an interval.
    fn between(&self, from: Instant, to: Instant) -> Vec<u64> {
        let bin = |at: Instant| (at - self.start).as_nanos() / BIN.as_nanos();
        let range = bin(from) + 1..bin(to);
        let counts = range.map(|bin| {
            self.bins[usize::try_from(bin).unwrap_or(BINS).min(BINS - 1)].load(Ordering::Relaxed)
        });
        counts.collect()
    }

    /// The highest load of one interval, as a multiple of the usual load of another.
    pub(crate) fn peak(&self, usual: [Instant; 2], busy: [Instant; 2]) -> f64 {
        let usual = self.between(usual[0], usual[1]);
        let mean = usual.iter().sum::<u64>() as f64 / usual.len().max(1) as f64;
        let highest = self.between(busy[0], busy[1]).into_iter().max().unwrap_or(0);
        highest as f64 / mean.max(1.0)
    }
}

impl Counted {
    pub(crate) fn new(store: RedisStore) -> (Self, Arc<Sent>) {
        let bins = (0..BINS).map(|_| AtomicU64::new(0)).collect();
        let sent = Arc::new(Sent { start: Instant::now(), bins });
        (Self { store, sent: Arc::clone(&sent) }, sent)
    }
}

impl Store for Counted {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.sent.add(batch.charges.len());
        self.store.decide(now, batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}
