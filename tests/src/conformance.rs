//! The conformance cases: one table of requests and answers for every transport.
//!
//! A case is a policy and a list of steps; each step moves the clock, sends a request, and has the
//! expected answer. Cases do not depend on the transport: a new transport needs one function from a
//! [`CaseRequest`] to a [`Reply`], for [`run_case`].
//!
//! # The format
//! `tests/conformance/README.md` shows it. Fields that a case omits are not compared, except that
//! a transport with statuses must answer one per descriptor.

mod reading;
mod spelling;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use tidegate::policy::{Merging, Policy, Unit};
use tidegate_core::{Span, Timestamp};

pub use self::reading::{Case, Code, Expected, ExpectedRule, Overall, Rejected, Step};
pub use self::spelling::{instant, span};

/// The action of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Decide and charge the request.
    #[default]
    Check,
    /// Decide the request without charging.
    Peek,
    /// Return the units that the request was charged.
    Refund,
    /// Reset the keys of the request.
    Reset,
    /// Decide and charge the request, in-flight limits included; hold its places.
    Acquire,
    /// Release the places of an earlier request.
    Release,
    /// Renew the places of an earlier request.
    Renew,
    /// Settle the limits of an earlier request.
    Settle,
}

impl Action {
    /// Whether the action concerns the places of an earlier request instead of descriptors.
    pub const fn is_about_leases(self) -> bool {
        matches!(self, Self::Release | Self::Renew)
    }

    /// Whether the action charges a request.
    pub const fn charges(self) -> bool {
        matches!(self, Self::Check | Self::Acquire)
    }
}

/// A request to a transport.
#[derive(Clone, Debug)]
pub struct CaseRequest {
    /// The time by the clock of the case.
    pub now: Timestamp,
    /// The action.
    pub action: Action,
    /// The domain.
    pub domain: String,
    /// The descriptors.
    pub descriptors: Vec<DescriptorInput>,
    /// The cost, unless a descriptor has its own; 0 means none, as in Envoy's protocol.
    pub hits: u64,
    /// The name of the request that holds places or is settled.
    pub holder: Option<String>,
    /// The outcome of the request that is settled.
    pub outcome: Outcome,
}

/// The outcome of a request.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcome {
    /// The status of its response.
    pub status: Option<u16>,
    /// Its cost under every limit with `actual`.
    pub actual: Option<u64>,
    /// Its cost by the names of limits.
    pub costs: BTreeMap<String, u64>,
    /// Whether the request was not served.
    pub cancel: bool,
}

/// The effect of a settlement. A case lists only the numbers that it checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sums {
    /// Limits that were settled.
    pub settled: Option<u64>,
    /// Limits whose reservation was not open.
    pub not_open: Option<u64>,
    /// Limits that wait for another outcome.
    pub open: Option<u64>,
    /// Units returned.
    pub returned: Option<u64>,
    /// Units not returned.
    pub dropped: Option<u64>,
    /// Units booked.
    pub booked: Option<u64>,
    /// Units that did not fit.
    pub unbooked: Option<u64>,
}

impl Sums {
    /// The numbers, in the order of the fields.
    pub const fn of(numbers: [u64; 7]) -> Self {
        let [settled, not_open, open, returned, dropped, booked, unbooked] = numbers;
        Self {
            settled: Some(settled),
            not_open: Some(not_open),
            open: Some(open),
            returned: Some(returned),
            dropped: Some(dropped),
            booked: Some(booked),
            unbooked: Some(unbooked),
        }
    }

    fn compare(&self, answer: &Self) -> Result<(), String> {
        differs("settled", self.settled, answer.settled)?;
        differs("not_open", self.not_open, answer.not_open)?;
        differs("open", self.open, answer.open)?;
        differs("returned", self.returned, answer.returned)?;
        differs("dropped", self.dropped, answer.dropped)?;
        differs("booked", self.booked, answer.booked)?;
        differs("unbooked", self.unbooked, answer.unbooked)
    }
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct DescriptorInput {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// The cost under this descriptor. 0 only reads, and negative costs return units.
    pub hits: Option<i64>,
    /// A limit that comes with the request.
    pub limit: Option<(u32, Unit)>,
}

/// The answer of a transport.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A decision.
    Decided {
        /// Whether the request may go ahead.
        allowed: bool,
        /// One for each descriptor, in order; `None` if the transport has none.
        statuses: Option<Vec<Status>>,
        /// The wait before a retry, if the request is denied and the transport has it.
        retry_after: Option<Wait>,
    },
    /// The effect of a settlement.
    Settled(Sums),
    /// The transport gave no answer, for this reason.
    Failed(String),
}

