//! Redis is stopped, hung and started again under load, behind a real daemon and a real Envoy: each
//! failure mode keeps what it promises (F1, F2, F13).

#![expect(clippy::disallowed_methods, reason = "promises about time are what is tested")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_tests::servers::{
    Daemon, DaemonSetup, Envoy, RedisServer, Stop, envoy_program, our_program, service, wait_until,
};

const CONFIG: &str = include_str!("../../../examples/envoy/envoy.yaml");
/// What Envoy asks with: the header `x-api-key`.
const POLICY: &str = "
domain: edge
descriptors:
  - {key: api_key, value: allow, rate: 1000000/day, on_store_failure: allow}
  - {key: api_key, value: deny, rate: 1000000/day, on_store_failure: deny}
  - {key: api_key, value: local, rate: 40/year, on_store_failure: local}
";
/// What is admitted of `local` without a store: one and a half times the limit.
const SHARE: u64 = 60;
const LIMIT: u64 = 40;
/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const MODES: [&str; 3] = ["allow", "deny", "local"];

/// What callers were answered, of each mode.
#[derive(Default)]
struct Answered {
    passed: [AtomicU64; 3],
    limited: [AtomicU64; 3],
    /// Anything but 200 and 429.
    other: AtomicU64,
    stops: AtomicBool,
}

impl Answered {
    fn count(&self, mode: usize, status: u16) {
        let count = match status {
            200 => &self.passed[mode],
            429 => &self.limited[mode],
            _ => &self.other,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn numbers(&self) -> [[u64; 2]; 3] {
        let read = |it: &AtomicU64| it.load(Ordering::Relaxed);
        std::array::from_fn(|mode| [read(&self.passed[mode]), read(&self.limited[mode])])
    }

    /// What came since, once there are so many more of every mode.
    fn since(&self, before: [[u64; 2]; 3]) -> [[u64; 2]; 3] {
        let mut since = [[0; 2]; 3];
        wait_until("more are answered", TIMEOUT, || {
            let now = self.numbers();
            since = std::array::from_fn(|mode| {
                std::array::from_fn(|answer| now[mode][answer] - before[mode][answer])
            });
            since.iter().all(|[passed, limited]| passed + limited >= 100)
        });
        since
    }
}

struct World {
    redis: RedisServer,
    daemon: Daemon,
    envoy: Envoy,
}

impl World {
    fn start() -> Option<Self> {
        let Some(program) = envoy_program() else {
            eprintln!("\n!!! LEFT OUT: no Envoy; `cargo xtask test` installs it\n");
            return None;
        };
        let redis = RedisServer::start();
        let (store, tidegate) = (redis.url(), our_program("tidegate"));
        let daemon = Daemon::start(DaemonSetup {
            program: &tidegate,
            policy: POLICY,
            store: &store,
            settings: &[("TIDEGATE__STORE__DEADLINE", "250ms")],
            has_fake_clock: false,
        });
        assert!(CONFIG.contains("timeout: 0.25s"));
        // Without an answer no request passes, so that an error of the daemon is visible as 500.
        let config = CONFIG.replace(": 0.25s", ": 30s");
        let config = config.replace("failure_mode_deny: false", "failure_mode_deny: true");
        let envoy = Envoy::start(&program, &config, service(), daemon.transport("gRPC"));
        wait_until("Envoy is connected", TIMEOUT, || envoy.get("/", &[]).status == 200);
        Some(Self { redis, daemon, envoy })
    }

    fn ask(&self, mode: usize) -> u16 {
        self.envoy.get("/", &[("x-api-key", MODES[mode])]).status
    }

    /// Waits until the daemon has noticed, or is back.
    fn wait_until_degraded(&self, is_degraded: bool) {
        let what = if is_degraded { "it is degraded" } else { "it is whole" };
        wait_until(what, TIMEOUT, || self.daemon.is_degraded() == is_degraded);
    }
}

/// Takes Redis down under load and brings it back.
fn outage(take_down: fn(&RedisServer), bring_back: fn(&RedisServer), forgets: bool) {
    let Some(world) = World::start() else { return };
    let answered = Answered::default();
    let shares = thread::scope(|scope| {
        for mode in 0..MODES.len() {
            let (answered, world) = (&answered, &world);
            scope.spawn(move || {
                while !answered.stops.load(Ordering::Relaxed) {
                    answered.count(mode, world.ask(mode));
                    thread::park_timeout(Duration::from_millis(2));
                }
            });
        }
        let _stop = Stop(&answered.stops);
        let before = answered.since([[0; 2]; 3]);
        assert_eq!((before[0][1], before[1][1]), (0, 0), "no request exceeds these limits");
        assert!(before[2][0] <= LIMIT, "{before:?}");

        let numbers = answered.numbers();
        take_down(&world.redis);
        world.wait_until_degraded(true);
        let unnoticed = answered.since(numbers);
        let numbers = answered.numbers();
        let away = answered.since(numbers);
        assert_eq!(away[0][1], 0, "`allow` admits all: {away:?}");
        assert_eq!(away[1][0], 0, "`deny` admits none: {away:?}");

        let start = Instant::now();
        bring_back(&world.redis);
        world.wait_until_degraded(false);
        // Two seconds, and ten times that for a busy machine.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        wait_until("the admitted units are debited", TIMEOUT, || {
            world.daemon.admin("/v1/status").body.contains("\"owing_keys\":0")
        });
        wait_until("the log says that it is back", TIMEOUT, || {
            world.daemon.log_tail().contains("event=\"store_recovered\" server=\"127.0.0.1:")
        });
        let numbers = answered.numbers();
        let after = answered.since(numbers);
        assert_eq!((after[0][1], after[1][1]), (0, 0), "the store decides again: {after:?}");
        assert_eq!(after[2][0], 0, "no key gets the outage's units and a full bucket: {after:?}");
        [before[2][0], unnoticed[2][0], away[2][0]]
    });
    let local = answered.numbers()[2][0];
    // One that is killed forgets what it had admitted.
    let most = SHARE + LIMIT * (1 + u64::from(forgets));
    assert!(local <= most, "{local} of `local` passed, at most {most}: {shares:?}");
    assert_eq!(answered.other.load(Ordering::Relaxed), 0, "an error that no policy asked for");
}

