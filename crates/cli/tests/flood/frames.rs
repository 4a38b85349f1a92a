//! HTTP/2 frames by hand: floods are cut off, bursts are not, and memory stays bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use tidegate_tests::grpc::{GrpcClient, framed};
use tidegate_tests::rls::RateLimitRequest;

use super::{Daemon, serve};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;
/// Flags of frames; SETTINGS and PING call the first one ACK.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The nth frames of a flood.
type Flood<'a> = &'a dyn Fn(u32) -> Vec<u8>;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call, without compression.
fn head() -> Vec<u8> {
    let path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let length = u8::try_from(path.len()).expect("a short path");
    let kind = b"application/grpc";
    // :method POST, :scheme http, :path, :authority x, content-type.
    [&[0x83, 0x86, 0x04, length][..], path, &[0x01, 1, b'x', 0x0f, 0x10, 16], kind].concat()
}

/// A request with one descriptor, which gets a decision.
const REQUEST: &[u8] = b"\x0a\x01x\x12\x08\x0a\x06\x0a\x01k\x12\x01v";

/// A complete call, for a domain that is not in the policy.
fn call(stream: u32) -> Vec<u8> {
    let opened = frame(HEADERS, END_HEADERS, stream, &head());
    [opened, frame(DATA, END_STREAM, stream, &framed(REQUEST))].concat()
}

/// A frame that the server sent.
#[derive(Clone, Debug)]
struct Received {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// The next frame; `None` if the connection has ended.
fn receive(socket: &mut impl Read) -> Option<Received> {
    let mut header = [0; 9];
    socket.read_exact(&mut header).ok()?;
    let [high, middle, low, kind, flags, stream @ ..] = header;
    let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    socket.read_exact(&mut payload).ok()?;
    Some(Received { kind, flags, stream: u32::from_be_bytes(stream), payload })
}

fn connect(daemon: &Daemon) -> TcpStream {
    let mut socket = daemon.connect("gRPC").expect("it listens");
    socket.write_all(PREFACE).expect("it reads");
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).expect("it reads");
    socket
}

/// Acknowledges the server's settings, and waits until it has granted its whole window.
fn acknowledge(socket: &mut TcpStream) {
    while receive(socket).expect("a window").kind != WINDOW {}
    socket.write_all(&frame(SETTINGS, 1, 0, &[])).expect("it reads");
}

/// Waits until the server has read everything, and returns the frames that it sent meanwhile.
fn ping(socket: &mut TcpStream) -> Vec<Received> {
    socket.write_all(&frame(PING, 0, 0, &[7; 8])).expect("it reads");
    let mut received = Vec::new();
    loop {
        let frame = receive(socket).expect("the connection stays");
        assert_ne!(frame.kind, GO_AWAY, "{frame:?}");
        if frame.kind == PING {
            return received;
        }
        received.push(frame);
    }
}

/// Sends these with increasing numbers until the server closes the connection, and returns how many it accepted.
fn flood(daemon: &Daemon, most: u32, frames: impl Fn(u32) -> Vec<u8>) -> u32 {
    let mut socket = connect(daemon);
    acknowledge(&mut socket);
    let mut reading = socket.try_clone().expect("a socket");
    // The peer reads, so that the server's answers do not block it.
    let reader = thread::spawn(move || while receive(&mut reading).is_some() {});
    let sent = (0..most).find(|number| socket.write_all(&frames(*number)).is_err());
    // Shuts the reader's side down too.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    reader.join().expect("no panic");
    sent.unwrap_or(most)
}

