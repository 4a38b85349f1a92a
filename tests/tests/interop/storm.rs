//! Bursts of hundreds to thousands of requests at once through a real Envoy, by the configuration in
//! `examples/envoy`: exactly the limit is admitted, also while daemons are restarted.

#![expect(clippy::disallowed_methods, reason = "what happened before what is tested")]

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidegate_tests::servers::{
    Daemon, DaemonSetup, Envoy, RedisServer, Stop, envoy_program, free_port, our_program, service,
    wait_until,
};

const CONFIG: &str = include_str!("../../../examples/envoy/envoy.yaml");
const POLICY: &str = "domain: edge\ndescriptors:\n  - {key: api_key, rate: 5/year}\n";
const LIMIT: usize = 5;
/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Envoy's count of calls without an answer, whose requests pass.
const FAILED: &str = "cluster.service.ratelimit.error";

/// The Envoy to test with. Thousands of sockets are open here and there.
fn program() -> Option<PathBuf> {
    let limits = getrlimit(Resource::Nofile);
    // Where this fails, fewer sockets than needed fail the test.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    let program = envoy_program();
    if program.is_none() {
        eprintln!("\n!!! LEFT OUT: no Envoy; `cargo xtask test` installs it\n");
    }
    program
}

fn daemon(store: &str, port: u16) -> Daemon {
    let setup = DaemonSetup {
        program: &our_program("tidegate"),
        policy: POLICY,
        store,
        // A busy machine is not the store's fault.
        settings: &[("TIDEGATE__STORE__DEADLINE", "10s")],
        has_fake_clock: false,
    };
    Daemon::start_at(setup, port)
}

/// The example, with timeouts for a busy machine and a first stage that no burst here exceeds.
fn config() -> String {
    assert!(CONFIG.contains("timeout: 0.25s") && CONFIG.contains("max_interval: 0.25s"));
    assert!(CONFIG.contains("tokens: 10000"));
    CONFIG.replace(": 0.25s", ": 30s").replace("10000, ", "1000000, ")
}

/// How many of a burst were admitted, limited, and answered in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    admitted: usize,
    limited: usize,
    failed: usize,
}

impl Outcome {
    fn of(statuses: &[u16]) -> Self {
        let count = |status: u16| statuses.iter().filter(|it| **it == status).count();
        let (admitted, limited) = (count(200), count(429));
        Self { admitted, limited, failed: statuses.len() - admitted - limited }
    }

    fn exact(count: usize) -> Self {
        Self { admitted: LIMIT, limited: count - LIMIT, failed: 0 }
    }
}

/// Waits until as many calls are under way from Envoy to its daemons.
fn wait_until_asked(envoy: &Envoy, calls: usize) {
    wait_until("Envoy has asked", TIMEOUT, || {
        let active = envoy.stat("cluster.tidegate.upstream_rq_active");
        active + envoy.stat("cluster.tidegate.upstream_rq_pending_active") >= calls as u64
    });
}

/// A fresh Envoy knows no limit of the daemon's: all its calls arrive before the daemon has said anything.
#[test]
fn bursts_through_a_fresh_envoy_admit_exactly_the_limit() {
    let Some(program) = program() else { return };
    let daemon = daemon("memory", 0);
    for count in [300, 1_000, 2_000] {
        let envoy = Envoy::start(&program, &config(), service(), daemon.transport("gRPC"));
        daemon.pause();
        let cold = envoy.burst(count, &[("x-api-key", &format!("cold-{count}"))]);
        wait_until_asked(&envoy, count);
        daemon.resume();
        assert_eq!(Outcome::of(&cold.statuses()), Outcome::exact(count), "cold");
        let warm = envoy.burst(count, &[("x-api-key", &format!("warm-{count}"))]);
        assert_eq!(Outcome::of(&warm.statuses()), Outcome::exact(count), "warm");
        for stat in [FAILED, "cluster.tidegate.upstream_rq_retry"] {
            assert_eq!(envoy.stat(stat), 0, "{stat} after {count}");
        }
    }
}

