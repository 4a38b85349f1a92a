//! Every request is answered, in time, and by the store two seconds after the last fault.

use std::collections::BTreeSet;

use tidegate::store::{DecisionSource, StoreError};

use crate::world::machine::network::DEADLINE;

#[derive(Debug)]
pub(crate) struct Answers {
    /// Requests that are neither answered nor dropped; they are numbered as they arrive.
    open: BTreeSet<usize>,
    /// Number of commands that a node waits for, one after the other, for each key of a request.
    calls: u64,
    /// Whether a store that does not answer is an error to the caller.
    may_fail: bool,
    /// The time from which the store answers every request, in microseconds.
    calm_from: u64,
}

impl Answers {
    pub(crate) const fn new(calls: u64, may_fail: bool, calm_from: u64) -> Self {
        Self { open: BTreeSet::new(), calls, may_fail, calm_from }
    }

    pub(crate) fn asked(&mut self, request: usize) {
        self.open.insert(request);
    }

    /// The oldest open request.
    pub(crate) fn oldest(&self) -> Option<usize> {
        self.open.first().copied()
    }

    /// A request for this many keys is answered; `None` if its node was paused, so that the answer
    /// may be late.
    pub(crate) fn answered(
        &mut self,
        request: usize,
        (asked, now): (u64, u64),
        keys: Option<usize>,
        source: &Result<DecisionSource, StoreError>,
    ) -> Option<String> {
        self.open.remove(&request);
        let wait = now - asked;
        if keys.is_some_and(|keys| wait > self.calls * keys as u64 * DEADLINE) {
            return Some(format!("request {request} waited {wait} us"));
        }
        match source {
            Err(error) if !self.may_fail => Some(format!("request {request} failed: {error}")),
            Ok(DecisionSource::Store) => None,
            _ if asked < self.calm_from => None,
            other => Some(format!("request {request} got {other:?} after the store recovered")),
        }
    }

    /// A request is dropped with its node or by its caller; false if it was answered before.
    pub(crate) fn dropped(&mut self, request: usize) -> bool {
        self.open.remove(&request)
    }

    /// The world ends.
    pub(crate) fn end(&self, asked: impl Fn(usize) -> u64, now: u64) -> Option<String> {
        let request = self.oldest().filter(|it| asked(*it) + 8 * DEADLINE < now)?;
        Some(format!("request {request} was never answered"))
    }
}