#[test]
fn floods_are_cut_off_with_flat_memory() {
    const MOST: u32 = 400_000;
    let daemon = Daemon::start(&mut serve());
    let address = daemon.address("gRPC").parse().expect("an address");
    let mut honest = GrpcClient::connect(address);
    let request = RateLimitRequest::one("api", "user", "x");
    assert!(honest.should_rate_limit(&request).is_ok());
    let before = daemon.resident_kib();
    let reset = |stream| frame(RESET, 0, stream, &[0, 0, 0, 8]);
    // Adds a field of 3,000 bytes to the table once, then names it a thousand times in each head.
    let bomb = |number: u32| {
        let field = [&[0x40, 1, b'b', 0x7f, 0xb9, 0x16][..], &[b'x'; 3_000]].concat();
        let field = if number == 0 { field } else { Vec::new() };
        let head = [head(), field, vec![0xbe; 1_000]].concat();
        frame(HEADERS, END_HEADERS, 2 * number + 1, &head)
    };
    let continuation = |number: u32| match number {
        0 => frame(HEADERS, 0, 1, &head()),
        _ => frame(CONTINUATION, 0, 1, &[0x83; 16]),
    };
    let floods: [(&str, Flood<'_>); 8] = [
        ("rapid reset", &|number| {
            let opened = frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head());
            [opened, reset(2 * number + 1)].concat()
        }),
        ("reset calls", &|number| [call(2 * number + 1), reset(2 * number + 1)].concat()),
        ("ping", &|_| frame(PING, 0, 0, &[0; 8])),
        ("settings", &|_| frame(SETTINGS, 0, 0, &[])),
        ("priority", &|number| frame(PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 1])),
        ("continuation", &continuation),
        ("HPACK", &bomb),
        ("streams", &|number| frame(HEADERS, END_HEADERS, 2 * number + 1, &head())),
    ];
    for (name, frames) in floods {
        let sent = flood(&daemon, MOST, frames);
        let grown = daemon.resident_kib().saturating_sub(before);
        println!("{name}: cut off after at most {sent}, {grown} KiB more");
        assert!(sent < MOST, "{name} was not cut off");
        assert!(grown < 32 << 10, "{name}: {grown} KiB");
        assert!(honest.should_rate_limit(&request).is_ok(), "after {name}");
    }
}

/// A peer that has not read the settings may open more streams than allowed: those above are refused, and
/// nothing else happens. Afterwards it knows.
#[test]
fn streams_above_the_limit_count_only_against_a_peer_that_knows_it() {
    const ALLOWED: u32 = 4_096;
    let daemon = Daemon::start(&mut serve());
    let mut socket = connect(&daemon);
    let open = |number: u32| frame(HEADERS, END_HEADERS, 2 * number + 1, &head());
    let message = framed(b"\x0a\x01x");
    let early: Vec<u8> = (0..ALLOWED + 1_000).flat_map(open).collect();
    socket.write_all(&early).unwrap();
    // Messages of the refused streams are still in flight.
    let late: Vec<u8> = (ALLOWED..ALLOWED + 1_000)
        .flat_map(|number| frame(DATA, END_STREAM, 2 * number + 1, &message))
        .collect();
    socket.write_all(&late).unwrap();
    socket.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap();
    socket.write_all(&frame(DATA, END_STREAM, 1, &message)).unwrap();
    let mut refused = 0;
    loop {
        let frame = receive(&mut socket).expect("the connection stays");
        assert_ne!(frame.kind, GO_AWAY, "{frame:?}");
        refused += u32::from(frame.kind == RESET && frame.payload == [0, 0, 0, 7]);
        // The trailers of the first call.
        if (frame.kind, frame.flags & END_STREAM, frame.stream) == (HEADERS, END_STREAM, 1) {
            break;
        }
    }
    assert_eq!(refused, 1_000);
    let above: Vec<u8> = (ALLOWED + 1_000..ALLOWED + 1_200).flat_map(open).collect();
    socket.write_all(&above).unwrap();
    let mut reason = None;
    while let Some(frame) = receive(&mut socket) {
        if frame.kind == GO_AWAY {
            reason = Some(frame.payload[4..8].to_vec());
        }
    }
    assert_eq!(reason.as_deref(), Some(&[0, 0, 0, 11][..]), "ENHANCE_YOUR_CALM");
}

/// Two hundred connections send 13 incomplete messages each, 149 MiB in total.
#[test]
fn unfinished_messages_share_one_budget() {
    share_one_budget(&framed(&[0; 65_536])[..60_000]);
}

/// The messages are complete, but their streams do not end.
#[test]
fn messages_of_streams_that_do_not_end_share_one_budget() {
    share_one_budget(&framed(&[0; 65_536]));
}