/// The status of one descriptor. Fields that the transport lacks are `None`, and not compared.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether the descriptor is over its limit.
    pub over: bool,
    /// The binding limit; `None` if the transport does not report it.
    pub limit: Option<Limiting>,
    /// The remaining units.
    pub remaining: Option<u64>,
    /// Whole seconds, rounded up, until the limit equals that of a new key.
    pub reset: Option<u64>,
    /// The wait, if the descriptor is over its limit.
    pub retry_after: Option<Wait>,
    /// The delay, if the descriptor is within its limit.
    pub delay: Option<Span>,
}

/// A limit in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limiting {
    /// No limit applies.
    Nothing,
    /// A limit that allows everything.
    Unlimited,
    /// A limit with these numbers.
    Numbers {
        /// The name of the limit; empty if it has none.
        name: String,
        /// The most units that can be taken at once.
        capacity: u64,
        /// The unit, in the form of envoyproxy/ratelimit.
        unit: Option<Unit>,
    },
    /// A limit as Tidegate's own transports report it: without a unit, and by its position in the
    /// policy if it has no name.
    Ours {
        /// The name of the limit, or its position.
        name: String,
        /// The most units that can be taken at once.
        capacity: u64,
    },
}

/// The wait of a denied request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Whole seconds, rounded up.
    Seconds(u64),
    /// No wait helps.
    Never,
}

impl Reply {
    /// The answer to a release or a renewal.
    pub const fn of_lease(allowed: bool) -> Self {
        Self::Decided { allowed, statuses: Some(Vec::new()), retry_after: None }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seconds(seconds) => write!(f, "{seconds}"),
            Self::Never => f.write_str("never"),
        }
    }
}

/// Whole seconds, rounded up, as in answers.
pub const fn whole_seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000_000)
}

/// Number of cases that have only checks. It grows with the cases, and must not shrink unnoticed.
const CHECKING: usize = 203;

/// The cases for transports that have only checks, each with its policy.
///
/// # Panics
/// If there are fewer than `CHECKING`.
pub fn transport_cases() -> Vec<(Case, Policy)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let is_check = |step: &Step| step.action == Action::Check;
    let can_be_asked = |case: &Case| !case.steps.is_empty() && case.steps.iter().all(is_check);
    let cases = cases(&folder).into_iter().filter(can_be_asked);
    let with_policy = |case: Case| {
        let files: Vec<(&str, &str)> =
            case.files.iter().map(|(name, text)| (&**name, &**text)).collect();
        let loaded = Policy::load_at(&files, case.merging(), case.start());
        let policy = loaded.policy.unwrap_or_else(|| panic!("{}: {}", case.name, loaded.findings));
        (case, policy)
    };
    let cases: Vec<(Case, Policy)> = cases.map(with_policy).collect();
    assert!(cases.len() >= CHECKING, "only {} cases", cases.len());
    cases
}

/// All cases of a folder, in the order of their files' names.
///
/// # Panics
/// If one of them is not a case.
pub fn cases(folder: &Path) -> Vec<Case> {
    let entries = std::fs::read_dir(folder).expect("the folder of the cases");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files.iter().flat_map(|file| reading::file(file)).collect()
}

impl Case {
    /// Whether several files may define one domain.
    pub const fn merging(&self) -> Merging {
        if self.merge { Merging::Allow } else { Merging::Refuse }
    }

    /// The start of the case.
    pub fn start(&self) -> Timestamp {
        self.at.as_deref().map_or(Timestamp::from_secs(1_577_836_800), instant)
    }

