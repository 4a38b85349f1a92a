//! Compares our encoding and decoding with an independent implementation, and protobuf with JSON.

use fastrand::Rng;
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::{Value, json};
use tidegate::policy::{Merging, Policy, PolicyLimiter};

use super::json::{self, JsonRequest};
use super::oracle_tests::{message, random_request, request};
use super::request::RateLimitRequest;
use super::verdict::RlsVerdict;
use crate::settings::{Answers, EnvoyHeaders, ProxyHeaders};

const POLICY: &str = r#"
domain: api
descriptors:
  - key: theirs
    metadata: {team: "core", deep: {a: 1, list: [true, null, 1.5]}}
    rate_limit: {unit: minute, requests_per_unit: 3, name: few}
  - key: free
    rate_limit: {unlimited: true}
  - key: ours
    metadata: {team: other, deep: {b: "x"}}
    rate: 10/10s
    burst: 5
  - key: even
    rate: 5/h
  - key: shy
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: huge
    rate_limit: {unit: year, requests_per_unit: 4294967295}
"#;

fn limiter() -> PolicyLimiter<tidegate::store::memory::MemoryStore> {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
    PolicyLimiter::in_memory(policy).unwrap()
}

fn everything() -> Answers {
    Answers {
        proxy_headers: ProxyHeaders::Envoy(EnvoyHeaders::default()),
        dynamic_metadata: true,
        ..Answers::default()
    }
}

/// Returns the answer as an independent implementation reads it from protobuf. Checks that JSON has
/// the same, apart from `Retry-After`, which over HTTP is a header of the response, and returns the
/// answer without it.
fn ask(limiter: &PolicyLimiter<tidegate::store::memory::MemoryStore>, document: &Value) -> Value {
    let text = document.to_string();
    let json_request =
        JsonRequest::read(text.as_bytes()).unwrap_or_else(|error| panic!("{document}: {error}"));
    let wire_request = json_request.wire_request().unwrap();
    let descriptors = wire_request.descriptors();
    let verdict = limiter.check_now(&wire_request.request(&descriptors)).unwrap();
    let answers = everything();
    let status = RlsVerdict { wire_request: &wire_request, verdict: &verdict, answers: &answers };
    let mut bytes = Vec::new();
    super::write(&status, &mut bytes);
    let response = message("envoy.service.ratelimit.v3.RateLimitResponse");
    let read = DynamicMessage::decode(response, &*bytes).expect("what we wrote");
    assert_eq!(read.unknown_fields().count(), 0);
    let mut read = serde_json::to_value(&read).unwrap();
    if let Some(headers) = read.get_mut("responseHeadersToAdd").and_then(Value::as_array_mut) {
        let retry_after = headers.iter().find(|header| header["key"] == "retry-after");
        let seconds = retry_after.and_then(|it| it["value"].as_str()?.parse().ok());
        assert_eq!(seconds, status.retry_after());
        headers.retain(|header| header["key"] != "retry-after");
    }
    let ours: Value = serde_json::from_slice(&json::write(&status).unwrap()).unwrap();
    assert_eq!(with_doubles(ours), with_doubles(read.clone()));
    read
}

/// Metadata numbers have one kind in protobuf, and two in JSON.
fn with_doubles(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(items) => items.into_iter().map(with_doubles).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, with_doubles(value))).collect()
        }
        other => other,
    }
}

fn descriptor(key: &str) -> Value {
    json!({"entries": [{"key": key, "value": "x"}]})
}

