//! A GiB in either direction through the gateway, at flat memory.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use tidegate_tests::http::{Answer, connect};
use tidegate_tests::servers::{Daemon, DaemonSetup, our_program};

const GIB: u64 = 1 << 30;

/// What the daemon may take meanwhile: buffers of two connections, and what the allocator keeps.
const MOST_KIB: u64 = 16 << 10;

/// Counts the bytes of a POST, and answers a GET with a GiB.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || serve(socket));
        }
    });
    address
}

fn serve(mut socket: TcpStream) {
    let mut reader = BufReader::with_capacity(1 << 18, socket.try_clone().expect("a socket"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).is_ok_and(|read| read == 0) {
            return;
        }
    }
    if head.starts_with("POST") {
        let read = std::io::copy(&mut reader.take(GIB), &mut std::io::sink()).unwrap_or(0);
        let text = read.to_string();
        let length = text.len();
        let _ = write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
        return;
    }
    let _ = write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: {GIB}\r\n\r\n");
    let _ = std::io::copy(&mut std::io::repeat(b'a').take(GIB), &mut socket);
}

/// The most memory that a process has had at once.
fn peak_kib(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_gib_goes_up_and_comes_down_at_flat_memory() {
    let upstream = format!("http://{}", service());
    let program = our_program("tidegate");
    let daemon = Daemon::start(DaemonSetup {
        program: &program,
        policy: "domain: a\ndescriptors: []\n",
        store: "memory",
        settings: &[
            ("TIDEGATE__LISTEN__GATEWAY__ADDRESS", "127.0.0.1:0"),
            ("TIDEGATE__GATEWAY__UPSTREAM", &upstream),
        ],
        has_fake_clock: false,
    });
    let (gateway, before) = (daemon.transport("gateway"), daemon.resident_kib());

    let mut socket = connect(gateway);
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {GIB}\r\n");
    write!(socket, "{head}Connection: close\r\n\r\n").expect("sent");
    let sent = std::io::copy(&mut std::io::repeat(b'a').take(GIB), &mut socket);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert_eq!((sent.ok(), Answer::read(&answer).body), (Some(GIB), GIB.to_string()));

    let mut socket = connect(gateway);
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    socket.write_all(head.as_bytes()).expect("sent");
    let read = std::io::copy(&mut BufReader::with_capacity(1 << 18, socket), &mut std::io::sink());
    assert!(read.is_ok_and(|read| (GIB..GIB + 1_024).contains(&read)));

    let grown = peak_kib(&daemon).saturating_sub(before);
    println!("{before} KiB before, at most {grown} KiB more");
    assert!(grown <= MOST_KIB, "{grown} KiB more");
}
