//! The report of a world.

use tidegate::store::{DecisionSource, StoreError};
use tidegate_core::AlgorithmName;

use super::faults::Fault;
use super::machine::network::Event;
use super::request::{Broken, Outcome};
use super::setup::WorldSetup;

/// Figures of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorldReport {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests for two keys.
    pub pairs: u64,
    /// Units requested.
    pub offered: u64,
    /// Units admitted.
    pub admitted: u64,
    /// Requests denied by the limit.
    pub denied: u64,
    /// Requests that got an error.
    pub failed: u64,
    /// Requests answered without the store, by `on_store_failure`.
    pub fallback: u64,
    /// Requests lost with their node, or abandoned by their callers.
    pub dropped: u64,
    /// Commands sent to the store.
    pub store_calls: u64,
    /// The most units that the limit alone allows in this time, over all keys.
    pub envelope: u64,
    /// The kinds of faults that struck.
    pub faults: Vec<Fault>,
    /// The first promise that was broken.
    pub broken: Option<Broken>,
    /// A hash of all events.
    pub trace: Trace,
}

impl WorldReport {
    pub(crate) fn asked(&mut self, cost: u64) {
        self.requests += 1;
        self.offered += cost;
    }

    pub(crate) fn answered(&mut self, outcome: &Outcome, admitted: u64) {
        let is_allowed = outcome.is_allowed.contains(&true);
        let outcome = match (&outcome.source, is_allowed) {
            (Ok(DecisionSource::Store), true) => 0,
            (Ok(_), true) => 1,
            (Ok(DecisionSource::Store), false) => 2,
            (Ok(_), false) => 3,
            (Err(StoreError::Timeout), _) => 4,
            (Err(_), _) => 5,
        };
        match outcome {
            0 | 1 => self.admitted += admitted,
            2 | 3 => self.denied += 1,
            _ => self.failed += 1,
        }
        self.fallback += u64::from(matches!(outcome, 1 | 3));
        self.trace.add(outcome);
    }

    pub(crate) fn struck(&mut self, fault: Fault) {
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Commands to the store per thousand requests.
    pub fn calls_per_thousand(&self) -> u64 {
        self.store_calls.saturating_mul(1_000) / self.requests.max(1)
    }

    /// Percentage of the possible units that were admitted.
    pub fn utilisation(&self) -> u64 {
        let possible = self.offered.min(self.envelope).max(1);
        self.admitted.saturating_mul(100) / possible
    }
}

/// The most units that the limit allows in a world without faults.
pub(crate) fn envelope(setup: &WorldSetup) -> u64 {
    let (count, per) = (u128::from(setup.rate.count), u128::from(setup.rate.per.as_micros()));
    if setup.in_flight {
        return u64::MAX;
    }
    let refilled = count * u128::from(setup.end()) / per.max(1);
    let each = match setup.algorithm {
        AlgorithmName::TokenBucket | AlgorithmName::Gcra => refilled + u128::from(setup.burst),
        AlgorithmName::LeakyBucket => refilled + u128::from(setup.burst) + 1,
        // The world may begin and end within a window.
        _ => refilled + 2 * count,
    };
    u64::try_from(each * setup.keys as u128).unwrap_or(u64::MAX)
}

/// A hash of all events, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    fn add(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) fn note(&mut self, now: u64, event: Event) {
        self.add(now);
        let (kind, number) = match event {
            Event::Ask { node, .. } => (0, node),
            Event::AtStore(call) => (1, call),
            Event::AtNode(call) => (2, call),
            Event::Deadline(call) => (3, call),
            Event::Begin(incident) => (4, incident),
            Event::End(incident) => (5, incident),
            Event::Wake(timer) => (6, timer),
            Event::Learn { node, .. } => (7, node),
            Event::Release(place) => (8, place),
            Event::Close { node, .. } => (9, node),
            Event::GiveUp(request) => (10, request),
        };
        self.add(kind << 56 | number as u64);
    }
}

impl std::fmt::Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