#[test]
fn statuses_report_each_descriptor() {
    let limiter = limiter();
    let keys = ["theirs", "free", "nothing", "ours", "even", "shy", "huge"];
    let document = json!({"domain": "api", "descriptors": keys.map(descriptor), "hits_addend": 2});
    let answer = ask(&limiter, &document);
    assert_eq!(answer["overallCode"], "OK");
    let statuses = answer["statuses"].as_array().unwrap();
    let limit = |at: usize| &statuses[at]["currentLimit"];
    assert_eq!(*limit(0), json!({"name": "few", "requestsPerUnit": 3, "unit": "MINUTE"}));
    assert_eq!(statuses[0]["limitRemaining"], 1);
    assert_eq!(statuses[1], json!({"code": "OK", "limitRemaining": u32::MAX}));
    assert_eq!(statuses[2], json!({"code": "OK"}));
    // A burst of five that refills in five seconds has no unit in the protocol.
    assert_eq!(*limit(3), json!({"requestsPerUnit": 5}));
    assert_eq!(statuses[3]["durationUntilReset"], "2s");
    assert_eq!(*limit(4), json!({"requestsPerUnit": 5, "unit": "HOUR"}));
    // A shadow limit that is over differs in its code only.
    assert_eq!(
        (&statuses[5]["code"], &statuses[5]["limitRemaining"]),
        (&json!("OK"), &Value::Null)
    );
    assert_eq!(statuses[6]["limitRemaining"], u32::MAX - 2);
    let denied = ask(&limiter, &document);
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    assert_eq!(denied["statuses"][0]["code"], "OVER_LIMIT");
    let headers = denied["responseHeadersToAdd"].as_array().unwrap();
    let names = headers.iter().map(|header| header["key"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
    assert_eq!((&headers[0]["value"], &headers[1]["value"]), (&json!("3"), &json!("0")));
}

#[test]
fn metadata_contain_the_request_and_the_metadata_of_rules() {
    let limiter = limiter();
    let limit = json!({"requestsPerUnit": 7, "unit": "HOUR"});
    let given = json!({"entries": [{"key": "a"}, {"key": "b", "value": "c"}], "limit": limit,
                       "hitsAddend": "2"});
    let document =
        json!({"domain": "api", "descriptors": [descriptor("theirs"), descriptor("ours"), given]});
    let metadata = ask(&limiter, &document)["dynamicMetadata"].clone();
    let expected = json!({
        "domain": "api",
        "descriptors": [
            {"entries": ["theirs=x"]},
            {"entries": ["ours=x"]},
            {"entries": ["a=", "b=c"], "limit": "requests_per_unit:7 unit:HOUR", "hitsAddend": 2},
        ],
        // The first value stays; maps are merged.
        "metadata": {"team": "core", "deep": {"a": 1, "b": "x", "list": [true, null, 1.5]}},
    });
    assert_eq!(with_doubles(metadata), with_doubles(expected));
}

#[test]
fn no_reset_is_reported_if_no_wait_helps_except_for_envoy_windows() {
    let limiter = limiter();
    let document =
        |key: &str| json!({"domain": "api", "hitsAddend": 6, "descriptors": [descriptor(key)]});
    let ours = ask(&limiter, &document("ours"));
    assert_eq!(ours["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(ours["statuses"][0]["durationUntilReset"], Value::Null);
    let theirs = ask(&limiter, &document("theirs"));
    assert_eq!(theirs["statuses"][0]["code"], "OVER_LIMIT");
    assert!(theirs["statuses"][0]["durationUntilReset"].is_string());
}

#[test]
fn a_question_in_json_is_the_same_in_protobuf() {
    let mut random = Rng::with_seed(5);
    let mut read = 0;
    for _ in 0..5_000 {
        let bytes = random_request(&mut random);
        let Ok(ours) = RateLimitRequest::read(&bytes) else { continue };
        let theirs = DynamicMessage::decode(request(), &*bytes).unwrap();
        for proto_names in [false, true] {
            let options = SerializeOptions::new()
                .use_proto_field_name(proto_names)
                .use_enum_numbers(random.bool())
                .stringify_64_bit_integers(random.bool());
            let mut document = Vec::new();
            let mut serializer = serde_json::Serializer::new(&mut document);
            theirs.serialize_with_options(&mut serializer, &options).unwrap();
            let shown = String::from_utf8_lossy(&document).into_owned();
            let json_request =
                JsonRequest::read(&document).unwrap_or_else(|error| panic!("{shown}: {error}"));
            assert_eq!(json_request.wire_request(), Ok(ours.clone()), "{shown}");
            read += 1;
        }
    }
    assert!(read > 2_000, "{read}");
}

#[test]
fn documents_are_read_as_protojson_specifies() {
    for (document, is_read) in [
        (r#"{}"#, true),
        (r#"{"domain": null, "descriptors": null, "hitsAddend": null}"#, true),
        (r#"{"hitsAddend": "7"}"#, true),
        (r#"{"hitsAddend": 7.0}"#, true),
        (r#"{"hitsAddend": 1e3}"#, true),
        (r#"{"hitsAddend": 7.5}"#, false),
        (r#"{"hitsAddend": -1}"#, false),
        (r#"{"hitsAddend": 4294967296}"#, false),
        (r#"{"hitsAddend": "many"}"#, false),
        (r#"{"hitsAddend": 1, "hits_addend": 1}"#, false),
        (r#"{"descriptors": [null]}"#, false),
        (r#"{"descriptors": [{"entries": [{"key": 1}]}]}"#, false),
        (r#"{"descriptors": [{"hitsAddend": "18446744073709551615"}]}"#, true),
        (r#"{"descriptors": [{"isNegativeHits": true, "limit": null}]}"#, true),
        (r#"{"colour": "red"}"#, false),
        (r#"{"domain": "\ud800"}"#, false),
        (r#"[]"#, false),
        (r#"{"domain": "a"} {}"#, false),
        ("", false),
    ] {
        assert_eq!(JsonRequest::read(document.as_bytes()).is_ok(), is_read, "{document}");
    }
    let unit = |unit: &str| {
        let text = format!(r#"{{"descriptors": [{{"limit": {{"unit": {unit}}}}}]}}"#);
        JsonRequest::read(text.as_bytes()).unwrap().wire_request().is_ok()
    };
    let known = ["1", "7", "\"SECOND\"", "\"WEEK\""].map(unit);
    let unknown = ["0", "8", "null", "\"UNKNOWN\"", "\"second\"", "\"FORTNIGHT\""].map(unit);
    assert_eq!((known, unknown), ([true; 4], [false; 6]));
}
