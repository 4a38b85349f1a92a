//! Divides a batch into the charges that a layer decides and those it passes on, and merges the
//! decisions.

use tidegate_core::{Decision, Op, Timestamp};

use super::Charge;

/// A batch in two parts.
#[derive(Debug)]
pub(super) struct Partition<'a> {
    /// For each charge of the batch, whether this layer decides it.
    is_here: Vec<bool>,
    /// The charges that this layer decides, in order.
    pub(super) here: Vec<Charge<'a>>,
    /// The charges that it passes on, in order.
    pub(super) there: Vec<Charge<'a>>,
}

impl<'a> Partition<'a> {
    /// Divides charges by their index.
    pub(super) fn new(charges: &[Charge<'a>], is_here: impl FnMut(usize) -> bool) -> Self {
        let is_here: Vec<bool> = (0..charges.len()).map(is_here).collect();
        let of = |wanted: bool| {
            let each = charges.iter().zip(&is_here).filter(move |(_, here)| **here == wanted);
            each.map(|(charge, _)| *charge).collect()
        };
        Self { here: of(true), there: of(false), is_here }
    }

    /// Appends the decisions of both parts in the order of the batch.
    pub(super) fn merge(
        &self,
        here: impl IntoIterator<Item = Decision>,
        there: impl IntoIterator<Item = Decision>,
        decisions: &mut Vec<Decision>,
    ) {
        let (mut here, mut there) = (here.into_iter(), there.into_iter());
        let next = |is_here: &bool| if *is_here { here.next() } else { there.next() };
        decisions.extend(self.is_here.iter().filter_map(next));
    }
}

/// Whether a request with these decisions goes through.
pub(super) fn all_allowed(decisions: &[Decision]) -> bool {
    decisions.iter().all(Decision::is_allowed)
}

/// The decisions of charges that are not made because another charge of the request is denied.
pub(super) fn fresh(charges: &[Charge<'_>], at: Timestamp) -> Vec<Decision> {
    charges.iter().map(|charge| charge.fresh_decision(at)).collect()
}

/// The charge that returns what an admitted charge took; `None` if it took nothing.
pub(super) fn returning<'a>(charge: &Charge<'a>, decision: &Decision) -> Option<Charge<'a>> {
    let op = match (charge.op, decision.lease) {
        (_, Some(lease)) => Op::Release(lease),
        (Op::Take(cost), None) => Op::Return(cost),
        _ => return None,
    };
    Some(Charge { op, reserving: None, ..*charge })
}

/// Runs when it is dropped, unless the request is admitted. Returns the units that this node took
/// for a request that another charge denies, that gets no decision, or that the caller abandons.
#[derive(Debug)]
pub(super) struct Undo<F: FnMut()>(Option<F>);

impl<F: FnMut()> Undo<F> {
    pub(super) const fn new(undo: F) -> Self {
        Self(Some(undo))
    }

    /// Keeps the units taken: the request is admitted.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        if let Some(undo) = &mut self.0 {
            undo();
        }
    }
}
