//! The access log of the gateway, as the daemon writes it.

use std::time::Duration;

use serde_json::Value;
use tidegate_tests::http::{get, send};
use tidegate_tests::servers::{Daemon, DaemonSetup, our_program, wait_until};

use crate::proxies::{PAGE, TIMEOUT, site};

const POLICY: &str = "
domain: shop
classes: [{name: critical}, {name: batch}]
protect: [{name: app, estimator: fixed, limit: 100}]
requests:
  rules:
    - {path: '/{any...}', class: batch, protect: app, descriptors: [{entries: [{key: user, header: x-user}]}]}
descriptors:
  - {key: user, rate: 2/hour}
";

fn daemon(format: &str) -> Daemon {
    let upstream = format!("http://{}", site());
    let program = our_program("tidegate");
    Daemon::start(DaemonSetup {
        program: &program,
        policy: POLICY,
        store: "memory",
        settings: &[
            ("TIDEGATE__LISTEN__GATEWAY__ADDRESS", "127.0.0.1:0"),
            ("TIDEGATE__GATEWAY__UPSTREAM", &upstream),
            ("TIDEGATE__GATEWAY__ACCESS_LOG", format),
        ],
        has_fake_clock: false,
    })
}

#[test]
fn each_request_is_a_line_with_the_limit_and_the_reason() {
    let daemon = daemon("text");
    let gateway = daemon.transport("gateway");
    let fields = "x-user: u\r\nuser-agent: a \"b\"\u{9b}2J\u{e9}\r\n";
    assert_eq!(get(gateway, "/buy?card=1234", fields).status, 200);
    assert_eq!(get(gateway, "/buy?card=1234", fields).status, 200);
    assert_eq!(get(gateway, "/buy", fields).status, 429);
    // The head guard, and the check of heads.
    assert_eq!(
        send(gateway, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na").status,
        400
    );
    // The next connection may be on another worker, which writes its lines on its own.
    wait_until("the first four are written", TIMEOUT, || daemon.lines("time=").len() >= 4);
    assert_eq!(
        send(gateway, "GET / HTTP/1.1\r\nHost: a/b\r\nConnection: close\r\n\r\n").status,
        400
    );
    wait_until("all are written", TIMEOUT, || daemon.lines("time=").len() >= 5);
    let lines = daemon.lines("time=");
    let all = lines.join("\n");
    let has = |line: &str, parts: &[&str]| {
        for part in parts {
            assert!(line.contains(part), "{part} in {line}");
        }
    };
    let bytes = format!(" bytes={} ", PAGE.len());
    let common = [
        " client=127.0.0.1 method=GET path=/buy status=",
        " user_agent=\"a \\\"b\\\"\\\\u{9b}2Jé\" ",
        " limit=shop/user# ",
    ];
    has(&lines[0], &common);
    has(&lines[0], &[" status=200 ", &bytes, " duration=0.", " head=0.", " upstream=default"]);
    has(&lines[0], &[" request_id=", " class=batch"]);
    has(&lines[2], &common);
    has(&lines[2], &[" status=429 ", " reason=quota"]);
    assert!(!lines[2].contains("upstream"), "{all}");
    has(&lines[3], &[" method=- path=- status=400 ", " reason=malformed"]);
    has(&lines[4], &[" path=/ status=400 ", " reason=refused"]);
    assert_eq!(lines.len(), 5, "{all}");
    assert!(!all.contains("1234"), "queries are not logged: {all}");
    let metrics = daemon.admin("/metrics").body;
    assert!(metrics.contains("\ntidegate_access_log_dropped_lines_total 0\n"), "{metrics}");
}

#[test]
fn lines_of_json_are_written_before_the_daemon_ends() {
    let mut daemon = daemon("json");
    let gateway = daemon.transport("gateway");
    assert_eq!(get(gateway, "/a%20b", "x-user: u\r\n").status, 200);
    daemon.terminate();
    wait_until("it ends", TIMEOUT + Duration::from_secs(10), || !daemon.is_running());
    let lines = daemon.lines("{\"time\"");
    let line: Value =
        serde_json::from_str(&lines[0]).unwrap_or_else(|error| panic!("{error}: {lines:?}"));
    assert_eq!((&line["path"], &line["status"]), (&"/a%20b".into(), &200.into()));
    assert_eq!((&line["class"], &line["limit"]), (&"batch".into(), &"shop/user#".into()));
    assert!(line["duration"].as_f64().is_some_and(|seconds| seconds < 60.0), "{line}");
    assert_eq!(lines.len(), 1);
}
