//! A real Envoy counts only failed logins: it takes a unit first and returns it when the stream is done, by the
//! configuration in `examples/envoy`.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::policy::{Merging, Policy};
use tidegate_server::{RateLimitService, Settings, serve};
use tidegate_tests::http;
use tidegate_tests::servers::{Envoy, envoy_program, wait_until};

const CONFIG: &str = include_str!("../../../examples/envoy/failed_logins.yaml");
const POLICY: &str = include_str!("../../../examples/envoy/failed_logins_policy.yaml");

const TIMEOUT: Duration = Duration::from_secs(60);

/// A service that knows one password, and how many requests reached it.
fn login() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let count = Arc::clone(&count);
            thread::spawn(move || check(socket, &count));
        }
    });
    (address, reached)
}

fn check(mut socket: TcpStream, reached: &AtomicUsize) {
    let Ok(reading) = socket.try_clone() else { return };
    let (mut lines, mut is_right) = (BufReader::new(reading).lines(), false);
    while let Some(Ok(line)) = lines.next() {
        is_right |= line.eq_ignore_ascii_case("x-password: right");
        if !line.is_empty() {
            continue;
        }
        reached.fetch_add(1, Ordering::SeqCst);
        let status = if is_right { "200 OK" } else { "401 Unauthorized" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\nhello");
        if socket.write_all(answer.as_bytes()).is_err() {
            return;
        }
        is_right = false;
    }
}

#[test]
fn ov_37_envoy_counts_failed_logins_only() {
    let Some(program) = envoy_program() else {
        eprintln!("\n!!! LEFT OUT: no Envoy; `cargo xtask test` installs it\n");
        return;
    };
    let limiter = RateLimitService::new().expect("memory");
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    limiter.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let any = || Some(([127, 0, 0, 1], 0).into());
    let settings = Settings { grpc: any(), http: any(), ..Settings::default() };
    let daemon = serve(&settings, &limiter).unwrap_or_else(|error| panic!("{error}"));
    let (service, reached) = login();
    let config = CONFIG.replace("timeout: 0.25s", "timeout: 30s");
    let envoy = Envoy::start(&program, &config, service, daemon.grpc().expect("asked for"));
    wait_until("Envoy is connected", TIMEOUT, || envoy.get("/", &[]).status == 401);
    let attempt = |account: &str, password: &str| {
        let headers = [("x-account", account), ("x-password", password)];
        envoy.get("/login", &headers).status
    };
    let left = |account: &str| {
        let body = format!(r#"{{"domain":"accounts","descriptors":[{{"login":"{account}"}}]}}"#);
        let reply = http::ask(daemon.http().expect("open"), "POST /v1/peek", "", &body);
        let reply: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
        reply["remaining"].as_u64()
    };
    for number in 0..30 {
        assert_eq!(attempt("bob", "right"), 200, "attempt {number}");
        // The unit comes back when the stream is done, just after the answer.
        wait_until("the unit is back", TIMEOUT, || left("bob") == Some(5));
    }
    reached.store(0, Ordering::SeqCst);
    let headers = [("x-account", "ann"), ("x-password", "wrong")];
    let mut statuses = envoy.burst_at("/login", 100, &headers).statuses();
    statuses.sort_unstable();
    let failed = statuses.iter().filter(|status| **status == 401).count();
    assert_eq!((failed, statuses.len()), (5, 100), "{statuses:?}");
    assert_eq!(reached.load(Ordering::SeqCst), 5);
    assert_eq!((attempt("ann", "right"), left("ann")), (429, Some(0)));
}
