//! A daemon in front of a Redis that fails once a minute: killed, stopped, without scripts, paused.
//! Memory has to stay flat, and only the policy may cause errors.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http::{self, Connection};
use tidegate_tests::rls::RateLimitRequest;
use tidegate_tests::servers::{Daemon, DaemonSetup, RedisServer, wait_until};

use super::load::{Load, now};
use super::verdict::Flatness;

/// Time between the starts of two faults.
const APART: Duration = Duration::from_secs(60);
/// Duration of a fault that lasts.
const LASTS: Duration = Duration::from_secs(5);
/// Interval of measurements.
const TICK: Duration = Duration::from_secs(10);
/// Time within which the store is used again after a fault, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// No request exceeds these limits, so `allow` and `local` always admit.
const POLICY: &str = "
domain: soak
descriptors:
  - {key: allow, rate: 1000000/day, on_store_failure: allow}
  - {key: deny, rate: 1000000/day, on_store_failure: deny}
  - {key: local, rate: 1000000/day, on_store_failure: local}
";
const MODES: [&str; 3] = ["allow", "deny", "local"];
const DENY: usize = 1;
/// Keys of each mode.
const KEYS: u64 = 20_000;
/// Requests in one write.
const BATCH: u64 = 30;

/// The faults, in their order.
const FAULTS: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::ForgetScripts, Fault::Pause];

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    ForgetScripts,
    Pause,
}

impl Fault {
    fn begin(self, redis: &RedisServer) {
        match self {
            Self::Kill => redis.kill(),
            Self::Stop => redis.pause(),
            Self::ForgetScripts => drop(redis.command(&["SCRIPT", "FLUSH"])),
            Self::Pause => {
                let millis = LASTS.as_millis().to_string();
                drop(redis.command(&["CLIENT", "PAUSE", &millis, "ALL"]));
            }
        }
    }

    fn end(self, redis: &RedisServer) {
        match self {
            Self::Kill => redis.restart(),
            Self::Stop => redis.resume(),
            // `ForgetScripts` ends at once, and `Pause` by itself.
            Self::ForgetScripts | Self::Pause => {}
        }
    }
}

/// The results so far.
#[derive(Default)]
struct Outcomes {
    /// Whether a fault is in progress.
    is_faulty: AtomicBool,
    /// Requests denied by `deny`, during faults and otherwise.
    denied: [AtomicU64; 2],
    faults: AtomicU64,
}

/// Measurements at one instant.
struct Sample {
    seconds: u64,
    kib: u64,
    decisions: [u64; 3],
    faults: u64,
    denied: [u64; 2],
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, kib, decisions: [resp, http, grpc], faults, denied } = self;
        let [during, otherwise] = denied;
        write!(
            f,
            "{seconds:>6} {kib:>8} {resp:>11} {http:>9} {grpc:>9} {faults:>6} {during:>9} \
             {otherwise:>9}"
        )
    }
}

fn heading() -> String {
    format!(
        "{:>6} {:>8} {:>11} {:>9} {:>9} {:>6} {:>9} {:>9}",
        "s", "KiB", "RESP", "HTTP", "gRPC", "faults", "denied", "otherwise"
    )
}

/// Runs the daemon, Redis, the clients and the faults.
pub(crate) fn soak(program: &Path, length: Duration, rate: u64) -> Result<String, String> {
    let redis = RedisServer::start();
    let store = redis.url();
    let setup = DaemonSetup {
        program,
        policy: POLICY,
        store: &store,
        settings: &[],
        has_fake_clock: false,
    };
    let daemon = Daemon::start(setup);
    let (load, outcomes) = (Load::new(rate), Outcomes::default());
    let mut samples: Vec<Sample> = Vec::new();
    println!("{}", heading());
    thread::scope(|scope| {
        for seed in 0..2 {
            let (load, outcomes, address) = (&load, &outcomes, daemon.transport("RESP"));
            scope.spawn(move || ask_redis(load, outcomes, (address, seed)));
        }
        scope.spawn(|| ask_http(&load, &outcomes, daemon.transport("HTTP")));
        scope.spawn(|| ask_grpc(&load, &outcomes, daemon.transport("gRPC")));
        scope.spawn(|| fail(&load, &outcomes, (&redis, &daemon)));
        let start = now();
        let mut tick = 0;
        while load.goes_on() && start.elapsed() < length {
            tick += 1;
            wait(&load, start, (TICK * tick).min(length));
            let sample = Sample::take(&load, &outcomes, (&daemon, start));
            if sample.kib == 0 {
                load.tell(&format!("the daemon has ended:\n{}", daemon.log_tail()));
            }
            if tick % 6 == 1 {
                println!("{sample}");
            }
            samples.push(sample);
        }
        load.end();
    });
    judge(&samples, &load.wrong())
}

impl Sample {
    fn take(load: &Load, outcomes: &Outcomes, (daemon, start): (&Daemon, Instant)) -> Self {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Self {
            seconds: start.elapsed().as_secs(),
            kib: daemon.resident_kib(),
            decisions: [&load.resp, &load.http, &load.grpc].map(read),
            faults: read(&outcomes.faults),
            denied: [&outcomes.denied[0], &outcomes.denied[1]].map(read),
        }
    }
}

