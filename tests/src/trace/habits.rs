//! The habits of one trace.

use fastrand::Rng;
use tidegate_core::AlgorithmName;

use super::clock::Stride;
use crate::subject::Subject;

/// The kind of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum OpKind {
    Take,
    Read,
    Return,
    ReturnOwed,
    Force,
    Reset,
    Release,
    Renew,
    Block,
}

/// The size of a cost.
#[derive(Clone, Copy, Debug)]
pub(super) enum CostKind {
    Nought,
    One,
    Few,
    /// The remaining units, one less or one more.
    Remaining,
    /// Up to a quarter of the capacity.
    Share,
    /// Up to the capacity.
    Any,
    /// The capacity less one, up to two more.
    Capacity,
    /// Around the largest cost, and above it.
    Huge,
}

/// Weighted choices, drawn once per trace.
#[derive(Debug)]
pub(super) struct Habits {
    pub(super) renumber_permille: u32,
    strides: Choice<Stride>,
    ops: Choice<OpKind>,
    costs: Choice<CostKind>,
}

impl Habits {
    pub(super) fn new(rng: &mut Rng, subject: Subject) -> Self {
        // Only leases can be released; under other limits a release must have no effect.
        let releases = if subject == Subject::InFlight { 24 } else { 1 };
        // Windows change only at their boundaries.
        let boundary = match subject {
            Subject::Rated(AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow) => 24,
            Subject::Rated(_) | Subject::InFlight => 6,
        };
        let renumber_permille = if rng.bool() { 0 } else { rng.u32(1..=60) };
        let strides = [
            (Stride::Stay, 24),
            (Stride::TickOn, 12),
            (Stride::TickBack, 8),
            (Stride::Promised, 24),
            (Stride::Boundary, boundary),
            (Stride::Grain, 24),
            (Stride::Horizon, 12),
            (Stride::Back, 8),
            (Stride::LeapOn, 3),
            (Stride::LeapBack, 3),
        ];
        let ops = [
            (OpKind::Take, 64),
            (OpKind::Read, 12),
            (OpKind::Return, 8),
            (OpKind::ReturnOwed, 12),
            (OpKind::Force, 8),
            (OpKind::Reset, 1),
            (OpKind::Release, releases),
            (OpKind::Renew, releases),
            (OpKind::Block, 1),
        ];
        let costs = [
            (CostKind::Nought, 3),
            (CostKind::One, 24),
            (CostKind::Few, 16),
            (CostKind::Remaining, 16),
            (CostKind::Share, 16),
            (CostKind::Any, 16),
            (CostKind::Capacity, 8),
            (CostKind::Huge, 2),
        ];
        Self {
            renumber_permille,
            strides: Choice::swarm(rng, &strides),
            ops: Choice::swarm(rng, &ops),
            costs: Choice::swarm(rng, &costs),
        }
    }

    pub(super) fn stride(&self, rng: &mut Rng) -> Stride {
        self.strides.pick(rng)
    }

    pub(super) fn op(&self, rng: &mut Rng) -> OpKind {
        self.ops.pick(rng)
    }

    pub(super) fn cost(&self, rng: &mut Rng) -> CostKind {
        self.costs.pick(rng)
    }
}

/// Items with weights; the first is always among them.
#[derive(Debug)]
struct Choice<T> {
    items: Vec<(T, u32)>,
    sum: u32,
}

impl<T: Copy> Choice<T> {
    /// Leaves out about a third of the items, and changes the weights of the others.
    fn swarm(rng: &mut Rng, items: &[(T, u32)]) -> Self {
        let mut kept = vec![items[0]];
        for &(item, weight) in &items[1..] {
            if rng.u32(0..3) > 0 {
                kept.push((item, weight * rng.u32(1..=4)));
            }
        }
        let sum = kept.iter().map(|(_, weight)| weight).sum();
        Self { items: kept, sum }
    }

    fn pick(&self, rng: &mut Rng) -> T {
        let mut point = rng.u32(0..self.sum);
        for &(item, weight) in &self.items {
            if point < weight {
                return item;
            }
            point -= weight;
        }
        self.items[0].0
    }
}
