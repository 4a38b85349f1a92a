//! `CL.THROTTLE` in one thread on epoll: a real decision on a table of fixed size that neither
//! expires nor grows, and no other command.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use ahash::RandomState;
use rustix::event::epoll;

use crate::Failure;

const LISTENER: u64 = u64::MAX;
const SLOTS: usize = 1 << 21;
const SECOND: i64 = 1_000_000_000;
const MOST_WORDS: usize = 8;

pub fn serve(port: u16) -> Result<(), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let watch = |fd: &dyn std::os::fd::AsFd, name| {
        epoll::add(&epoll, fd.as_fd(), epoll::EventData::new_u64(name), epoll::EventFlags::IN)
    };
    watch(&listener, LISTENER)?;
    let (mut table, start) = (Table::new(), Instant::now());
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; 1 << 16];
    loop {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        let now = start.elapsed().as_nanos() as i64;
        for event in &events {
            let name = event.data.u64();
            if name == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    watch(&stream, connections.len() as u64)?;
                    connections.push(Some(Connection { stream, input: Vec::new() }));
                }
                continue;
            }
            let connection = &mut connections[name as usize];
            let stays =
                connection.as_mut().is_none_or(|it| it.answer(&mut buffer, &mut table, now));
            if !stays {
                *connection = None;
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// The start of an incomplete command.
    input: Vec<u8>,
}

impl Connection {
    /// Answers the commands that have arrived; false at the end of the connection.
    fn answer(&mut self, buffer: &mut [u8], table: &mut Table, now: i64) -> bool {
        let Ok(length) = self.stream.read(buffer) else { return true };
        self.input.extend_from_slice(&buffer[..length]);
        let (mut out, mut done) = (Vec::new(), 0);
        while let Some((words, used)) = command(&self.input[done..]) {
            table.throttle(&words, now, &mut out);
            done += used;
        }
        self.input.drain(..done);
        length > 0 && (out.is_empty() || self.stream.write_all(&out).is_ok())
    }
}

/// The words of the first command and its length, if it is complete.
fn command(bytes: &[u8]) -> Option<([&[u8]; MOST_WORDS], usize)> {
    let (mut at, mut words) = (0, [&[][..]; MOST_WORDS]);
    let count = number(bytes, b'*', &mut at)?;
    for index in 0..count {
        let length = number(bytes, b'$', &mut at)?;
        let word = bytes.get(at..at + length)?;
        if let Some(place) = words.get_mut(index) {
            *place = word;
        }
        at += length + 2;
    }
    (bytes.len() >= at).then_some((words, at))
}

fn number(bytes: &[u8], kind: u8, at: &mut usize) -> Option<usize> {
    if *bytes.get(*at)? != kind {
        return None;
    }
    *at += 1;
    let mut number = 0;
    while *bytes.get(*at)? != b'\r' {
        number = number * 10 + usize::from(bytes[*at].wrapping_sub(b'0'));
        *at += 1;
    }
    *at += 2;
    Some(number)
}

/// A fingerprint and a time for each key.
struct Table {
    slots: Vec<(u64, i64)>,
    hash: RandomState,
}

impl Table {
    fn new() -> Self {
        Self { slots: vec![(0, 0); SLOTS], hash: RandomState::with_seeds(1, 2, 3, 4) }
    }

    fn throttle(&mut self, words: &[&[u8]; MOST_WORDS], now: i64, out: &mut Vec<u8>) {
        let of = |word: &[u8]| word.iter().fold(0, |all, digit| all * 10 + i64::from(digit - b'0'));
        let [_, key, burst, count, period, ..] = words;
        let (burst, count, period) = (of(burst) + 1, of(count), of(period));
        let fingerprint = self.hash.hash_one(key) | 1;
        let mut at = (fingerprint >> 32) as usize & (SLOTS - 1);
        while self.slots[at].0 != fingerprint && self.slots[at].0 != 0 {
            at = (at + 1) & (SLOTS - 1);
        }
        let interval = period * SECOND / count;
        let (before, most) = (self.slots[at].1.max(now), interval * burst);
        let limited = before + interval - now > most;
        let after = if limited { before } else { before + interval };
        self.slots[at] = (fingerprint, after);
        out.extend_from_slice(b"*5\r\n");
        let retry = if limited { (before + interval - now - most) / SECOND + 1 } else { -1 };
        let remaining = (most - (after - now)) / interval;
        for value in [limited.into(), burst, remaining, retry, (after - now) / SECOND] {
            integer(value, out);
        }
    }
}

fn integer(value: i64, out: &mut Vec<u8>) {
    let (mut digits, mut at, mut rest) = ([0; 20], 20, value.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(if value < 0 { b":-" } else { b":" });
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_decides() {
        let text = b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$1\r\n0\r\n$1\r\n1\r\n$2\r\n60\r\n*";
        let (words, used) = command(text).unwrap();
        assert_eq!(used, text.len() - 1);
        let (mut table, mut out) = (Table::new(), Vec::new());
        table.throttle(&words, 0, &mut out);
        assert_eq!(out, b"*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n");
        out.clear();
        table.throttle(&words, SECOND, &mut out);
        assert_eq!(out, b"*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n:59\r\n");
    }
}
