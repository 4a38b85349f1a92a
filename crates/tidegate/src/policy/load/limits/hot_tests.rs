use crate::policy::{Merging, Policy};

/// The findings of a descriptor with these lines.
fn findings(lines: &str) -> String {
    let text = format!(
        "domain: d\ndescriptors:\n  - key: tenant\n    {}\n",
        lines.replace('\n', "\n    ")
    );
    Policy::load(&[("p.yaml", &text)], Merging::Refuse).findings
}

/// Shards are for rates that one core of Redis cannot decide.
#[test]
fn shards_are_advised_against_below_fifty_thousand_a_second() {
    assert_eq!(findings("rate: 50000/s\nshards: 8"), "");
    let found = findings("rate: 1000000/min\nshards: 10");
    assert!(found.contains("p.yaml:5:13: warning") && found.contains("tier: leased"), "{found}");
}

#[test]
fn shards_that_could_admit_no_request_are_refused() {
    for (lines, why) in [
        ("rate: 100000/s\nburst: 7\nshards: 8", "with 7 units, some of 8 shards have only 0"),
        ("rate: 100000/s\nburst: 80\ncost: 11\nshards: 8", "have only 10, and a request costs 11"),
        ("rate: 100000/s\nalgorithm: gcra\nshards: 2", "with 1 units"),
        ("rate: 100000/s\nalgorithm: leaky_bucket\nshards: 2", "spaces requests"),
        ("rate: 100000/s\ntier: leased\nshards: 2", "a leased limit"),
        ("rate: 100000/s\nshards: 1", "a number from 2 to 256"),
        ("rate: 100000/s\nshards: 257", "a number from 2 to 256"),
        (
            "rate: 100000/s\ncost: 5\nshards: 8\noverrides: [{value: a, rate: 20/s}]",
            "with the 20 units",
        ),
    ] {
        let found = findings(lines);
        assert!(found.contains("p.yaml:") && found.contains(why), "{lines}: {found}");
    }
    let whole = "rate: 100000/s\nshards: 8\noverrides: [{value: a, rate: 5/s}]";
    assert_eq!(findings(whole), "", "a limit with fewer units than shards is not sharded");
}

#[test]
fn a_local_pre_limit_is_charged_together_with_its_limit() {
    assert_eq!(findings("rate: 100/s\nlocal: {rate: 20/s, burst: 5}"), "");
    assert_eq!(findings("rate: 100/s\nlocal: {requests: 20, per: s}"), "");
    for (lines, why) in [
        ("rate: 100/s\nlocal: {burst: 5}", "expected a `rate`"),
        ("rate: 100/s\nlocal: {rate: 20/s, algorithm: gcra}", "unknown field"),
        ("rate: 100/s\ncost: 6\nlocal: {rate: 5/s}", "a request costs 6, more than the burst of 5"),
        ("rate: 100/s\nquota_mode: true\nlocal: {rate: 5/s}", "a quota has no `local`"),
        (
            "rate_limit: {unit: second, requests_per_unit: 9}\nlocal: {rate: 5/s}",
            "charged together, not separately",
        ),
    ] {
        let found = findings(lines);
        assert!(found.contains("p.yaml:") && found.contains(why), "{lines}: {found}");
    }
}

#[test]
fn the_charge_of_another_file_is_checked_too() {
    let files = [
        ("a.yaml", "domain: api\ndescriptors: [{key: a, rate: 9/s, local: {rate: 5/s}}]"),
        ("b.yaml", "domain: api\ncharge: each\ndescriptors: [{key: b, rate: 1/s}]"),
    ];
    let loaded = Policy::load(&files, Merging::Allow);
    let start = "b.yaml:2:9: `api/a#` of another file has a `local`";
    assert!(loaded.findings.starts_with(start), "{}", loaded.findings);
    assert!(loaded.policy.is_none());
}
