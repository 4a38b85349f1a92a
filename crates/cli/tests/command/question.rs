//! `tidegate check` and `tidegate explain` as a user runs them.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use assert_cmd::Command;
use serde_json::Value;

const POLICY: &str = "
domain: api
classes: [{name: critical}, {name: normal}]
class_header: {name: x-class}
protect: [{name: server}]
plans: {key: api_key, members: {pro: [paying]}}
requests:
  rules:
    - path: /v1/users/{id}
      class: critical
      descriptors:
        - entries: [{key: api_key, api_key: true}, {key: route, path_template: true}]
descriptors:
  - key: api_key
    limits:
      - {name: second, rate: 10/s, plans: {pro: {rate: 100/s}}}
      - {name: hour, rate: 50/h, shadow: {rate: 5/h}}
    descriptors:
      - key: route
        rate: 2/s
  - key: monthly
    rate: 1000/month
    calendar: {tz: UTC}
  - key: partly
    rate: 3/h
    enforce: 0%
  - key: special
    rate: 3/month
    overrides: [{value: acme, rate: 9/month, until: 2099-01-01, reason: migration}]
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
";

/// Exit status and what was printed.
fn run(name: &str, command: &str, options: &[&str]) -> (i32, String) {
    let folder = std::env::temp_dir().join(format!("tidegate-ask-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("p.yaml"), POLICY).unwrap();
    let mut tidegate = Command::cargo_bin("tidegate").unwrap();
    tidegate.current_dir(&folder).args([command, "--config", "p.yaml"]).args(options);
    let output = tidegate.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn the_exit_status_is_the_verdict() {
    let (status, text) = run("allowed", "check", &["--descriptor", "api_key=k1"]);
    assert_eq!((status, text.as_str()), (0, "allowed: 9 of 10 left under second\n"));
    let (status, text) = run("denied", "check", &["--descriptor", "closed=x"]);
    assert_eq!(status, 1, "{text}");
    let (status, text) = run("error", "check", &["--descriptor", "nonsense"]);
    assert_eq!(status, 2);
    assert!(text.contains("expected a descriptor such as user=bob,path=/login"), "{text}");
    let (status, text) = run("domain", "check", &["--domain", "x", "--descriptor", "a=b"]);
    assert_eq!(status, 2);
    assert!(text.contains("unknown domain \"x\"; the policy has api"), "{text}");
}

#[test]
fn a_cost_above_the_capacity_is_reported() {
    let (status, text) = run("never", "check", &["--descriptor", "api_key=k1", "--hits", "11"]);
    assert_eq!(status, 1);
    assert!(text.contains("no wait helps"), "{text}");
}

#[test]
fn json_output_is_one_document() {
    let options = ["--descriptor", "api_key=paying", "--hits", "3", "--json"];
    let (status, text) = run("json", "check", &options);
    assert_eq!(status, 0);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["allowed"], true);
    assert_eq!(value["retry_after_ms"], Value::Null);
    let names: Vec<_> = value["limits"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["second", "hour", "hour"]);
    assert_eq!(value["limits"][0]["limit"], 100, "the numbers of the plan");
    assert_eq!(value["limits"][0]["remaining"], 97);
    assert_eq!(value["limits"][2]["standing"], "beside");
    assert_eq!(value["remaining"], 47, "of the limit with least left");
}

#[test]
fn explain_names_the_binding_limit_and_the_reason() {
    let options = ["--request", "GET /v1/users/7?x=1", "-H", "X-API-Key: k1"];
    let (status, text) = run("request", "explain", &options);
    assert_eq!(status, 0);
    assert!(text.contains("api_key=k1, route=/v1/users/{id}"), "{text}");
    assert!(text.contains("api_key.route <- binds"), "{text}");
    assert!(text.contains("2 of 2 left; one more is allowed now; no debt"), "{text}");
    assert!(text.contains("class critical, protected by server"), "{text}");
    let lowered = [&options[..], &["-H", "x-class: normal"]].concat();
    let (_, text) = run("lowered", "explain", &lowered);
    assert!(text.contains("class normal, protected by server"), "{text}");
}

#[test]
fn explain_says_why_no_limit_applies() {
    let (_, text) = run("deep", "explain", &["--descriptor", "api_key=k1,other=x"]);
    assert!(text.contains("no rule at this level has the key other"), "{text}");
    let (status, text) = run("none", "explain", &["--request", "GET /elsewhere"]);
    assert_eq!(status, 2);
    assert!(text.contains("no rule of `requests` makes a descriptor"), "{text}");
    assert!(text.contains("; class normal, protected by server"), "{text}");
}

#[test]
fn a_comma_can_be_part_of_a_value() {
    let (_, text) = run("comma", "explain", &["--descriptor", "api_key=a\\,b"]);
    assert!(text.contains("api_key=a,b"), "{text}");
}

/// Client input is shown without terminal escape sequences.
#[test]
fn control_characters_are_escaped() {
    let value = "api_key=a\n\u{1b}[31mred\u{202e}b";
    for command in ["explain", "check"] {
        let (_, text) = run(&format!("escaped-{command}"), command, &["--descriptor", value]);
        let is_plain = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
        assert!(text.chars().all(is_plain), "{text:?}");
    }
    let (_, text) = run("escaped", "explain", &["--descriptor", value]);
    assert!(text.contains("api_key=a\\n\\u{1b}[31mred\\u{202e}b"), "{text:?}");
}

#[test]
fn an_explanation_names_plan_override_and_percentage() {
    let explain = |name: &str, descriptor: &str| {
        let (status, text) = run(name, "explain", &["--descriptor", descriptor]);
        assert_eq!(status, 0, "{text}");
        // Joined, because lines are wrapped to the terminal's width.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = explain("plan", "api_key=paying");
    assert!(text.contains("100 at once, full again after 1s; the plan \"pro\" decides"), "{text}");
    let plan = "the plan \"pro\" has no numbers of its own here";
    assert!(text.contains(plan), "{text}");
    let text = explain("percentage", "partly=x");
    let share = "enforced for 0% of keys, and this key is not one of them";
    assert!(text.contains(share), "{text}");
    let text = explain("override", "special=acme");
    let special = "9 at once, full again after 30d; the override for \"acme\" decides until \
                   2099-01-01T00:00:00Z (migration)";
    assert!(text.contains(special), "{text}");
    let text = explain("month", "monthly=x");
    assert!(text.contains("1000 in each month of UTC") && !text.contains("2592000s"), "{text}");
}

#[test]
fn a_question_without_arguments_names_every_flag() {
    for command in ["explain", "check"] {
        let output = Command::cargo_bin("tidegate").unwrap().arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        for flag in ["--config", "--url", "--descriptor", "--request"] {
            assert!(text.contains(flag), "{flag}: {text}");
        }
    }
}
