//! Large uploads and downloads do not stay in the memory of the gateway.

use std::io::{Read, Write};

use tidegate_tests::http::connect;
use tidegate_tests::servers::{Daemon, DaemonSetup, our_program};

use super::backend::Backend;

/// Far more than the gateway may hold.
const BYTES: usize = 1 << 30;

/// What the gateway may hold more after them.
const MAX_GROWTH_KIB: u64 = 32 << 10;

#[test]
fn a_gibibyte_passes_both_ways_at_flat_memory() {
    let backend = Backend::start();
    let url = backend.url();
    let settings = [
        ("TIDEGATE__LISTEN__GATEWAY__ADDRESS", "127.0.0.1:0"),
        ("TIDEGATE__GATEWAY__UPSTREAM", &*url),
    ];
    let daemon = Daemon::start(DaemonSetup {
        program: &our_program("tidegate"),
        policy: "domain: api",
        store: "memory",
        settings: &settings,
        has_fake_clock: false,
    });
    let gateway = daemon.transport("gateway");
    let before = daemon.resident_kib();
    let piece = vec![b'x'; 1 << 16];
    let mut socket = connect(gateway);
    let head = format!(
        "POST /?id=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {BYTES}\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).expect("sent");
    for _ in 0..BYTES / piece.len() {
        socket.write_all(&piece).expect("sent");
    }
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with(&format!("\r\n\r\n{BYTES}")), "{answer}");
    let mut socket = connect(gateway);
    let head =
        format!("GET /download?bytes={BYTES} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).expect("sent");
    let (mut received, mut buffer) = (0, vec![0; 1 << 16]);
    while let Ok(length @ 1..) = socket.read(&mut buffer) {
        received += length;
    }
    assert!(received > BYTES, "{received}");
    let grown = daemon.resident_kib().saturating_sub(before);
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB more");
}
