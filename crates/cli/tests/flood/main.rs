//! Floods: thousands of slow clients, more clients than file descriptors, and a shutdown under load.

mod frames;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http::{self, Connection};

/// Timeout of every wait, far longer than any step takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Incomplete requests, one per listener.
const BEGINNINGS: [(&str, &[u8]); 3] = [
    ("RESP", b"*5\r\n$11\r\nCL.THROT"),
    ("HTTP", b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-len"),
    ("gRPC", b"PRI * HTTP/2.0\r\n\r\nSM"),
];

struct Daemon {
    child: Child,
    listeners: Vec<(String, String)>,
}

impl Daemon {
    fn start(program: &mut Command) -> Self {
        let any = "127.0.0.1:0";
        let mut child = program
            .args(["--resp", any, "--http", any, "--grpc", any, "--admin", any])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = out.lines().map(|line| line.expect("text"));
        let listeners = lines.filter_map(|line| {
            let (name, address) = line.strip_prefix("listening for ")?.split_once(" on ")?;
            Some((name.to_owned(), address.to_owned()))
        });
        let listeners = listeners.take(BEGINNINGS.len() + 1).collect();
        Self { child, listeners }
    }

    fn address(&self, name: &str) -> &str {
        &self.listeners.iter().find(|(protocol, _)| protocol == name).expect(name).1
    }

    fn connect(&self, name: &str) -> std::io::Result<TcpStream> {
        let socket = TcpStream::connect(self.address(name))?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(socket)
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the daemon has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    program.arg("serve");
    program
}

/// A normal client's round trip.
fn ping(socket: &mut TcpStream) -> bool {
    let mut answer = [0; 7];
    socket.write_all(b"PING\r\n").is_ok()
        && socket.read_exact(&mut answer).is_ok()
        && answer == *b"+PONG\r\n"
}

const QUESTION: &str = r#"{"key":"k","rate":"1000000/s"}"#;

fn check(daemon: &Daemon) -> bool {
    let Ok(mut connection) = Connection::open(daemon.address("HTTP")) else { return false };
    connection.ask("POST /v1/check", QUESTION).is_ok_and(|answer| answer.status == 200)
}

/// Raises the limit of file descriptors as far as it goes, and returns it.
fn raise_file_limit() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, ..limits };
    setrlimit(Resource::Nofile, most).expect("the soft limit may rise to the hard one");
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Three thousand clients connect before the daemon accepts one, as far as the system allows.
#[test]
fn thousands_may_connect_at_once() {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux");
    let count = most.trim().parse::<usize>().expect("a number").min(3_000);
    assert!(raise_file_limit() > 4_000, "too few file descriptors to try this");
    let daemon = Daemon::start(&mut serve());
    let address = daemon.address("RESP").parse().expect("an address");
    kill_process(Pid::from_child(&daemon.child), Signal::STOP).expect("it runs");
    let connected: Vec<_> = (0..count)
        .map(|number| {
            let socket = TcpStream::connect_timeout(&address, TIMEOUT / 6);
            socket.unwrap_or_else(|error| panic!("number {number}: {error}"))
        })
        .collect();
    kill_process(Pid::from_child(&daemon.child), Signal::CONT).expect("it runs");
    for mut socket in connected {
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert!(ping(&mut socket));
    }
}

#[test]
fn ten_thousand_slow_clients_delay_no_other_client() {
    let open = raise_file_limit();
    let slow = usize::try_from(open.saturating_sub(500).min(10_000)).expect("a small number");
    assert!(slow >= 2_000, "{open} file descriptors are too few to try this");
    let daemon = Daemon::start(&mut serve());
    let before = daemon.resident_kib();
    let mut steady = daemon.connect("RESP").unwrap();
    let mut held = Vec::with_capacity(slow);
    for number in 0..slow {
        let (name, beginning) = BEGINNINGS[number % BEGINNINGS.len()];
        let mut socket = daemon.connect(name).unwrap();
        socket.write_all(beginning).unwrap();
        held.push(socket);
        if number % 100 == 0 {
            assert!(ping(&mut steady), "after {number} slow ones");
            assert!(ping(&mut daemon.connect("RESP").unwrap()), "a new one after {number}");
            assert!(check(&daemon), "over HTTP after {number}");
        }
    }
    let grown = daemon.resident_kib().saturating_sub(before);
    println!("{slow} slow connections take {grown} KiB");
    assert!(grown < 32 * slow as u64, "{grown} KiB for {slow} connections");
}

/// The daemon may open 64 files; three times as many clients connect and stay.
#[test]
fn more_clients_than_descriptors_lose_no_answer() {
    let program = env!("CARGO_BIN_EXE_tidegate");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64 && exec \"$0\" serve \"$@\"", program, "--threads", "1"]);
    let daemon = Daemon::start(&mut shell);
    let mut steady = daemon.connect("RESP").unwrap();
    assert!(ping(&mut steady));
    let mut held: Vec<TcpStream> = (0..192).map(|_| daemon.connect("RESP").unwrap()).collect();
    let answered = held.iter_mut().filter_map(|socket| ping(socket).then_some(())).count();
    assert!((8..=32).contains(&answered), "{answered} of 192 found a place");
    assert!(ping(&mut steady), "an earlier connection is still served");
    // Other listeners have descriptors of their own: the admin API and health checks answer.
    for listener in ["admin", "HTTP"] {
        let answer = http::get(daemon.address(listener), "/healthz", "");
        assert_eq!(answer.status, 200, "{listener}");
    }
    let grpc = daemon.address("gRPC").parse().expect("an address");
    let health = GrpcClient::connect(grpc).call("/grpc.health.v1.Health/Check", b"");
    assert_eq!(health.as_deref(), Ok(&[8, 1][..]), "SERVING");
    drop(held);
    // Their descriptors are free once the daemon has closed them.
    let is_answered = || daemon.connect("RESP").is_ok_and(|mut socket| ping(&mut socket));
    assert!((0..1_000).any(|_| is_answered()), "a new one is answered again");
}

