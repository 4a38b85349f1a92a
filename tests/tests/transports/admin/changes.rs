//! Changes in a hurry: their bounds, what they leave alone, and what they say afterwards.

use std::thread;

use super::*;

const WIDE: &str = "
domain: api
descriptors:
  - key: user
    rate: 4/min
  - key: window
    rate: 10/min
    algorithm: sliding_window
  - key: log
    rate: 10/min
    algorithm: sliding_log
  - key: envoy
    rate_limit: {unit: minute, requests_per_unit: 10}
---
domain: other
descriptors:
  - key: user
    rate: 4/min
";

fn wide() -> Daemon {
    let daemon = daemon(None);
    let loaded = Policy::load(&[("p.yaml", WIDE)], Merging::Refuse);
    daemon.service.replace(loaded.policy.expect(&loaded.findings));
    daemon
}

/// How many of twenty pass.
fn passed(daemon: &Daemon, domain: &str, (key, value): (&str, &str)) -> usize {
    let body = json!({ "domain": domain, "descriptors": [{ key: value }] }).to_string();
    let address = daemon.server.http().expect("open");
    (0..20).filter(|_| ask(address, "POST /v1/check", "", &body).0 == 200).count()
}

fn overrule(daemon: &Daemon, wish: &Value) {
    let (status, answer) = daemon.admin("PUT /v1/overrides", wish);
    assert_eq!(status, 200, "{answer}");
}

/// Every algorithm is scaled, each from 10 to 3; and a little of something is not nothing.
#[test]
fn a_percentage_scales_every_algorithm_and_leaves_one() {
    let daemon = wide();
    for (key, percent, left) in
        [("window", 35, 3), ("log", 35, 3), ("envoy", 35, 3), ("user", 1, 1), ("envoy", 1, 1)]
    {
        let limit = format!("api/{key}#");
        overrule(&daemon, &json!({ "limit": limit, "percent": percent, "seconds": 60 }));
        let whose = (key, &*format!("p{percent}"));
        assert_eq!(passed(&daemon, "api", whose), left, "{percent} % of {key}");
    }
    // Only the named key: the other domain has a limit at the same place.
    assert_eq!(passed(&daemon, "other", ("user", "x")), 4);
}

/// In the form of envoyproxy/ratelimit denied requests use up the window, overruled or not.
#[test]
fn a_scaled_window_still_counts_what_it_denies() {
    let daemon = wide();
    overrule(&daemon, &json!({ "limit": "api/envoy#", "percent": 10, "seconds": 600 }));
    assert_eq!(passed(&daemon, "api", ("envoy", "x")), 1);
    let (_, ended) = daemon.admin("DELETE /v1/overrides", &json!({ "limit": "api/envoy#" }));
    assert_eq!(ended, json!({ "ended": true }));
    assert_eq!(passed(&daemon, "api", ("envoy", "x")), 0);
}

/// Who asks under other numbers has an account of their own, and finds the old one as it was.
#[test]
fn another_rate_is_counted_apart() {
    let daemon = wide();
    assert_eq!(passed(&daemon, "api", ("user", "x")), 4);
    let wish = json!({ "limit": "api/user#", "rate": "1/h", "burst": 3, "seconds": 60 });
    overrule(&daemon, &wish);
    assert_eq!(passed(&daemon, "api", ("user", "x")), 3);
    daemon.admin("DELETE /v1/overrides", &json!({ "limit": "api/user#" }));
    assert_eq!(passed(&daemon, "api", ("user", "x")), 0);
}

#[test]
fn a_switch_leaves_other_domains_limited() {
    let daemon = wide();
    for target in [json!({ "domain": "other" }), json!({ "limit": "other/user#" })] {
        assert_eq!(daemon.admin("PUT /v1/kill-switch", &target).0, 200);
        let whose = target.to_string();
        assert_eq!(passed(&daemon, "other", ("user", &whose)), 20, "{target}");
        assert_eq!(passed(&daemon, "api", ("user", &whose)), 4, "{target}");
        assert_eq!(daemon.admin("DELETE /v1/kill-switch", &target).0, 200);
    }
    let (_, ended) = daemon.admin("DELETE /v1/kill-switch", &json!({ "all": true }));
    assert_eq!(ended, json!({ "ended": false }));
}

