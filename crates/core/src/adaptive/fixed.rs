//! A constant limit.

use super::{Estimator, Step, WindowStats};
use crate::time::Timestamp;

/// A limit that never changes: for a known capacity, or for services with fewer than two requests
/// per second, which give an estimator too little to measure.
#[derive(Clone, Copy, Debug)]
pub struct Fixed(u32);

impl Fixed {
    /// A constant limit, at least 1.
    pub fn new(limit: u32) -> Self {
        Self(limit.max(1))
    }
}

impl Estimator for Fixed {
    fn window(&mut self, _now: Timestamp, _stats: &WindowStats) -> Step {
        Step { limit: self.0, probe: None }
    }

    fn limit(&self) -> u32 {
        self.0
    }
}
