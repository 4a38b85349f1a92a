//! Redis is in another zone or region: the limits are exact with default settings.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use redis::Client;
use tokio::time::Instant;

use super::callers::{Callers, start_daemons};
use super::figure::Figure;
use super::node::{let_pass, policy_text};
use super::pace::Pace;
use crate::fault_proxy::FaultProxy;
use crate::http::Connection;
use crate::servers::{Daemon, DaemonSetup, Priority, RedisServer, Stop, our_program};

/// The round trip, in ms, for the measurement of throughput.
const THROUGHPUT_AT: u64 = 50;
/// Requests per second that a daemon must answer at this distance.
const THROUGHPUT: u64 = 5_000;
/// Stack size of a caller's thread.
const STACK: usize = 64 << 10;
const PINGS: usize = 21;

pub(crate) fn far(pace: &Pace) -> Vec<Figure> {
    let redis = RedisServer::start();
    let proxy = FaultProxy::start(redis.port());
    // A starved proxy would look like an unresponsive Redis.
    let kept = [Priority::raise(redis.pid()), Priority::raise_thread(proxy.thread())];
    for error in kept.iter().filter_map(|priority| priority.as_ref().err()) {
        println!("Redis and the proxy in front of it compete for the CPU: {error}");
    }
    let mut figures = Vec::new();
    for millis in pace.round_trips {
        proxy.set_round_trip(*millis);
        let daemons = start_daemons(&proxy.url());
        let answered: Vec<AtomicU64> = daemons.iter().map(|_| AtomicU64::new(0)).collect();
        let load = (pace.requests, pace.spread);
        let outcome = Callers::of(&daemons).ask(load, &format!("at {millis}"), &answered);
        let what = format!("{millis} ms away");
        let ping = format!("{what}: median round trip of PING");
        figures.push(Figure::time(ping, median_ping(&proxy), Duration::ZERO).without_target());
        figures.extend(outcome.figures(&what));
    }
    if pace.far_callers > 0 {
        proxy.set_round_trip(THROUGHPUT_AT);
        figures.push(throughput(pace, &proxy));
    }
    figures
}

fn median_ping(proxy: &FaultProxy) -> Duration {
    let client = Client::open(proxy.url()).expect("an address");
    let mut connection = client.get_connection().expect("a server");
    let mut times: Vec<Duration> = (0..PINGS)
        .map(|_| {
            let start = Instant::now();
            redis::cmd("PING").exec(&mut connection).expect("an answer");
            start.elapsed()
        })
        .collect();
    times.sort();
    times[PINGS / 2]
}

/// Requests per second of one daemon; each caller has a separate key.
fn throughput(pace: &Pace, proxy: &FaultProxy) -> Figure {
    let (program, store) = (our_program("tidegate"), proxy.url());
    let policy = policy_text("  - {key: user, rate: 1000000/s, on_store_failure: deny}\n");
    let (settings, has_fake_clock) = (&[], false);
    let setup =
        DaemonSetup { program: &program, policy: &policy, store: &store, settings, has_fake_clock };
    let daemon = Daemon::start(setup);
    let (stops, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rate = 0.0;
    thread::scope(|scope| {
        let _stop = Stop(&stops);
        for caller in 0..pace.far_callers {
            let (daemon, stops, admitted) = (&daemon, &stops, &admitted);
            let call = move || {
                let body = format!(r#"{{"domain":"chaos","descriptors":[{{"user":"{caller}"}}]}}"#);
                let mut connection =
                    Connection::open(daemon.transport("HTTP")).expect("it listens");
                while !stops.load(Ordering::Relaxed) {
                    let answer = connection.ask("POST /v1/check", &body).expect("an answer");
                    admitted.fetch_add(u64::from(answer.status == 200), Ordering::Relaxed);
                }
            };
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, call).expect("a thread");
        }
        // The first requests open connections.
        let_pass(pace.steady);
        let (start, before) = (Instant::now(), admitted.load(Ordering::Relaxed));
        let_pass(pace.steady);
        let count = admitted.load(Ordering::Relaxed) - before;
        rate = count as f64 / start.elapsed().as_secs_f64();
    });
    let callers = pace.far_callers;
    let what = format!("{THROUGHPUT_AT} ms away: requests per second of {callers} callers");
    Figure::count(what, rate as u64, THROUGHPUT).at_least().when_idle()
}