#[test]
fn ended_controls_are_not_listed() {
    let daemon = wide();
    overrule(&daemon, &json!({ "limit": "api/user#", "percent": 50, "seconds": 10 }));
    let answer = |path: &str| daemon.admin(path, &Value::Null).1["overrides"].clone();
    for path in ["GET /v1/overrides", "GET /v1/policy"] {
        assert_eq!(answer(path).as_array().map(Vec::len), Some(1), "{path}");
    }
    assert_eq!(answer("GET /v1/overrides")[0]["until"], "2023-11-14T22:13:30.000Z");
    daemon.clock.set(Timestamp::from_secs(1_700_000_010));
    for path in ["GET /v1/overrides", "GET /v1/policy"] {
        assert_eq!(answer(path), json!([]), "{path}");
    }
}

#[test]
fn a_key_that_came_with_requests_starts_afresh() {
    let daemon = wide();
    let address = daemon.server.http().expect("open");
    let body = json!({ "key": "k1", "rate": "1/h" }).to_string();
    let check = || ask(address, "POST /v1/check", "", &body).0;
    assert_eq!((check(), check()), (200, 429));
    let (_, answer) = daemon.admin("POST /v1/reset", &json!({ "key": "k1" }));
    assert_eq!(answer, json!({ "had_state": true }));
    assert_eq!((check(), check()), (200, 429));
    let (status, _) = daemon.admin("POST /v1/reset", &json!({ "key": "k1", "descriptors": [[]] }));
    assert_eq!(status, 400);
}

#[test]
fn reasons_and_bodies_have_bounds() {
    let daemon = wide();
    let with = |letters: usize| {
        let reason = "x".repeat(letters);
        let wish = json!({ "limit": "api/user#", "percent": 50, "seconds": 60, "reason": reason });
        daemon.admin("PUT /v1/overrides", &wish).0
    };
    assert_eq!((with(256), with(257)), (200, 400));
    let padded = |bytes: usize| {
        let body = format!("{{\"all\":true}}{}", " ".repeat(bytes - 12));
        ask(daemon.server.admin().expect("open"), "PUT /v1/kill-switch", "", &body).0
    };
    assert_eq!((padded(16 << 10), padded((16 << 10) + 1)), (200, 400));
}

/// As many as there may be, put in force from several sides at once: none is lost, and no more fit.
#[test]
fn a_thousand_changes_at_once_are_kept_and_no_more() {
    const MOST: usize = 1_000;
    let daemon = daemon(None);
    let rules: String = (0..=MOST)
        .map(|number| format!("  - {{key: user, value: u{number}, rate: 4/min}}\n"))
        .collect();
    let text = format!("domain: api\ndescriptors:\n{rules}");
    let loaded = Policy::load(&[("p.yaml", &text)], Merging::Refuse);
    daemon.service.replace(loaded.policy.expect(&loaded.findings));
    let limit = |number: usize| format!("api/user=u{number}#");
    for (path, answer) in [("/v1/kill-switch", "kill_switch"), ("/v1/overrides", "overrides")] {
        let wish = |number: usize| match path {
            "/v1/overrides" => json!({ "limit": limit(number), "percent": 50, "seconds": 60 }),
            _ => json!({ "limit": limit(number) }),
        };
        let put = |number: usize| daemon.admin(&format!("PUT {path}"), &wish(number)).0;
        thread::scope(|scope| {
            for side in 0..4 {
                scope.spawn(move || {
                    for number in (side..MOST).step_by(4) {
                        assert_eq!(put(number), 200, "{path}: {number}");
                    }
                });
            }
        });
        let (_, all) = daemon.admin(&format!("GET {path}"), &Value::Null);
        assert_eq!(all[answer].as_array().map(Vec::len), Some(MOST), "{path}");
        // One that is there already takes no place.
        assert_eq!((put(MOST), put(0)), (400, 200), "{path}");
        let gone = json!({ "limit": limit(7) });
        assert_eq!(daemon.admin(&format!("DELETE {path}"), &gone).1, json!({ "ended": true }));
        assert_eq!(put(MOST), 200, "{path}");
    }
}