    /// Whether time passes in the case, which not every store can simulate.
    pub fn moves_the_clock(&self) -> bool {
        self.steps.iter().any(|step| step.advance.is_some() || step.at.is_some())
    }
}

/// Sends all requests of a case to a transport, in order, and compares the answers.
///
/// # Errors
/// The first difference, as a text.
pub fn run_case(case: &Case, ask: &mut dyn FnMut(&CaseRequest) -> Reply) -> Result<(), String> {
    let mut now = case.start();
    for (number, step) in case.steps.iter().enumerate() {
        if let Some(at) = &step.at {
            now = instant(at);
        }
        if let Some(advance) = &step.advance {
            now = now + span(advance);
        }
        let question = step.question(case, now);
        let times = step.times.unwrap_or(1);
        for time in 1..=times {
            let reply = ask(&question);
            // The statuses of a repeated step are those of its last repetition.
            compare(step, time == times, &reply).map_err(|why| {
                format!("{}, step {}, time {time}: {why}\n  {reply:?}", case.name, number + 1)
            })?;
        }
    }
    Ok(())
}

fn compare(step: &Step, is_last: bool, reply: &Reply) -> Result<(), String> {
    let (allowed, answer, retry_after) = match (reply, &step.expect) {
        (Reply::Failed(text), Some(Overall::Error { error })) if text.contains(&**error) => {
            return Ok(());
        }
        (Reply::Failed(text), _) => return Err(format!("failed: {text}")),
        (Reply::Decided { .. } | Reply::Settled(_), Some(Overall::Error { error })) => {
            return Err(format!("expected the error {error:?}"));
        }
        (Reply::Settled(sums), _) => return step.settled.unwrap_or_default().compare(sums),
        (Reply::Decided { allowed, statuses, retry_after }, _) => (*allowed, statuses, retry_after),
    };
    if let Some(Overall::Code(code)) = &step.expect
        && allowed != (*code == Code::Ok)
    {
        return Err(format!("expected {code:?}"));
    }
    differs_in_words("retry_after", step.retry_after.as_ref(), retry_after.as_ref())?;
    let Some(answer) = answer else { return Ok(()) };
    if answer.len() != step.descriptors() {
        return Err(format!("{} statuses", answer.len()));
    }
    let Some(statuses) = step.statuses.as_ref().filter(|_| is_last) else { return Ok(()) };
    if statuses.len() != answer.len() {
        return Err(format!("the case has {} statuses, not {}", statuses.len(), answer.len()));
    }
    for (number, (expected, answer)) in statuses.iter().zip(answer).enumerate() {
        expected.compare(answer).map_err(|why| format!("status {}: {why}", number + 1))?;
    }
    Ok(())
}

impl Expected {
    fn compare(&self, answer: &Status) -> Result<(), String> {
        if answer.over != (self.code == Code::Over) {
            return Err(format!("expected {:?}", self.code));
        }
        let expected = self.limit.as_ref().zip(answer.limit.as_ref());
        if let Some((expected, limit)) = expected
            && !expected.agrees(limit)
        {
            return Err(format!("expected the limit {expected:?}"));
        }
        differs("remaining", self.remaining, answer.remaining)?;
        differs("reset", self.reset, answer.reset)?;
        let retry_after = (self.retry_after.as_ref(), answer.retry_after.as_ref());
        differs_in_words("retry_after", retry_after.0, retry_after.1)?;
        differs("delay", self.delay.as_deref().map(span), answer.delay)
    }
}

/// An error if both values are known and differ.
fn differs<T: PartialEq + fmt::Debug>(
    what: &str,
    expected: Option<T>,
    answer: Option<T>,
) -> Result<(), String> {
    match (expected, answer) {
        (Some(expected), Some(answer)) if expected != answer => {
            Err(format!("expected {what} {expected:?}, not {answer:?}"))
        }
        _ => Ok(()),
    }
}

fn differs_in_words(
    what: &str,
    expected: Option<&impl ToString>,
    answer: Option<&impl ToString>,
) -> Result<(), String> {
    differs(what, expected.map(ToString::to_string), answer.map(ToString::to_string))
}