#[test]
fn every_mode_keeps_its_promise_while_redis_is_killed_and_started_again() {
    outage(RedisServer::kill, RedisServer::restart, true);
}

#[test]
fn every_mode_keeps_its_promise_while_redis_hangs() {
    outage(RedisServer::pause, RedisServer::resume, false);
}

/// Nodes that share nothing admit as many times the limit as there are; with a store they
/// share it, and one that dies takes nothing with it.
#[test]
fn nodes_alone_multiply_a_limit_and_nodes_with_a_store_share_it() {
    let policy = "domain: api\ndescriptors:\n  - {key: user, rate: 100/year}\n";
    let (program, redis) = (our_program("tidegate"), RedisServer::start());
    for (store, most) in [("memory".to_owned(), 300), (redis.url(), 100)] {
        let start = |_| {
            Daemon::start(DaemonSetup {
                program: &program,
                policy,
                store: &store,
                settings: &[("TIDEGATE__STORE__DEADLINE", "10s")],
                has_fake_clock: false,
            })
        };
        let mut daemons: Vec<Daemon> = (0..3).map(start).collect();
        let mut admitted = 0;
        for turn in 0..450 {
            if turn == 60 && most == 100 {
                daemons.truncate(2);
            }
            let daemon = &daemons[turn % daemons.len()];
            let client = redis::Client::open(format!("redis://{}", daemon.transport("RESP")));
            let mut connection = client.and_then(|it| it.get_connection()).expect("it listens");
            let mut command = redis::cmd("TG.CHECK");
            command.arg("api").arg("user").arg("bob");
            let answer: Vec<redis::Value> = command.query(&mut connection).expect("an answer");
            admitted += u64::from(answer[0] == redis::Value::Int(0));
        }
        assert_eq!(admitted, most, "{store}");
    }
}
