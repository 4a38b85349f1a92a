//! A panic in the daemon ends the connection that caused it, and affects no other
//! client.

use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate::policy::{Merging, Policy};
use tidegate_server::fuzzing::MISTAKE;
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http::{self, Connection};
use tidegate_tests::rls::RateLimitRequest;
use tidegate_tests::servers::wait_until;

const TIMEOUT: Duration = Duration::from_secs(60);

const POLICY: &str = "
domain: api
descriptors:
  - key: user
    rate: 1000/min
";

const FINE: &str = r#"{"domain":"api","descriptors":[{"user":"u"}]}"#;

/// On one thread, which all connections share with the panic.
fn server() -> Server {
    let service = RateLimitService::new().expect("memory");
    let loaded = Policy::load(&[("p.yaml", POLICY)], Merging::Refuse);
    service.replace(loaded.policy.expect(&loaded.findings));
    let here = Some(([127, 0, 0, 1], 0).into());
    let settings = Settings {
        http: here.clone(),
        resp: here.clone(),
        grpc: here.clone(),
        admin: here,
        threads: NonZeroUsize::MIN,
        ..Settings::default()
    };
    serve(&settings, &service).expect("it starts")
}

/// How many connections are open behind a transport.
fn open(server: &Server, transport: &str) -> u64 {
    let page = http::get(server.admin().expect("open"), "/metrics", "").body;
    let line = format!("tidegate_connections{{listener=\"{transport}\"}} ");
    let answer = page.lines().find_map(|it| it.strip_prefix(&line)).expect(&line);
    answer.parse().expect("a number")
}

/// Waits until so many are open.
fn until_open(server: &Server, transport: &str, expected: u64) {
    wait_until(transport, TIMEOUT, || open(server, transport) == expected);
}

#[test]
fn a_mistake_costs_one_connection() {
    let server = server();
    let mut neighbour = Connection::open(server.http().expect("open")).expect("it listens");
    let mut is_well = || assert_eq!(neighbour.ask("POST /v1/check", FINE).unwrap().status, 200);
    is_well();

    let mut http = Connection::open(server.http().expect("open")).expect("it listens");
    let wrong = FINE.replace("\"api\"", &serde_json::Value::from(MISTAKE).to_string());
    http.ask("POST /v1/check", &wrong).expect_err("nothing is answered");
    until_open(&server, "HTTP", 1);
    is_well();

    let mut resp = http::connect(server.resp().expect("open"));
    let command = format!(
        "*4\r\n$8\r\nTG.CHECK\r\n${}\r\n{MISTAKE}\r\n$4\r\nuser\r\n$1\r\nu\r\n",
        MISTAKE.len()
    );
    resp.write_all(command.as_bytes()).expect("sent");
    assert_eq!(resp.read(&mut [0; 64]).unwrap_or_default(), 0, "nothing is answered");
    until_open(&server, "RESP", 0);
    is_well();

    let mut grpc = GrpcClient::connect(server.grpc().expect("open"));
    // Whether this is sent whole before the connection ends is chance.
    let _ = grpc.ask_and_leave(&RateLimitRequest::one(MISTAKE, "user", "u"), 1);
    grpc.closed();
    until_open(&server, "gRPC", 0);
    is_well();
    let mut grpc = GrpcClient::connect(server.grpc().expect("open"));
    grpc.should_rate_limit(&RateLimitRequest::one("api", "user", "u")).expect("an answer");
}
