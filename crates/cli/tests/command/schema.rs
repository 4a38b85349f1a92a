//! The committed schema and reference page are what the command prints.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::path::Path;

use assert_cmd::Command;

fn printed(options: &[&str]) -> String {
    let mut tidegate = Command::cargo_bin("tidegate").unwrap();
    let output = tidegate.arg("schema").args(options).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn committed(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    std::fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn the_reference_page_is_up_to_date() {
    let how = "cargo run -- schema --reference > docs/reference/policy.md";
    assert!(printed(&["--reference"]) == committed("policy.md"), "to bring it up to date: {how}");
}

#[test]
fn the_committed_schema_is_the_printed_one() {
    let how = "cargo run -- schema > docs/reference/policy.schema.json";
    assert!(printed(&[]) == committed("policy.schema.json"), "to bring it up to date: {how}");
}
