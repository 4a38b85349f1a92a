//! Nodes.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use tidegate::store::Store;
use tidegate::store::background::Background;
use tidegate::{Clock, ManualClock};
use tidegate_core::Timestamp;

use super::chance::Chance;
use super::clock::DriftingClock;
use super::network::Network;
use super::runtime::{NodeRuntime, Spawned};
use super::sim_store::SimStore;
use super::stack::NodeParts;

/// Facilities that the nodes of a world share.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) network: Arc<Mutex<Network>>,
    pub(crate) spawned: Arc<Mutex<Spawned>>,
    pub(crate) chance: Arc<Mutex<Chance>>,
}

/// A node. It has a new life after each crash or restart.
#[derive(Debug)]
pub(crate) struct Node<S> {
    /// `None` while the node is down.
    pub(crate) body: Option<Body<S>>,
    pub(crate) life: u32,
    /// Its wall clock, which can be set.
    pub(crate) wall: DriftingClock,
    /// The end of its last pause.
    pub(crate) still_until: u64,
    /// Whether the node shuts down and accepts no more requests.
    pub(crate) is_closing: bool,
    /// The revision of the node's policy.
    pub(crate) revision: usize,
    /// Its tasks that have not ended.
    pub(crate) tasks: BTreeSet<usize>,
    /// Admitted keys and units that callers may return.
    pub(crate) served: Vec<(usize, u64)>,
}

/// The state that a node loses in a crash.
#[derive(Debug)]
pub(crate) struct Body<S> {
    pub(crate) store: Arc<S>,
    /// Its monotonic clock: the wall clock as it was at the start.
    clock: DriftingClock,
    hand: ManualClock,
    wall_hand: ManualClock,
}

impl<S: Store> Node<S> {
    pub(crate) const fn new(wall: DriftingClock) -> Self {
        Self {
            body: None,
            life: 0,
            wall,
            still_until: 0,
            is_closing: false,
            revision: 0,
            tasks: BTreeSet::new(),
            served: Vec::new(),
        }
    }

    /// Starts or restarts the node.
    pub(crate) fn start(
        &mut self,
        (number, now): (usize, u64),
        ground: &Ground,
        stack: impl Fn(NodeParts) -> io::Result<S>,
    ) -> io::Result<()> {
        let (clock, life) = (self.wall, self.life);
        let (hand, wall_hand) = (ManualClock::at(clock.at(now)), ManualClock::at(clock.at(now)));
        let Ground { network, spawned, chance } = ground.clone();
        let runtime =
            NodeRuntime { network, spawned, chance, node: number, life, drift: clock.drift };
        let parts = NodeParts {
            store: SimStore::new(Arc::clone(&ground.network), number, life),
            clock: Clock::from(hand.clone()),
            wall: Clock::from(wall_hand.clone()),
            background: Background::new(runtime),
        };
        let store = Arc::new(stack(parts)?);
        self.body = Some(Body { store, clock, hand, wall_hand });
        Ok(())
    }

    /// Sets the node's clocks to the present; returns its monotonic time. A node that is down has none.
    pub(crate) fn tick(&self, now: u64) -> Option<Timestamp> {
        let body = self.body.as_ref()?;
        let time = body.clock.at(now);
        body.hand.set(time);
        body.wall_hand.set(self.wall.at(now));
        Some(time)
    }

    /// The node crashes. Returns its tasks, which never end.
    pub(crate) fn die(&mut self) -> BTreeSet<usize> {
        self.body = None;
        self.life += 1;
        self.is_closing = false;
        self.served.clear();
        std::mem::take(&mut self.tasks)
    }
}
