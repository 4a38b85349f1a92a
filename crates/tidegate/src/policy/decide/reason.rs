//! Which numbers of a limit decide a request, and why: plan, override, percentage, kill switch.

use tidegate_core::Timestamp;
use tidegate_core::shed::Class;

use crate::policy::decide::control::{Controls, OtherNumbers};
use crate::policy::in_words;
use crate::policy::matching::resolve::Match;
use crate::policy::model::descriptor::Request;
use crate::policy::model::limit::PolicyLimit;
use crate::policy::model::rule::Domain;
use crate::policy::model::share::Share;
use crate::verdict::{Details, Record, Standing};

/// The reason for each limit of a request, in the order of the records.
pub(in crate::policy) fn reasons(
    (details, now): (&Details, Timestamp),
    domain: &Domain,
    controls: &Controls,
    request: &Request<'_>,
) -> Vec<String> {
    let reason = |part: &Record| {
        let Some((rule, limit)) = details.rule(part) else {
            return "it came with the request and replaces the policy's limit".to_owned();
        };
        let mut text = Vec::new();
        let entries = request.descriptors.get(part.descriptor).map(|it| it.entries);
        let found = entries.and_then(|entries| domain.resolve(entries, &mut text));
        let chosen = Chosen { now, controls, limit, found, text: &text };
        let numbers = chosen.numbers(part);
        let mut words = match part.standing {
            Standing::Beside => format!("rule {}, its shadow: {numbers}", rule.path()),
            _ => {
                let (path, wants, algorithm) = (rule.path(), rule.wants(), limit.kind());
                format!("rule {path}, for {wants}: {algorithm}, {numbers}")
            }
        };
        if part.is_for_others() {
            words += "; the rest of it is kept for the class ";
            words += domain.classes().name(Class::CRITICAL).unwrap_or_default();
        }
        for sentence in chosen.sentences(domain, part) {
            words += "; ";
            words += &sentence;
        }
        words
    };
    details.records.iter().map(reason).collect()
}

/// One limit of a request, with the sources of its numbers.
struct Chosen<'a> {
    now: Timestamp,
    controls: &'a Controls,
    limit: &'a PolicyLimit,
    found: Option<Match<'a, 'a>>,
    /// The text of the key.
    text: &'a [u8],
}

impl Chosen<'_> {
    /// The numbers in words; a calendar period by its name instead of its length.
    fn numbers(&self, part: &Record) -> String {
        let Some(numbers) = &part.numbers else { return "unlimited".into() };
        let now = self.now;
        let allowance = match (part.standing, self.limit.shadow()) {
            (Standing::Beside, Some(shadow)) => Some(shadow.allowance()),
            _ => self.found.map(|it| self.limit.allowance_for(it.value, it.plan, now)),
        };
        let is_plain = |numbers| move |it: Option<(_, _)>| it.is_some_and(|it| it.0 == numbers);
        let calendar = allowance.filter(|it| it.is_calendar() && is_plain(*numbers)(it.at(now)));
        calendar.map_or_else(|| in_words(numbers).to_string(), ToString::to_string)
    }

    fn sentences(&self, domain: &Domain, part: &Record) -> Vec<String> {
        let mut sentences = Vec::new();
        if part.standing == Standing::Beside {
            return sentences;
        }
        sentences.extend(self.limit.settling().map(ToString::to_string));
        sentences.extend(self.variant());
        sentences.extend(self.overruled());
        let share = self.limit.enforce();
        if share != Share::ALL {
            let secret = self.controls.enforce_secret.as_ref();
            let is = if share.holds(secret, self.limit.id(), self.text) { "is" } else { "is not" };
            sentences.push(format!("enforced for {share} of keys, and this key {is} one of them"));
        }
        if self.controls.spares(domain) || self.controls.spares_limit(self.limit) {
            sentences.push("a kill switch of the admin API is on".into());
        }
        sentences
    }

    /// The variant of the limit that the policy chose: an override, or else a plan.
    fn variant(&self) -> Option<String> {
        let (found, now) = (self.found?, self.now);
        let special = self.limit.overrides.get(found.value).filter(|it| it.holds(now));
        if let Some(special) = special {
            let until = special.until().map_or(String::new(), |until| format!(" until {until}"));
            let why = special.reason().map_or(String::new(), |why| format!(" ({why})"));
            return Some(format!("the override for {:?} decides{until}{why}", found.value));
        }
        let plan = found.plan?;
        Some(match self.limit.plans.contains_key(plan) {
            true => format!("the plan {plan:?} decides"),
            false => format!("the plan {plan:?} has no numbers of its own here"),
        })
    }

    /// The runtime override that applies.
    fn overruled(&self) -> Option<String> {
        let mut overrides = self.controls.overrides();
        let (_, overruling) = overrides.find(|(id, _)| *id == self.limit.id())?;
        if self.now >= overruling.until {
            return None;
        }
        let until = overruling.until;
        let why = overruling.reason.as_deref().map_or(String::new(), |why| format!(" ({why})"));
        Some(match overruling.numbers {
            OtherNumbers::Percent(percent) => {
                format!("an override of the admin API sets it to {percent}% until {until}{why}")
            }
            OtherNumbers::Limit(_) => {
                format!("an override of the admin API decides until {until}{why}")
            }
        })
    }
}
