//! A real Envoy asks, by the configuration in `examples/envoy`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use tidegate::policy::{Merging, Policy};
use tidegate::store::redis::RedisConfig;
use tidegate_server::{Answers, Body, RateLimitService, Server, Settings, serve};
use tidegate_tests::servers::{Envoy, HttpAnswer, RedisServer, envoy_program, service, wait_until};

pub(crate) const CONFIG: &str = include_str!("../../../examples/envoy/envoy.yaml");
const POLICY: &str = include_str!("../../../examples/envoy/policy.yaml");

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn program() -> Option<PathBuf> {
    let program = envoy_program();
    if program.is_none() {
        eprintln!("\n!!! LEFT OUT: no Envoy; `cargo xtask test` installs it\n");
    }
    program
}

/// A daemon with the policy of the example.
fn daemon(limiter: &RateLimitService, answers: Answers) -> Server {
    daemon_with(limiter, POLICY, answers)
}

/// A daemon that listens for gRPC.
pub(crate) fn daemon_with(limiter: &RateLimitService, policy: &str, answers: Answers) -> Server {
    let loaded = Policy::load(&[("policy.yaml", policy)], Merging::Refuse);
    limiter.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let settings = Settings {
        grpc: Some(([127, 0, 0, 1], 0).into()),
        threads: NonZeroUsize::MIN,
        answers,
        ..Settings::default()
    };
    serve(&settings, limiter).unwrap_or_else(|error| panic!("{error}"))
}

/// The example, with more patience than a proxy should have: a busy machine is not the daemon's fault.
pub(crate) fn patient(config: &str) -> String {
    assert!(config.contains("timeout: 0.25s") && config.contains("max_interval: 0.25s"));
    config.replace(": 0.25s", ": 30s")
}

fn start(config: &str, daemon: &Server) -> Option<Envoy> {
    let program = program()?;
    let envoy = Envoy::start(&program, config, service(), daemon.grpc().expect("asked for"));
    // The first question opens the connection.
    wait_until("Envoy is connected", TIMEOUT, || envoy.get("/", &[]).status == 200);
    Some(envoy)
}

fn asked(envoy: &Envoy, key: &str) -> HttpAnswer {
    envoy.get("/", &[("x-api-key", key)])
}

#[test]
fn envoy_enforces_the_example_policy() {
    let limiter = RateLimitService::new().expect("memory");
    let daemon = daemon(&limiter, Answers { body: Some(Body::Problem), ..Answers::default() });
    let Some(envoy) = start(&patient(CONFIG), &daemon) else { return };
    for remaining in (0..5).rev() {
        let answer = asked(&envoy, "k1");
        assert_eq!((answer.status, &*answer.body), (200, "hello"), "{answer:?}");
        let reply = format!("\"per_key\";r={remaining};t=");
        assert!(answer.header("ratelimit").is_some_and(|it| it.starts_with(&reply)), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*remaining.to_string()));
    }
    let denied = asked(&envoy, "k1");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per_key\";q=5;w=60"));
    assert_eq!(denied.header("x-ratelimit-limit"), Some("5, 5;w=60;name=\"per_key\""));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    // One unit comes back every twelve seconds: whatever has passed since, no more.
    let seconds = |name: &str| -> u64 {
        denied.header(name).and_then(|value| value.parse().ok()).expect("whole seconds")
    };
    assert!((1..=12).contains(&seconds("retry-after")), "{denied:?}");
    assert!((1..=12).contains(&seconds("x-ratelimit-reset")), "{denied:?}");
    assert!(denied.header("ratelimit").is_some_and(|it| it.starts_with("\"per_key\";r=0;t=")));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.body.contains("\"status\":429"), "{}", denied.body);
    let anonymous = envoy.get("/", &[]);
    let reply = anonymous.header("ratelimit").unwrap_or_default();
    assert!(anonymous.status == 200 && reply.starts_with("\"anonymous\";r="), "{anonymous:?}");
    // Others are not held up, and one has paid for more.
    assert_eq!(asked(&envoy, "k2").status, 200);
    for _ in 0..20 {
        assert_eq!(asked(&envoy, "gold").status, 200);
    }
    // A fixed window of envoyproxy; the minute may end once in between.
    let searches: Vec<u16> = (0..8).map(|_| envoy.get("/search", &[]).status).collect();
    let denied = searches.iter().filter(|status| **status == 429).count();
    assert!((2..=5).contains(&denied), "{searches:?}");
}

#[test]
fn without_a_daemon_the_failure_mode_decides() {
    for (mode, status) in [("false", 200), ("true", 500)] {
        let daemon = daemon(&RateLimitService::new().expect("memory"), Answers::default());
        assert!(CONFIG.contains("failure_mode_deny: false"));
        let config = CONFIG.replace("failure_mode_deny: false", "failure_mode_deny: true");
        let config = if mode == "true" { config } else { CONFIG.to_owned() };
        let Some(envoy) = start(&patient(&config), &daemon) else { return };
        assert_eq!(asked(&envoy, "k1").status, 200);
        daemon.stop();
        for _ in 0..10 {
            assert_eq!(asked(&envoy, "k1").status, status, "failure_mode_deny: {mode}");
        }
    }
}

#[test]
fn two_daemons_on_one_redis_enforce_one_limit() {
    if program().is_none() {
        return;
    }
    let redis = RedisServer::start();
    let limiter = || {
        let config = RedisConfig::new(&redis.url()).expect("a valid address");
        let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
        RateLimitService::connect(config).expect("a fresh server")
    };
    let daemons = [limiter(), limiter()].map(|limiter| daemon(&limiter, Answers::default()));
    let envoys =
        daemons.each_ref().map(|daemon| start(&patient(CONFIG), daemon).expect("it is there"));
    let allowed = (0..20).filter(|turn| asked(&envoys[turn % 2], "k1").status == 200).count();
    // Five at once; on a machine that takes its time a few more come back meanwhile, and twice
    // five would take a minute.
    assert!((5..10).contains(&allowed), "{allowed}");
    assert_eq!(asked(&envoys[0], "k2").status, 200);
}
