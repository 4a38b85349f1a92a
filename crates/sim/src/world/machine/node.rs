//! Nodes, and the lives they have.

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

/// What nodes of a world have in common.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) network: Arc<Mutex<Network>>,
    pub(crate) spawned: Arc<Mutex<Spawned>>,
    pub(crate) chance: Arc<Mutex<Chance>>,
}

/// A node, in one of its lives.
#[derive(Debug)]
pub(crate) struct Node<S> {
    /// None while it is down.
    pub(crate) body: Option<Body<S>>,
    pub(crate) life: u32,
    /// What people set.
    pub(crate) wall: DriftingClock,
    /// When it last stood still, until then.
    pub(crate) still_until: u64,
    /// It stops in good order, and takes no more requests.
    pub(crate) is_closing: bool,
    /// Which numbers it knows.
    pub(crate) revision: usize,
    /// Its tasks that have not ended.
    pub(crate) tasks: BTreeSet<usize>,
    /// What it has let in and may give back: keys and units.
    pub(crate) served: Vec<(usize, u64)>,
}

/// What of a node goes with a crash.
#[derive(Debug)]
pub(crate) struct Body<S> {
    pub(crate) store: Arc<S>,
    /// The wall clock as it was at the start, and monotonic since.
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

    /// Starts it, or starts it again.
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

    /// It crashes. What it was about to do is never done.
    pub(crate) fn die(&mut self) -> BTreeSet<usize> {
        self.body = None;
        self.life += 1;
        self.is_closing = false;
        self.served.clear();
        std::mem::take(&mut self.tasks)
    }
}
