//! Who may ask how, and what is not listened to.

use std::io::{Read, Write};

use tidegate_server::Settings;
use tidegate_tests::servers::wait_until;

use super::*;

const ASKING: [&str; 6] =
    ["/v1/check", "/v1/peek", "/v1/refund", "/v1/reset", "/v1/explain", "/v1/batch"];

#[test]
fn every_path_says_by_which_methods_it_is_asked() {
    let transport = Transport::open(POLICY);
    let paths = ASKING.map(|path| (path, "post"));
    let paths =
        paths.into_iter().chain([("/healthz", "get, head"), ("/openapi.json", "get, head")]);
    for (path, allow) in paths {
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE", "QUERY", "BREW"] {
            if allow.to_uppercase().split(", ").any(|allowed| allowed == method) {
                continue;
            }
            let answer = transport.ask(method, path, "content-length: 0\r\n");
            assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{path}");
            assert_eq!(answer.body.is_empty(), method == "HEAD");
        }
        let options = transport.ask("OPTIONS", path, "");
        assert_eq!(
            (options.status, options.header("allow"), &*options.body),
            (204, Some(allow), "")
        );
    }
    for path in ["/nothing", "/v1", "/v1/checks", "/v1/check/", "//v1/check", "/V1/check"] {
        assert_eq!(transport.get(path, "").status, 404, "{path}");
    }
    assert!(transport.get("/nothing", "").body.contains("/v1/check, /v1/peek"));
    let health = transport.get("/healthz", "");
    assert_eq!((health.status, &*health.body), (200, "ok\n"));
    let head = transport.ask("HEAD", "/healthz", "");
    assert_eq!((head.status, head.header("content-length"), &*head.body), (200, Some("3"), ""));
}

#[test]
fn heads_and_bodies_have_bounds() {
    let transport = Transport::open(POLICY);
    let fits =
        |bytes: usize| transport.get("/healthz", &format!("x: {}\r\n", "y".repeat(bytes))).status;
    assert_eq!(fits(60 << 10), 200);
    for bytes in [64 << 10, 70_000, 300_000] {
        assert_eq!(fits(bytes), 431, "{bytes}");
    }
    let many: String = (0..99).map(|number| format!("x-{number}: y\r\n")).collect();
    assert_eq!(transport.get("/healthz", &many).status, 431);
    let body = |bytes: usize| {
        let question = "{\"key\":\"k\",\"rate\":\"1/s\"}";
        transport
            .post("/v1/check", &format!("{question}{}", " ".repeat(bytes - question.len())))
            .status
    };
    assert_eq!((body(64 << 10), body((64 << 10) + 1)), (200, 413));
    // Nothing has to come for what is too long to be refused.
    let answer =
        transport.send("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 65537\r\n\r\n");
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    let chunk = format!("10000\r\n{}\r\n1\r\n \r\n0\r\n\r\n", " ".repeat(65_536));
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(transport.send(format!("{head}{chunk}")).status, 413);
}

/// What one reads as a body, another may read as the next request.
#[test]
fn requests_that_can_be_read_in_two_ways_are_the_last_on_their_connection() {
    let transport = Transport::open(POLICY);
    let smuggled = "0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    for headers in [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 0\r\n",
        "content-length: 4\r\ncontent-length: 5\r\n",
        "content-length: 4, 5\r\n",
        "content-length: +4\r\n",
        "content-length: 0x4\r\n",
        "transfer-encoding: gzip\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding : chunked\r\n",
        "content-length : 4\r\n",
        "x: a\r\n folded: b\r\n",
        "x\0: a\r\n",
    ] {
        let head = format!("POST /v1/check HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let mut socket = transport.connect();
        let _ = socket.write_all(format!("{head}{smuggled}").as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 4"), "{headers:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{headers:?}: {answer}");
        assert!(answer.contains("connection: close"), "{headers:?}: {answer}");
    }
    let old = "POST /v1/check HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(transport.send(format!("{old}{smuggled}")).status, 400);
}

#[test]
fn older_clients_are_answered() {
    let transport = Transport::open(POLICY);
    // Without a host, and closed after the answer, as HTTP/1.0 has it.
    let answer = transport.send("GET /healthz HTTP/1.0\r\n\r\n");
    assert!(answer.head.starts_with("http/1.0 200"), "{answer:?}");
    assert_eq!(answer.body, "ok\n");
    let question = "{\"key\":\"k\",\"rate\":\"1/s\"}";
    let length = question.len();
    let asked = format!("POST /v1/check HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{question}");
    assert_eq!(transport.send(asked).status, 200);
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let transport = Transport::open(POLICY);
    let question = "{\"key\":\"k\",\"rate\":\"1/s\"}";
    let mut socket = transport.connect();
    let head =
        "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\n";
    write!(socket, "{head}content-length: {}\r\n\r\n", question.len()).unwrap();
    let mut start = [0; 25];
    socket.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(question.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

/// Requests that were sent before their turn are answered in it.
#[test]
fn requests_may_follow_each_other_on_one_connection() {
    let transport = Transport::open(POLICY);
    let question = "{\"key\":\"k\",\"rate\":\"2/min\"}";
    let length = question.len();
    let one =
        format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{question}");
    let mut socket = transport.connect();
    socket.write_all(one.repeat(3).as_bytes()).unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    socket.read_to_string(&mut answers).unwrap();
    let statuses: Vec<&str> =
        answers.match_indices("HTTP/1.1 ").map(|(at, _)| &answers[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "200", "429", "200"]);
}

#[test]
fn stopping_closes_connections_that_are_kept_alive() {
    let transport = Transport::open(POLICY);
    let mut kept = transport.connect();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut start = [0; 15];
    kept.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    transport.server.stop();
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"ok\n"));
}

#[test]
fn a_silent_client_is_closed() {
    let idle_after = Duration::from_millis(200);
    let transport = Transport::with(&Settings { idle_after, ..settings() }, POLICY);
    let mut rest = Vec::new();
    transport.connect().read_to_end(&mut rest).unwrap();
    let mut half = transport.connect();
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n").unwrap();
    // A notice may come first.
    half.read_to_end(&mut rest).unwrap();
}

/// A client that sends requests and reads no answer is disconnected.
#[test]
fn a_client_that_reads_no_answer_is_disconnected() {
    let idle_after = Duration::from_millis(200);
    let transport = Transport::with(&Settings { idle_after, ..settings() }, POLICY);
    let mut socket = transport.connect();
    socket.set_nonblocking(true).unwrap();
    let ask = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(64);
    // Until the answers fill all buffers, nothing more is read, and it gives up.
    wait_until("it is cut off", TIMEOUT, || match socket.write(&ask) {
        Ok(_) => false,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    });
}
