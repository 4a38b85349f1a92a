//! A real Envoy, and a service behind it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::folder::Folder;
use super::ports;
use super::process::Process;
use super::waiting::comes_true;

/// Time for Envoy to start, also on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of starts, because a free port may be taken before it is used.
const MOST_STARTS: u32 = 5;

/// An Envoy with `examples/envoy/envoy.yaml`, stopped and removed on drop.
#[derive(Debug)]
pub struct Envoy {
    // Dropped first: a folder whose server still writes cannot be removed.
    _process: Process,
    _folder: Folder,
    front: SocketAddr,
    admin: SocketAddr,
}

/// Concurrent requests through an Envoy, each on a separate connection.
#[derive(Debug)]
pub struct Burst(Vec<TcpStream>);

impl Burst {
    /// Waits for all answers, and returns their status codes.
    ///
    /// # Panics
    /// If one is not answered.
    pub fn statuses(self) -> Vec<u16> {
        let answers = self.0.into_iter().map(|socket| answer(socket).map(|answer| answer.status));
        answers.collect::<Option<_>>().expect("Envoy answers whatever happens behind it")
    }
}

/// An answer over HTTP/1.1.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpAnswer {
    /// The value of the header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}

impl Envoy {
    /// Starts Envoy with this configuration, in which the ports of the example are replaced by
    /// those of `service` and `daemon`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &Path, config: &str, service: SocketAddr, daemon: SocketAddr) -> Self {
        for _ in 0..MOST_STARTS {
            let (front, admin) = (ports::free(), ports::free());
            let config =
                [(10_000, front), (9_901, admin), (8_000, service.port()), (8_081, daemon.port())]
                    .iter()
                    .fold(config.to_owned(), |config, (from, to)| {
                        let from = format!("port_value: {from}}}");
                        assert!(config.contains(&from), "the example has no {from}");
                        config.replace(&from, &format!("port_value:  {to}}}"))
                    });
            let folder = Folder::create();
            let file = folder.write("envoy.yaml", &config).display().to_string();
            let arguments =
                ["-c", &file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warn"]
                    .map(String::from);
            let mut process = Process::start(program, &arguments, &[], &folder);
            let (front, admin) = (local(front), local(admin));
            let is_ready = comes_true(START_LIMIT, || {
                let ready = get(admin, "/ready", &[]);
                ready.is_some_and(|answer| answer.status == 200) || !process.is_running()
            });
            if is_ready && process.is_running() {
                return Self { _process: process, _folder: folder, front, admin };
            }
            eprintln!("{}", folder.log_tail());
        }
        panic!("Envoy does not start");
    }

    /// Envoy's address.
    pub const fn address(&self) -> SocketAddr {
        self.front
    }

    /// Requests a page with these headers.
    ///
    /// # Panics
    /// If there is no answer.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        get(self.front, path, headers).expect("Envoy answers whatever happens behind it")
    }

    /// Sends `count` requests for the root page at once, and waits for no answer.
    ///
    /// # Panics
    /// If a request cannot be sent.
    pub fn burst(&self, count: usize, headers: &[(&str, &str)]) -> Burst {
        self.burst_at("/", count, headers)
    }

    /// Like [`Envoy::burst`], for another page.
    ///
    /// # Panics
    /// If a request cannot be sent.
    pub fn burst_at(&self, path: &str, count: usize, headers: &[(&str, &str)]) -> Burst {
        let connect = |_| TcpStream::connect(self.front).expect("Envoy listens");
        let mut sockets: Vec<TcpStream> = (0..count).map(connect).collect();
        for socket in &mut sockets {
            ask(socket, path, headers).expect("Envoy reads");
        }
        Burst(sockets)
    }

    /// A value of Envoy's statistics, such as `cluster.tidegate.upstream_rq_active`; 0 if there is
    /// none with that name.
    pub fn stat(&self, name: &str) -> u64 {
        let Some(answer) = get(self.admin, &format!("/stats?filter={name}"), &[]) else { return 0 };
        // Other lines have other names, or are lengths of chunks.
        let values =
            answer.body.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        values.filter_map(|value| value.trim().parse().ok()).next().unwrap_or_default()
    }
}

/// A service that answers `hello`, on a thread that ends with the test process.
///
/// # Panics
/// If no port is free.
pub fn service() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || greet(socket));
        }
    });
    address
}

/// Requests here have no bodies.
fn greet(mut socket: TcpStream) {
    let Ok(reading) = socket.try_clone() else { return };
    let mut lines = BufReader::new(reading).lines();
    while let Some(Ok(line)) = lines.next() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        if line.is_empty() && socket.write_all(answer).is_err() {
            return;
        }
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Option<HttpAnswer> {
    let mut socket = TcpStream::connect(address).ok()?;
    ask(&mut socket, path, headers).ok()?;
    answer(socket)
}

fn ask(socket: &mut TcpStream, path: &str, headers: &[(&str, &str)]) -> io::Result<()> {
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n");
    socket.write_all(request.as_bytes())
}

fn answer(mut socket: TcpStream) -> Option<HttpAnswer> {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    };
    Some(HttpAnswer { status, headers: lines.filter_map(header).collect(), body: body.into() })
}
