//! An answer as it is told: the same in every door and on the command line.
//!
//! [`Report::json`] writes the one document, [`Report::fields`] the header fields beside it.

mod json;

use tidegate_core::{AlgorithmName, Decision, Limit, Span, Timestamp};

use crate::headers::{Fields, LimitStatus};
use crate::policy::decide::answer::{Answer, Part, Standing};
use crate::policy::decide::limiter::Explained;
use crate::store::{DecisionSource, OnStoreFailure};
use crate::verdict::rank;

/// What a limit is called that came with the request.
const GIVEN: &str = "given";

/// What a request is told.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Whether it may go ahead, perhaps after `delay`.
    pub is_allowed: bool,
    /// Whether it is denied only because the store is away: nobody is over a limit.
    pub is_unavailable: bool,
    /// How long to wait before asking again; `None` if it is allowed, or no wait helps.
    pub retry_after: Option<Span>,
    /// How long an allowed request has to hold back before it starts.
    pub delay: Span,
    /// When, by the clock that decided.
    pub now: Timestamp,
    /// Which of the limits speaks for all; `None` if none counts.
    pub binding: Option<usize>,
    /// Every limit that the request met, descriptor by descriptor.
    pub limits: Vec<LimitReport<'a>>,
}

/// What one limit said.
#[derive(Clone, Debug)]
pub struct LimitReport<'a> {
    /// Its name, or else where it stands in the policy.
    pub name: &'a str,
    /// Under which descriptor of the request.
    pub descriptor: usize,
    /// What it is.
    pub algorithm: AlgorithmName,
    /// What its word counts for.
    pub standing: Standing,
    /// By which numbers it decided; `None` if it did not.
    pub numbers: Option<Limit>,
    /// What it decided; `None` if it was not asked.
    pub decision: Option<Decision>,
    /// Whom it is about: [`Key::number`](crate::Key::number).
    pub whose: u64,
    /// Which rule it is of, and what that allows; only if it was asked to explain itself.
    pub why: Option<String>,
    /// How its state stands; as `why`.
    pub state: Option<String>,
}

impl<'a> Report<'a> {
    /// What a policy answered.
    pub fn of(answer: &'a Answer) -> Self {
        Self {
            is_allowed: answer.is_allowed(),
            is_unavailable: answer.is_unavailable(),
            retry_after: answer.retry_after(),
            delay: answer.delay(),
            now: answer.now(),
            binding: answer.binding,
            limits: answer.parts().iter().map(|part| LimitReport::of(answer, part)).collect(),
        }
    }

    /// The same, with every limit's reasons.
    pub fn explaining(explained: &'a Explained) -> Self {
        let answer = &explained.answer;
        let mut report = Self::of(answer);
        let parts = explained.reasons.iter().zip(&explained.states);
        for (limit, (reason, state)) in report.limits.iter_mut().zip(parts) {
            limit.why = Some(reason.clone());
            limit.state = state.as_ref().map(ToString::to_string);
        }
        report
    }

    /// What limits said that came with the request, all or nothing, and how they came to say it.
    pub fn given(
        now: Timestamp,
        decision_source: DecisionSource,
        limits: Vec<LimitReport<'a>>,
    ) -> Self {
        let decisions =
            limits.iter().enumerate().filter_map(|(n, limit)| Some((n, limit.decision?)));
        let speaker = decisions.max_by_key(|(_, decision)| rank(decision));
        let decision = speaker.as_ref().map(|(_, decision)| decision);
        let is_allowed = decision.is_none_or(Decision::is_allowed);
        Self {
            is_allowed,
            is_unavailable: !is_allowed
                && decision_source == DecisionSource::Fallback(OnStoreFailure::Deny),
            retry_after: decision.and_then(Decision::retry_after),
            delay: decision.map(Decision::delay).unwrap_or_default(),
            now,
            binding: speaker.map(|(number, _)| number),
            limits,
        }
    }

    /// True if no wait helps.
    pub const fn is_never(&self) -> bool {
        !self.is_allowed && self.retry_after.is_none()
    }

    /// The limit that speaks for all.
    pub fn speaker(&self) -> Option<&LimitReport<'a>> {
        self.limits.get(self.binding?)
    }

    /// The header fields: every limit that counts and was asked.
    pub fn fields(&self) -> Fields {
        let mut binding = usize::MAX;
        let mut told = Vec::with_capacity(self.limits.len());
        for (number, limit) in self.limits.iter().enumerate() {
            let counts = matches!(limit.standing, Standing::Live | Standing::Quota);
            let (Some(numbers), Some(decision)) = (&limit.numbers, &limit.decision) else {
                continue;
            };
            if !counts {
                continue;
            }
            if self.binding == Some(number) {
                binding = told.len();
            }
            told.push(LimitStatus {
                name: limit.name,
                limit: numbers,
                decision,
                whose: limit.whose,
            });
        }
        Fields::new(self.now, &told, binding)
    }
}

impl<'a> LimitReport<'a> {
    /// One that came with the request.
    pub const fn given(
        descriptor: usize,
        algorithm: AlgorithmName,
        (numbers, decision): (Limit, Decision),
        whose: u64,
    ) -> Self {
        Self {
            name: GIVEN,
            descriptor,
            algorithm,
            standing: Standing::Live,
            numbers: Some(numbers),
            decision: Some(decision),
            whose,
            why: None,
            state: None,
        }
    }

    fn of(answer: &'a Answer, part: &Part) -> Self {
        let (name, algorithm) = match answer.limit(part) {
            Some((rule, limit)) => (limit.name().unwrap_or_else(|| rule.path()), limit.algorithm()),
            None => (GIVEN, AlgorithmName::FixedWindow),
        };
        let Part { descriptor, standing, numbers, decision, whose, .. } = *part;
        Self {
            name,
            descriptor,
            algorithm,
            standing,
            numbers,
            decision,
            whose,
            why: None,
            state: None,
        }
    }
}

impl Standing {
    /// The standing that documents spell so.
    pub fn named(name: &str) -> Option<Self> {
        [
            Self::Live,
            Self::Quota,
            Self::Shadow,
            Self::Beside,
            Self::Unlimited,
            Self::Replaced,
            Self::Off,
        ]
        .into_iter()
        .find(|standing| standing.as_str() == name)
    }

    /// As documents spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Quota => "quota",
            Self::Shadow => "shadow",
            Self::Beside => "beside",
            Self::Unlimited => "unlimited",
            Self::Replaced => "replaced",
            Self::Off => "off",
        }
    }
}
