//! Normal clients in a separate process: each sends one request at a time, at a steady rate. They
//! run at real-time priority where the system allows it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::{now, share};
use crate::http::{self, Connection};
use crate::servers::our_program;

/// Clients of each protocol; connections are distributed over the workers.
const CLIENTS: usize = 4;

/// The time between two requests of one client.
const PERIOD: Duration = Duration::from_millis(8);

/// The results of the normal clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct NormalStats {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// The 99th percentile of the answer times.
    pub p99: Duration,
}

/// Runs the normal clients in a separate process.
///
/// # Panics
/// If the process cannot be started, or prints no result.
pub(super) fn run(transports: &[SocketAddr; 3], length: Duration) -> NormalStats {
    let program = our_program("hostile");
    let mut command = Command::new(&program);
    if share::has_priorities() {
        command = Command::new("chrt");
        command.args(["--rr", share::NORMAL]).arg(&program);
    }
    command.arg("normal").args(transports.map(|transport| transport.to_string()));
    let reply = command.arg(length.as_millis().to_string()).output().expect("it was built");
    let text = String::from_utf8_lossy(&reply.stdout);
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [answered, failed, micros] = numbers[..] else { panic!("normal clients told {reply:?}") };
    NormalStats { answered, failed, p99: Duration::from_micros(micros) }
}

/// Sends requests for this long. If a request is late because the one before it was slow, its time
/// counts from when it was due.
pub fn ask(transports: &[SocketAddr; 3], length: Duration) -> NormalStats {
    let mut times: Vec<Duration> = Vec::new();
    let mut failed = 0;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS * 2)
            .map(|number| {
                let offset = PERIOD * number as u32 / (CLIENTS as u32 * 2);
                scope.spawn(move || match number % 2 {
                    0 => client(offset, length, resp(transports[0], number)),
                    _ => client(offset, length, web(transports[1], number)),
                })
            })
            .collect();
        for client in clients {
            let (seen, errors) = client.join().expect("a client does not panic");
            times.extend(seen);
            failed += errors;
        }
    });
    times.sort_unstable();
    let place = (times.len() * 99).div_ceil(100).saturating_sub(1);
    let p99 = times.get(place).copied().unwrap_or_default();
    NormalStats { answered: times.len() as u64, failed, p99 }
}

fn client(
    offset: Duration,
    length: Duration,
    mut ask: impl FnMut() -> io::Result<()>,
) -> (Vec<Duration>, u64) {
    let (mut times, mut failed) = (Vec::new(), 0);
    let mut due = now() + offset;
    let end = due + length;
    while due < end {
        thread::park_timeout(due.saturating_duration_since(now()));
        match ask() {
            Ok(()) => times.push(due.elapsed()),
            Err(_) => failed += 1,
        }
        due += PERIOD;
    }
    (times, failed)
}

/// One decision over the Redis protocol, on a kept connection.
fn resp(address: SocketAddr, number: usize) -> impl FnMut() -> io::Result<()> {
    let mut socket: Option<TcpStream> = None;
    move || {
        let mut open = match socket.take() {
            Some(open) => open,
            None => http::connect(address),
        };
        let request = format!("CL.THROTTLE normal:{number} 999999 999999 60\r\n");
        open.write_all(request.as_bytes())?;
        let (mut answer, mut lines) = (Vec::new(), 0);
        // An array of five numbers, each on a separate line.
        while lines < 6 {
            let mut piece = [0; 256];
            let length = open.read(&mut piece)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&piece[..length]);
            lines = answer.iter().filter(|byte| **byte == b'\n').count();
        }
        if !answer.starts_with(b"*5\r\n:0\r\n") {
            return Err(io::Error::other(String::from_utf8_lossy(&answer)));
        }
        socket = Some(open);
        Ok(())
    }
}

/// One decision over HTTP, on a kept connection.
fn web(address: SocketAddr, number: usize) -> impl FnMut() -> io::Result<()> {
    let mut connection: Option<Connection> = None;
    let body = format!("{{\"domain\":\"hostile\",\"descriptors\":[{{\"user\":\"u{number}\"}}]}}");
    move || {
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(address)?,
        };
        let answer = open.ask("POST /v1/check", &body)?;
        if answer.status != 200 {
            return Err(io::Error::other(answer.body));
        }
        connection = Some(open);
        Ok(())
    }
}
