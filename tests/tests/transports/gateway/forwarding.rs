//! What the service gets, and what the client gets back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tidegate_server::{Address, Gateway, HeaderNames, Listen};
use tidegate_tests::http::{Connection, connect, get, send};
use tidegate_tests::servers::Folder;

use super::Front;

fn ask(front: &Front, line: &str, fields: &str, body: &str) -> tidegate_tests::http::Answer {
    let length = body.len();
    send(
        front.address(),
        format!(
            "{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        ),
    )
}

#[test]
fn paths_are_forwarded_byte_for_byte_and_fields_of_the_connection_are_not() {
    let front = Front::open("");
    let path = "/a//b/./c%2Fd%20e;x=1?q=%7e&r=a+b";
    let fields = "Connection: x-own\r\nX-Own: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n\
                  Upgrade: h2c\r\nX-Forwarded-For: 6.6.6.6\r\nX-Original-URI: /free\r\n\
                  Forwarded: for=6.6.6.6\r\nX-User: u\r\n";
    let answer = ask(&front, &format!("POST {path}"), fields, "hello");
    assert_eq!((answer.status, &*answer.body), (200, "hello"));
    let heads = front.service.heads();
    let head = &heads[0];
    assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{head}");
    for expected in [
        "\r\nhost: a\r\n",
        "\r\nx-user: u\r\n",
        "\r\nte: trailers\r\n",
        "\r\nx-forwarded-for: 127.0.0.1\r\n",
        "\r\nx-forwarded-host: a\r\n",
        "\r\nx-forwarded-proto: http\r\n",
        "\r\nforwarded: for=127.0.0.1;host=\"a\";proto=http\r\n",
        "\r\nx-request-id: ",
    ] {
        assert!(head.contains(expected), "{expected} in {head}");
    }
    for dropped in ["x-own", "keep-alive", "upgrade", "6.6.6.6", "x-original-uri"] {
        assert!(!head.contains(dropped), "{dropped} in {head}");
    }
}

#[test]
fn fields_of_trusted_proxies_are_kept() {
    let front = Front::with("", |gateway: &mut Gateway| {
        gateway.trusted = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    ask(&front, "GET /", "X-Forwarded-For: 192.0.2.7\r\nX-Request-Id: abc\r\n", "");
    let head = &front.service.heads()[0];
    assert!(head.contains("\r\nx-forwarded-for: 192.0.2.7, 127.0.0.1\r\n"), "{head}");
    assert!(head.contains("\r\nx-request-id: abc\r\n"), "{head}");
}

/// A service trusts some headers as identities; the gateway cannot know their names.
#[test]
fn fields_that_the_operator_names_are_dropped_unless_the_peer_is_trusted() {
    for is_trusted in [false, true] {
        let front = Front::with("", |gateway: &mut Gateway| {
            gateway.drop_headers = HeaderNames::new(&["X-Member"]).expect("a name");
            if is_trusted {
                gateway.trusted = vec!["127.0.0.1".parse().expect("an address")];
            }
        });
        let fields = "X-Member: eve\r\nTrue-Client-IP: 6.6.6.6\r\nX-Other: 1\r\n";
        assert_eq!(ask(&front, "GET /", fields, "").status, 200);
        let head = &front.service.heads()[0];
        assert!(head.contains("\r\nx-other: 1\r\n"), "{head}");
        for claim in ["\r\nx-member: eve\r\n", "\r\ntrue-client-ip: 6.6.6.6\r\n"] {
            assert_eq!(head.contains(claim), is_trusted, "{claim} in {head}");
        }
    }
}

#[test]
fn fields_of_a_proxy_on_a_unix_socket_are_kept_if_it_is_trusted() {
    for is_trusted in [false, true] {
        let folder = Folder::create();
        let path = folder.path().join("gateway.sock");
        let listen = Listen { address: Address::Unix(path.clone()), tls: None };
        let front = Front::at(listen, "", |gateway| {
            let peers = if is_trusted { "unix" } else { "127.0.0.0/8" };
            gateway.trusted = vec![peers.parse().expect("peers")];
        });
        let mut socket = UnixStream::connect(&path).expect("it listens");
        let request =
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n";
        socket.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let head = &front.service.heads()[0];
        assert_eq!(head.contains("\r\nx-forwarded-for: 192.0.2.7\r\n"), is_trusted, "{head}");
    }
}

/// As over HTTP/2: at most 8 KiB.
#[test]
fn a_response_with_long_trailers_is_cut() {
    let front = Front::open("");
    let answer = get(front.address(), "/long-trailers", "te: trailers\r\n");
    assert_eq!(answer.status, 200);
    assert!(!answer.body.contains("x-sum") && !answer.body.contains("0\r\n"), "{answer:?}");
    let address = front.service.address();
    let labels = format!("upstream=\"default\",address=\"{address}\",outcome=\"cut\"");
    assert_eq!(front.metric(&format!("tidegate_upstream_requests_total{{{labels}}}")), 1);
    assert_eq!(get(front.address(), "/", "").status, 200);
}

#[test]
fn responses_come_back_without_fields_of_the_connection() {
    let front = Front::open("");
    let hop = get(front.address(), "/hop", "");
    assert_eq!((hop.status, hop.header("x-kept"), hop.header("x-own")), (200, Some("1"), None));
    assert_eq!(hop.header("keep-alive"), None);
    let head = ask(&front, "HEAD /", "", "");
    assert_eq!((head.status, head.header("content-length"), &*head.body), (200, Some("5"), ""));
    let trailers = get(front.address(), "/trailers", "te: trailers\r\n");
    assert!(trailers.body.ends_with("0\r\nx-sum: 7\r\n\r\n"), "{trailers:?}");
}

#[test]
fn malformed_responses_are_502() {
    let front = Front::open("");
    for path in
        ["/two-lengths", "/both", "/coded", "/odd-length", "/garbage", "/switch", "/other-switch"]
    {
        let answer = get(front.address(), path, "");
        assert_eq!(answer.status, 502, "{path}: {answer:?}");
        assert!(answer.body.starts_with("{\"type\":\"about:blank\""), "{answer:?}");
    }
    assert_eq!(get(front.address(), "/", "").status, 200);
}

#[test]
fn ov_44_a_stale_connection_is_replaced_once_for_requests_that_may_be_repeated() {
    let front = Front::open("");
    let mut client = Connection::open(front.address()).expect("a listener");
    let ask = |client: &mut Connection, call: &str, body: &str| {
        client.ask(call, body).expect("an answer").status
    };
    assert_eq!(ask(&mut client, "GET /stale", ""), 200);
    // The service closes the connection when it has read the second request; the third goes over a new one.
    assert_eq!(ask(&mut client, "GET /stale", ""), 200);
    let targets = front.service.heads();
    assert_eq!(targets.len(), 3, "sent once more: {targets:?}");
    // A request with a body may have been acted on.
    assert_eq!(ask(&mut client, "POST /stale", "x"), 502);
    assert_eq!(front.service.heads().len(), 4);
    assert_eq!(ask(&mut client, "GET /", ""), 200);
}

#[test]
fn connections_are_kept() {
    let front = Front::open("");
    let mut client = Connection::open(front.address()).expect("a listener");
    for number in 0..50 {
        let answer = client.ask("POST /", &number.to_string()).expect("an answer");
        assert_eq!((answer.status, answer.body), (200, number.to_string()));
    }
    assert_eq!(front.service.connections(), 1);
}

#[test]
fn a_service_that_hangs_is_504_and_one_that_is_gone_502() {
    let front = Front::open("");
    assert_eq!(get(front.address(), "/hang", "").status, 504);
    front.service.release();
    let gone = Front::with("", |gateway| {
        let upstream = &mut gateway.upstreams[0];
        upstream.addresses[0].port = tidegate_tests::servers::free_port();
        upstream.connect_timeout = Duration::from_millis(500);
    });
    let answer = get(gone.address(), "/", "");
    assert_eq!(answer.status, 502);
    assert!(!answer.body.contains("127.0.0.1"), "{answer:?}");
}

/// The service has its time from when it has the whole request.
#[test]
fn an_upload_may_take_longer_than_the_head_of_a_response() {
    let front = Front::open("");
    let mut socket = connect(front.address());
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 10\r\n\r\n";
    socket.write_all(format!("{head}hello").as_bytes()).expect("sent");
    // Takes as long as the gateway waits for a head.
    assert_eq!(get(front.address(), "/hang", "").status, 504);
    socket.write_all(b"world").expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("helloworld"), "{text}");
}

/// A service that gets fields as variables cannot tell the two names apart.
#[test]
fn names_with_an_underscore_are_dropped() {
    let front = Front::open("");
    let fields = "X_Forwarded_For: 6.6.6.6\r\nX_User: eve\r\nX-User: bob\r\n";
    assert_eq!(ask(&front, "GET /", fields, "").status, 200);
    let head = &front.service.heads()[0];
    assert!(!head.contains('_') && head.contains("\r\nx-user: bob\r\n"), "{head}");
}
