//! The numbers of a limit: rate, burst, queue and calendar.

use std::sync::Arc;

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{AlgorithmName, Builder, InvalidLimit, Limit, Rate, Span};

use crate::key::Scope;
use crate::policy::document::Node;
use crate::policy::document::finding::Findings;
use crate::policy::language;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::block;
use crate::policy::model::allowance::{Allowance, CalendarQuota};
use crate::policy::model::calendar::{Calendar, CalendarUnit, Weekday};
use crate::store::Tier;
use crate::store::lease::{LEASE, leased};

/// The numbers of a limit.
#[derive(Clone, Debug)]
pub(in crate::policy::load) struct Numbers {
    pub(in crate::policy::load) algorithm: AlgorithmName,
    pub(in crate::policy::load) rate: Rate,
    pub(in crate::policy::load) burst: Option<u64>,
    pub(in crate::policy::load) queue: Option<u64>,
    pub(in crate::policy::load) denied: Denied,
    pub(in crate::policy::load) calendar: Option<Calendar>,
    pub(in crate::policy::load) block_for: Option<Span>,
    pub(in crate::policy::load) tier: Tier,
}

/// Loads the numbers from a limit's fields; `None` if they have no rate.
pub(in crate::policy::load) fn read(
    fields: &Fields<'_>,
    algorithm: Option<AlgorithmName>,
    findings: &mut Findings,
) -> Option<Numbers> {
    let rate = rate(fields, findings)?;
    let calendar = match fields.node("calendar") {
        Some(node) => Some(calendar(node, fields, rate, findings)?),
        None => None,
    };
    if let (Some(node), Some(_), Some(other)) = (fields.node("calendar"), &calendar, algorithm)
        && other != AlgorithmName::FixedWindow
    {
        let why = format!("a calendar uses fixed_window, not {other}");
        findings.push(node.error(why).at(fields.at("calendar")));
        return None;
    }
    let otherwise = match calendar {
        Some(_) => AlgorithmName::FixedWindow,
        None => AlgorithmName::TokenBucket,
    };
    let denied = match fields.flag("count_denied", findings) {
        true => Denied::Counted,
        false => Denied::Ignored,
    };
    Some(Numbers {
        algorithm: algorithm.unwrap_or(otherwise),
        rate,
        burst: fields.number("burst", findings),
        queue: fields.number("queue", findings),
        denied,
        calendar,
        block_for: block::read(fields, findings),
        tier: Tier::Exact,
    })
}

impl Numbers {
    /// The same numbers with those of `fields` replaced. A new rate resets burst and queue to their
    /// defaults unless `fields` sets them, because they were sized for the old rate.
    pub(in crate::policy::load) fn varied(
        &self,
        fields: &Fields<'_>,
        node: &Node,
        path: &str,
        findings: &mut Findings,
    ) -> Option<Self> {
        let says = |field: &&str| fields.node(field).is_some();
        let says_rate = ["rate", "requests", "per"].iter().any(says);
        let says_more = ["burst", "queue", "algorithm"].iter().any(says);
        if !says_rate && !says_more {
            findings.push(node.error("expected a `rate` or a `burst`").at(path));
            return None;
        }
        let (burst, queue) = (fields.number("burst", findings), fields.number("queue", findings));
        if !says_rate {
            let (burst, queue) = (burst.or(self.burst), queue.or(self.queue));
            return Some(Self { burst, queue, ..self.clone() });
        }
        let rate = rate(fields, findings)?;
        if let (Some(_), true) = (&self.calendar, rate.per != self.rate.per) {
            let why = "a calendar's period is the same for all: only the count can differ";
            findings.push(node.error(why).at(path));
            return None;
        }
        Some(Self { rate, burst, queue, ..self.clone() })
    }

    /// The allowance of these numbers under the limit `id`; reports numbers that the engine refuses
    /// at the field that caused it.
    pub(in crate::policy::load) fn build(
        &self,
        id: &Arc<str>,
        fields: &Fields<'_>,
        findings: &mut Findings,
    ) -> Option<Allowance> {
        let limit =
            self.builder().build().map_err(|error| report_invalid(error, fields, findings)).ok()?;
        let limit = match self.tier == Tier::Leased {
            true => self.leased(limit, fields, findings)?,
            false => limit,
        };
        let limit = match self.block_for {
            Some(block_for) => limit.blocking(block_for).ok()?,
            None => limit,
        };
        let allowance = match &self.calendar {
            None => Allowance::Limited { limit, scope: Scope::new(id, &limit) },
            Some(calendar) => Allowance::Calendar(CalendarQuota {
                id: Arc::clone(id),
                count: self.rate.count,
                denied: self.denied,
                calendar: calendar.clone(),
            }),
        };
        Some(allowance)
    }

    /// The bucket that remains in the store if nodes lease units; other algorithms stay unchanged.
    fn leased(&self, limit: Limit, fields: &Fields<'_>, findings: &mut Findings) -> Option<Limit> {
        let is_bucket = matches!(self.algorithm, AlgorithmName::TokenBucket | AlgorithmName::Gcra);
        let at_store = leased(&limit);
        if at_store.is_none() && is_bucket {
            let Rate { count, per } = self.rate;
            let lease = u128::from(LEASE.as_micros());
            let least = (4 * u128::from(count) * lease).div_ceil(per.as_micros().max(1).into());
            let why = format!(
                "`tier: leased` needs a burst of at least {} at this rate: four times the units of {LEASE}",
                least.max(2)
            );
            if let Some((field, node)) = fields.first(&["tier", "burst", "rate", "requests"]) {
                findings.push(node.error(why).at(fields.at(field)));
            }
            return None;
        }
        Some(at_store.unwrap_or(limit))
    }

