//! `tidegate lint` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use assert_cmd::Command;

const GOOD: &str = "
domain: api
descriptors:
  - key: api_key
    rate: 100/s
    burst: 500
  - key: remote_address
    rate_limit:
      unit: minute
      requests_per_unit: 10
";

/// Runs lint on these files in a folder of their own; exit status and standard output.
fn lint(name: &str, files: &[(&str, &str)], options: &[&str]) -> (i32, String) {
    let folder = std::env::temp_dir().join(format!("tidegate-lint-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (file, text) in files {
        std::fs::write(folder.join(file), text).unwrap();
    }
    let mut command = Command::cargo_bin("tidegate").unwrap();
    let output = command.current_dir(&folder).arg("lint").args(options).arg(".").output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn a_good_policy_can_be_used() {
    let (status, text) = lint("good", &[("a.yaml", GOOD)], &[]);
    assert_eq!((status, text.as_str()), (0, "2 rules in 1 domain of 1 file can be used\n"));
}

/// Not a warning: the limit may be meant for listeners that release.
#[test]
fn limits_that_some_listeners_skip_are_named() {
    let policy = "domain: api\ndescriptors: [{key: user, in_flight: 20}]\n";
    let (status, text) = lint("skipped", &[("a.yaml", policy)], &["--strict"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.starts_with("note: \"api/user#\" is in_flight: Envoy's"), "{text}");
}

#[test]
fn limits_that_some_listeners_cannot_settle_are_named() {
    let policy = "domain: api\ndescriptors: [{key: user, rate: 5/h, refund: [304], actual: {header: x-n}}]\n";
    let (status, text) = lint("unsettled", &[("a.yaml", policy)], &["--strict"]);
    assert_eq!(status, 0, "{text}");
    let note = "note: \"api/user#\" does not count responses with 304; settled by the response header x-n: \
                Envoy's rate limit service and /v1/auth cannot settle it";
    assert!(text.starts_with(note), "{text}");
}

/// Envoy chooses the status of a denial by itself.
#[test]
fn limits_whose_status_envoy_does_not_send_are_named() {
    let policy =
        "domain: api\ndescriptors: [{key: user, rate: 5/h, status: 503}, {key: path, rate: 5/h}]\n";
    let (status, text) = lint("unavailable", &[("a.yaml", policy)], &["--strict"]);
    assert_eq!(status, 0, "{text}");
    let notes: Vec<&str> = text.lines().filter(|line| line.starts_with("note: ")).collect();
    let [note] = notes[..] else { panic!("{text}") };
    assert!(note.starts_with("note: \"api/user#\" denies with status 503: Envoy's"), "{text}");
}

#[test]
fn a_mistake_is_reported_with_its_place() {
    let bad = GOOD.replace("unit: minute", "unit: fortnight").replace("100/s", "often");
    let (status, text) = lint("bad", &[("a.yaml", &bad)], &[]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("a.yaml:5:11: expected a rate such as 100/s"), "{text}");
    assert!(text.contains("a.yaml:9:13: expected one of second, minute"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn files_that_share_a_domain_are_merged_only_if_asked() {
    let other = GOOD.replace("api_key", "tenant").replace("remote_address", "path");
    let files = [("a.yaml", GOOD), ("b.yml", &other), ("notes.txt", "domain: [")];
    let (status, text) = lint("refused", &files, &[]);
    assert!(status == 1 && text.contains("a.yaml already defines this domain"), "{text}");
    let (status, text) = lint("merged", &files, &["--merge"]);
    assert_eq!((status, text.as_str()), (0, "4 rules in 1 domain of 2 files can be used\n"));
}

/// Another time zone means other windows, and so other keys.
#[test]
fn limits_whose_keys_start_afresh_are_reported() {
    let policy = |zone: &str| {
        format!(
            "domain: api\ndescriptors:\n  - {{key: user, rate: 10/day, algorithm: fixed_window, \
             calendar: {{tz: {zone}}}}}\n"
        )
    };
    let (old, new) = (policy("UTC"), policy("Asia/Tokyo"));
    let files = [("new.yaml", &*new), ("old.txt", &*old)];
    let warning =
        "has days in Asia/Tokyo instead of days in UTC: every key gets its whole quota again";
    for (options, expected) in
        [(&["--previous", "old.txt"][..], 0), (&["--previous", "old.txt", "--strict"][..], 1)]
    {
        let (status, text) = lint("afresh", &files, options);
        assert!(status == expected && text.contains(warning), "{status}: {text}");
    }
    let (status, text) = lint("same", &files, &["--previous", "new.yaml", "--strict"]);
    assert!(status == 0 && !text.contains("afresh") && !text.contains("warning"), "{text}");
    let broken = [("new.yaml", &*new), ("old.txt", "domain: [")];
    let (status, text) = lint("broken", &broken, &["--previous", "old.txt"]);
    assert!(status == 2 && text.contains("--previous cannot be used"), "{status}: {text}");
}

#[test]
fn an_unreadable_file_exits_with_2() {
    let output = Command::cargo_bin("tidegate").unwrap().args(["lint", "missing.yaml"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot read missing.yaml"), "{text}");
}

/// Ten different mistakes, ten messages, each with its line and column.
#[test]
fn ten_mistakes_are_reported_in_one_run() {
    let text = "\
domain: api
colour: red
descriptors:
  - value: x
  - {key: a, rate: fast}
  - {key: b, rate_limit: {unit: fortnight, requests_per_unit: 1}}
  - {key: c, burst: 5}
  - {key: d, rate: 1/s, algorithm: token_buckt}
  - {key: e, rate: 1/s, enforce: half}
  - {key: f, rate: 1/s, overrides: [{value: x, rate: 2/s, until: tomorrow}]}
  - {key: g, rate: 1/day, calendar: {tz: Europe/Atlantis}}
  - {key: h, match: {cidr: 10.0.0.1/8}, rate: 1/s}
";
    let (status, printed) = lint("ten", &[("a.yaml", text)], &[]);
    assert_eq!(status, 1);
    let lines: Vec<&str> = printed.lines().collect();
    let places = [
        "2:1: unknown field",
        "4:5: expected a key",
        "5:20: expected a rate such as",
        "6:33: expected one of second",
        "7:21: `burst` needs a `rate` or `in_flight`",
        "8:36: expected one of fixed_window",
        "9:34: expected a share such as",
        "10:66: expected a date such as",
        "11:42: expected the IANA name",
        "12:28: expected an address whose bits",
    ];
    assert_eq!(lines.len(), places.len(), "{printed}");
    for (line, place) in lines.iter().zip(places) {
        assert!(line.starts_with(&format!("./a.yaml:{place}")), "{line}");
    }
}

/// Files that are no policies take neither memory nor time.
#[test]
fn files_that_are_no_policies_are_refused_quickly() {
    let folder = std::env::temp_dir().join(format!("tidegate-lint-{}-huge", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let huge = std::fs::File::create(folder.join("huge.yaml")).unwrap();
    huge.set_len(100 << 20).unwrap();
    let deep = "[".repeat(100_000);
    std::fs::write(folder.join("deep.yaml"), deep).unwrap();
    for (file, status, says) in
        [("huge.yaml", 2, "has 104857600 bytes"), ("deep.yaml", 1, "nested deeper than")]
    {
        let mut command = Command::cargo_bin("tidegate").unwrap();
        let command = command.current_dir(&folder).args(["lint", file]);
        let output = command.timeout(std::time::Duration::from_secs(10)).output().unwrap();
        assert_eq!(output.status.code(), Some(status));
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(text.contains(says), "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Without a secret, clients can choose keys that are not enforced.
#[test]
fn a_predictable_percentage_causes_a_warning() {
    let policy = "domain: api\ndescriptors:\n  - {key: user, rate: 1/s, enforce: 25%}\n";
    let files = [("a.yaml", policy), ("secret", "0123456789abcdef\n"), ("short", "0123456789\n")];
    let (status, text) = lint("share", &files, &[]);
    assert_eq!((status, text.lines().count()), (0, 2), "{text}");
    assert!(text.starts_with("warning: `enforce` of \"api/user#\" covers keys by a"), "{text}");
    assert!(text.contains("set `policy.enforce_secret_file`"), "{text}");
    assert_eq!(lint("share-strict", &files, &["--strict"]).0, 1);
    let (status, text) =
        lint("share-secret", &files, &["--strict", "--enforce-secret-file", "secret"]);
    assert_eq!((status, &*text), (0, "1 rule in 1 domain of 1 file can be used\n"));
    let (status, text) = lint("share-short", &files, &["--enforce-secret-file", "short"]);
    assert_eq!(status, 2);
    assert!(text.contains("the first line of short has fewer than 16 bytes"), "{text}");
    let everything =
        [("a.yaml", "domain: api\ndescriptors:\n  - {key: user, rate: 1/s, enforce: 100%}\n")];
    assert_eq!(lint("share-all", &everything, &["--strict"]).0, 0);
}