/// The files as they are, with the timeout of 0.25 s and a limit of 5 per minute. A busy machine may take longer
/// to answer more requests at once, and Envoy admits what is not answered in time; so only 300 are sent at
/// once, and there are three attempts without such requests.
#[test]
fn the_unmodified_example_admits_exactly_the_limit() {
    let Some(program) = program() else { return };
    let mut failures = Vec::new();
    for _ in 0..3 {
        let daemon = Daemon::start(DaemonSetup {
            program: &our_program("tidegate"),
            policy: include_str!("../../../examples/envoy/policy.yaml"),
            store: "memory",
            settings: &[],
            has_fake_clock: false,
        });
        let envoy = Envoy::start(&program, CONFIG, service(), daemon.transport("gRPC"));
        let start = Instant::now();
        let mut statuses = Vec::new();
        for count in [300, 300, 300, 100] {
            statuses.extend(envoy.burst(count, &[("x-api-key", "k1")]).statuses());
        }
        // A unit every twelve seconds.
        let refilled = start.elapsed().as_secs() / 12;
        let most = LIMIT + usize::try_from(refilled).expect("a short test");
        let (outcome, unanswered) = (Outcome::of(&statuses), envoy.stat(FAILED));
        let excess = outcome.admitted.saturating_sub(most);
        assert!(excess as u64 <= unanswered, "{outcome:?}, {unanswered} without an answer");
        assert_eq!(outcome.failed, 0, "{outcome:?}");
        if unanswered == 0 {
            assert!(outcome.admitted >= LIMIT, "{outcome:?}");
            return;
        }
        failures.push((outcome, unanswered));
    }
    panic!("in each attempt, calls were not answered within 0.25 s: {failures:?}");
}