fn share_one_budget(message: &[u8]) {
    let daemon = Daemon::start(&mut serve());
    let before = daemon.resident_kib();
    let held: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut socket = connect(&daemon);
            acknowledge(&mut socket);
            for number in 0..13 {
                let stream = 2 * number + 1;
                let mut sent = frame(HEADERS, END_HEADERS, stream, &head());
                message.chunks(15_000).for_each(|it| sent.extend(frame(DATA, 0, stream, it)));
                socket.write_all(&sent).expect("the daemon reads");
            }
            ping(&mut socket);
            socket
        })
        .collect();
    let grown = daemon.resident_kib().saturating_sub(before);
    println!("200 connections with 13 messages each take {grown} KiB");
    assert!(grown < 96 << 10, "{grown} KiB");
    // Messages that arrive in one piece need no budget.
    let address = daemon.address("gRPC").parse().expect("an address");
    let request = RateLimitRequest::one("api", "user", "x");
    assert!(GrpcClient::connect(address).should_rate_limit(&request).is_ok());
    drop(held);
}

/// Four connections open as many streams as they may, which fills the budget. Other connections still get their
/// part, and a connection without budget is not closed.
#[test]
fn no_connection_takes_the_whole_budget() {
    let daemon = Daemon::start(&mut serve());
    let open = |number: u32| frame(HEADERS, END_HEADERS, 2 * number + 1, &head());
    let greedy = [(); 4].map(|()| {
        let mut socket = connect(&daemon);
        acknowledge(&mut socket);
        socket.write_all(&(0..4_096).flat_map(open).collect::<Vec<_>>()).unwrap();
        ping(&mut socket);
        socket
    });
    let mut honest = connect(&daemon);
    acknowledge(&mut honest);
    honest.write_all(&open(0)).unwrap();
    ping(&mut honest);
    honest.write_all(&frame(DATA, END_STREAM, 1, &framed(REQUEST))).unwrap();
    let answer = loop {
        let frame = receive(&mut honest).expect("an answer");
        if frame.stream == 1 && (frame.kind, frame.flags & END_STREAM) != (HEADERS, 0) {
            break frame;
        }
    };
    assert_eq!(answer.kind, DATA, "a decision, not an error: {answer:?}");
    // A peer that grants no window for answers holds them until its part of the budget is exhausted.
    let mut unread = connect(&daemon);
    acknowledge(&mut unread);
    // INITIAL_WINDOW_SIZE.
    unread.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).unwrap();
    ping(&mut unread);
    unread
        .write_all(&(0..3_000).flat_map(|number| call(2 * number + 1)).collect::<Vec<_>>())
        .unwrap();
    let received = [ping(&mut unread), ping(&mut unread)].concat();
    let refused = received.iter().filter(|it| it.kind == RESET && it.payload == [0, 0, 0, 11]);
    let refused = refused.count();
    assert!((500..2_900).contains(&refused), "{refused} of 3000 refused");
    drop(greedy);
}

#[test]
fn answered_calls_earn_as_many_resets() {
    let daemon = Daemon::start(&mut serve());
    let mut socket = connect(&daemon);
    acknowledge(&mut socket);
    // For all answers.
    socket.write_all(&frame(WINDOW, 0, 0, &(1_u32 << 30).to_be_bytes())).unwrap();
    for batch in 0..20 {
        let calls = (500 * batch..500 * (batch + 1)).flat_map(|number| call(2 * number + 1));
        socket.write_all(&calls.collect::<Vec<_>>()).unwrap();
        let mut answered = 0;
        while answered < 500 {
            let frame = receive(&mut socket).expect("an answer");
            answered += u32::from((frame.kind, frame.flags & END_STREAM) == (HEADERS, END_STREAM));
        }
    }
    for number in 10_000..26_000 {
        let stream = 2 * number + 1;
        let sent = [call(stream), frame(RESET, 0, stream, &[0, 0, 0, 8])].concat();
        socket.write_all(&sent).unwrap();
        if number % 500 == 0 {
            ping(&mut socket);
        }
    }
    ping(&mut socket);
}
