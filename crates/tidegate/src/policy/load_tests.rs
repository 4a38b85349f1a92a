use crate::policy::model::in_words::in_words;
use crate::policy::{Allowance, Entry, Loaded, Merging, Mode, Policy};

fn load(text: &str) -> Loaded {
    Policy::load(&[("p.yaml", text)], Merging::Refuse)
}

fn policy(text: &str) -> Policy {
    let loaded = load(text);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

/// The path of the rule that matches `k=v,k=v`, and the key of its state.
fn find(policy: &Policy, entries: &str) -> Option<(String, String)> {
    let entries: Vec<Entry<'_>> = entries
        .split(',')
        .map(|entry| entry.split_once('=').unwrap())
        .map(|(key, value)| Entry { key, value })
        .collect();
    let mut text = Vec::new();
    let rule = policy.domain("api")?.resolve(&entries, &mut text)?.rule;
    Some((rule.path().to_owned(), String::from_utf8(text).unwrap()))
}

const NESTED: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: path
        value: /login
        rate_limit: {unit: second, requests_per_unit: 1}
  - key: user
    value: bob
    rate_limit: {unit: HOUR, requests_per_unit: 7, name: bobs}
  - key: host
    value: a*
    share_threshold: true
    rate_limit: {unlimited: true}
";

/// Exact before bare key, and at exactly the last entry.
#[test]
fn a_rule_applies_at_exactly_its_depth() {
    let policy = policy(NESTED);
    let path = |entries| find(&policy, entries).map(|(path, _)| path);
    assert_eq!(path("user=alice").as_deref(), Some("user"));
    assert_eq!(path("user=bob").as_deref(), Some("user=bob"));
    assert_eq!(path("user=alice,path=/login").as_deref(), Some("user.path=/login"));
    assert_eq!(path("user=alice,path=/other"), None);
    assert_eq!(path("user=bob,path=/login"), None, "bob's rule has no children");
    assert_eq!(path("user=alice,path=/login,more=x"), None);
    assert_eq!(path("path=/login"), None);
    let text = |entries| find(&policy, entries).map(|(_, text)| text);
    assert_eq!(text("user=a,path=/login").as_deref(), Some("a,/login"));
    assert_eq!(text("host=abc").as_deref(), Some("a*"), "all that match share one budget");
}

#[test]
fn the_form_of_a_limit_decides_its_semantics() {
    let policy = policy(
        "
domain: api
charge: together
tag: user
defaults: {mode: shadow}
descriptors:
  - key: a
    rate: 10/s
    burst: 30
  - key: b
    limits:
      - {name: short, rate: 10/s, mode: enforce}
      - {name: long, requests: 1000, per: 5m, algorithm: sliding_window}
  - key: c
    rate_limit: {unit: day, requests_per_unit: 0}
",
    );
    let domain = policy.domain("api").unwrap();
    let limits = |key| {
        let rule = domain.resolve(&[Entry { key, value: "x" }], &mut Vec::new()).unwrap().rule;
        rule.limits()
            .iter()
            .map(|limit| {
                let Allowance::Limited { limit: numbers, .. } = limit.allowance() else {
                    panic!("unlimited")
                };
                (limit.id().to_owned(), numbers.family(), limit.mode())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(limits("a"), [("api/a#".to_owned(), "bucket", Mode::Shadow)]);
    assert_eq!(
        limits("b"),
        [
            ("api/b#short".to_owned(), "bucket", Mode::Enforce),
            ("api/b#long".to_owned(), "sliding_window", Mode::Shadow),
        ]
    );
    assert_eq!(limits("c"), [("api/c#".to_owned(), "fixed_window", Mode::Shadow)]);
}

/// Ten mistakes, ten messages, each at its line and column.
#[test]
fn every_mistake_is_reported_at_its_position() {
    let loaded = load(
        "domain: api
colour: red
descriptors:
  - value: x
  - key: a
    rate: fast
  - key: a
    rate: 1/s
  - key: b
    rate_limit: {unit: fortnight, requests_per_unit: 1}
  - key: c
    burst: 5
  - key: d
    rate: 1/s
    algorithm: fixed_window
    burst: 2
  - key: e
    limits: [{rate: 1/s}, {rate: 2/s}]
  - key: f
    share_threshold: true
    rate: 0/s
  - key: g
    match: {cidr: 10.0.0.1/8}
    rate: 1/s
",
    );
    assert!(loaded.policy.is_none());
    let expected = [
        "p.yaml:2:1: unknown field \"colour\"",
        "p.yaml:4:5: expected a key",
        "p.yaml:6:11: expected a rate such as",
        "p.yaml:10:24: expected one of second, minute",
        "p.yaml:12:12: `burst` needs a `rate` or `in_flight`",
        "p.yaml:16:12: ",
        "p.yaml:18:14: several limits",
        "p.yaml:18:27: several limits",
        "p.yaml:20:22: only values with a *",
        "p.yaml:21:11: ",
        "p.yaml:23:19: expected an address whose bits",
        "p.yaml:7:5: an earlier descriptor",
    ];
    let shown = &loaded.findings;
    for start in expected {
        assert!(shown.lines().any(|line| line.starts_with(start)), "{start}\n{shown}");
    }
    assert_eq!(loaded.errors, expected.len(), "{shown}");
}

#[test]
fn files_of_one_domain_are_merged_only_if_allowed() {
    let files = [
        ("a.yaml", "domain: api\ndescriptors: [{key: a, rate: 1/s}]"),
        ("b.yaml", "domain: api\ndescriptors: [{key: b, rate: 1/s}]"),
    ];
    let refused = Policy::load(&files, Merging::Refuse);
    assert_eq!(refused.findings, "b.yaml:1:9: a.yaml already defines this domain (at domain)");
    let merged = Policy::load(&files, Merging::Allow).policy.unwrap();
    assert_eq!(find(&merged, "a=1").unwrap().0, "a");
    assert_eq!(find(&merged, "b=1").unwrap().0, "b");
}

#[test]
fn unlikely_limits_cause_warnings() {
    let loaded = load(
        "domain: api
descriptors:
  - {key: a, rate: 5/s, cost: 6}
  - {key: path, value: /Login, rate: 5/min, algorithm: fixed_window}
  - {key: b, rate: 9000/day, algorithm: sliding_log}
  - {key: path, value: /token, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: author, rate_limit: {unit: day, requests_per_unit: 5}}
",
    );
    assert!(loaded.policy.is_some() && loaded.errors == 0);
    let starts = [
        "p.yaml:3:31: warning: a request costs 6, more than the capacity of 5",
        "p.yaml:4:56: warning: a fixed window admits twice",
        "p.yaml:5:20: warning: a sliding log stores every admission: up to 140 KiB",
        "p.yaml:6:44: warning: a fixed window admits twice",
    ];
    let lines: Vec<&str> = loaded.findings.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{}", loaded.findings);
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

/// Small files that would take much memory or time without bounds.
#[test]
fn the_cost_of_a_file_is_bounded() {
    let refused = |text: &str, why: &str| {
        let loaded = load(text);
        assert!(loaded.policy.is_none() && loaded.findings.contains(why), "{}", loaded.findings);
    };
    let long = "x".repeat(60_000);
    let leaves = "      - {key: a, rate: 1/s}\n".repeat(20_000);
    refused(
        &format!("domain: api\ndescriptors:\n  - key: {long}\n    descriptors:\n{leaves}"),
        "longer than 1024 bytes",
    );
    let deep: String = (0..5)
        .map(|depth| {
            let indent = "  ".repeat(2 * depth);
            let key = "k".repeat(1_000);
            format!("{indent}descriptors:\n{indent}  - key: {key}\n")
        })
        .collect();
    refused(&format!("domain: api\n{deep}"), "longer than 2048 bytes");
    let limits: String =
        (0..100_000).map(|number| format!("      - {{name: n{number}, rate: 1/s}}\n")).collect();
    refused(
        &format!("domain: api\ndescriptors:\n  - key: a\n    limits:\n{limits}"),
        "at most 16 limits",
    );
    let documents: String = (0..20_000).map(|number| format!("---\ndomain: d{number}\n")).collect();
    assert_eq!(policy(&documents).domains().count(), 20_000);
    let globs: String =
        (0..20_000).map(|_| "  - {key: a, match: {glob: 'x*'}, rate: 1/s}\n").collect();
    refused(&format!("domain: api\ndescriptors:\n{globs}"), "the same key and value");
}

/// As in envoyproxy/ratelimit, whose files may end with `---`.
#[test]
fn an_empty_document_at_the_end_is_none() {
    assert!(load("domain: api\ndescriptors: []\n---\n").policy.is_some());
    assert!(load("").policy.is_none());
}

/// A leased bucket holds less at the store by what its rate refills in 100 ms, for all callers:
/// plans, overrides and shadows are no exception.
#[test]
fn a_leased_bucket_is_reduced_wherever_its_numbers_stand() {
    let policy = policy(
        "
domain: api
plans: {entry: plan}
descriptors:
  - key: tenant
    rate: 1000/s
    tier: leased
    plans: {gold: {rate: 2000/s}}
    overrides: [{value: whale, rate: 4000/s}]
    shadow: {rate: 500/s}
  - {key: exact, rate: 1000/s}
  - {key: window, rate: 1000/s, algorithm: fixed_window, tier: leased}
",
    );
    let now = tidegate_core::Timestamp::from_secs(1);
    let capacity =
        |allowance: &Allowance| allowance.at(now).map(|(limit, _)| in_words(&limit).to_string());
    let limit_of = |key: &str| {
        let entries = [Entry { key, value: "x" }];
        let domain = policy.domain("api").unwrap();
        domain.resolve(&entries, &mut Vec::new()).unwrap().rule.limits()[0].clone()
    };
    let leased = limit_of("tenant");
    for (allowance, expected) in [
        (leased.allowance(), "900 at"),
        (leased.allowance_for("x", Some("gold"), now), "1800 at"),
        (leased.allowance_for("whale", None, now), "3600 at"),
        (leased.shadow().unwrap().allowance(), "450 at"),
        (limit_of("exact").allowance(), "1000 at"),
        (limit_of("window").allowance(), "1000 in"),
    ] {
        let found = capacity(allowance).unwrap();
        assert!(found.starts_with(expected), "{found}, not {expected}");
    }
}

/// The loader produces findings level by level; they are reported in the order of the file.
#[test]
fn findings_are_in_line_order() {
    let text = "
domain: api
descriptors:
  - key: user
    mode: shadw
    rate: 5/min
    descriptors:
      - key: path
        algorithm: tokn_bucket
        rate: 1/s
  - key: user
    rate_limit: {unit: minut, requests_per_unit: 1}
requests: {rules: [{path: '/a/{rest*}'}]}
colour: red
";
    let findings = load(text).findings;
    let line = |it: &str| it.split(':').nth(1).and_then(|it| it.parse::<u32>().ok());
    let lines: Vec<u32> = findings.lines().filter_map(line).collect();
    assert!(lines.is_sorted() && lines.len() >= 6, "{findings}");
    for found in [
        "p.yaml:5:11: expected one of enforce, shadow, off, found the text \"shadw\"; did you mean \
         `shadow`?",
        "did you mean `token_bucket`?",
        "did you mean `minute`?",
        "write {rest...} for any number of segments",
    ] {
        assert!(findings.contains(found), "{found}: {findings}");
    }
    let files = [("b.yaml", "domain: b\nx: 1\n"), ("a.yaml", "domain: a\nx: 1\n")];
    let findings = Policy::load(&files, Merging::Refuse).findings;
    assert!(findings.starts_with("b.yaml:2:1"), "the files in the order given: {findings}");
}
