//! Hostile clients, each of one kind.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::crypto::ring;
use rustls::pki_types::ServerName;

use super::now;
use crate::grpc::GrpcClient;
use crate::http::Connection;
use crate::rls::{Entry, RateLimitDescriptor, RateLimitRequest};

/// Number of connections of a kind that keeps each busy.
const BUSY: usize = 4;

/// Number of connections of a kind that keeps them open.
const OPEN: usize = 200;

/// The kinds of hostile clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Thousands of commands in one write.
    RespPipeline,
    /// Some commands at once on each of many connections.
    RespMany,
    /// Commands of 60 kB.
    RespLarge,
    /// Commands whose answers are never read.
    SlowReader,
    /// Batches of a hundred questions.
    HttpBatch,
    /// Values of 60 kB under limits with 10,000 patterns.
    LongGlob,
    /// Explanations of 64 descriptors, each with a long log.
    Explain,
    /// Bodies larger than allowed.
    HugeBody,
    /// Requests that arrive byte by byte.
    Slowloris,
    /// Connections that are opened and closed.
    Churn,
    /// gRPC calls of 64 descriptors.
    GrpcFlood,
    /// HTTP/2 streams that are reset at once.
    RapidReset,
    /// TLS handshakes.
    TlsHandshakes,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::RespPipeline,
        Self::RespMany,
        Self::RespLarge,
        Self::SlowReader,
        Self::HttpBatch,
        Self::LongGlob,
        Self::Explain,
        Self::HugeBody,
        Self::Slowloris,
        Self::Churn,
        Self::GrpcFlood,
        Self::RapidReset,
        Self::TlsHandshakes,
    ];

    /// The name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RespPipeline => "resp-pipeline",
            Self::RespMany => "resp-many",
            Self::RespLarge => "resp-large",
            Self::SlowReader => "slow-reader",
            Self::HttpBatch => "http-batch",
            Self::LongGlob => "long-glob",
            Self::Explain => "explain",
            Self::HugeBody => "huge-body",
            Self::Slowloris => "slowloris",
            Self::Churn => "churn",
            Self::GrpcFlood => "grpc-flood",
            Self::RapidReset => "rapid-reset",
            Self::TlsHandshakes => "tls-handshakes",
        }
    }

    /// The description in the table.
    pub const fn about(self) -> &'static str {
        match self {
            Self::RespPipeline => "RESP, 4 connections, 1,000 commands in one write",
            Self::RespMany => "RESP, 200 connections, 30 commands in one write on each",
            Self::RespLarge => "RESP, 4 connections, commands of 60 kB",
            Self::SlowReader => "RESP, 200 connections that send and never read",
            Self::HttpBatch => "HTTP, 4 connections, batches of 100 questions",
            Self::LongGlob => "HTTP, 4 connections, values of 60 kB, 10,000 patterns",
            Self::Explain => "HTTP, 4 connections, explanations of 64 descriptors",
            Self::HugeBody => "HTTP, 4 connections, bodies of 1 MB",
            Self::Slowloris => "HTTP, 200 connections, one byte of a head at a time",
            Self::Churn => "RESP and HTTP, connections opened and closed",
            Self::GrpcFlood => "gRPC, 4 connections, calls of 64 descriptors",
            Self::RapidReset => "HTTP/2, 4 connections, streams reset at once",
            Self::TlsHandshakes => "TLS, 4 connections at a time, handshakes",
        }
    }

    /// The kind with this name in options.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// State that all connections of a hostile client share.
struct Hostile {
    kind: Kind,
    resp: SocketAddr,
    http: SocketAddr,
    grpc: SocketAddr,
    end: Instant,
    done: AtomicU64,
}

