//! Limits whose keys start afresh under a new policy. The window is a part of the key, so a changed
//! time zone, week start or window length changes the key, and every key gets its whole quota
//! again, once.

use std::collections::HashMap;

use crate::policy::Policy;
use crate::policy::document::finding::quoted;
use crate::policy::model::allowance::Allowance;
use crate::policy::model::calendar::{Calendar, CalendarUnit};
use crate::policy::model::in_words::in_words;
use crate::policy::model::limit::PolicyLimit;

/// The most limits that are listed.
const MAX_NAMED: usize = 100;

#[doc(hidden)]
impl Policy {
    /// Lists each limit of `old` that still exists and whose keys get their whole quota again under
    /// this policy, one message per limit. At most 100 are listed; the last message counts the
    /// rest.
    pub fn fresh_starts(&self, old: &Self) -> Vec<String> {
        let known: HashMap<&str, &PolicyLimit> = old.limits().map(|it| (it.id(), it)).collect();
        let mut messages: Vec<String> =
            self.limits().filter_map(|limit| fresh_start(known.get(limit.id())?, limit)).collect();
        messages.sort_unstable();
        let rest = messages.len().saturating_sub(MAX_NAMED);
        if rest > 0 {
            messages.truncate(MAX_NAMED);
            messages.push(format!("and {rest} more limits whose keys start afresh"));
        }
        messages
    }
}

fn fresh_start(old: &PolicyLimit, new: &PolicyLimit) -> Option<String> {
    let plans = new.plans().filter_map(|(plan, allowance)| Some((old.plans.get(plan)?, allowance)));
    let overrides = new.overrides().filter_map(|(value, special)| {
        Some((old.overrides.get(value)?.allowance(), special.allowance()))
    });
    let all = std::iter::once((old.allowance(), new.allowance())).chain(plans).chain(overrides);
    let mut changed = all.filter(|(before, after)| !keeps_keys(before, after));
    changed.next().map(|(before, after)| {
        let (before, after) = (windows(before), windows(after));
        let change = match before == after {
            true => format!("other boundaries for {after}"),
            false => format!("{after} instead of {before}"),
        };
        let id = quoted(new.id());
        format!("limit {id} has {change}: every key gets its whole quota again, once")
    })
}

/// Whether keys keep their state.
fn keeps_keys(before: &Allowance, after: &Allowance) -> bool {
    match (before, after) {
        (Allowance::Limited { scope: before, .. }, Allowance::Limited { scope: after, .. }) => {
            before == after
        }
        (Allowance::Calendar(before), Allowance::Calendar(after)) => {
            before.calendar == after.calendar
        }
        (Allowance::Unlimited, _) | (_, Allowance::Unlimited) => true,
        _ => false,
    }
}

fn windows(allowance: &Allowance) -> String {
    match allowance {
        Allowance::Unlimited => "no limit".to_owned(),
        Allowance::Limited { limit, .. } => in_words(limit).to_string(),
        Allowance::Calendar(quota) => calendar(&quota.calendar),
    }
}

fn calendar(calendar: &Calendar) -> String {
    match calendar.unit() {
        CalendarUnit::Week(start) => {
            format!("weeks from {} in {}", start.as_str(), calendar.zone())
        }
        CalendarUnit::Hour => format!("hours in {}", calendar.zone()),
        CalendarUnit::Day => format!("days in {}", calendar.zone()),
        CalendarUnit::Month => format!("months in {}", calendar.zone()),
        CalendarUnit::Year => format!("years in {}", calendar.zone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Merging;

    fn policy(rule: &str) -> Policy {
        let text = format!("domain: api\ndescriptors:\n  - {{key: user, {rule}}}\n");
        let loaded = Policy::load(&[("policy.yaml", &text)], Merging::Refuse);
        loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
    }

    fn change(before: &str, after: &str) -> Vec<String> {
        policy(after).fresh_starts(&policy(before))
    }

    #[test]
    fn another_time_zone_or_week_start_is_named() {
        let week = |calendar: &str| {
            format!("rate: 10/week, algorithm: fixed_window, calendar: {{{calendar}}}")
        };
        for (after, words) in [
            (
                "tz: Asia/Tokyo",
                "weeks from monday in Asia/Tokyo instead of weeks from monday in UTC",
            ),
            ("week_starts: sunday", "weeks from sunday in UTC instead of weeks from monday in UTC"),
        ] {
            let named = change(&week("tz: UTC"), &week(after));
            assert!(named.len() == 1 && named[0].contains(words), "{named:?}");
            assert!(named[0].contains("every key gets its whole quota again"), "{named:?}");
        }
    }

    #[test]
    fn other_window_lengths_and_algorithms_are_named() {
        let minute = "rate: 10/min, algorithm: fixed_window";
        for after in
            ["rate: 10/h, algorithm: fixed_window", "rate: 10/min, algorithm: sliding_window"]
        {
            assert_eq!(change(minute, after).len(), 1, "{after}");
        }
        let day = "rate: 10/day, algorithm: fixed_window";
        assert_eq!(change(day, &format!("{day}, calendar: {{tz: UTC}}")).len(), 1);
    }

    #[test]
    fn other_numbers_keep_every_key() {
        let month = |count| format!("rate: {count}/month, algorithm: fixed_window, calendar: {{}}");
        assert_eq!(change(&month(10), &month(20)), [""; 0]);
        assert_eq!(change("rate: 10/min", "rate: 500/day, burst: 7"), [""; 0]);
        assert_eq!(change(&month(10), "unlimited: true"), [""; 0]);
    }
}
