//! A rolling upgrade: four daemons under load above the limit are replaced one after the other.
//!
//! The new daemons hold another revision of the policy. If `TIDEGATE_UPGRADE_FROM` names the program of an earlier
//! release, the daemons that are replaced run that program, so that two releases share keys and scripts.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::figure::Figure;
use super::fleet::excess;
use super::node::{TIMEOUT, let_pass, policy_text};
use super::pace::Pace;
use crate::history::Event;
use crate::http::Connection;
use crate::servers::{Daemon, DaemonSetup, RedisServer, earlier_program, our_program, wait_until};

const DAEMONS: usize = 4;
/// Units per second, and burst, of the limits that refill.
const RATE: u64 = 400;
/// Units of the window, which does not end during the upgrade.
const UNITS: u64 = 1_000;
const KEYS: [&str; 3] = ["exact", "leased", "window"];
const RULES: &str = "
  - {key: exact, rate: 400/s, on_store_failure: deny}
  - {key: leased, rate: 400/s, tier: leased, on_store_failure: deny}
  - {key: window, rate: 1000/year, algorithm: fixed_window, on_store_failure: deny}
";
/// The additional rule of the next revision of the policy.
const MORE: &str = "  - {key: more, rate: 1/s}\n";

/// The addresses of the daemons under load.
struct Load {
    listeners: [Mutex<SocketAddr>; DAEMONS],
    start: Instant,
    stops: AtomicBool,
    unanswered: AtomicU64,
}

impl Load {
    fn listener(&self, number: usize) -> SocketAddr {
        *self.listeners[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, number: usize, listener: SocketAddr) {
        *self.listeners[number].lock().unwrap_or_else(PoisonError::into_inner) = listener;
    }

    /// Sends requests for a key to one daemon, at a third of the limit's rate; returns the admitted
    /// requests.
    fn ask(&self, key: &str, number: usize) -> Vec<Event> {
        let body = format!(r#"{{"domain":"chaos","descriptors":[{{"{key}":"all"}}]}}"#);
        let (apart, mut due) = (Duration::from_secs(3) / RATE as u32, Instant::now());
        let micros = || u64::try_from(self.start.elapsed().as_micros()).expect("a short time");
        let mut connection: Option<(SocketAddr, Connection)> = None;
        let mut admitted = Vec::new();
        while !self.stops.load(Ordering::Relaxed) {
            due += apart;
            let_pass(due.saturating_duration_since(Instant::now()));
            let listener = self.listener(number);
            let (invoked, known) = (micros(), connection.take());
            let opened = match known.filter(|(known, _)| *known == listener) {
                Some((_, connection)) => Ok(connection),
                None => Connection::open(listener),
            };
            let answered = opened.and_then(|mut connection| {
                connection.ask("POST /v1/check", &body).map(|answer| (connection, answer))
            });
            let Ok((open, answer)) = answered else {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if answer.status == 200 {
                admitted.push(Event { invoked, returned: micros(), cost: 1, allowed: true });
            }
            connection = Some((listener, open));
        }
        admitted
    }
}

fn start(program: &Path, store: &str, rules: &str) -> Daemon {
    let (policy, settings) = (&*policy_text(rules), &[]);
    Daemon::start(DaemonSetup { program, policy, store, settings, has_fake_clock: false })
}

/// Replaces daemons of the first revision under load; returns admitted requests by key, and the
/// number of requests without an answer.
fn replace_all(pace: &Pace) -> ([Vec<Event>; KEYS.len()], u64) {
    let (redis, new) = (RedisServer::start(), our_program("tidegate"));
    let (store, old) = (redis.url(), earlier_program().unwrap_or_else(|| new.clone()));
    let mut daemons: Vec<Daemon> = (0..DAEMONS).map(|_| start(&old, &store, RULES)).collect();
    let listener = |number: usize| Mutex::new(daemons[number].transport("HTTP"));
    let (listeners, start_at) = (std::array::from_fn(listener), Instant::now());
    let (stops, unanswered) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = Load { listeners, start: start_at, stops, unanswered };
    let next = format!("{RULES}{MORE}");
    let admitted = thread::scope(|scope| {
        let load = &load;
        let ask = |key| (0..DAEMONS).map(move |number| scope.spawn(move || load.ask(key, number)));
        let asking = KEYS.map(|key| ask(key).collect::<Vec<_>>());
        for (number, daemon) in daemons.iter_mut().enumerate() {
            let_pass(pace.outage);
            let next = start(&new, &store, &next);
            load.replace(number, next.transport("HTTP"));
            let mut last = std::mem::replace(daemon, next);
            let_pass(pace.steady / 4);
            last.terminate();
            wait_until("the replaced daemon has ended", TIMEOUT, || !last.is_running());
        }
        let_pass(pace.outage);
        load.stops.store(true, Ordering::Relaxed);
        asking.map(|asking| {
            let events =
                asking.into_iter().flat_map(|it| it.join().expect("a load does not panic"));
            let mut events: Vec<Event> = events.collect();
            events.sort_by_key(|event| event.returned);
            events
        })
    });
    (admitted, load.unanswered.into_inner())
}

/// The longest time without an admission.
fn longest_gap(events: &[Event]) -> Duration {
    let gaps = events.windows(2).map(|pair| pair[1].returned - pair[0].returned);
    Duration::from_micros(gaps.max().unwrap_or(u64::MAX))
}

pub(crate) fn rolling(pace: &Pace) -> Vec<Figure> {
    let ([exact, leased, window], unanswered) = replace_all(pace);
    let mut figures = Vec::new();
    for (key, events) in [("exact", &exact), ("leased", &leased)] {
        let what = |rest: &str| format!("`{key}`: {rest}");
        let span =
            events.last().zip(events.first()).map(|(last, first)| last.returned - first.invoked);
        let possible = RATE as f64 * (1.0 + span.unwrap_or(0) as f64 / 1e6);
        figures.extend([
            Figure::none(what("admitted beyond capacity + rate × time"), excess(events, RATE)),
            Figure::time(
                what("longest time without an admission"),
                longest_gap(events),
                Duration::from_millis(250),
            ),
            Figure::percent(what("admitted of the limit"), events.len() as f64 / possible, 90.0)
                .at_least()
                .roughly(),
        ]);
    }
    let beyond = (window.len() as u64).saturating_sub(UNITS);
    figures.push(Figure::none("`window`: admitted beyond its limit", beyond));
    figures.push(Figure::count("requests without an answer", unanswered, 0).without_target());
    figures
}
