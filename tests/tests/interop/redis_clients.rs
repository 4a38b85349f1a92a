//! Unmodified clients of Redis at the Redis transport.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tidegate::policy::{Merging, Policy};
use tidegate::store::redis::RedisConfig;
use tidegate::{Clock, ManualClock};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::servers::{RedisServer, by_variable};

const PASSWORD: &str = "open sesame";

const POLICY: &str = "
domain: site
descriptors:
  - key: api_key
    limits:
      - name: per_key
        rate: 2/min
";

/// A daemon whose time stands still, behind a password or not.
fn daemon(password: Option<&str>) -> Server {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    let service = RateLimitService::with_clock(Clock::from(ManualClock::new())).expect("memory");
    service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let resp = Some(([127, 0, 0, 1], 0).into());
    let password = password.map(Into::into);
    let settings = Settings { resp, password, ..Settings::default() };
    serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"))
}

fn address(daemon: &Server) -> SocketAddr {
    daemon.resp().expect("asked for")
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// What a program prints.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}\n{errors}");
    printed
}

/// Lets a client ask, and compares every line: it asks so often, with keys of its own each time.
fn agrees(times: usize, command: &mut Command) {
    let daemon = daemon(Some(PASSWORD));
    let printed = output(command.arg(address(&daemon).port().to_string()).arg(PASSWORD));
    let lines: Result<Vec<Value>, _> = printed.lines().map(serde_json::from_str).collect();
    let lines = lines.unwrap_or_else(|error| panic!("{error}: {printed}"));
    let session = [
        json!(true),
        json!([0, 2, 1, -1, 2]),
        json!([0, 2, 0, -1, 4]),
        json!([1, 2, 0, 2, 4]),
        json!([0, 2, 1, -1, 30_000, "per_key"]),
        json!([0, 2, 0, -1, 60_000, "per_key"]),
        json!([1, 2, 0, 30_000, 60_000, "per_key"]),
    ];
    let mut expected = vec![session; times].concat();
    expected.push(json!("refused"));
    assert_eq!(lines, expected);
}

#[test]
fn redis_py_is_answered() {
    let Some(python) = by_variable("TIDEGATE_REDIS_PY") else { return };
    agrees(2, Command::new(python).arg(clients().join("python/client.py")));
}

/// `pipeline()` wraps its commands in MULTI and EXEC: each is carried out once, in memory and in Redis.
#[test]
fn redis_py_pipelines_charge_once() {
    let Some(python) = by_variable("TIDEGATE_REDIS_PY") else { return };
    let redis = RedisServer::start();
    let config = RedisConfig::new(&redis.url()).expect("a valid address");
    let shared = RateLimitService::connect(config).unwrap_or_else(|error| panic!("{error}"));
    let resp = Some(([127, 0, 0, 1], 0).into());
    let settings = Settings { resp, password: Some(PASSWORD.into()), ..Settings::default() };
    let shared = serve(&settings, &shared).unwrap_or_else(|error| panic!("{error}"));
    for daemon in [daemon(Some(PASSWORD)), shared] {
        let port = address(&daemon).port().to_string();
        let printed = output(
            Command::new(&python).arg(clients().join("python/pipeline.py")).args([&port, PASSWORD]),
        );
        let session = "[0, 2, 1, -1, 3600]\n[0, 2, 0, -1, 7200]\n[1, 2, 0, 3600, 7200]\ntrue\n0\n\
                       \"discarded\"\n2\n";
        assert_eq!(printed, session.repeat(2));
    }
}

#[test]
fn ioredis_is_answered() {
    let Some(manifest) = by_variable("TIDEGATE_IOREDIS") else { return };
    let modules = manifest.ancestors().nth(2).expect("it is in a folder of modules");
    let client = clients().join("node/client.js");
    agrees(1, Command::new("node").arg(client).env("NODE_PATH", modules));
}

#[test]
fn go_redis_is_answered() {
    let Some(client) = by_variable("TIDEGATE_GO_REDIS") else { return };
    agrees(2, &mut Command::new(client));
}

#[test]
fn redis_cli_is_answered() {
    let daemon = daemon(Some(PASSWORD));
    let port = address(&daemon).port().to_string();
    let cli = |arguments: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port, "--no-auth-warning", "-a", PASSWORD]).args(arguments);
        output(&mut command)
    };
    assert_eq!(cli(&["PING"]), "PONG\n");
    assert_eq!(cli(&["CL.THROTTLE", "k", "1", "30", "60"]), "0\n2\n1\n-1\n2\n");
    assert_eq!(cli(&["-3", "THROTTLE", "t", "1", "30", "60"]).lines().count(), 5);
    assert_eq!(cli(&["TG.CHECK", "site", "api_key", "k"]), "0\n2\n1\n-1\n30000\nper_key\n");
}

/// It measures as it measures Redis, alone and sixteen at a time; no reply is an error.
#[test]
fn redis_benchmark_runs_through() {
    let daemon = daemon(None);
    let port = address(&daemon).port().to_string();
    for pipeline in ["1", "16"] {
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-n", "20000", "-r", "1000", "-c", "20", "-P", pipeline, "-e"]);
        command.args(["--csv", "CL.THROTTLE", "user:__rand_int__", "15", "30", "60", "1"]);
        let printed = output(&mut command);
        assert!(printed.contains("CL.THROTTLE"), "{printed}");
        assert!(!printed.to_lowercase().contains("error"), "{printed}");
    }
}
