//! Clients that send requests, and clients that disconnect in the middle of one.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread::{self, Scope};
use std::time::Duration;

use fastrand::Rng;
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http::{self, Connection};
use tidegate_tests::rls::RateLimitRequest;

use super::daemon::Daemon;
use super::load::{Load, now};
use super::reload::is_some_limit;

/// Number of keys in use at a time. The window moves, so that all keys are new after a while.
const KEYS: u64 = 1_000_000;

/// Requests in one write.
const BATCH: u64 = 50;

/// Starts all clients.
pub(crate) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    load: &'scope Load,
    daemon: &'scope Daemon,
) {
    for seed in 0..2 {
        scope.spawn(move || ask_redis(load, daemon.resp, seed));
    }
    scope.spawn(move || ask_http(load, daemon.http));
    scope.spawn(move || ask_grpc(load, daemon.grpc));
    scope.spawn(move || vanish(load, daemon));
}

/// A key of the moving window.
fn key(rng: &mut Rng, made: u64) -> u64 {
    made / 2 + rng.u64(..KEYS)
}

fn ask_redis(load: &Load, address: SocketAddr, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        let socket = http::connect(address);
        for _ in 0..rng.u32(1..200) {
            if let Err(error) = ask_batch(&socket, &mut rng, made) {
                return load.tell(&format!("RESP: {error}"));
            }
            made += BATCH;
            load.resp.fetch_add(BATCH, Ordering::Relaxed);
            load.pace(start, made);
            if !load.goes_on() {
                return;
            }
        }
    }
}

fn ask_batch(mut socket: &TcpStream, rng: &mut Rng, made: u64) -> io::Result<()> {
    let mut batch = String::new();
    for number in 0..BATCH {
        let key = key(rng, made);
        batch += &match number % 2 {
            0 => format!("CL.THROTTLE k{key} 15 30 60\r\n"),
            _ => format!("TG.CHECK soak user u{key}\r\n"),
        };
    }
    socket.write_all(batch.as_bytes())?;
    let mut lines = BufReader::new(socket).lines();
    for number in 0..BATCH {
        // The name of a limit is a line for its length and one for itself.
        let (kind, count) = if number % 2 == 0 { ("*5", 6) } else { ("*6", 8) };
        let mut reply = Vec::with_capacity(count);
        for _ in 0..count {
            reply.push(lines.next().ok_or(io::ErrorKind::UnexpectedEof)??);
        }
        let number_at = |at: usize| reply[at].strip_prefix(':').and_then(|it| it.parse().ok());
        let (limit, left): (Option<u64>, Option<u64>) = (number_at(2), number_at(3));
        let is_limit = |limit| if kind == "*5" { limit == 16 } else { is_some_limit(limit) };
        if reply[0] != kind || !limit.is_some_and(is_limit) || left > limit {
            return Err(io::Error::other(format!("answered {reply:?}")));
        }
    }
    Ok(())
}

fn ask_http(load: &Load, address: SocketAddr) {
    let mut rng = Rng::with_seed(7);
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        let connection = Connection::open(address).and_then(|mut connection| {
            for _ in 0..rng.u32(1..1_000) {
                let key = key(&mut rng, made);
                let body = format!("{{\"key\":\"h{key}\",\"rate\":\"100/10s\"}}");
                let answer = connection.ask("POST /v1/check", &body)?;
                if ![200, 429].contains(&answer.status) || !answer.body.starts_with('{') {
                    return Err(io::Error::other(format!("answered {answer:?}")));
                }
                made += 1;
                load.http.fetch_add(1, Ordering::Relaxed);
                load.pace(start, made);
                if !load.goes_on() {
                    break;
                }
            }
            Ok(())
        });
        if let Err(error) = connection {
            load.tell(&format!("HTTP: {error}"));
        }
    }
}

fn ask_grpc(load: &Load, address: SocketAddr) {
    let mut rng = Rng::with_seed(8);
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        // The client panics on a malformed gRPC answer, which also counts as a wrong answer.
        let connection = catch_unwind(AssertUnwindSafe(|| {
            let mut client = GrpcClient::connect(address);
            for _ in 0..rng.u32(1..1_000) {
                let answer = client.should_rate_limit(&about(key(&mut rng, made)));
                let answer = answer.unwrap_or_else(|failed| panic!("{failed:?}"));
                let limits = answer.statuses.iter().filter_map(|it| it.current_limit.as_ref());
                let limits: Vec<u64> = limits.map(|it| it.requests_per_unit.into()).collect();
                let [limit] = *limits else { panic!("answered {answer:?}") };
                assert!(is_some_limit(limit), "answered {answer:?}");
                made += 1;
                load.grpc.fetch_add(1, Ordering::Relaxed);
                load.pace(start, made);
                if !load.goes_on() {
                    break;
                }
            }
        }));
        if connection.is_err() {
            load.tell(&"gRPC: a wrong answer, or none");
        }
    }
}

fn about(key: u64) -> RateLimitRequest {
    RateLimitRequest::one("soak", "user", &format!("g{key}"))
}

/// Clients that begin a request and disconnect.
fn vanish(load: &Load, daemon: &Daemon) {
    let mut rng = Rng::with_seed(9);
    let beginnings: [&[u8]; 6] = [
        b"",
        b"*5\r\n$11\r\nCL.TH",
        b"CL.THROTTLE v 1 1 1\r\n",
        b"POST /v1/check HTTP/1.1\r\ncon",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x09\x01\x04\0\0",
    ];
    let addresses = [daemon.resp, daemon.http, daemon.grpc];
    while load.goes_on() {
        let went = catch_unwind(AssertUnwindSafe(|| {
            if rng.u32(..8) == 0 {
                // The missing answer is intended.
                let _ = GrpcClient::connect(daemon.grpc).ask_and_leave(&about(rng.u64(..KEYS)), 3);
            } else {
                let mut socket = http::connect(addresses[rng.usize(..addresses.len())]);
                let _ = socket.write_all(beginnings[rng.usize(..beginnings.len())]);
            }
        }));
        if went.is_err() {
            load.tell(&"a new client did not get in");
        }
        load.vanished.fetch_add(1, Ordering::Relaxed);
        thread::park_timeout(Duration::from_millis(20));
    }
}
