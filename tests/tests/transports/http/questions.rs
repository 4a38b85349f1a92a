//! Questions in JSON, and what is answered.

use serde_json::{Value, json};
use tidegate::Span;
use tidegate_server::{Answers, Body, Settings};

use super::*;

#[test]
fn a_limit_that_comes_with_the_request_is_answered() {
    let transport = Transport::open(POLICY);
    let question = json!({"key": "user:1", "rate": "60/60s", "burst": 2});
    let first = transport.check(&question);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"given\";q=2;w=2"));
    assert_eq!(first.header("ratelimit"), Some("\"given\";r=1;t=1"));
    assert_eq!(first.header("retry-after"), None);
    assert_eq!(first.header("x-ratelimit-limit"), None);
    let limit = json!({
        "name": "given", "algorithm": "token_bucket", "descriptor": 0, "standing": "live",
        "binds": true, "allowed": true, "limit": 2, "remaining": 1, "retry_after_ms": null,
        "reset_after_ms": 1_000, "delay_ms": 0,
    });
    let expected = json!({
        "allowed": true, "limit": 2, "remaining": 1, "retry_after_ms": null,
        "reset_after_ms": 1_000, "delay_ms": 0, "limits": [limit],
    });
    assert_eq!(first.json(), expected);
    assert_eq!(transport.check(&question).status, 200);
    let third = transport.check(&question);
    assert_eq!((third.status, third.header("retry-after")), (429, Some("1")));
    assert_eq!(third.json()["retry_after_ms"], 1_000);
    assert_eq!(third.header("ratelimit"), Some("\"given\";r=0;t=1"));
    transport.clock.advance(Span::from_secs(1));
    assert_eq!(transport.check(&question).status, 200);
}

#[test]
fn a_cost_that_never_fits_has_no_retry_time() {
    let transport = Transport::open(POLICY);
    let answer = transport.check(&json!({"key": "k", "rate": "1/s", "burst": 5, "cost": 6}));
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));
    assert_eq!(answer.json()["never"], true);
    assert_eq!(answer.json()["limits"][0]["never"], true);
    assert_eq!(answer.json()["retry_after_ms"], Value::Null);
}

#[test]
fn every_algorithm_can_be_asked_for() {
    let transport = Transport::open(POLICY);
    for algorithm in
        ["token_bucket", "gcra", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
    {
        let question = json!({"key": algorithm, "rate": "10/10s", "algorithm": algorithm});
        let answer = transport.check(&question);
        assert_eq!(answer.status, 200, "{algorithm}: {answer:?}");
        assert_eq!(answer.json()["limits"][0]["algorithm"], algorithm);
        assert!(answer.header("ratelimit-policy").is_some_and(|it| it.contains(";w=")));
        // Only this one holds a single unit unless told otherwise.
        assert_eq!(transport.check(&question).status == 429, algorithm == "gcra", "{algorithm}");
    }
    let shaped = json!({"key": "k", "rate": "1/s", "queue": 1, "algorithm": "leaky_bucket"});
    assert_eq!(transport.check(&shaped).json()["delay_ms"], 0);
    assert_eq!(transport.check(&shaped).json()["delay_ms"], 1_000);
    assert_eq!(transport.check(&shaped).status, 429);
}

#[test]
fn several_limits_are_taken_all_or_nothing() {
    let transport = Transport::open(POLICY);
    let user = json!({"key": "user:1", "rate": "9/min", "cost": 2});
    let address = json!({"key": "ip:1", "rate": "1/min"});
    let both = json!({"limits": [user, address]});
    let first = transport.check(&both);
    assert_eq!((first.status, &first.json()["remaining"]), (200, &json!(0)));
    assert_eq!(first.header("ratelimit"), Some("\"given\";r=7;t=7, \"given\";r=0;t=60"));
    let second = transport.check(&both);
    assert_eq!((second.status, second.header("retry-after")), (429, Some("60")));
    let limits = &second.json()["limits"];
    assert_eq!((&limits[0]["remaining"], &limits[0]["binds"]), (&json!(7), &json!(false)));
    assert_eq!((&limits[1]["descriptor"], &limits[1]["binds"]), (&json!(1), &json!(true)));
}

#[test]
fn a_policy_is_asked_by_descriptors() {
    let transport = Transport::open(POLICY);
    let question = json!({"domain": "api", "descriptors": [{"api_key": "k1"}]});
    let first = transport.check(&question);
    assert_eq!((first.status, &first.json()["remaining"]), (200, &json!(1)));
    assert_eq!(first.json()["limits"][0]["name"], "per_minute");
    assert_eq!(first.header("ratelimit-policy"), Some("\"per_minute\";q=2;w=60"));
    let pairs = json!([["tenant", "t"], ["user", "bob"]]);
    let deep = json!({"domain": "api", "descriptors": [pairs, {"api_key": "k1"}]});
    assert_eq!(transport.check(&deep).status, 200);
    let denied = transport.check(&deep);
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("30")));
    assert_eq!(denied.json()["limits"].as_array().map(Vec::len), Some(2));
    let reply = denied.header("ratelimit").expect("two limits");
    assert!(reply.ends_with("\"per_minute\";r=0;t=30"), "{reply}");
    let elsewhere = json!({"domain": "elsewhere", "descriptors": [{"a": "b"}]});
    let elsewhere = transport.check(&elsewhere);
    assert_eq!((elsewhere.status, &elsewhere.json()["limit"]), (200, &Value::Null));
    assert_eq!(elsewhere.header("ratelimit"), None);
}

