//! `/json` and `/healthcheck`, as envoyproxy/ratelimit has them: every conformance case, and the rest.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::policy::{Merging, Policy, Unit};
use tidegate::{Clock, ManualClock};
use tidegate_server::{Answers, ProxyHeaders, RateLimitService, Server, Settings, serve};
use tidegate_tests::conformance::{
    CaseRequest, Limiting, Reply, Status, Wait, run_case, transport_cases,
};
use tidegate_tests::http;

const TIMEOUT: Duration = Duration::from_secs(60);

const POLICY: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1}
";

fn open(service: &RateLimitService) -> Server {
    let settings = Settings {
        http: Some(([127, 0, 0, 1], 0).into()),
        threads: NonZeroUsize::MIN,
        drain: TIMEOUT,
        answers: Answers { proxy_headers: ProxyHeaders::None, ..Answers::default() },
        ..Settings::default()
    };
    serve(&settings, service).unwrap_or_else(|error| panic!("{error}"))
}

/// The status and the body.
fn send(server: &Server, method: &str, path: &str, body: &str) -> (u16, String) {
    let address = server.http().expect("asked for");
    let answer = http::ask(address, &format!("{method} {path}"), "", body);
    (answer.status, answer.body)
}

fn document(question: &CaseRequest) -> Value {
    let descriptors = question.descriptors.iter().map(|side| {
        let entries = side.entries.iter().map(|(key, value)| json!({"key": key, "value": value}));
        let mut descriptor = json!({"entries": entries.collect::<Vec<_>>()});
        if let Some(hits) = side.hits {
            descriptor["hitsAddend"] = hits.unsigned_abs().to_string().into();
            descriptor["is_negative_hits"] = (hits < 0).into();
        }
        if let Some((requests_per_unit, unit)) = side.limit {
            let unit = unit.as_str().to_uppercase();
            descriptor["limit"] = json!({"requests_per_unit": requests_per_unit, "unit": unit});
        }
        descriptor
    });
    let descriptors: Vec<Value> = descriptors.collect();
    json!({"domain": question.domain, "descriptors": descriptors, "hits_addend": question.hits})
}

fn status(outcome: &Value) -> Status {
    let over = outcome["code"] == "OVER_LIMIT";
    let remaining = outcome["limitRemaining"].as_u64().unwrap_or_default();
    let Value::Object(limit) = &outcome["currentLimit"] else {
        let is_unlimited = remaining == u64::from(u32::MAX);
        let limit = if is_unlimited { Limiting::Unlimited } else { Limiting::Nothing };
        let remaining = Some(remaining);
        return Status { over, limit: Some(limit), remaining, ..Status::default() };
    };
    let unit = limit.get("unit").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    let name = limit.get("name").and_then(Value::as_str).unwrap_or_default();
    let count = limit.get("requestsPerUnit").and_then(Value::as_u64).unwrap_or_default();
    let seconds = outcome["durationUntilReset"].as_str().map(|text| {
        text.strip_suffix('s').and_then(|text| text.parse().ok()).expect("whole seconds")
    });
    let limit = Limiting::Numbers {
        name: name.into(),
        capacity: count,
        unit: Unit::ALL.into_iter().find(|known| known.as_str() == unit),
    };
    Status {
        over,
        limit: Some(limit),
        remaining: Some(remaining),
        reset: if over { None } else { seconds },
        retry_after: over.then(|| seconds.map_or(Wait::Never, Wait::Seconds)),
        delay: None,
    }
}

fn reply((code, body): (u16, String)) -> Reply {
    if code == 400 {
        let text = body.strip_prefix("Bad Request: ").expect("as the status says");
        return Reply::Failed(text.trim_end().into());
    }
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    let overall = if code == 200 { "OK" } else { "OVER_LIMIT" };
    assert_eq!((code == 200 || code == 429, &answer["overallCode"]), (true, &json!(overall)));
    let statuses =
        answer["statuses"].as_array().map(|outcome| outcome.iter().map(status).collect());
    Reply::Decided { allowed: code == 200, statuses, retry_after: None }
}

#[test]
fn every_case_holds_over_json() {
    let mut failures = Vec::new();
    let cases = transport_cases();
    for (case, policy) in &cases {
        let clock = ManualClock::at(case.start());
        let service = RateLimitService::with_clock(Clock::from(clock.clone())).expect("memory");
        service.replace(policy.clone());
        let server = open(&service);
        let failure = run_case(case, &mut |question| {
            clock.set(question.now);
            reply(send(&server, "POST", "/json", &document(question).to_string()))
        });
        failures.extend(failure.err());
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn answers_are_written_as_by_envoyproxy() {
    let service = RateLimitService::with_clock(Clock::from(ManualClock::new())).expect("memory");
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let server = open(&service);
    let question = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"x"}]}]}"#;
    // By any method.
    for (method, code, overall) in [("GET", 200, "OK"), ("POST", 429, "OVER_LIMIT")] {
        let limit = r#""currentLimit":{"requestsPerUnit":1,"unit":"MINUTE"}"#;
        let status = format!(r#"{{"code":"{overall}",{limit},"durationUntilReset":"60s"}}"#);
        let expected = format!(r#"{{"overallCode":"{overall}","statuses":[{status}]}}"#);
        assert_eq!(send(&server, method, "/json", question), (code, expected));
    }
    let answer = http::ask(server.http().expect("asked for"), "POST /json", "", question);
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("60")));
    for wrong in ["", "{", "{}", r#"{"domain":"api"}"#, r#"{"colour":1}"#] {
        let (code, body) = send(&server, "POST", "/json", wrong);
        assert_eq!((code, body.starts_with("Bad Request: ")), (400, true), "{wrong}: {body}");
    }
    assert_eq!(send(&server, "GET", "/healthcheck", ""), (200, "OK".into()));
    service.status().drain();
    assert_eq!(send(&server, "GET", "/healthcheck", ""), (500, String::new()));
}
