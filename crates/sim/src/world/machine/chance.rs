//! A random number generator.

use crate::seed::Seed;

/// A stream of random numbers. Each part of a world has its own stream, so that an additional draw
/// in one part does not change the others.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    seed: Seed,
    stream: usize,
    drawn: u32,
}

impl Chance {
    pub(crate) const fn new(seed: Seed, stream: usize) -> Self {
        Self { seed, stream, drawn: 0 }
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        self.seed.below(bound, self.stream, self.drawn)
    }

    /// A number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// True with a probability of `share` / 1000.
    pub(crate) fn permille(&mut self, share: u64) -> bool {
        self.below(1_000) < share
    }

    /// An index below `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }
}