#[test]
fn a_descriptor_may_have_its_own_cost_and_limit() {
    let transport = Transport::open(POLICY);
    let ask = |descriptor: Value| {
        transport.check(&json!({"domain": "api", "descriptors": [descriptor]})).json()
    };
    let entries = json!([["api_key", "k"]]);
    assert_eq!(ask(json!({"entries": entries, "cost": 2}))["remaining"], 0);
    assert_eq!(ask(json!({"cost": -1, "entries": entries}))["remaining"], 1);
    // An entry may be called as the members of the longer form are.
    assert_eq!(ask(json!({"entries": "k"}))["limits"], json!([]));
    let limit = json!({"requests_per_unit": 5, "unit": "minute"});
    let own = ask(json!({"entries": entries, "limit": limit}));
    assert_eq!((&own["limit"], &own["limits"][0]["name"]), (&json!(5), &json!("given")));
}

#[test]
fn asking_and_giving_back_change_what_they_should() {
    let transport = Transport::open(POLICY);
    let policy = json!({"domain": "api", "descriptors": [{"api_key": "k1"}], "cost": 2});
    let given = json!({"key": "user:1", "rate": "2/min", "cost": 2});
    for question in [policy, given] {
        let ask = |path: &str| transport.post(path, &question.to_string());
        assert_eq!(ask("/v1/peek").status, 200);
        assert_eq!((ask("/v1/check").status, ask("/v1/check").status), (200, 429));
        let peeked = ask("/v1/peek");
        assert_eq!((peeked.status, peeked.header("retry-after")), (429, Some("60")));
        let refunded = ask("/v1/refund");
        assert_eq!((refunded.status, &refunded.json()["remaining"]), (200, &json!(2)));
        assert_eq!(ask("/v1/check").status, 200);
        let explained = ask("/v1/explain");
        assert_eq!((explained.status, &explained.json()["allowed"]), (200, &json!(false)));
        let limit = &explained.json()["limits"][0];
        assert!(limit["why"].as_str().is_some_and(|why| why.contains("2")), "{limit}");
        assert!(limit["state"].as_str().is_some_and(|state| state.contains("0 of 2")), "{limit}");
    }
}

