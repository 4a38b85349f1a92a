//! The document for programs that write clients, and a program that takes it at its word.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tidegate::policy::{Merging, Policy};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http::get;
use tidegate_tests::servers::by_variable;

const POLICY: &str = "
domain: api
requests:
  rules:
    - descriptors:
        - entries:
            - {key: method, value: any}
descriptors:
  - key: method
    rate: 10/min
  - key: legacy
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: api_key
    limits:
      - {name: together, in_flight: 20, ttl: 5s}
      - {name: failed, rate: 100000/min, count: [401]}
      - {name: tokens, rate: 100000000/min, cost: 800, actual: {application: true}}
";

/// How long schemathesis may try, in seconds.
const TRYING: &str = "25";

/// Says in what this transport differs from what schemathesis expects of all: numbers that make no limit
/// are 422, a domain that is not there is 404, to be over a limit is an answer, and a body that is too
/// long is 413, whatever else is wrong with it.
const SETTINGS: &str = "
[checks.positive_data_acceptance]
expected-statuses = [200, 404, 413, 422, 429]
[checks.negative_data_rejection]
expected-statuses = [400, 404, 405, 406, 413, 415, 422, 429]
";

fn daemon() -> Server {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    let service = RateLimitService::new().expect("memory");
    service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let settings = Settings { http: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
    serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_document_is_the_one_in_the_reference() {
    let daemon = daemon();
    let answer = get(daemon.http().expect("asked for"), "/openapi.json", "");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/openapi.json");
    let reference = std::fs::read_to_string(path).expect("the reference");
    assert_eq!(answer.body, reference, "copy crates/server/src/transport/http/openapi.json there");
}

/// What envoyproxy/ratelimit has and describes; we only do as it does.
const THEIRS: [&str; 2] = ["/json", "/healthcheck"];

/// Every path of the transport is in the document, and the other way round.
#[test]
fn the_document_has_every_path() {
    let daemon = daemon();
    let address = daemon.http().expect("asked for");
    let document: Value =
        serde_json::from_str(&get(address, "/openapi.json", "").body).expect("JSON");
    let paths = document["paths"].as_object().expect("an object");
    let reply = get(address, "/nothing", "").body;
    for path in paths.keys() {
        assert!(reply.contains(&**path), "{path} is not in {reply}");
        let status = if paths[path].get("get").is_some() { 200 } else { 405 };
        assert_eq!(get(address, path, "").status, status, "{path}");
    }
    let reply: Value = serde_json::from_str(&reply).expect("JSON");
    let reply =
        reply["error"].as_str().and_then(|reply| reply.strip_prefix("not found; the paths are "));
    let undocumented: Vec<&str> = reply
        .expect("a list of paths")
        .split(", ")
        .filter(|path| !paths.contains_key(*path) && !THEIRS.contains(path))
        .collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

/// Lets schemathesis try `operations` operations, of those that the arguments leave.
fn try_all(operations: usize, arguments: &[&str]) {
    let Some(program) = by_variable("TIDEGATE_SCHEMATHESIS") else { return };
    let daemon = daemon();
    let address = daemon.http().expect("asked for");
    let settings = std::env::temp_dir().join(format!("tidegate-{}.toml", address.port()));
    // Proxies may send any header, and requests that can be read in several ways are 400.
    let is_auth = arguments.contains(&"--include-path");
    let text = SETTINGS.replace("[200, 404", if is_auth { "[200, 400, 404" } else { "[200, 404" });
    std::fs::write(&settings, text).expect("a folder for temporary files");
    let output = Command::new(program)
        .arg("--config-file")
        .arg(&settings)
        .args(["run", &format!("http://{address}/openapi.json"), "--checks", "all"])
        .args(["--max-time", TRYING, "--no-color", "--generation-database", "none"])
        .args(arguments)
        .current_dir(std::env::temp_dir())
        .output()
        .expect("it was installed");
    let _ = std::fs::remove_file(settings);
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{errors}");
    assert!(printed.contains(&format!("Tested: {operations}\n")), "{printed}");
}

#[test]
fn schemathesis_agrees_with_the_document() {
    try_all(11, &["--exclude-path", "/v1/auth"]);
}

/// This path takes every method, which no document can say. It has no links to follow.
#[test]
fn schemathesis_agrees_about_proxies() {
    let phases = ["--phases", "examples,coverage,fuzzing"];
    let arguments = ["--include-path", "/v1/auth", "--exclude-checks", "unsupported_method"];
    try_all(8, &[&arguments[..], &phases].concat());
}
