//! The p99 of one service while one of three addresses of another service is killed, hung or
//! slowed. Rounds without and with the fault are interleaved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tidegate_tests::http::Connection;

use super::members::Members;
use crate::Failure;
use crate::row::median;
use crate::server::member::Member;

/// Clients of the service with the fault, and of the other one. Each has a request due in every
/// [`EVERY`], and latencies count from then (no coordinated omission).
const CLIENTS: usize = 8;
const OTHERS: usize = 4;
const EVERY: Duration = Duration::from_millis(4);

/// How long an address with failures is not used.
const EJECT_FOR: Duration = Duration::from_secs(1);

/// A slow address runs for so long, and stands still for so long.
const RUNS: Duration = Duration::from_millis(10);
const STANDS: Duration = Duration::from_millis(190);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    Killed,
    Hung,
    Slowed,
}

impl Fault {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Hung => "hung",
            Self::Slowed => "slowed",
        }
    }
}

/// The other service beside one kind of fault: medians of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub fault: Fault,
    /// p99 without the fault, and the least and the most of all rounds.
    pub without_us: f64,
    pub least_us: f64,
    pub most_us: f64,
    pub with_us: f64,
    /// Requests to the service with the fault, and those that failed.
    pub requests: usize,
    pub failed: usize,
}

/// Measures all faults, with parts of this length.
pub fn measure(members: &Members, rounds: usize, part: Duration) -> Result<Vec<Row>, Failure> {
    let mut services = Vec::new();
    for _ in 0..4 {
        services.push(members.small_service(None)?);
    }
    let urls = |services: &[Member]| {
        let urls = services.iter().map(|it| format!("http://{}", it.address(0)));
        urls.collect::<Vec<_>>().join(",")
    };
    let gateway = members.gateway_of(&[
        ("api", &urls(&services[..3]), "/api"),
        ("other", &urls(&services[3..]), "/other"),
    ])?;
    let mut rows = Vec::new();
    for fault in [Fault::Killed, Fault::Hung, Fault::Slowed] {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let (mut requests, mut failed) = (0, 0);
        for _ in 0..rounds {
            without.push(run(&gateway, part, |_| {})?.p99_us);
            let seen = run(&gateway, part, |is_over| inject(fault, &services[0], is_over))?;
            with.push(seen.p99_us);
            (requests, failed) = (requests + seen.requests, failed + seen.failed);
            if fault == Fault::Killed {
                let port = services[0].port(0);
                // The process has ended: its place is free.
                drop(services.remove(0));
                services.insert(0, members.small_service(Some(port))?);
            } else {
                signal(&services[0], Signal::CONT);
            }
            // Until its share is whole again.
            thread::sleep(2 * EJECT_FOR + part / 10);
        }
        let least_us = without.iter().copied().fold(f64::MAX, f64::min);
        let most_us = without.iter().copied().fold(f64::MIN, f64::max);
        let (without_us, with_us) = (median(without), median(with));
        eprintln!("{}: {without_us:.0} us without, {with_us:.0} us with", fault.name());
        rows.push(Row { fault, without_us, least_us, most_us, with_us, requests, failed });
    }
    Ok(rows)
}

pub fn settings() -> [(&'static str, String); 2] {
    [
        ("TIDEGATE__GATEWAY__HEAD_TIMEOUT", "1s".into()),
        ("TIDEGATE__GATEWAY__UPSTREAMS__API__EJECT_FOR", format!("{}ms", EJECT_FOR.as_millis())),
    ]
}

/// Does something to an address until the part is over.
fn inject(fault: Fault, address: &Member, is_over: &AtomicBool) {
    match fault {
        Fault::Killed => signal(address, Signal::KILL),
        Fault::Hung => signal(address, Signal::STOP),
        Fault::Slowed => {
            while !is_over.load(Ordering::Acquire) {
                signal(address, Signal::STOP);
                thread::sleep(STANDS);
                signal(address, Signal::CONT);
                thread::sleep(RUNS);
            }
        }
    }
}

fn signal(member: &Member, signal: Signal) {
    let pid = i32::try_from(member.pid()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It fails only if the process has ended.
        let _ = kill_process(pid, signal);
    }
}

struct Seen {
    p99_us: f64,
    requests: usize,
    failed: usize,
}

/// Asks both services for so long, while this happens.
fn run(
    gateway: &Member,
    part: Duration,
    happens: impl FnOnce(&AtomicBool) + Send,
) -> Result<Seen, Failure> {
    let (start, is_over) = (Instant::now(), AtomicBool::new(false));
    let seen = thread::scope(|scope| {
        let ask = |path: &'static str, clients: usize| {
            let clients =
                (0..clients).map(|_| scope.spawn(move || client(gateway, path, start + part)));
            clients.collect::<Vec<_>>()
        };
        let (api, others) = (ask("/api", CLIENTS), ask("/other", OTHERS));
        scope.spawn(|| happens(&is_over));
        let join = |clients: Vec<thread::ScopedJoinHandle<'_, Asked>>| {
            clients.into_iter().map(|it| it.join().unwrap_or_default()).collect::<Vec<_>>()
        };
        let seen = (join(api), join(others));
        is_over.store(true, Ordering::Release);
        seen
    });
    let (api, others) = seen;
    let mut latencies: Vec<f64> = others.iter().flat_map(|it| it.latencies.clone()).collect();
    let lost: usize = others.iter().map(|it| it.failed).sum();
    if latencies.is_empty() || lost > 0 {
        return Err(format!("{lost} requests to the other service failed").into());
    }
    latencies.sort_by(f64::total_cmp);
    Ok(Seen {
        p99_us: latencies[(latencies.len() - 1) * 99 / 100],
        requests: api.iter().map(|it| it.latencies.len() + it.failed).sum(),
        failed: api.iter().map(|it| it.failed).sum(),
    })
}

/// What a client has seen.
#[derive(Default)]
struct Asked {
    /// Microseconds.
    latencies: Vec<f64>,
    failed: usize,
}

fn client(gateway: &Member, path: &str, end: Instant) -> Asked {
    let mut asked = Asked::default();
    let Ok(mut connection) = Connection::open(gateway.address(0)) else { return asked };
    let mut due = Instant::now();
    while due < end {
        match connection.ask(&format!("GET {path}"), "") {
            Ok(answer) if answer.status == 200 => {
                asked.latencies.push(due.elapsed().as_secs_f64() * 1e6);
            }
            _ => {
                asked.failed += 1;
                match Connection::open(gateway.address(0)) {
                    Ok(fresh) => connection = fresh,
                    Err(_) => return asked,
                }
            }
        }
        // Requests behind a late answer are late too: their latency counts from when they were due.
        due += EVERY;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    asked
}
