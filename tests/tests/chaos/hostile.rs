//! Hostile clients beside normal ones, for a moment: every normal request is answered.

use std::io::{Read, Write};
use std::time::Duration;

use tidegate_tests::hostile::{Effort, Kind, measure, table};
use tidegate_tests::http;
use tidegate_tests::servers::{Certificates, Daemon, DaemonSetup, our_program, wait_until};

/// How often a hostile client is started until it does something.
const ATTEMPTS: usize = 5;

/// No time is judged here: `cargo xtask bench hostile` measures.
#[test]
fn normal_requests_are_answered_beside_every_kind_of_hostile_client() {
    let effort = Effort { rounds: 1, part: Duration::from_millis(250) };
    // On a busy machine, a hostile client may get no processor time at all, because its weight is the least.
    let attacked = |kind| {
        let mut rows = (0..ATTEMPTS).map(|_| measure(kind, effort));
        rows.find(|row| row.attacks > 0 || row.failed > 0)
    };
    let rows: Vec<_> = Kind::ALL.into_iter().filter_map(attacked).collect();
    assert_eq!(rows.len(), Kind::ALL.len(), "a hostile client did nothing");
    println!("{}", table(&rows));
    for row in rows {
        let name = row.kind.name();
        assert_eq!(row.failed, 0, "{name}: normal requests failed");
        assert!(row.answered > 0, "{name}: nothing was asked");
    }
}

/// A client that is refused in the handshake leaves a line with its address and the reason.
#[test]
fn refused_tls_clients_are_logged() {
    let certificates = Certificates::fresh();
    let [certificate, key] = [&certificates.server.certificate, &certificates.server.key]
        .map(|file| file.display().to_string());
    let settings = [
        ("TIDEGATE__LISTEN__HTTP__TLS__CERTIFICATE", certificate.as_str()),
        ("TIDEGATE__LISTEN__HTTP__TLS__KEY", key.as_str()),
    ];
    let daemon = Daemon::start(DaemonSetup {
        program: &our_program("tidegate"),
        policy: "domain: any\ndescriptors: [{key: user, rate: 5/s}]\n",
        store: "memory",
        settings: &settings,
        has_fake_clock: false,
    });
    let mut socket = http::connect(daemon.transport("HTTP"));
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
    let _ = socket.read_to_end(&mut Vec::new());
    wait_until("the refusal is logged", Duration::from_secs(60), || {
        let log = daemon.log_tail();
        let fields = "event=\"client_refused\" listener=\"HTTP\" client=\"127.0.0.1\"";
        log.lines().any(|line| line.contains("TLS handshake failed: ") && line.contains(fields))
    });
}
