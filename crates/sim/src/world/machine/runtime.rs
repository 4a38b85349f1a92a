//! Runs the background work of a node's layers, on the node's own time, until the node crashes.

use std::fmt;
use std::future::{pending, poll_fn};
use std::sync::{Arc, Mutex};

use tidegate::store::background::{Runtime, Work};
use tidegate_core::Span;

use super::chance::Chance;
use super::executor::lock;
use super::network::Network;

/// A runtime that runs nothing, so that layers on it do no background work.
#[derive(Clone, Copy, Debug)]
pub struct Idle;

impl Runtime for Idle {
    fn spawn(&self, _work: Work) {}

    fn sleep(&self, _span: Span) -> Work {
        Box::pin(pending())
    }

    fn chance(&self) -> u64 {
        0
    }
}

/// Background work that was spawned and has not begun.
#[derive(Default)]
pub(crate) struct Spawned(Vec<(usize, Work)>);

impl fmt::Debug for Spawned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spawned").field(&self.0.len()).finish()
    }
}

impl Spawned {
    /// Takes all spawned work, with the node of each task.
    pub(crate) fn take(&mut self) -> Vec<(usize, Work)> {
        std::mem::take(&mut self.0)
    }
}

/// The runtime of one node, from one start to the next.
#[derive(Debug)]
pub(crate) struct NodeRuntime {
    pub(crate) network: Arc<Mutex<Network>>,
    pub(crate) spawned: Arc<Mutex<Spawned>>,
    pub(crate) chance: Arc<Mutex<Chance>>,
    pub(crate) node: usize,
    pub(crate) life: u32,
    /// How many parts per million the node's clock runs fast.
    pub(crate) drift: i64,
}

impl Runtime for NodeRuntime {
    fn spawn(&self, work: Work) {
        lock(&self.spawned).0.push((self.node, work));
    }

    fn sleep(&self, span: Span) -> Work {
        let micros = span.as_micros().cast_signed();
        let passes = micros - micros * self.drift / (1_000_000 + self.drift) + 1;
        let after = passes.max(1).cast_unsigned();
        let timer = lock(&self.network).set_timer(self.node, self.life, after);
        let network = Arc::clone(&self.network);
        Box::pin(async move { poll_fn(|context| lock(&network).slept(timer, context)).await })
    }

    fn chance(&self) -> u64 {
        lock(&self.chance).below(u64::MAX)
    }
}
