//! F13: clients denied during an outage retry at the time they were given.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::figure::Figure;
use super::node::{let_pass, policy_text};
use super::pace::Pace;
use crate::http::Connection;
use crate::servers::{Daemon, DaemonSetup, RedisServer, Stop, our_program};

const RULES: &str = "
  - {key: user, rate: 1000000/day, on_store_failure: deny}
";
const CLIENTS: u64 = 200;
/// Time between two requests of an admitted client.
const APART: Duration = Duration::from_millis(200);
/// `Retry-After` has whole seconds, so clients cannot spread within one second.
const BIN: Duration = Duration::from_secs(1);
/// The shortest outage in which clients come back more than once.
const SHORTEST: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Herd {
    stops: AtomicBool,
    is_over: AtomicBool,
    /// The times at which denied clients retried.
    returns: Mutex<Vec<Instant>>,
    /// Clients admitted since the store has recovered.
    let_in: AtomicU64,
    errors: AtomicU64,
}

impl Herd {
    /// One client.
    fn ask(&self, daemon: &Daemon, number: u64) {
        let Ok(mut connection) = Connection::open(daemon.transport("HTTP")) else {
            return self.fail();
        };
        let body = format!(r#"{{"domain":"chaos","descriptors":[{{"user":"u{number}"}}]}}"#);
        let_pass(APART.mul_f64(fastrand::f64()));
        let (mut is_back, mut was_counted) = (false, false);
        while !self.stops.load(Ordering::Relaxed) {
            if is_back {
                self.returns
                    .lock()
                    .expect("no thread panics while it holds the lock")
                    .push(Instant::now());
            }
            let Ok(answer) = connection.ask("POST /v1/check", &body) else { return self.fail() };
            is_back = answer.status == 503;
            match answer.status {
                200 => {
                    if !was_counted && self.is_over.load(Ordering::Relaxed) {
                        was_counted = true;
                        self.let_in.fetch_add(1, Ordering::Relaxed);
                    }
                    let_pass(APART);
                }
                503 => {
                    let seconds = answer.header("retry-after").and_then(|it| it.parse().ok());
                    let_pass(Duration::from_secs(seconds.unwrap_or(1)));
                }
                _ => self.fail(),
            }
        }
    }

    fn fail(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The fullest second of those in which clients came back, to the mean.
    fn crowd(&self, from: Instant, to: Instant) -> f64 {
        let bins = ((to - from).as_nanos() / BIN.as_nanos()).max(1);
        let mut counts = vec![0_u64; usize::try_from(bins).expect("some seconds")];
        for at in self.returns.lock().expect("no thread panics while it holds the lock").iter() {
            let bin = at.saturating_duration_since(from).as_nanos() / BIN.as_nanos();
            if let Some(count) = usize::try_from(bin).ok().and_then(|bin| counts.get_mut(bin)) {
                *count += 1;
            }
        }
        let (most, sum) = (counts.iter().max().copied().unwrap_or(0), counts.iter().sum::<u64>());
        most as f64 * counts.len() as f64 / sum.max(1) as f64
    }
}

/// F13: through the daemon, with clients that honour `Retry-After`.
pub(crate) fn waits(pace: &Pace) -> Vec<Figure> {
    let redis = RedisServer::start();
    let (program, policy, store) = (our_program("tidegate"), policy_text(RULES), redis.url());
    let deadline = format!("{}ms", pace.deadline.as_millis());
    let daemon = Daemon::start(DaemonSetup {
        program: &program,
        policy: &policy,
        store: &store,
        settings: &[("TIDEGATE__STORE__DEADLINE", &deadline)],
        has_fake_clock: false,
    });
    let herd = Herd::default();
    let (mut turned, mut back) = (Instant::now(), Duration::ZERO);
    let mut end = turned;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (herd, daemon) = (&herd, &daemon);
            scope.spawn(move || herd.ask(daemon, number));
        }
        let _stop = Stop(&herd.stops);
        let_pass(pace.steady);
        redis.kill();
        turned = Instant::now();
        let_pass(pace.outage.max(SHORTEST));
        redis.restart();
        let returned = Instant::now();
        herd.is_over.store(true, Ordering::Relaxed);
        while herd.let_in.load(Ordering::Relaxed) < CLIENTS && returned.elapsed() < 2 * SHORTEST {
            let_pass(Duration::from_millis(5));
        }
        back = returned.elapsed();
        end = Instant::now();
    });
    let seconds = Duration::from_secs;
    vec![
        Figure::none("errors returned to callers", herd.errors.load(Ordering::Relaxed)),
        Figure::times(
            "clients that return in the busiest second / mean",
            herd.crowd(turned, end),
            3.0,
        )
        .when_idle(),
        Figure::time(
            "all 200 are admitted, from the return of Redis: 2 s and their wait",
            back,
            seconds(3),
        ),
    ]
}
