//! The conformance cases through `/v1/check`, `/v1/acquire` and the other calls of this transport.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use tidegate::Span;
use tidegate::policy::Policy;
use tidegate_tests::conformance::{
    Action, Case, CaseRequest, DescriptorInput, Limiting, Outcome, Reply, Status, Sums, Wait,
    cases, run_case,
};

use super::*;

/// Cases with resets, which this transport does not have.
const RESETS: usize = 2;

/// What can be asked has grown to this; it must not shrink unnoticed.
const LEAST_CASES: usize = 205;

fn load(case: &Case) -> Option<Policy> {
    let files: Vec<(&str, &str)> =
        case.files.iter().map(|(name, text)| (&**name, &**text)).collect();
    Policy::load_at(&files, case.merging(), case.start()).policy
}

/// A question as this transport is asked.
fn body(question: &CaseRequest) -> Value {
    let descriptor = |side: &DescriptorInput| {
        let mut descriptor = json!({ "entries": side.entries });
        if let Some(hits) = side.hits {
            descriptor["cost"] = hits.into();
        }
        if let Some((requests_per_unit, unit)) = side.limit {
            let unit = unit.as_str();
            descriptor["limit"] = json!({ "requests_per_unit": requests_per_unit, "unit": unit });
        }
        match side.entries.as_slice() {
            // The shorter forms, where they say all there is.
            [(key, value)] if side.hits.is_none() && side.limit.is_none() => json!({ key: value }),
            [_, ..] if side.hits.is_none() && side.limit.is_none() => json!(side.entries),
            _ => descriptor,
        }
    };
    let descriptors: Vec<Value> = question.descriptors.iter().map(descriptor).collect();
    let mut body = json!({ "domain": question.domain, "descriptors": descriptors });
    if question.hits > 0 {
        body["cost"] = question.hits.into();
    }
    body
}

fn milliseconds(value: &Value) -> Option<Span> {
    value.as_u64().map(Span::from_millis)
}

fn wait(seen: &Value) -> Wait {
    match milliseconds(&seen["retry_after_ms"]) {
        Some(span) => Wait::Seconds(span.as_micros().div_ceil(1_000_000)),
        None => {
            assert_eq!(seen["never"], true, "{seen}");
            Wait::Never
        }
    }
}

/// What the answer tells of one descriptor, by the limit that speaks for it.
fn status(limits: &[Value], descriptor: usize) -> Status {
    let own: Vec<&Value> =
        limits.iter().filter(|limit| limit["descriptor"] == descriptor).collect();
    let counts = |limit: &Value| limit["standing"] == "live" || limit["standing"] == "quota";
    let over = own.iter().any(|limit| counts(limit) && limit["allowed"] == false);
    let decided =
        own.iter().filter(|limit| limit["standing"] != "beside" && limit["limit"].is_u64());
    let speaker = decided.max_by_key(|limit| {
        let waits = [&limit["delay_ms"], &limit["retry_after_ms"]].map(|it| it.as_u64());
        let left = std::cmp::Reverse(limit["remaining"].as_u64());
        (counts(limit), limit["allowed"] == false, limit["never"] == true, waits[1], waits[0], left)
    });
    let Some(speaker) = speaker else {
        let unlimited = own.iter().any(|limit| limit["standing"] == "unlimited");
        let limit = Some(if unlimited { Limiting::Unlimited } else { Limiting::Nothing });
        return Status { over, limit, ..Status::default() };
    };
    Status {
        over,
        limit: Some(Limiting::Ours {
            name: speaker["name"].as_str().expect("a name").into(),
            capacity: speaker["limit"].as_u64().expect("a number"),
        }),
        remaining: speaker["remaining"].as_u64(),
        reset: speaker["reset_after_ms"].as_u64().map(|reset| reset.div_ceil(1_000)),
        retry_after: (speaker["allowed"] == false).then(|| wait(speaker)),
        delay: milliseconds(&speaker["delay_ms"]),
    }
}

