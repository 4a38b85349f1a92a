//! Latency of normal clients beside a hostile client.
//!
//! The daemon, the normal clients and one kind of hostile client run at the same time in separate
//! processes; the hostile client has a bounded share of the CPU. Each round measures the normal
//! clients without, with and again without the hostile client, so that a slow moment of the machine
//! affects both.

mod attack;
mod normal;
mod share;

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::servers::{Certificates, Daemon, DaemonSetup, our_program};

pub use self::attack::{Kind, attack};
pub use self::normal::{NormalStats, ask};
pub use self::share::{Bound, has_priorities};

/// Number of patterns in the policy that long values are matched against.
const PATTERNS: usize = 10_000;

/// The extent of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of each kind.
    pub rounds: usize,
    /// Duration of each of the three parts of a round.
    pub part: Duration,
}

/// The result beside one kind of hostile client.
#[derive(Clone, Debug)]
pub struct Row {
    /// The kind.
    pub kind: Kind,
    /// Medians over the rounds of the normal clients' 99th percentile.
    pub without: Duration,
    /// The same with the hostile client.
    pub with: Duration,
    /// Requests of the normal clients that were answered.
    pub answered: u64,
    /// Requests of the normal clients that were not answered.
    pub failed: u64,
    /// Requests, connections or handshakes that the hostile client completed.
    pub attacks: u64,
    /// How the CPU share of the hostile client was bounded.
    pub bound: Bound,
}

impl Row {
    /// The ratio of the 99th percentiles, with and without the hostile client.
    pub fn ratio(&self) -> f64 {
        self.with.as_secs_f64() / self.without.as_secs_f64().max(1e-6)
    }
}

/// The policy for one kind.
fn policy(kind: Kind) -> String {
    let mut text = String::from(
        "domain: hostile\ndescriptors:\n  - key: user\n    rate: 1000000/s\n  - key: log\n    \
         algorithm: sliding_log\n    rate_limit: {unit: minute, requests_per_unit: 10000}\n",
    );
    let needs_patterns = matches!(kind, Kind::LongGlob | Kind::GrpcFlood);
    for number in (0..PATTERNS).filter(|_| needs_patterns) {
        let _ = write!(
            text,
            "  - key: path\n    value: \"*/item{number:05}/*\"\n    rate_limit: {{unit: second, \
             requests_per_unit: 1000000}}\n"
        );
    }
    text
}

/// Measures one kind.
///
/// # Panics
/// If the daemon does not start, or ends early.
pub fn measure(kind: Kind, effort: Effort) -> Row {
    let certificates = Certificates::fresh();
    let [certificate, key] = [&certificates.server.certificate, &certificates.server.key]
        .map(|file| file.display().to_string());
    let encrypted = [
        ("TIDEGATE__LISTEN__GRPC__TLS__CERTIFICATE", certificate.as_str()),
        ("TIDEGATE__LISTEN__GRPC__TLS__KEY", key.as_str()),
    ];
    let is_encrypted = kind == Kind::TlsHandshakes;
    let mut daemon = Daemon::start(DaemonSetup {
        program: &our_program("tidegate"),
        policy: &policy(kind),
        store: "memory",
        settings: if is_encrypted { &encrypted } else { &[] },
        has_fake_clock: false,
    });
    share::prefer_daemon(daemon.pid());
    let transports = [daemon.transport("RESP"), daemon.transport("HTTP"), daemon.transport("gRPC")];
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let (mut answered, mut failed, mut attacks) = (0, 0, 0);
    let mut bound = Bound::None;
    for _ in 0..effort.rounds {
        let mut count = |answer: normal::NormalStats, times: &mut Vec<Duration>| {
            answered += answer.answered;
            failed += answer.failed;
            times.push(answer.p99);
        };
        count(normal::run(&transports, effort.part), &mut without);
        let mut hostile = start(kind, &transports, effort.part);
        let share = share::limit(&hostile);
        bound = share.bound();
        count(normal::run(&transports, effort.part), &mut with);
        attacks += finish(&mut hostile);
        drop(share);
        count(normal::run(&transports, effort.part), &mut without);
        assert!(daemon.is_running(), "the daemon ended:\n{}", daemon.log_tail());
    }
    Row { kind, without: median(without), with: median(with), answered, failed, attacks, bound }
}

/// Starts the hostile client, which ends slightly after its part.
fn start(kind: Kind, transports: &[std::net::SocketAddr; 3], part: Duration) -> Child {
    let mut command = Command::new(our_program("hostile"));
    command.args(["attack", kind.name()]).args(transports.map(|transport| transport.to_string()));
    command.arg((part + Duration::from_millis(200)).as_millis().to_string());
    command.stdout(Stdio::piped()).spawn().expect("the program that measures can be started again")
}

/// Waits for the hostile client, and reads its count.
fn finish(hostile: &mut Child) -> u64 {
    use std::io::Read;
    let mut text = String::new();
    if let Some(out) = &mut hostile.stdout {
        out.read_to_string(&mut text).expect("a count");
    }
    hostile.wait().expect("a child");
    text.trim().parse().unwrap_or(0)
}

#[expect(clippy::disallowed_methods, reason = "the daemon keeps its own time")]
fn now() -> Instant {
    Instant::now()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The table of the documentation.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| hostile client | p99 without it | p99 beside it | ratio |\n|---|---|---|---|\n",
    );
    for row in rows {
        let millis = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1_000.0);
        let (without, with) = (millis(row.without), millis(row.with));
        let about = row.kind.about();
        let _ = writeln!(text, "| {about} | {without} | {with} | {:.1} |", row.ratio());
    }
    text
}
