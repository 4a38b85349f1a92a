//! The conformance cases: one table of requests and answers for every transport.
//!
//! A case is a policy and a list of steps; each step moves the clock, sends a request, and has the
//! expected answer. Cases do not depend on the transport: a new transport needs one function from a
//! [`Question`] to a [`Reply`], for [`run_case`].
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

pub use self::reading::{Case, Code, Expected, Overall, Rejected, Step, Told};
pub use self::spelling::{instant, span};

/// What is done with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is decided and charged.
    #[default]
    Check,
    /// It is decided only.
    Peek,
    /// What it was charged is given back.
    Refund,
    /// The keys of the request are reset.
    Reset,
    /// It is decided and charged, in-flight limits included; its places are held.
    Acquire,
    /// The places of an earlier request are free again.
    Release,
    /// The places of an earlier request are held for another time to live.
    Renew,
    /// The limits of an earlier request are settled.
    Settle,
}

impl Action {
    /// Whether the action is about places that an earlier request holds, and not about descriptors.
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
pub struct Question {
    /// When, by the clock of the case.
    pub now: Timestamp,
    /// To do what.
    pub action: Action,
    /// Of which domain.
    pub domain: String,
    /// The descriptors.
    pub descriptors: Vec<Side>,
    /// What it costs, unless a descriptor says; 0 and nothing are the same, as in Envoy's protocol.
    pub hits: u64,
    /// The name of the request that holds places, or is settled.
    pub holder: Option<String>,
    /// How the request that is settled ended.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcome {
    /// The status of its response.
    pub status: Option<u16>,
    /// Its cost under every limit with `actual`.
    pub actual: Option<u64>,
    /// Its cost by the names of limits.
    pub costs: BTreeMap<String, u64>,
    /// Whether it was not served.
    pub cancel: bool,
}

/// What a settlement did. A case names those numbers that it is about.
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
    /// The numbers in the order of the fields.
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

    fn compare(&self, told: &Self) -> Result<(), String> {
        differs("settled", self.settled, told.settled)?;
        differs("not_open", self.not_open, told.not_open)?;
        differs("open", self.open, told.open)?;
        differs("returned", self.returned, told.returned)?;
        differs("dropped", self.dropped, told.dropped)?;
        differs("booked", self.booked, told.booked)?;
        differs("unbooked", self.unbooked, told.unbooked)
    }
}

/// One descriptor of a question.
#[derive(Clone, Debug)]
pub struct Side {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// What it costs here. 0 only asks, less than 0 gives back.
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
    /// What a settlement did.
    Settled(Sums),
    /// None, and why.
    Failed(String),
}

/// The status of one descriptor. Fields that the transport lacks are `None`, and not compared.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether it is over its limit.
    pub over: bool,
    /// The limit that speaks for it; `None` if the transport does not tell.
    pub limit: Option<Limiting>,
    /// What is left.
    pub remaining: Option<u64>,
    /// Whole seconds, rounded up, until the limit is as if it had never been used.
    pub reset: Option<u64>,
    /// How long to wait, if it is over.
    pub retry_after: Option<Wait>,
    /// How long to hold back, if it is not.
    pub delay: Option<Span>,
}

/// A limit as answers tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limiting {
    /// None applies.
    Nothing,
    /// One that allows everything.
    Unlimited,
    /// One of these numbers.
    Numbers {
        /// What it is called; empty if nothing.
        name: String,
        /// The most that can be taken at once.
        capacity: u64,
        /// The unit, in the form of envoyproxy/ratelimit.
        unit: Option<Unit>,
    },
    /// One of these, as our own transports tell it: without a unit, and by its place in the policy if it has
    /// no name.
    Ours {
        /// What it is called, or where it stands.
        name: String,
        /// The most that can be taken at once.
        capacity: u64,
    },
}

/// The wait of a denied request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// So many whole seconds, rounded up.
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

/// Whole seconds, rounded up, as answers tell them.
pub const fn whole_seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000_000)
}

/// How many cases ask for nothing but checks. It grows with them, and must not shrink unnoticed.
const CHECKING: usize = 203;

/// The cases that a transport can be asked which knows nothing but checks, each with its policy.
///
/// # Panics
/// If some have fallen away.
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

/// All cases of a folder, file by file in the order of their names.
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
    /// Whether several files may describe one domain.
    pub const fn merging(&self) -> Merging {
        if self.merge { Merging::Allow } else { Merging::Refuse }
    }

    /// When the case begins.
    pub fn start(&self) -> Timestamp {
        self.at.as_deref().map_or(Timestamp::from_secs(1_577_836_800), instant)
    }

    /// Whether time passes in it, which not every store can be made to believe.
    pub fn moves_the_clock(&self) -> bool {
        self.steps.iter().any(|step| step.advance.is_some() || step.at.is_some())
    }
}

/// Asks a transport everything that a case asks, in order, and compares what it answers.
///
/// # Errors
/// The first difference, in words.
pub fn run_case(case: &Case, ask: &mut dyn FnMut(&Question) -> Reply) -> Result<(), String> {
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
            // The statuses of a step that is asked often are those of its last time.
            compare(step, time == times, &reply).map_err(|why| {
                format!("{}, step {}, time {time}: {why}\n  {reply:?}", case.name, number + 1)
            })?;
        }
    }
    Ok(())
}

fn compare(step: &Step, is_last: bool, reply: &Reply) -> Result<(), String> {
    let (allowed, told, retry_after) = match (reply, &step.expect) {
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
    let Some(told) = told else { return Ok(()) };
    if told.len() != step.descriptors() {
        return Err(format!("{} statuses", told.len()));
    }
    let Some(statuses) = step.statuses.as_ref().filter(|_| is_last) else { return Ok(()) };
    if statuses.len() != told.len() {
        return Err(format!("the case has {} statuses, not {}", statuses.len(), told.len()));
    }
    for (number, (expected, told)) in statuses.iter().zip(told).enumerate() {
        expected.compare(told).map_err(|why| format!("status {}: {why}", number + 1))?;
    }
    Ok(())
}

impl Expected {
    fn compare(&self, told: &Status) -> Result<(), String> {
        if told.over != (self.code == Code::Over) {
            return Err(format!("expected {:?}", self.code));
        }
        let expected = self.limit.as_ref().zip(told.limit.as_ref());
        if let Some((expected, limit)) = expected
            && !expected.agrees(limit)
        {
            return Err(format!("expected the limit {expected:?}"));
        }
        differs("remaining", self.remaining, told.remaining)?;
        differs("reset", self.reset, told.reset)?;
        let retry_after = (self.retry_after.as_ref(), told.retry_after.as_ref());
        differs_in_words("retry_after", retry_after.0, retry_after.1)?;
        differs("delay", self.delay.as_deref().map(span), told.delay)
    }
}

/// An error if both are known and are not the same.
fn differs<T: PartialEq + fmt::Debug>(
    what: &str,
    expected: Option<T>,
    told: Option<T>,
) -> Result<(), String> {
    match (expected, told) {
        (Some(expected), Some(told)) if expected != told => {
            Err(format!("expected {what} {expected:?}, not {told:?}"))
        }
        _ => Ok(()),
    }
}

fn differs_in_words(
    what: &str,
    expected: Option<&impl ToString>,
    told: Option<&impl ToString>,
) -> Result<(), String> {
    differs(what, expected.map(ToString::to_string), told.map(ToString::to_string))
}
