//! A program outside the workspace does the jobs of a service author with the public API only.

use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_tests::servers::RedisServer;

const POLICY: &str = "domain: shop
requests:
  rules:
    - path: /search
      descriptors:
        - entries: [{key: searched_from, client_ip: true}]
descriptors:
  - {key: searched_from, rate: 1/h}
";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("outside")
}

#[test]
fn a_program_outside_the_workspace_does_five_jobs() {
    let server = RedisServer::start();
    let policy = std::env::temp_dir().join(format!("tidegate-outside-{}.yaml", std::process::id()));
    std::fs::write(&policy, POLICY).expect("a policy file");
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--locked", "--offline", "--manifest-path"])
        .arg(folder().join("Cargo.toml"))
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside"))
        .arg("--")
        .arg(server.url())
        .arg(&policy)
        .output()
        .expect("cargo runs");
    let _ = std::fs::remove_file(&policy);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "all five jobs are done\n");
}

/// The body of each job, as a reader counts it.
#[test]
fn each_job_takes_at_most_eight_lines() {
    let source = std::fs::read_to_string(folder().join("src/main.rs")).expect("the program");
    let jobs = ["limits_per_key", "routes_from_a_file", "concurrency", "redis", "waiting"];
    for job in jobs {
        let start = source.find(&format!("fn {job}(")).expect("the job");
        let lines = source[start..].lines().skip(1).take_while(|line| *line != "}").count();
        assert!((1..=8).contains(&lines), "{job} takes {lines} lines");
    }
}