/// With one daemon, a restart loses nothing that arrived before it; more passes only while none listens. After
/// SIGKILL the calls in flight pass as well.
#[test]
fn a_restart_admits_more_only_while_no_daemon_listens() {
    let Some(program) = program() else { return };
    let redis = RedisServer::start();
    let mut first = daemon(&redis.url(), free_port());
    let port = first.transport("gRPC").port();
    let envoy = Envoy::start(&program, &config(), service(), first.transport("gRPC"));
    first.pause();
    let burst = envoy.burst(1_000, &[("x-api-key", "arrived")]);
    wait_until_asked(&envoy, 1_000);
    first.terminate();
    first.resume();
    assert_eq!(Outcome::of(&burst.statuses()), Outcome::exact(1_000), "arrived before SIGTERM");
    wait_until("it ends", TIMEOUT, || !first.is_running());

    // What is sent while a daemon listens, and answered before it is told to end, is within the limit.
    let mut daemon_now = daemon(&redis.url(), port);
    let stops: [fn(&Daemon); 4] =
        [Daemon::terminate, Daemon::kill, Daemon::terminate, Daemon::kill];
    for (round, stop) in stops.into_iter().enumerate() {
        let key = format!("round-{round}");
        let failed_before = envoy.stat(FAILED);
        let (stops, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let admitted = Mutex::new(Vec::new());
        let [answer, listening] = thread::scope(|scope| {
            let _stop = Stop(&stops);
            scope.spawn(|| {
                while !stops.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    let burst = envoy.burst(300, &[("x-api-key", &key)]);
                    let outcome = Outcome::of(&burst.statuses());
                    assert_eq!(outcome.failed, 0, "{outcome:?}");
                    let passed = (sent, Instant::now(), outcome.admitted);
                    admitted.lock().expect("no panic").push(passed);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
            let wait_for_bursts = |bursts: u64| {
                let seen = answered.load(Ordering::Relaxed);
                let is_over = || answered.load(Ordering::Relaxed) >= seen + bursts;
                wait_until("bursts are answered", TIMEOUT, is_over);
            };
            wait_for_bursts(2);
            let answer = Instant::now();
            stop(&daemon_now);
            wait_until("it ends", TIMEOUT, || !daemon_now.is_running());
            daemon_now = daemon(&redis.url(), port);
            let listening = Instant::now();
            wait_for_bursts(3);
            [answer, listening]
        });
        let admitted = admitted.into_inner().expect("no panic");
        let sum = |is_meant: &dyn Fn(Instant, Instant) -> bool| -> usize {
            admitted.iter().filter(|it| is_meant(it.0, it.1)).map(|it| it.2).sum()
        };
        assert_eq!(sum(&|_, over| over < answer), LIMIT, "before the signal: {admitted:?}");
        assert_eq!(sum(&|sent, _| sent > listening), 0, "after the restart: {admitted:?}");
        // In between, a request passes only if Envoy got no answer for it.
        let failed = usize::try_from(envoy.stat(FAILED) - failed_before).expect("few calls");
        assert!(sum(&|_, _| true) <= LIMIT + failed, "{failed} calls failed: {admitted:?}");
    }
}

/// Stops and starts daemons in turn under bursts, each of its own key, and returns the outcome of each burst.
fn restart_under_bursts(
    config: &str,
    ports: &[u16],
    restarts: usize,
    stop: fn(&Daemon),
) -> Vec<Outcome> {
    let Some(program) = program() else { return Vec::new() };
    let redis = RedisServer::start();
    let mut daemons: Vec<Daemon> = ports.iter().map(|port| daemon(&redis.url(), *port)).collect();
    let envoy = Envoy::start(&program, config, service(), daemons[0].transport("gRPC"));
    let (stops, outcomes) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let _stop = Stop(&stops);
        scope.spawn(|| {
            for number in 0.. {
                if stops.load(Ordering::Relaxed) {
                    break;
                }
                let burst = envoy.burst(300, &[("x-api-key", &format!("burst-{number}"))]);
                let outcome = Outcome::of(&burst.statuses());
                outcomes.lock().expect("no panic").push(outcome);
            }
        });
        let wait_for_bursts = |bursts: usize| {
            let seen = outcomes.lock().expect("no panic").len();
            let is_over = || outcomes.lock().expect("no panic").len() >= seen + bursts;
            wait_until("bursts are answered", TIMEOUT, is_over);
        };
        for restart in 0..restarts {
            // As a rollout does: the next daemon is stopped when the last one is back.
            wait_until("every daemon is healthy", TIMEOUT, || {
                envoy.stat("cluster.tidegate.membership_healthy") == ports.len() as u64
            });
            wait_for_bursts(1);
            let at = restart % ports.len();
            stop(&daemons[at]);
            wait_until("it ends", TIMEOUT, || !daemons[at].is_running());
            wait_for_bursts(1);
            daemons[at] = daemon(&redis.url(), ports[at]);
        }
        wait_for_bursts(1);
    });
    outcomes.into_inner().expect("no panic")
}

/// The example with a second daemon.
fn config_of_two([_, second]: [u16; 2]) -> String {
    let endpoint =
        "- endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8081}}}";
    assert!(CONFIG.contains(endpoint));
    let second = endpoint.replace("8081", &second.to_string());
    config().replace(endpoint, &format!("{endpoint}\n              {second}"))
}

#[test]
fn two_daemons_that_are_restarted_in_turn_admit_exactly_the_limit() {
    let ports = [free_port(), free_port()];
    for outcome in restart_under_bursts(&config_of_two(ports), &ports, 4, Daemon::terminate) {
        assert_eq!(outcome, Outcome::exact(300));
    }
}

/// The calls in flight to a daemon that is killed go to the other one. What the first had charged already is
/// charged twice, so a burst may admit less than the limit, and never more.
#[test]
fn two_daemons_that_are_killed_in_turn_never_admit_more_than_the_limit() {
    let ports = [free_port(), free_port()];
    let outcomes = restart_under_bursts(&config_of_two(ports), &ports, 4, Daemon::kill);
    for outcome in &outcomes {
        assert!(outcome.admitted <= LIMIT && outcome.failed == 0, "{outcomes:?}");
    }
}

#[test]
fn failure_mode_deny_admits_no_more_while_no_daemon_listens() {
    assert!(CONFIG.contains("failure_mode_deny: false"));
    let config = config().replace("failure_mode_deny: false", "failure_mode_deny: true");
    let outcomes = restart_under_bursts(&config, &[free_port()], 2, Daemon::terminate);
    assert!(outcomes.iter().all(|it| it.admitted <= LIMIT), "{outcomes:?}");
    let has_failed = outcomes.iter().any(|it| it.failed > 0);
    assert!(has_failed || outcomes.is_empty(), "a daemon was away: {outcomes:?}");
}
