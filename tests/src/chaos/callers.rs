//! Callers of several daemons that share limits of 500 a day, one limit for each failure mode.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::figure::Figure;
use super::node::{let_pass, policy_text};
use crate::http::Connection;
use crate::servers::{Daemon, DaemonSetup, our_program};

/// The failure modes, each the key of a limit.
pub(crate) const MODES: [&str; 3] = ["allow", "local", "deny"];
/// The units of each limit. No unit is refilled within 172 s.
pub(crate) const LIMIT: u64 = 500;
/// Daemons that share the limits.
pub(crate) const DAEMONS: usize = 3;
/// Connections to each daemon.
const CALLERS: u64 = 24;

/// Starts the daemons on one store, with default settings.
pub(crate) fn start_daemons(store: &str) -> Vec<Daemon> {
    let rule = |mode| format!("  - {{key: {mode}, rate: {LIMIT}/day, on_store_failure: {mode}}}\n");
    let (program, policy) = (our_program("tidegate"), policy_text(&MODES.map(rule).concat()));
    let (settings, has_fake_clock) = (&[], false);
    let setup = DaemonSetup { program: &program, policy: &policy, store, settings, has_fake_clock };
    (0..DAEMONS).map(|_| Daemon::start(setup)).collect()
}

/// The address and the form of requests.
#[derive(Clone, Debug)]
pub(crate) struct Callers {
    pub(crate) transports: Vec<SocketAddr>,
    /// Method and path.
    pub(crate) call: &'static str,
    /// The body of a request for one value of a mode's limit.
    pub(crate) body: fn(&str, &str) -> String,
}

/// The outcomes of the callers' requests.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Requests admitted, by mode.
    pub(crate) admitted: [u64; MODES.len()],
    /// Requests that got neither 200 nor 429.
    pub(crate) refused: u64,
    pub(crate) requests: u64,
    pub(crate) took: Duration,
}

impl Callers {
    pub(crate) fn of(daemons: &[Daemon]) -> Self {
        Self {
            transports: daemons.iter().map(|daemon| daemon.transport("HTTP")).collect(),
            call: "POST /v1/check",
            body: |mode, value| {
                format!(r#"{{"domain":"chaos","descriptors":[{{"{mode}":"{value}"}}]}}"#)
            },
        }
    }

    /// Sends this many requests, spread over the transports, the modes and at least this time.
    /// Counts the answers of each transport in `answered`.
    pub(crate) fn ask(
        &self,
        (requests, time): (u64, Duration),
        value: &str,
        answered: &[AtomicU64],
    ) -> Outcome {
        let callers = CALLERS * self.transports.len() as u64;
        let each = requests / callers;
        let apart = time / u32::try_from(each).expect("a small number").max(1);
        let (start, sum) = (Instant::now(), Mutex::new(Outcome::default()));
        let bodies = MODES.map(|mode| (self.body)(mode, value));
        thread::scope(|scope| {
            for (&transport, answered) in self.transports.iter().zip(answered) {
                for caller in 0..CALLERS {
                    let (sum, bodies) = (&sum, &bodies);
                    scope.spawn(move || {
                        let mut connection = Connection::open(transport).ok();
                        for number in 0..each {
                            let due = start + apart * u32::try_from(number).unwrap_or(u32::MAX);
                            let_pass(due.saturating_duration_since(Instant::now()));
                            let mode = ((caller + number) % MODES.len() as u64) as usize;
                            let answer =
                                connection.as_mut().map(|it| it.ask(self.call, &bodies[mode]));
                            let status = answer.and_then(|answer| Some(answer.ok()?.status));
                            answered.fetch_add(1, Ordering::Relaxed);
                            sum.lock().expect("no caller panics with it").add(mode, status);
                        }
                    });
                }
            }
        });
        let sum = sum.into_inner().expect("no caller panics with it");
        Outcome { took: start.elapsed(), ..sum }
    }
}

impl Outcome {
    fn add(&mut self, mode: usize, status: Option<u16>) {
        self.requests += 1;
        match status {
            Some(200) => self.admitted[mode] += 1,
            Some(429) => {}
            _ => self.refused += 1,
        }
    }

    /// Keeps the worse of each number of two outcomes.
    pub(crate) fn worsen(&mut self, other: &Self) {
        for (worst, admitted) in self.admitted.iter_mut().zip(other.admitted) {
            if admitted.abs_diff(LIMIT) > worst.abs_diff(LIMIT) {
                *worst = admitted;
            }
        }
        self.refused = self.refused.max(other.refused);
    }

    /// Exactly the limit is admitted in every mode, and no request is refused because of the store.
    pub(crate) fn figures(&self, condition: &str) -> Vec<Figure> {
        let admitted = MODES.iter().zip(self.admitted).map(|(mode, admitted)| {
            let behaviour = format!("{condition}: `{mode}` admits, of a limit of {LIMIT}");
            Figure::exactly(behaviour, admitted, LIMIT)
        });
        let refused =
            Figure::none(format!("{condition}: refused because of the store"), self.refused);
        admitted.chain([refused]).collect()
    }

    /// The same figures without a target, and the rate.
    pub(crate) fn without_target(&self, condition: &str) -> Vec<Figure> {
        let rate = Figure::count(format!("{condition}: requests per second"), self.per_second(), 0);
        self.figures(condition).into_iter().chain([rate]).map(Figure::without_target).collect()
    }

    fn per_second(&self) -> u64 {
        (self.requests as f64 / self.took.as_secs_f64()) as u64
    }
}
