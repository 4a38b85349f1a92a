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
    assert_eq!((status, text.as_str()), (0, "2 rules in 1 domains of 1 files can be used\n"));
}

#[test]
fn a_mistake_is_told_at_its_place() {
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
    assert!(status == 1 && text.contains("a.yaml has this domain already"), "{text}");
    let (status, text) = lint("merged", &files, &["--merge"]);
    assert_eq!((status, text.as_str()), (0, "4 rules in 1 domains of 2 files can be used\n"));
}

#[test]
fn a_file_that_cannot_be_read_is_another_matter() {
    let output = Command::cargo_bin("tidegate").unwrap().args(["lint", "missing.yaml"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot read missing.yaml"), "{text}");
}