#[test]
fn a_batch_is_answered_in_its_order() {
    let transport = Transport::open(POLICY);
    let given = json!({"key": "k", "rate": "1/min"});
    let questions = json!([
        given, given, {"domain": "api", "descriptors": [{"api_key": "k1"}]},
    ]);
    let answered = transport.post("/v1/batch", &json!({"questions": questions}).to_string());
    assert_eq!(answered.status, 200, "{answered:?}");
    let answers = &answered.json()["answers"];
    assert_eq!(answers.as_array().map(Vec::len), Some(3));
    assert_eq!((&answers[0]["allowed"], &answers[1]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!(answers[2]["limits"][0]["name"], "per_minute");
    // If one cannot be asked, none is.
    let fresh = json!({"key": "fresh", "rate": "1/min"});
    for (wrong, status, why) in [
        (json!({"key": "k"}), 400, "questions[1]: a key needs a rate"),
        (json!({"key": "k", "rate": "0/s"}), 422, "questions[1]: count of a rate"),
        (json!({"domain": "api", "descriptors": []}), 400, "questions[1]: rate limit descriptor"),
    ] {
        let batch = json!({"questions": [fresh, wrong]});
        let answered = transport.post("/v1/batch", &batch.to_string());
        assert_eq!(answered.status, status, "{answered:?}");
        assert!(answered.body.contains(why), "{answered:?}");
    }
    assert_eq!(transport.check(&fresh).status, 200);
    let many = json!({"questions": vec![json!({"key": "k", "rate": "1/min"}); 101]});
    for wrong in [json!({"questions": []}), many, json!({}), json!([[]])] {
        assert_eq!(transport.post("/v1/batch", &wrong.to_string()).status, 400);
    }
}

#[test]
fn denials_are_told_as_the_settings_say() {
    let question = json!({"key": "a \"k\"", "rate": "1/hour"});
    let with = |body| {
        let answers = Answers { body: Some(body), x_rate_limit: true, ..Answers::default() };
        let transport = Transport::with(&Settings { answers, ..settings() }, POLICY);
        let allowed = transport.check(&question);
        assert_eq!(allowed.header("content-type"), Some("application/json"));
        transport.check(&question)
    };
    let problem = with(Body::Problem);
    assert_eq!((problem.status, problem.header("retry-after")), (429, Some("3600")));
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    let document = problem.json();
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!((&document["type"], &document["status"]), (&json!(kind), &json!(429)));
    assert_eq!(document["violated-policies"], json!(["given"]));
    assert_eq!((&document["allowed"], &document["limit"]), (&json!(false), &json!(1)));
    let empty = with(Body::Empty);
    assert_eq!((empty.status, &*empty.body, empty.header("content-type")), (429, "", None));
    assert_eq!(empty.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(empty.header("x-ratelimit-remaining"), Some("0"));
    let reset = empty.header("x-ratelimit-reset").and_then(|reset| reset.parse::<u64>().ok());
    assert!(reset.is_some_and(|reset| reset >= 3_600), "{empty:?}");
    assert_eq!(with(Body::Json).json()["allowed"], false);
}

#[test]
fn questions_that_cannot_be_answered_are_told_why() {
    let transport = Transport::open(POLICY);
    for (question, status, why) in [
        (json!({}), 400, "expected key and rate"),
        (json!({"key": "k", "domain": "api"}), 400, "expected key and rate"),
        (json!({"key": "k"}), 400, "needs a rate"),
        (json!({"key": "k", "rate": "often"}), 400, "COUNT/PERIOD"),
        (json!({"key": "k", "rate": "0/s", "burst": 1}), 422, "count of a rate"),
        (json!({"key": "k", "rate": "1/s", "burst": 0}), 422, "burst must be"),
        (json!({"key": "k", "rate": "1/s", "burst": -1}), 400, "0 or more"),
        (json!({"key": "k", "rate": "1/s", "cost": 1.5}), 400, "whole number"),
        (json!({"key": "k", "rate": "1/s", "cost": 9_007_199_254_740_993_u64}), 400, "2^53"),
        (json!({"key": "k", "rate": "1/s", "cost": 1e300}), 400, "2^53"),
        (json!({"key": "k", "rate": "1/s", "burst": null}), 400, "0 or more, found null"),
        (json!({"key": "k", "rate": "1/s", "queue": 1}), 422, "leaky bucket only"),
        (json!({"key": "k", "rate": "1/s", "algorithm": "magic"}), 400, "must be one of"),
        (json!({"key": "k", "rate": "1/s", "colour": "red"}), 400, "unknown field"),
        (json!({"key": "k", "rate": "1/s", "descriptors": []}), 400, "expected `key` with `rate`"),
        (json!({"limits": []}), 400, "1 to 16 limits"),
        (json!({"limits": [{"key": "k", "rate": "1/s"}], "cost": 2}), 400, "not beside the list"),
        (json!({"limits": [{"domain": "api", "descriptors": []}]}), 400, "needs a rate"),
        (json!({"domain": ""}), 400, "domain must not be empty"),
        (json!({"domain": "api"}), 400, "descriptor list must not be empty"),
        (json!({"domain": "api", "descriptors": [{}]}), 400, "no entries"),
        (json!({"domain": "api", "descriptors": [{"cost": 2}]}), 400, "no entries"),
        (json!({"domain": "api", "descriptors": [[["a"]]]}), 400, "invalid length"),
        (json!({"domain": "api", "descriptors": ["a"]}), 400, "expected a descriptor"),
        (json!({"domain": "api", "descriptors": [{"a": 1.5}]}), 400, "whole number"),
        (json!({"domain": "api", "descriptors": [{"a": "1", "b": "2"}]}), 400, "has no order"),
        (
            json!({"domain": "api", "descriptors": [{"a": "1", "cost": 2}]}),
            400,
            "expected entries, cost or limit",
        ),
        (json!({"domain": "api", "descriptors": vec![json!({"a": "1"}); 65]}), 400, "at most 64"),
        (json!({"domain": "api", "descriptors": [], "rate": "1/s"}), 400, "the policy sets them"),
        (json!(["k", "1/s"]), 400, "expected an object"),
        (json!({"limits": [["k", "1/s"]]}), 400, "expected an object"),
    ] {
        let answer = transport.check(&question);
        let reply = answer.json()["error"].to_string();
        assert!(reply.contains(why), "{question}: {reply}");
        assert_eq!(answer.status, status, "{question}");
    }
    let window = json!({"requests_per_unit": 5, "unit": "fortnight"});
    let descriptor = json!({"entries": [["a", "b"]], "limit": window});
    let answer = transport.check(&json!({"domain": "api", "descriptors": [descriptor]}));
    assert!(answer.body.contains("unit must be one of second, minute"), "{answer:?}");
    assert_eq!(transport.post("/v1/check", "{").status, 400);
    assert_eq!(transport.post("/v1/check", "{\"key\":\"\u{fffd}\",\"key\":\"k\"}").status, 400);
    // As JSON may be written.
    let fraction = "{\"key\":\"f\",\"rate\":\"5/s\",\"cost\":5.0,\"burst\":5e0}";
    assert_eq!(transport.post("/v1/check", fraction).json()["remaining"], 0);
    let escaped = "{\"key\":\"\\u0075ser\",\"rate\":\"1\\/s\"}";
    assert_eq!(transport.post("/v1/check", escaped).status, 200);
    assert_eq!(transport.check(&json!({"key": "user", "rate": "1/s"})).status, 429);
}

#[test]
fn an_empty_key_is_refused() {
    let transport = Transport::open(POLICY);
    let question = json!({"key": "", "rate": "1/s"});
    let several = json!({"limits": [{"key": "a", "rate": "1/s"}, question]});
    for question in [question, several] {
        let answer = transport.check(&question);
        assert_eq!(answer.status, 400, "{answer:?}");
        let why = answer.json()["error"].clone();
        assert!(why.as_str().is_some_and(|it| it.starts_with("key must not be empty")), "{why}");
    }
}

#[test]
fn an_unreadable_body_is_refused_with_its_place() {
    let transport = Transport::open(POLICY);
    for (body, why) in [
        ("", "the body is empty; send JSON such as {\"key\":\"user:17\",\"rate\":\"100/60s\"}"),
        (
            "key=a",
            "line 1, column 1 of the body: this is not JSON; send JSON such as \
             {\"key\":\"user:17\",\"rate\":\"100/60s\"}",
        ),
        (
            "{\"kee\": \"a\"}",
            "line 1, column 6 of the body: unknown field \"kee\"; did you mean \"key\"?",
        ),
    ] {
        let answer = transport.post("/v1/check", body);
        assert_eq!((answer.status, answer.json()["error"].as_str()), (400, Some(why)));
    }
    let answer = transport.post("/v1/batch", "{");
    let why = answer.json()["error"].as_str().map(ToOwned::to_owned).unwrap_or_default();
    assert!(answer.status == 400 && why.contains("{\"questions\":["), "{why}");
}

/// A body that the schema allows is not refused for its algorithm, and the other way round.
#[test]
fn a_queue_needs_a_leaky_bucket_as_the_schema_says() {
    let transport = Transport::open(POLICY);
    let bare = json!({"key": "k", "rate": "1/s", "queue": 1});
    assert_eq!(transport.check(&bare).status, 422);
    let leaky = json!({"key": "k", "rate": "1/s", "queue": 1, "algorithm": "leaky_bucket"});
    assert_eq!(transport.check(&leaky).status, 200);
    let document: Value = serde_json::from_str(&transport.get("/openapi.json", "").body).unwrap();
    let limit = &document["components"]["schemas"]["GivenLimit"];
    let queue = &limit["dependentSchemas"]["queue"];
    assert_eq!(queue["required"], json!(["algorithm"]));
    assert_eq!(queue["properties"]["algorithm"]["const"], "leaky_bucket");
    assert_eq!(limit["properties"]["key"]["minLength"], 1);
}