fn judge(samples: &[Sample], wrong: &[String]) -> Result<String, String> {
    let kib: Vec<u64> = samples.iter().map(|sample| sample.kib).collect();
    let (Some(last), Some(flatness)) = (samples.last(), Flatness::of(&kib)) else {
        return Err(format!("too short to say anything: {}", wrong.join("; ")));
    };
    let reply = format!(
        "{}\n{last}\n{flatness}\nerrors that no policy asked for: {}\n{}",
        heading(),
        wrong.len(),
        wrong.join("\n")
    );
    let were_asked = last.decisions.iter().all(|count| *count > 0) && last.faults > 0;
    match flatness.is_flat() && were_asked && wrong.is_empty() {
        true => Ok(reply),
        false => Err(reply),
    }
}

/// Waits until this long after the start, or until the end.
fn wait(load: &Load, start: Instant, until: Duration) {
    while load.goes_on() && start.elapsed() < until {
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// Causes one fault after the other.
fn fail(load: &Load, outcomes: &Outcomes, (redis, daemon): (&RedisServer, &Daemon)) {
    let start = now();
    for (number, fault) in (0..).zip(FAULTS.into_iter().cycle()) {
        // The first fault comes early, so that a short run has one.
        wait(load, start, APART * number + LASTS);
        if !load.goes_on() {
            return;
        }
        outcomes.is_faulty.store(true, Ordering::Relaxed);
        outcomes.faults.fetch_add(1, Ordering::Relaxed);
        fault.begin(redis);
        wait(load, start, APART * number + 2 * LASTS);
        fault.end(redis);
        let is_back = catch_unwind(AssertUnwindSafe(|| {
            wait_until("the store is back", BACK_WITHIN, || !daemon.is_degraded());
        }));
        if is_back.is_err() {
            load.tell(&format!("{fault:?}: the daemon does not get over it"));
        }
        outcomes.is_faulty.store(false, Ordering::Relaxed);
    }
}

impl Outcomes {
    /// Checks an answer: only expected denials are allowed.
    fn judge(&self, mode: usize, is_allowed: bool) -> Result<(), String> {
        if is_allowed {
            return Ok(());
        }
        if mode != DENY {
            return Err(format!("{} was denied", MODES[mode]));
        }
        let otherwise = usize::from(!self.is_faulty.load(Ordering::Relaxed));
        self.denied[otherwise].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

const fn mode(made: u64) -> usize {
    (made % 3) as usize
}

fn ask_redis(load: &Load, outcomes: &Outcomes, (address, seed): (SocketAddr, u64)) {
    let mut socket = http::connect(address);
    let reading = socket.try_clone().map(BufReader::new);
    let Ok(mut reading) = reading else { return load.tell(&"RESP: no socket") };
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        let about = |number: u64| {
            format!("TG.CHECK soak {} u{}\r\n", MODES[mode(number)], (number * 7 + seed) % KEYS)
        };
        let batch: String = (made..made + BATCH).map(about).collect();
        let asked = socket.write_all(batch.as_bytes()).and_then(|()| {
            (made..made + BATCH).try_for_each(|number| {
                let is_allowed = answer(&mut reading)?;
                outcomes.judge(mode(number), is_allowed).map_err(io::Error::other)
            })
        });
        if let Err(error) = asked {
            return load.tell(&format!("RESP: {error}"));
        }
        made += BATCH;
        load.resp.fetch_add(BATCH, Ordering::Relaxed);
        load.pace(start, made);
    }
}

/// One reply to `TG.CHECK`: five numbers and a name.
fn answer(reading: &mut impl BufRead) -> io::Result<bool> {
    let mut lines = Vec::with_capacity(8);
    for _ in 0..8 {
        let mut line = String::new();
        if reading.read_line(&mut line)? == 0 || line.starts_with('-') {
            return Err(io::Error::other(format!("answered {line:?}")));
        }
        lines.push(line);
    }
    Ok(lines[1].trim_end() == ":0")
}

fn ask_http(load: &Load, outcomes: &Outcomes, address: SocketAddr) {
    let Ok(mut connection) = Connection::open(address) else {
        return load.tell(&"HTTP: no socket");
    };
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        let (name, key) = (MODES[mode(made)], made % KEYS);
        let body = format!(r#"{{"domain":"soak","descriptors":[{{"{name}":"h{key}"}}]}}"#);
        let judged = match connection.ask("POST /v1/check", &body) {
            Ok(answer) if [200, 503].contains(&answer.status) => {
                outcomes.judge(mode(made), answer.status == 200)
            }
            Ok(answer) => Err(format!("{name}: {answer:?}")),
            Err(error) => Err(error.to_string()),
        };
        if let Err(problem) = judged {
            return load.tell(&format!("HTTP: {problem}"));
        }
        made += 1;
        load.http.fetch_add(1, Ordering::Relaxed);
        load.pace(start, made);
    }
}

fn ask_grpc(load: &Load, outcomes: &Outcomes, address: SocketAddr) {
    let asked = catch_unwind(AssertUnwindSafe(|| {
        let (mut client, start, mut made) = (GrpcClient::connect(address), now(), 0);
        while load.goes_on() {
            let key = format!("g{}", made % KEYS);
            let request = RateLimitRequest::one("soak", MODES[mode(made)], &key);
            let answer = client.should_rate_limit(&request).map_err(|it| format!("{it:?}"));
            let judged = answer.and_then(|it| outcomes.judge(mode(made), it.overall_code == 1));
            if let Err(problem) = judged {
                return load.tell(&format!("gRPC: {problem}"));
            }
            made += 1;
            load.grpc.fetch_add(1, Ordering::Relaxed);
            load.pace(start, made);
        }
    }));
    if asked.is_err() {
        load.tell(&"gRPC: no answer at all");
    }
}
