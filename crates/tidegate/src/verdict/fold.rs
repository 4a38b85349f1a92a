//! The strictest limit decides: the one place where decisions become a verdict.

use std::cmp::Reverse;

use tidegate_core::{Decision, Outcome, Span, Timestamp};

use super::details::{Details, Record};
use super::part::Standing;
use super::{UNLIMITED, Verdict, decision};

/// The order of decisions, from the most lenient to the strictest: allowed, delayed, denied for a
/// while, denied for good. Of two equal ones, the decision with fewer units left is stricter.
pub(crate) fn rank(decision: &Decision) -> (u8, Span, Reverse<u64>) {
    let left = Reverse(decision.remaining);
    match decision.outcome {
        Outcome::Allow => (0, Span::ZERO, left),
        Outcome::Delay(delay) => (1, delay, left),
        Outcome::Deny { retry_after: Some(wait) } => (2, wait, left),
        Outcome::Deny { retry_after: None } => (3, Span::ZERO, left),
    }
}

impl Record {
    pub(super) fn rank(&self) -> (u8, Span, Reverse<u64>) {
        let decision = self.decision.unwrap_or(decision(Outcome::Allow, u64::MAX));
        rank(&Decision { remaining: self.left.unwrap_or(decision.remaining), ..decision })
    }
}

impl Verdict {
    /// Folds in the decision of limit number `limit`, without listing it. Of equally strict limits,
    /// the last one decides.
    pub(crate) fn fold(&mut self, limit: usize, decision: Decision) {
        if !decision.is_allowed() && limit < 16 {
            self.denied |= 1 << limit;
        }
        if rank(&decision) >= rank(&self.folded) {
            self.binding = u16::try_from(limit).unwrap_or(UNLIMITED);
            self.folded = decision;
        }
    }

    /// Numbers of the limits that denied, in the order of [`Verdict::parts`].
    pub fn denied_by(&self) -> impl Iterator<Item = usize> + '_ {
        let (denied, listed) = (self.denied, self.details());
        let bits = (0..16).filter(move |limit| listed.is_none() && denied & 1 << limit != 0);
        let records = listed.map_or(&[][..], |details| &details.records).iter().enumerate();
        let denies = |(_, record): &(usize, &Record)| record.counts() && record.denies();
        bits.chain(records.filter(denies).map(|(number, _)| number))
    }
}

impl Details {
    /// The verdict of these limits at this time.
    pub(crate) fn fold(self: Box<Self>, at: Timestamp) -> Verdict {
        let quota = self.exhausted_quota();
        let is_candidate = |(number, record): &(usize, &Record)| match record.standing {
            // An exhausted quota denies only if all quotas are exhausted and it is the first to
            // become free.
            Standing::Quota if record.denies() => quota == Some(*number),
            Standing::Live | Standing::Quota => record.decision.is_some(),
            _ => false,
        };
        let candidates = self.records.iter().enumerate().filter(is_candidate);
        let strictest = candidates.max_by_key(|(_, record)| record.rank());
        let folded = strictest.and_then(|(number, record)| Some((number, record.decision?)));
        let verdict = match folded {
            Some((number, decision)) => Verdict {
                binding: u16::try_from(number).unwrap_or(UNLIMITED),
                ..Verdict::of_one(at, decision)
            },
            None => Verdict::unlimited(at),
        };
        Verdict { source: self.source, details: Some(self), ..verdict }
    }

    /// If every quota is exhausted: the limit of the quota that frees up first.
    pub(crate) fn exhausted_quota(&self) -> Option<usize> {
        let quotas = self.records.iter().filter(|record| self.is_quota(record));
        let mut first: Option<(usize, &Record)> = None;
        for descriptor in quotas.map(|record| record.descriptor) {
            let records = self.records.iter().enumerate();
            let denying = records.filter(|(_, record)| {
                record.descriptor == descriptor && record.counts() && record.denies()
            });
            let denying = denying.max_by_key(|(_, record)| record.rank())?;
            if first.is_none_or(|(_, first)| denying.1.rank() < first.rank()) {
                first = Some(denying);
            }
        }
        first.map(|(number, _)| number)
    }

    /// A quota in shadow mode never counts as exhausted, so the other quotas do not deny.
    fn is_quota(&self, record: &Record) -> bool {
        match record.standing {
            Standing::Quota => true,
            #[cfg(feature = "policy")]
            Standing::Shadow => self.rule(record).is_some_and(|(rule, _)| rule.is_quota()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(outcome: Outcome, remaining: u64, reset_secs: u64) -> Decision {
        let reset_after = Span::from_secs(reset_secs);
        Decision { outcome, limit: 10, remaining, reset_after, unbooked: 0, lease: None }
    }

    fn deny(secs: u64) -> Outcome {
        Outcome::Deny { retry_after: Some(Span::from_secs(secs)) }
    }

    fn folded(decisions: &[Decision]) -> Verdict {
        let mut verdict = Verdict::unlimited(Timestamp::from_secs(1));
        decisions.iter().enumerate().for_each(|(limit, decision)| verdict.fold(limit, *decision));
        verdict
    }

    #[test]
    fn the_strictest_limit_decides() {
        let decisions = [
            decision(Outcome::Allow, 5, 1),
            decision(deny(3), 0, 3),
            decision(Outcome::Delay(Span::from_secs(9)), 4, 30),
            decision(deny(7), 2, 7),
        ];
        let mut verdict = folded(&decisions);
        assert!(verdict.is_denied());
        assert_eq!(verdict.binding(), Some(3));
        assert_eq!(verdict.denied_by().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(verdict.decision(), &decisions[3]);
        verdict.fold(4, decision(Outcome::Deny { retry_after: None }, 9, 0));
        assert!(verdict.is_never() && verdict.retry_after().is_none());
    }

    #[test]
    fn of_allowed_limits_the_one_with_least_left_decides() {
        let allowed = |remaining, reset| decision(Outcome::Allow, remaining, reset);
        let verdict = folded(&[allowed(5, 1), allowed(3, 0), allowed(4, 0)]);
        assert_eq!((verdict.binding(), verdict.remaining()), (Some(1), 3));
        assert_eq!(verdict.denied_by().count(), 0);
    }
}
