//! Redis pauses briefly under load at the limit: units that three daemons admit above the limit.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::callers::{DAEMONS, LIMIT};
use super::figure::Figure;
use super::node::{TIMEOUT, let_pass, policy_text};
use super::pace::Pace;
use crate::http::Connection;
use crate::servers::{Daemon, DaemonSetup, RedisServer, our_program, wait_until};

/// Units per second of the limit that refills, and its burst.
const LIVE: u64 = 300;
/// Connections to each daemon.
const CONNECTIONS: u64 = 8;
/// Requests for one key in a burst; more than all shares of its limit.
const BURST: u64 = 3 * LIMIT;
/// Requests for a key that is not exhausted.
const PART: u64 = 120;
/// Time for every daemon to notice the outage, and its end.
const MARGIN: Duration = Duration::from_millis(500);

/// Requests for one key.
#[derive(Clone, Copy, Debug)]
struct Offer<'a> {
    key: &'a str,
    value: &'a str,
    requests: u64,
    /// The requests are spread over this time.
    time: Duration,
}

impl Offer<'_> {
    /// Sends the requests evenly to all daemons; returns the number admitted.
    fn send(self, daemons: &[Daemon]) -> u64 {
        let each = self.requests / (DAEMONS as u64 * CONNECTIONS);
        let apart = self.time / u32::try_from(each).expect("a small number").max(1);
        let body =
            format!(r#"{{"domain":"chaos","descriptors":[{{"{}":"{}"}}]}}"#, self.key, self.value);
        let (start, admitted) = (Instant::now(), AtomicU64::new(0));
        let call = |transport: SocketAddr| {
            let mut connection = Connection::open(transport).expect("it listens");
            for number in 0..each {
                let due = start + apart * u32::try_from(number).unwrap_or(u32::MAX);
                let_pass(due.saturating_duration_since(Instant::now()));
                let answer = connection.ask("POST /v1/check", &body).expect("an answer");
                admitted.fetch_add(u64::from(answer.status == 200), Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for transport in daemons.iter().map(|daemon| daemon.transport("HTTP")) {
                (0..CONNECTIONS).for_each(|_| drop(scope.spawn(move || call(transport))));
            }
        });
        admitted.into_inner()
    }
}

pub(crate) fn pauses(pace: &Pace) -> Vec<Figure> {
    let redis = RedisServer::start();
    let daemons = start(&redis);
    pace.pauses.iter().flat_map(|millis| measure(&redis, &daemons, *millis)).collect()
}

fn start(redis: &RedisServer) -> Vec<Daemon> {
    let modes = ["allow", "local", "deny"];
    let rule = |mode| format!("  - {{key: {mode}, rate: {LIMIT}/day, on_store_failure: {mode}}}\n");
    let live = format!("  - {{key: live, rate: {LIVE}/s, on_store_failure: local}}\n");
    let policy = policy_text(&(modes.map(rule).concat() + &live));
    let (program, store, settings) =
        (our_program("tidegate"), redis.url(), [("TIDEGATE__NODES", "3")]);
    let (policy, store, settings) = (&*policy, &*store, &settings);
    let setup = DaemonSetup { program: &program, policy, store, settings, has_fake_clock: false };
    (0..DAEMONS).map(|_| Daemon::start(setup)).collect()
}

/// Units admitted around one pause.
fn measure(redis: &RedisServer, daemons: &[Daemon], millis: u64) -> Vec<Figure> {
    let (pause, value) = (Duration::from_millis(millis), millis.to_string());
    let unseen = format!("never seen before {millis}");
    let offer = |key, requests, time| Offer { key, value: &value, requests, time };
    let burst = |key| offer(key, BURST, Duration::ZERO).send(daemons);
    // All daemons know that two keys are exhausted, and the remaining units of the third.
    let exhausted = [burst("local"), burst("deny")];
    let before = offer("allow", PART, Duration::ZERO).send(daemons);
    let time = pause + 2 * MARGIN;
    let spread = |key, per_second: u64| {
        let requests = (time.as_secs_f64() * per_second as f64) as u64;
        move || offer(key, requests, time).send(daemons)
    };
    let start = Instant::now();
    let unseen = &unseen;
    let [live, local, deny, allow, unseen] = thread::scope(|scope| {
        let load = [
            scope.spawn(spread("live", 2 * LIVE)),
            scope.spawn(spread("local", LIVE)),
            scope.spawn(spread("deny", LIVE)),
            scope.spawn(move || {
                let_pass(MARGIN + pause / 4);
                offer("allow", PART, pause / 2).send(daemons)
            }),
            scope.spawn(move || {
                let_pass(MARGIN + pause / 4);
                let (key, value, time) = ("local", &*unseen, pause / 2);
                Offer { key, value, requests: BURST, time }.send(daemons)
            }),
        ];
        let_pass(MARGIN);
        redis.pause();
        let_pass(pause);
        redis.resume();
        load.map(|load| load.join().expect("a load does not panic"))
    });
    let took = start.elapsed();
    let is_well = || daemons.iter().all(|daemon| !daemon.is_degraded());
    wait_until("every daemon uses Redis again", TIMEOUT, is_well);
    wait_until("every daemon has debited what it admitted", TIMEOUT, || {
        daemons.iter().all(|daemon| pending_keys(daemon) == 0)
    });
    let left = burst("allow");
    let what = |rest: &str| format!("Redis paused {millis} ms: {rest}");
    let shares = |time: Duration| (LIVE as f64 * time.as_secs_f64() * 1.5).ceil() as u64;
    let promised = LIVE + (LIVE as f64 * took.as_secs_f64()) as u64;
    vec![
        Figure::exactly(what("`local`: admitted before it, of 500"), exhausted[0], LIMIT),
        Figure::none(what("`local`, exhausted key: admitted beyond the limit"), local),
        Figure::none(what("`deny`: admitted beyond the limit"), deny + exhausted[1] - LIMIT),
        Figure::count(
            what("`local`, 300/s at twice its rate: admitted beyond the limit; shares refill"),
            live.saturating_sub(promised),
            shares(pause) + DAEMONS as u64,
        ),
        Figure::count(
            what("`local`, key never seen before: admitted; all shares"),
            unseen,
            LIMIT * 3 / 2,
        ),
        Figure::exactly(what("`allow`: admitted of 120 offered"), allow, PART),
        Figure::none(
            what("`allow`: units admitted and never debited"),
            (before + allow + left).saturating_sub(LIMIT),
        ),
    ]
}

/// Keys with pending debits on a daemon.
fn pending_keys(daemon: &Daemon) -> u64 {
    let metrics = daemon.admin("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("tidegate_fallback_owing_keys "));
    line.and_then(|count| count.trim().parse().ok()).expect("a gauge")
}