fn reply(question: &CaseRequest, answer: &Answer) -> Reply {
    let document = answer.json();
    if let Some(error) = document["error"].as_str() {
        assert!([400, 422].contains(&answer.status), "{answer:?}");
        return Reply::Failed(error.into());
    }
    let allowed = document["allowed"] == true;
    assert_eq!(answer.status, if allowed { 200 } else { 429 });
    let retry_after = (!allowed).then(|| wait(&document));
    let header = answer.header("retry-after").and_then(|seconds| seconds.parse().ok());
    let is_in_flight = |limit: &Value| limit["algorithm"] == "in_flight" && limit["binds"] == true;
    match (retry_after, header) {
        // A hint: places become free when requests end, long before their leases expire.
        (Some(_), Some(seen))
            if document["limits"].as_array().is_some_and(|it| it.iter().any(is_in_flight)) =>
        {
            assert_eq!(seen, 1, "{answer:?}");
        }
        // A client that follows the header waits at least as long.
        (Some(Wait::Seconds(true_wait)), Some(seen)) => assert!(true_wait <= seen, "{answer:?}"),
        (None | Some(Wait::Never), None) => {}
        _ => panic!("{answer:?}"),
    }
    let limits = document["limits"].as_array().expect("a list");
    let statuses = (0..question.descriptors.len()).map(|number| status(limits, number)).collect();
    Reply::Decided { allowed, statuses: Some(statuses), retry_after }
}

/// A settlement as this transport is asked.
fn settlement(question: &CaseRequest, reservation: &str) -> String {
    let Outcome { status, actual, costs, cancel } = &question.outcome;
    let mut body = json!({ "reservation": reservation });
    if let Some(status) = status {
        body["status"] = (*status).into();
    }
    if let Some(actual) = actual {
        body["actual"] = (*actual).into();
    }
    if !costs.is_empty() {
        body["actual"] = json!(costs);
    }
    if *cancel {
        body["cancel"] = true.into();
    }
    body.to_string()
}

fn settled(answer: &Answer) -> Reply {
    let document = answer.json();
    if let Some(error) = document["error"].as_str() {
        return Reply::Failed(error.into());
    }
    let names = ["settled", "not_open", "open", "returned", "dropped", "booked", "unbooked"];
    Reply::Settled(Sums::of(names.map(|name| document[name].as_u64().expect("a number"))))
}

/// What differs; `None` if the case is not for this transport.
fn outcome(case: &Case) -> Option<Result<(), String>> {
    let policy = load(case)?;
    let transport = Transport::at(ManualClock::at(case.start()), &settings(), policy);
    let resets = Cell::new(false);
    let mut holders: HashMap<String, String> = HashMap::new();
    let outcome = run_case(case, &mut |question: &CaseRequest| {
        transport.clock.set(question.now);
        let path = match question.action {
            Action::Check => "/v1/check",
            Action::Peek => "/v1/peek",
            Action::Refund => "/v1/refund",
            Action::Reset => {
                resets.set(true);
                return Reply::Failed("this transport does not reset".into());
            }
            Action::Acquire => "/v1/acquire",
            Action::Release => "/v1/release",
            Action::Renew => "/v1/renew",
            Action::Settle => "/v1/settle",
        };
        let holder = question.holder.clone().unwrap_or_default();
        if question.action.is_about_leases() {
            let body = json!({ "lease": holders[&holder] }).to_string();
            let document = transport.post(path, &body).json();
            return Reply::of_lease(document["released"] == true || document["renewed"] == true);
        }
        if question.action == Action::Settle {
            return settled(&transport.post(path, &settlement(question, &holders[&holder])));
        }
        let body = body(question).to_string();
        let peeked = transport.post("/v1/peek", &body);
        let answer = transport.post(path, &body);
        if question.action.charges() {
            assert_eq!(peeked.status, answer.status, "{}: {body}", case.name);
        }
        // No case both holds places and settles.
        let document = answer.json();
        for held in [&document["lease"], &document["reservation"]] {
            if let Some(held) = held.as_str() {
                holders.insert(holder.clone(), held.to_owned());
            }
        }
        reply(question, &answer)
    });
    (!resets.get()).then_some(outcome)
}

#[test]
fn every_case_holds_over_http() {
    let cases = cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance"));
    let asking: Vec<&Case> =
        cases.iter().filter(|case| !case.steps.is_empty() && case.rejected.is_empty()).collect();
    let outcomes: Vec<_> = asking.iter().filter_map(|case| outcome(case)).collect();
    let failures: Vec<String> = outcomes.iter().filter_map(|it| it.clone().err()).collect();
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        asking.len(),
        failures.join("\n")
    );
    let left_out = asking.len() - outcomes.len();
    let asked = outcomes.len();
    assert!(asked >= LEAST_CASES && left_out <= RESETS, "{asked} asked, {left_out} not");
}