    /// The engine's limit, for advice; a calendar counts with its usual period length.
    pub(in crate::policy::load) fn limit(&self) -> Option<Limit> {
        self.builder().build().ok()
    }

    fn builder(&self) -> Builder {
        let builder = Builder::new(self.algorithm, self.rate);
        let builder = self.burst.map_or(builder, |burst| builder.burst(burst));
        let builder = self.queue.map_or(builder, |queue| builder.queue(queue));
        match self.denied {
            Denied::Counted => builder.count_denied(),
            Denied::Ignored => builder,
        }
    }
}

/// Reports why the engine refuses the numbers, at the field that caused it.
fn report_invalid(error: InvalidLimit, fields: &Fields<'_>, findings: &mut Findings) {
    let blamed = match error {
        InvalidLimit::Burst | InvalidLimit::BurstOnWindow => "burst",
        InvalidLimit::Queue | InvalidLimit::QueueOutsideLeakyBucket => "queue",
        InvalidLimit::WindowOption => "count_denied",
        _ => "rate",
    };
    if let Some((field, node)) = fields.first(&[blamed, "rate", "requests", "rate_limit"]) {
        findings.push(node.error(error.to_string()).at(fields.at(field)));
    }
}

/// `rate: N/PERIOD`, or `requests: N` and `per: PERIOD`.
pub(in crate::policy::load) fn rate(fields: &Fields<'_>, findings: &mut Findings) -> Option<Rate> {
    let (written, requests, per) =
        (fields.node("rate"), fields.node("requests"), fields.node("per"));
    match (written, requests, per) {
        (Some(node), None, None) => {
            let text = fields.text("rate", findings)?;
            let expected = "a rate such as 100/s, 5000/hour or 20/5m";
            let read = text
                .parse()
                .map_err(|_| findings.push(node.mismatch(expected).at(fields.at("rate"))));
            read.ok()
        }
        (None, Some(_), Some(node)) => {
            let count = fields.number("requests", findings)?;
            let period = format!("1/{}", fields.text("per", findings)?);
            let expected = "a period such as s, 5m, hour or day";
            let read = period
                .parse::<Rate>()
                .map_err(|_| findings.push(node.mismatch(expected).at(fields.at("per"))));
            read.ok().map(|rate| Rate::new(count, rate.per))
        }
        (None, Some(node), None) => {
            findings.push(node.error("`requests` needs a `per`").at(fields.at("requests")));
            None
        }
        (None, None, Some(node)) => {
            findings.push(node.error("`per` needs `requests`").at(fields.at("per")));
            None
        }
        (Some(_), Some(node), _) | (Some(_), None, Some(node)) => {
            let why = "either `rate`, or `requests` and `per`";
            findings.push(node.error(why).at(fields.at("rate")));
            None
        }
        (None, None, None) => None,
    }
}

/// `calendar: {tz, week_starts}`, with the period of the rate.
fn calendar(
    node: &Node,
    limit: &Fields<'_>,
    rate: Rate,
    findings: &mut Findings,
) -> Option<Calendar> {
    let path = limit.at("calendar");
    let fields = Fields::of(node, &path, &language::CALENDAR, findings)?;
    let week_starts = match fields.choice("week_starts", findings) {
        None | Some("monday") => Weekday::Monday,
        Some("tuesday") => Weekday::Tuesday,
        Some("wednesday") => Weekday::Wednesday,
        Some("thursday") => Weekday::Thursday,
        Some("friday") => Weekday::Friday,
        Some("saturday") => Weekday::Saturday,
        Some(_) => Weekday::Sunday,
    };
    const DAY: u64 = 86_400;
    let hours = |hours: u64| Span::from_secs(hours * 3_600);
    // `30d` is a fixed number of days and follows no calendar.
    let (field, node) = limit.first(&["rate", "per"]).unwrap_or(("rate", node));
    let written = limit.text(field, findings).unwrap_or_default();
    let period = written.rsplit('/').next().unwrap_or_default().trim();
    let number = period.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim();
    let is_one = matches!(number, "" | "1");
    let unit = match rate.per {
        _ if !is_one => {
            let why = "a calendar counts whole periods, such as a `month`";
            findings.push(node.error(why).at(limit.at(field)));
            return None;
        }
        per if per == hours(1) => CalendarUnit::Hour,
        per if per == Span::from_secs(DAY) => CalendarUnit::Day,
        per if per == Span::from_secs(7 * DAY) => CalendarUnit::Week(week_starts),
        per if per == Span::from_secs(30 * DAY) => CalendarUnit::Month,
        per if per == Span::from_secs(365 * DAY) => CalendarUnit::Year,
        _ => {
            let why = "a calendar needs a rate per hour, day, week, month or year";
            findings.push(node.error(why).at(limit.at(field)));
            return None;
        }
    };
    if let (Some(node), false) = (fields.node("week_starts"), matches!(unit, CalendarUnit::Week(_)))
    {
        let why = "`week_starts` needs a rate per week";
        findings.push(node.error(why).at(fields.at("week_starts")));
    }
    let zone = fields.text("tz", findings).unwrap_or("UTC");
    let calendar = Calendar::new(unit, zone).map_err(|_| {
        let at = fields.node("tz").unwrap_or(node);
        let expected = "the IANA name of a time zone, such as Europe/Paris";
        findings.push(at.mismatch(expected).at(fields.at("tz")));
    });
    calendar.ok()
}