/// Attacks the listeners for RESP, HTTP and gRPC for this long; returns the number of attacks.
pub fn attack(kind: Kind, [resp, http, grpc]: [SocketAddr; 3], length: Duration) -> u64 {
    let end = now() + length;
    let hostile = Hostile { kind, resp, http, grpc, end, done: AtomicU64::new(0) };
    thread::scope(|scope| {
        for number in 0..BUSY {
            let hostile = &hostile;
            scope.spawn(move || {
                while hostile.goes_on() {
                    // A closed connection is opened again, at a rate that is not itself an attack.
                    if hostile.run(number).is_err() && hostile.goes_on() {
                        thread::park_timeout(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    hostile.done.load(Ordering::Relaxed)
}

impl Hostile {
    fn goes_on(&self) -> bool {
        now() < self.end
    }

    fn count(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// Uses one connection after the other, or many at once, until the peer closes or the time is
    /// over.
    fn run(&self, number: usize) -> io::Result<()> {
        match self.kind {
            Kind::RespPipeline => self.resp(&THROTTLE.repeat(1_000), 6_000),
            Kind::RespMany => self.many(),
            Kind::RespLarge => {
                let value = "x".repeat(60_000);
                let command = format!("*2\r\n$4\r\nECHO\r\n${}\r\n{value}\r\n", value.len());
                self.resp(&command, 2)
            }
            Kind::SlowReader => self.never_read(),
            Kind::HttpBatch => {
                let question = |n: usize| {
                    let value = format!("{number}-{n}-{}", "x".repeat(500));
                    format!("{{\"domain\":\"hostile\",\"descriptors\":[{{\"user\":\"{value}\"}}]}}")
                };
                let questions: Vec<String> = (0..100).map(question).collect();
                self.web("POST /v1/batch", &format!("{{\"questions\":[{}]}}", questions.join(",")))
            }
            Kind::LongGlob => {
                // A value that almost matches every pattern, repeatedly.
                let value = "/item0000x/item1234".repeat(3_100);
                let sides = format!("[{{\"path\":\"{value}\"}}]");
                self.web("POST /v1/check", &policy_question(&sides))
            }
            Kind::Explain => {
                let side = |n: usize| format!("{{\"log\":\"{number}-{n}\"}}");
                let sides: Vec<String> = (0..64).map(side).collect();
                let body = policy_question(&format!("[{}]", sides.join(",")));
                let mut connection = Connection::open(self.http)?;
                for _ in 0..100 {
                    connection.ask("POST /v1/check", &body)?;
                }
                self.web("POST /v1/explain", &body)
            }
            Kind::HugeBody => {
                let mut connection = Connection::open(self.http)?;
                connection.send("POST /v1/check", &"x".repeat(1 << 20))?;
                self.count(1);
                connection.answer().map(drop)
            }
            Kind::Slowloris => self.byte_by_byte(),
            Kind::Churn => self.open_and_close(),
            Kind::GrpcFlood => self.flood(number),
            Kind::RapidReset => self.reset(),
            Kind::TlsHandshakes => self.handshake(),
        }
    }

    /// Sends commands, and reads this many lines of replies.
    fn resp(&self, commands: &str, lines: usize) -> io::Result<()> {
        let mut socket = connect(self.resp)?;
        let mut writer = socket.try_clone()?;
        let mut piece = vec![0; 64 << 10];
        while self.goes_on() {
            let mut left = lines;
            thread::scope(|scope| {
                let writing = scope.spawn(|| writer.write_all(commands.as_bytes()));
                while left > 0 {
                    let length = socket.read(&mut piece)?;
                    if length == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let read = piece[..length].iter().filter(|byte| **byte == b'\n').count();
                    left = left.saturating_sub(read);
                }
                writing.join().unwrap_or(Err(io::ErrorKind::BrokenPipe.into()))
            })?;
            self.count(1);
        }
        Ok(())
    }

    /// Repeats a request on one connection.
    fn web(&self, call: &str, body: &str) -> io::Result<()> {
        let mut connection = Connection::open(self.http)?;
        while self.goes_on() {
            let answer = connection.ask(call, body)?;
            if !matches!(answer.status, 200 | 429) {
                return Err(io::Error::other(answer.body));
            }
            self.count(1);
        }
        Ok(())
    }

    /// Many connections that each send a short pipeline, and read the replies once all have sent.
    fn many(&self) -> io::Result<()> {
        let mut sockets = self.open(self.resp)?;
        let commands = THROTTLE.repeat(30);
        let mut piece = vec![0; 64 << 10];
        while self.goes_on() {
            for socket in &mut sockets {
                socket.write_all(commands.as_bytes())?;
                self.count(1);
            }
            for socket in &mut sockets {
                let mut lines = 0;
                while lines < 30 * 6 {
                    let length = socket.read(&mut piece)?;
                    if length == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    lines += piece[..length].iter().filter(|byte| **byte == b'\n').count();
                }
            }
        }
        Ok(())
    }

    /// Many connections that send as much as the peer takes, and read nothing.
    fn never_read(&self) -> io::Result<()> {
        let mut sockets = self.open(self.resp)?;
        for socket in &sockets {
            socket.set_nonblocking(true)?;
        }
        let commands = "COMMAND\r\nINFO\r\n".repeat(500);
        while self.goes_on() {
            for socket in &mut sockets {
                match socket.write(commands.as_bytes()) {
                    Ok(_) => self.count(1),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Many connections that send one byte of a head at a time.
    fn byte_by_byte(&self) -> io::Result<()> {
        let mut sockets = self.open(self.http)?;
        let head = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nfiller: {}", "x".repeat(60_000));
        for byte in head.as_bytes() {
            for socket in &mut sockets {
                socket.write_all(&[*byte])?;
                self.count(1);
            }
            if !self.goes_on() {
                return Ok(());
            }
            thread::park_timeout(Duration::from_millis(20));
        }
        Ok(())
    }

    fn open(&self, address: SocketAddr) -> io::Result<Vec<TcpStream>> {
        (0..OPEN / BUSY).map(|_| connect(address)).collect()
    }

    fn open_and_close(&self) -> io::Result<()> {
        while self.goes_on() {
            let mut socket = connect(self.resp)?;
            socket.write_all(b"PING\r\n")?;
            socket.read_exact(&mut [0; 7])?;
            drop(connect(self.http)?);
            self.count(2);
        }
        Ok(())
    }

    fn flood(&self, number: usize) -> io::Result<()> {
        let descriptor = |n: usize| {
            let value = format!("{number}-{n}-{}", "x".repeat(900));
            let entries = vec![Entry { key: "path".into(), value }];
            RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
        };
        let request = RateLimitRequest {
            domain: "hostile".into(),
            descriptors: (0..64).map(descriptor).collect(),
            hits_addend: 1,
        };
        let mut client = GrpcClient::connect(self.grpc);
        while self.goes_on() {
            client.should_rate_limit(&request).map_err(|failed| io::Error::other(failed.text))?;
            self.count(1);
        }
        Ok(())
    }

    /// Opens streams and resets each at once, until the server ends the connection.
    fn reset(&self) -> io::Result<()> {
        let mut socket = connect(self.grpc)?;
        socket.set_read_timeout(Some(Duration::from_millis(1)))?;
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        socket.write_all(&frame(4, 0, 0, &[]))?;
        let mut piece = vec![0; 64 << 10];
        let mut stream = 1;
        while self.goes_on() {
            let mut frames = Vec::new();
            for _ in 0..100 {
                frames.extend(frame(1, 4, stream, HEAD));
                frames.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
                stream += 2;
            }
            socket.write_all(&frames)?;
            self.count(100);
            match socket.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if !is_late(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Handshakes, each on a connection of its own; no certificate is checked.
    fn handshake(&self) -> io::Result<()> {
        let config = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let (config, name) = (Arc::new(config), ServerName::from(self.grpc.ip()));
        while self.goes_on() {
            let mut socket = connect(self.grpc)?;
            let mut tls = rustls::ClientConnection::new(Arc::clone(&config), name.clone())
                .map_err(io::Error::other)?;
            // The server has signed once its first messages have arrived.
            let _ = tls.complete_io(&mut socket);
            self.count(1);
        }
        Ok(())
    }
}

/// A decision, with a reply of six lines.
const THROTTLE: &str =
    "*5\r\n$11\r\nCL.THROTTLE\r\n$7\r\nhostile\r\n$2\r\n99\r\n$2\r\n99\r\n$2\r\n60\r\n";

/// A request for the rate limit service without a body: indexed fields, and three literals.
const HEAD: &[u8] = b"\x83\x86\x04\x01/\x01\x01x\x0f\x10\x10application/grpc";

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn policy_question(descriptors: &str) -> String {
    format!("{{\"domain\":\"hostile\",\"descriptors\":{descriptors}}}")
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection with a timeout.
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.set_write_timeout(Some(Duration::from_secs(10)))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}
