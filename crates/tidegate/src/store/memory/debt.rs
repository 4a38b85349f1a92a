//! The debt of a key as a three-bit class, which bounds the loss of evicting it.
//!
//! A slot does not know the limit it belongs to, so each decision stores the class beside the
//! state. Between decisions the debt only shrinks, so the class is an upper bound.

use tidegate_core::Decision;

/// The key's next unit would be denied. Such a key is not evicted.
pub(super) const DENYING: u64 = 7;

/// The class of a key after a decision: 0 for at most one unit, then four bits per class.
#[inline(always)]
pub(super) fn class(decision: &Decision) -> u64 {
    if decision.remaining == 0 {
        return DENYING;
    }
    let owed = decision.limit.wrapping_sub(decision.remaining);
    u64::from((owed | 1).ilog2().div_ceil(4)).min(DENYING - 1)
}

/// The most units that a key of this class can owe.
pub(super) fn most_units(class: u64) -> u64 {
    match class {
        0..=5 => (1 << (4 * class + 1)) - 1,
        _ => 1 << 33,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Outcome, Span};

    use super::*;

    fn decision(limit: u64, remaining: u64) -> Decision {
        Decision {
            outcome: Outcome::Allow,
            limit,
            remaining,
            reset_after: Span::ZERO,
            unbooked: 0,
            lease: None,
        }
    }

    #[test]
    fn a_class_never_understates_the_debt() {
        for owed in [0, 1, 2, 15, 16, 17, 255, 256, 257, 4_096, 65_536, 65_537, 1 << 20, 1 << 32] {
            let class = class(&decision(owed + 1, 1));
            assert!(most_units(class) >= owed, "{owed} owed, class {class}");
            assert!(class < DENYING);
        }
        assert_eq!(class(&decision(100, 99)), 0);
        assert_eq!(most_units(0), 1);
    }

    #[test]
    fn a_key_with_nothing_left_is_denying() {
        assert_eq!(class(&decision(1, 0)), DENYING);
        assert_eq!(class(&decision(0, 0)), DENYING);
    }
}