#[test]
fn a_misspelt_id_is_repeated_with_the_nearest_one() {
    let daemon = wide();
    let override_of = |limit: &str| json!({ "limit": limit, "percent": 50, "seconds": 60 });
    for (call, body, why) in [
        (
            "PUT /v1/overrides",
            override_of("api/usr#"),
            "the policy has no limit of this id: \"api/usr#\"; did you mean \"api/user#\"?",
        ),
        (
            "PUT /v1/overrides",
            json!({ "limit": "api/usr#", "rate": "1/s", "seconds": 60 }),
            "the policy has no limit of this id: \"api/usr#\"; did you mean \"api/user#\"?",
        ),
        (
            "PUT /v1/overrides",
            override_of("elsewhere"),
            "the policy has no limit of this id: \"elsewhere\"; GET /v1/policy lists all",
        ),
        (
            "PUT /v1/kill-switch",
            json!({ "domain": "app" }),
            "the policy has no such domain: \"app\"; did you mean \"api\"?",
        ),
        (
            "PUT /v1/kill-switch",
            json!({ "domian": "api" }),
            "line 1, column 9 of the body: unknown field \"domian\"; did you mean \"domain\"?",
        ),
    ] {
        let (status, answer) = daemon.admin(call, &body);
        assert_eq!((status, &answer["error"]), (400, &json!(why)), "{body}");
    }
}

/// As "During an incident" says: reset and an override with a rate give relief at once, a percentage
/// keeps the share that a key has used.
#[test]
fn reset_and_rate_give_relief_at_once() {
    let daemon = wide();
    let bob = ("user", "bob");
    assert_eq!((passed(&daemon, "api", bob), passed(&daemon, "api", bob)), (4, 0));
    let (_, answer) = daemon
        .admin("POST /v1/reset", &json!({ "domain": "api", "descriptors": [[["user", "bob"]]] }));
    assert_eq!(answer, json!({ "limits_reset": 1 }));
    assert_eq!((passed(&daemon, "api", bob), passed(&daemon, "api", bob)), (4, 0));
    overrule(&daemon, &json!({ "limit": "api/user#", "percent": 200, "seconds": 60 }));
    assert_eq!(passed(&daemon, "api", bob), 0, "the share used is kept");
    overrule(&daemon, &json!({ "limit": "api/user#", "rate": "8/min", "seconds": 60 }));
    assert_eq!(passed(&daemon, "api", bob), 8);
}

#[test]
fn a_block_is_set_and_lifted_by_hand() {
    let daemon = daemon(None);
    let policy = "{domain: api, descriptors: [{key: login, rate: 2/min, block_for: 10m}, {key: user, rate: 2/min}]}";
    let loaded = Policy::load(&[("p.yaml", policy)], Merging::Refuse);
    daemon.service.replace(loaded.policy.expect(&loaded.findings));
    let descriptor = json!([["login", "bob"]]);
    let target = json!({ "domain": "api", "descriptor": descriptor });
    let block = |seconds: u64| {
        let mut wish = target.clone();
        wish["seconds"] = seconds.into();
        daemon.admin("PUT /v1/blocks", &wish)
    };
    let (status, answer) = block(3_600);
    assert_eq!((status, &answer["limits_blocked"]), (200, &json!(1)), "{answer}");
    assert_eq!(passed(&daemon, "api", ("login", "bob")), 0);
    assert_eq!(passed(&daemon, "api", ("login", "ann")), 2);
    let (status, answer) = daemon.admin("DELETE /v1/blocks", &target);
    assert_eq!((status, &answer["limits_lifted"]), (200, &json!(1)), "{answer}");
    assert_eq!(passed(&daemon, "api", ("login", "bob")), 2);
    for seconds in [0, 30 * 86_400 + 1] {
        assert_eq!(block(seconds).0, 400, "{seconds}");
    }
    let other = json!({ "domain": "api", "descriptor": [["user", "bob"]], "seconds": 60 });
    let (status, answer) = daemon.admin("PUT /v1/blocks", &other);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("no limit with block_for"), "{answer}");
}
