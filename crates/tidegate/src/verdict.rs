//! The answer to a request: all its limits' decisions folded into one.

use tidegate_core::{Decision, Outcome, Span};

/// May the caller go ahead, and how do things stand?
///
/// If several limits were asked, the most restrictive speaks: any denial denies, `remaining` is the
/// least and the waits are the longest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    folded: Decision,
    /// Which limit speaks.
    binding: u16,
    /// One bit for each limit that denied.
    denied: u16,
}

impl Verdict {
    /// Before anybody was asked.
    pub(crate) const UNDECIDED: Self = Self {
        folded: Decision {
            outcome: Outcome::Deny { retry_after: None },
            limit: 0,
            remaining: 0,
            reset_after: Span::ZERO,
            unbooked: 0,
            lease: None,
        },
        binding: 0,
        denied: 0,
    };

    /// The verdict of a single limit.
    #[inline(always)]
    pub(crate) fn of_one(decision: Decision) -> Self {
        Self { binding: 0, denied: u16::from(!decision.is_allowed()), folded: decision }
    }

    /// Folds in the decision of limit number `limit`.
    pub(crate) fn fold(self, limit: usize, decision: Decision) -> Self {
        let (mut verdict, kept) = (self, self.folded);
        if !decision.is_allowed() {
            verdict.denied |= 1 << limit;
        }
        if rank(&decision) > rank(&kept) {
            verdict.binding = u16::try_from(limit).unwrap_or(u16::MAX);
            verdict.folded = decision;
        }
        verdict.folded.remaining = kept.remaining.min(decision.remaining);
        verdict.folded.reset_after = kept.reset_after.max(decision.reset_after);
        verdict
    }

    /// True if the caller may go ahead, perhaps after [`Verdict::delay`].
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        self.folded.is_allowed()
    }

    /// True if the caller may not go ahead.
    #[inline]
    pub const fn is_denied(&self) -> bool {
        !self.folded.is_allowed()
    }

    /// The most that the binding limit gives a fully idle key at once.
    #[inline]
    pub const fn limit(&self) -> u64 {
        self.folded.limit
    }

    /// Units that could still be taken at this instant.
    #[inline]
    pub const fn remaining(&self) -> u64 {
        self.folded.remaining
    }

    /// How long until everything taken has come back, if nobody spends.
    #[inline]
    pub const fn reset_after(&self) -> Span {
        self.folded.reset_after
    }

    /// How long to wait before asking again, if nobody else spends. `None` if allowed, or if no
    /// wait helps ([`Verdict::is_never`]).
    #[inline]
    pub const fn retry_after(&self) -> Option<Span> {
        self.folded.retry_after()
    }

    /// True if the cost is above what the limit can ever give.
    pub const fn is_never(&self) -> bool {
        self.folded.is_never()
    }

    /// How long an allowed caller must hold back before it starts; only a leaky bucket asks for it.
    #[inline]
    pub const fn delay(&self) -> Span {
        self.folded.delay()
    }

    /// Units that a forced booking could not book.
    pub const fn unbooked(&self) -> u64 {
        self.folded.unbooked
    }

    /// The number of the limit that speaks, in the order they were given.
    pub const fn binding(&self) -> usize {
        self.binding as usize
    }

    /// The numbers of all limits that denied.
    pub fn denied_by(&self) -> impl Iterator<Item = usize> + use<> {
        let denied = self.denied;
        (0..16).filter(move |limit| denied & 1 << limit != 0)
    }

    /// The decision of the limit that speaks, with `remaining` and `reset_after` over all.
    pub const fn decision(&self) -> &Decision {
        &self.folded
    }
}

/// Later is more restrictive: going ahead, waiting, denied for a while, denied for good. Between
/// equals the one with less remaining speaks.
pub(crate) fn rank(decision: &Decision) -> (u8, Span, std::cmp::Reverse<u64>) {
    let left = std::cmp::Reverse(decision.remaining);
    match decision.outcome {
        Outcome::Allow => (0, Span::ZERO, left),
        Outcome::Delay(delay) => (1, delay, left),
        Outcome::Deny { retry_after: Some(wait) } => (2, wait, left),
        Outcome::Deny { retry_after: None } => (3, Span::ZERO, left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(outcome: Outcome, remaining: u64, reset_secs: u64) -> Decision {
        Decision {
            outcome,
            limit: 10,
            remaining,
            reset_after: Span::from_secs(reset_secs),
            unbooked: 0,
            lease: None,
        }
    }

    #[test]
    fn the_most_restrictive_limit_speaks() {
        let deny = |secs| Outcome::Deny { retry_after: Some(Span::from_secs(secs)) };
        let allow = decision(Outcome::Allow, 5, 1);
        let verdict = Verdict::of_one(allow)
            .fold(1, decision(deny(3), 0, 3))
            .fold(2, decision(Outcome::Delay(Span::from_secs(9)), 4, 30))
            .fold(3, decision(deny(7), 2, 7));
        assert!(verdict.is_denied());
        assert_eq!(verdict.retry_after(), Some(Span::from_secs(7)));
        assert_eq!(verdict.binding(), 3);
        assert_eq!(verdict.remaining(), 0);
        assert_eq!(verdict.reset_after(), Span::from_secs(30));
        assert_eq!(verdict.denied_by().collect::<Vec<_>>(), [1, 3]);
        let never = verdict.fold(4, decision(Outcome::Deny { retry_after: None }, 9, 0));
        assert!(never.is_never());
        assert_eq!(never.retry_after(), None);
    }

    #[test]
    fn among_limits_that_allow_the_one_with_least_left_speaks() {
        let verdict = Verdict::of_one(decision(Outcome::Allow, 5, 1))
            .fold(1, decision(Outcome::Allow, 3, 0))
            .fold(2, decision(Outcome::Allow, 4, 0));
        assert_eq!((verdict.binding(), verdict.remaining()), (1, 3));
        assert_eq!(verdict.denied_by().count(), 0);
    }
}