/// Clients that connected and sent a request before the daemon accepted them are answered before it stops.
#[test]
fn shutdown_answers_connections_in_the_backlog() {
    let mut daemon = Daemon::start(&mut serve());
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::STOP).expect("it runs");
    let asked: Vec<(&str, TcpStream)> = (0..40)
        .map(|number| {
            let (protocol, question): (_, &[u8]) = match number % 2 {
                0 => ("RESP", b"PING\r\n"),
                _ => ("HTTP", b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
            };
            let mut socket = daemon.connect(protocol).unwrap();
            socket.write_all(question).unwrap();
            (protocol, socket)
        })
        .collect();
    kill_process(pid, Signal::TERM).expect("it runs");
    kill_process(pid, Signal::CONT).expect("it runs");
    for (number, (protocol, mut socket)) in asked.into_iter().enumerate() {
        let mut answer = String::new();
        let read = socket.read_to_string(&mut answer);
        assert!(read.is_ok_and(|read| read > 0), "{protocol} number {number} got no answer");
    }
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
}

#[test]
fn shutdown_under_load_loses_no_answer() {
    const CLIENTS: usize = 16;
    let mut daemon = Daemon::start(&mut serve());
    let asked: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut socket = daemon.connect("RESP").unwrap();
            let (ready, started) = mpsc::channel();
            let client = thread::spawn(move || {
                let mut answers = 0;
                loop {
                    // An answer to what was read, or none because it was not read: never a part.
                    let (mut answer, mut read) = ([0; 7], 0);
                    if socket.write_all(b"PING\r\n").is_err() {
                        return answers;
                    }
                    while read < answer.len() {
                        match socket.read(&mut answer[read..]) {
                            Ok(0) | Err(_) => {
                                assert_eq!(read, 0, "an answer was cut off");
                                return answers;
                            }
                            Ok(more) => read += more,
                        }
                    }
                    assert_eq!(&answer, b"+PONG\r\n");
                    answers += 1;
                    if answers == 100 {
                        let _ = ready.send(());
                    }
                }
            });
            (client, started)
        })
        .collect();
    for (_, started) in &asked {
        started.recv_timeout(TIMEOUT).expect("there is load");
    }
    kill_process(Pid::from_child(&daemon.child), Signal::TERM).expect("it runs");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    for (client, _) in asked {
        assert!(client.join().expect("no answer was cut off") >= 100);
    }
}

/// Observations of one HTTP client.
#[derive(Debug, Default)]
struct Seen {
    answered: u64,
    /// Sent on a connection that the server had not announced to close, and not answered.
    lost: u64,
    /// The smallest `remaining` of its responses.
    least_left: u64,
}

/// Sends requests on one connection until the server announces `Connection: close`; signals when there is load.
fn ask_until_the_end(address: &str, ready: &mpsc::Sender<()>) -> Seen {
    // One bucket for all, which is never refilled: `remaining` tells how many requests were decided.
    let question = r#"{"key":"all","rate":"1/h","burst":500000}"#;
    let mut connection = Connection::open(address).expect("it listens");
    let mut seen = Seen { least_left: u64::MAX, ..Seen::default() };
    loop {
        let Ok(answer) = connection.ask("POST /v1/check", question) else {
            seen.lost += 1;
            return seen;
        };
        assert_eq!(answer.status, 200, "{answer:?}");
        let left = answer.body.split("\"remaining\":").nth(1).expect("what is left");
        let left =
            left.split(|it: char| !it.is_ascii_digit()).next().and_then(|it| it.parse().ok());
        seen.least_left = seen.least_left.min(left.expect("a number"));
        seen.answered += 1;
        if seen.answered == 50 {
            let _ = ready.send(());
        }
        if answer.header("connection") == Some("close") {
            return seen;
        }
    }
}

/// Every request is answered until an answer says `Connection: close`, also those that are sent after the
/// signal; and none is charged that is not.
#[test]
fn shutdown_under_load_answers_every_http_request() {
    const CLIENTS: usize = 16;
    let mut daemon = Daemon::start(&mut serve());
    let (ready, started) = mpsc::channel();
    let seen: Vec<Seen> = thread::scope(|scope| {
        let daemon = &daemon;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let ready = ready.clone();
                scope.spawn(move || ask_until_the_end(daemon.address("HTTP"), &ready))
            })
            .collect();
        for _ in 0..CLIENTS {
            started.recv_timeout(TIMEOUT).expect("there is load");
        }
        kill_process(Pid::from_child(&daemon.child), Signal::TERM).expect("it runs");
        clients.into_iter().map(|client| client.join().expect("no wrong answer")).collect()
    });
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    let answered: u64 = seen.iter().map(|seen| seen.answered).sum();
    let least_left = seen.iter().map(|seen| seen.least_left).min().expect("clients");
    println!("{answered} answered, {least_left} left");
    assert_eq!(seen.iter().map(|seen| seen.lost).sum::<u64>(), 0, "{seen:?}");
    assert!(answered >= 50 * CLIENTS as u64);
    assert_eq!(500_000 - least_left, answered, "charged and answered");
}
