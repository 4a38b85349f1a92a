//! The difference between the server's clock and the caller's.

use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::Timestamp;

/// The skew, updated by every reply. In a cluster whose nodes disagree, that of the last reply.
#[derive(Debug, Default)]
pub(super) struct Skew(AtomicI64);

impl Skew {
    /// Records that a charge sent at `asked_at` by the caller's clock was decided at `decided_at`
    /// by the server's. The network delay counts as skew, so the estimate of the store's clock is
    /// never too early, and no caller waits for an instant that has passed.
    pub(super) fn learn(&self, asked_at: Timestamp, decided_at: Timestamp) {
        let skew = decided_at.as_micros().wrapping_sub(asked_at.as_micros());
        self.0.store(skew.cast_signed(), Ordering::Relaxed);
    }

    pub(super) fn apply(&self, local: Timestamp) -> Timestamp {
        let skew = self.0.load(Ordering::Relaxed);
        Timestamp::from_micros(local.as_micros().saturating_add_signed(skew))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_followed_either_way() {
        let (skew, at) = (Skew::default(), Timestamp::from_micros);
        assert_eq!(skew.apply(at(7)), at(7), "nothing is known yet");
        skew.learn(at(1_000), at(5_000));
        assert_eq!(skew.apply(at(1_001)), at(5_001));
        skew.learn(at(5_000), at(1_000));
        assert_eq!(skew.apply(at(5_001)), at(1_001));
        assert_eq!(skew.apply(at(1)), at(0), "there is nothing before the epoch");
    }
}
