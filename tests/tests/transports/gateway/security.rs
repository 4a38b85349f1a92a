//! Requests that servers read in different ways. nginx gets the same bytes, and where the two differ, the
//! gateway is the stricter one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use tidegate_tests::http::connect;
use tidegate_tests::servers::{Folder, Process, by_debian, free_port, wait_until};

use super::{Front, TIMEOUT};

/// What is sent, and the status that the gateway answers with.
const REFUSED: [(&str, u16); 26] = [
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 400),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", 400),
    ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na", 400),
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Forwarded-For\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a\r\nConnection: forwarded\r\n\r\n", 400),
    ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405),
    ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 400),
];

/// The statuses of all answers until the connection ends or pauses.
fn statuses(address: SocketAddr, bytes: &[u8]) -> Vec<u16> {
    let mut socket = connect(address);
    let _ = socket.write_all(bytes);
    let mut answer = String::new();
    let mut piece = [0; 4_096];
    while let Ok(length @ 1..) = socket.read(&mut piece) {
        answer.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    let heads = answer.split("HTTP/1.1 ").skip(1);
    heads.filter_map(|head| head.get(..3)?.parse().ok()).collect()
}

#[test]
fn ov_42_ambiguous_requests_are_refused_and_the_service_gets_nothing() {
    let front = Front::open("");
    for (bytes, expected) in REFUSED {
        assert_eq!(statuses(front.address(), bytes.as_bytes()), [expected], "{bytes:?}");
        assert_eq!(front.service.heads(), Vec::<String>::new(), "{bytes:?}");
    }
}

/// A request before the refused one is answered, and what follows it is not read as a request.
#[test]
fn nothing_is_smuggled_behind_an_ambiguous_request() {
    let front = Front::open("");
    let first = "GET /first HTTP/1.1\r\nHost: a\r\n\r\n";
    let second = "POST /second HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\
                  Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /third HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(statuses(front.address(), format!("{first}{second}").as_bytes()), [200, 400]);
    let heads = front.service.heads();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert!(heads[0].starts_with("GET /first "), "{heads:?}");
}

#[test]
fn heads_have_bounds() {
    let front = Front::open("");
    let get = |target: &str, fields: &str| {
        let bytes =
            format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
        statuses(front.address(), bytes.as_bytes())
    };
    assert_eq!(get("/", &format!("X: {}\r\n", "a".repeat(20 << 10))), [200]);
    assert_eq!(get("/", &format!("X: {}\r\n", "a".repeat(40 << 10))), [431]);
    let fields = |count: usize| (0..count).map(|it| format!("x-{it}: a\r\n")).collect::<String>();
    assert_eq!(get("/", &fields(90)), [200]);
    assert_eq!(get("/", &fields(101)), [431]);
    assert_eq!(get(&format!("/{}", "a".repeat(8 << 10)), ""), [414]);
}

/// An nginx in front of the same service.
pub(super) fn nginx(service: SocketAddr) -> (Process, Folder, SocketAddr) {
    let folder = Folder::create();
    let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let config = format!(
        "master_process off; pid nginx.pid; error_log stderr crit; events {{}}
         http {{ access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;
           uwsgi_temp_path u; scgi_temp_path s; keepalive_timeout 1s;
           server {{ listen {address}; location / {{ proxy_pass http://{service};
             proxy_http_version 1.1; proxy_set_header Host $http_host; }} }} }}"
    );
    folder.write("nginx.conf", &config);
    let arguments = ["-p", ".", "-c", "nginx.conf", "-g", "daemon off;"].map(ToOwned::to_owned);
    let process = Process::start(&by_debian("nginx"), &arguments, &[], &folder);
    wait_until("nginx listens", TIMEOUT, || TcpStream::connect(address).is_ok());
    (process, folder, address)
}

/// `odd_requests.rs` has those that are accepted.
#[test]
fn the_gateway_is_at_least_as_strict_as_nginx() {
    let front = Front::open("");
    let (_process, _folder, nginx) = nginx(front.service.address());
    let sound = ["GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"];
    let inputs = REFUSED.iter().map(|(bytes, _)| *bytes).chain(sound);
    for bytes in inputs {
        let is_served = |address| statuses(address, bytes.as_bytes()).first() == Some(&200);
        let (ours, theirs) = (is_served(front.address()), is_served(nginx));
        assert!(!ours || theirs, "served, but not by nginx: {bytes:?}");
    }
}
