//! Odd requests that servers accept. Through the gateway, the service gets the same messages as
//! through nginx, or fewer, because the gateway refuses them.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_tests::http::connect;

use self::Expected::{Clear, Same, Stricter};
use super::Front;
use super::security::nginx;
use super::service::Service;

/// A rule that reads the path, so that ambiguous paths are refused.
const POLICY: &str = "
domain: api
requests: {rules: [{path: /, descriptors: [{entries: [{key: all, value: x}]}]}]}
descriptors: [{key: all, rate: 1000000/s}]
";

/// Follows each input on its connection. A server that reads another length of the input takes this
/// request for a part of the input, or a part of the input for a request.
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Longer than a server takes for an answer, and shorter than it waits for the rest of a request.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Expected {
    /// The service gets what it gets through nginx.
    Same,
    /// The service gets what it gets through nginx, or only the first requests of it.
    Stricter,
    /// nginx refuses the request, or passes it on in another way, although its meaning is clear.
    Clear,
}

const INPUTS: &[(Expected, &[u8])] = &[
    // Lines.
    (Same, b"GET /bare-lf HTTP/1.1\nHost: a\n\n"),
    (Same, b"GET /mixed HTTP/1.1\r\nHost: a\nX: 1\r\n\n"),
    (Same, b"\r\nGET /crlf-first HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"\r\n\r\n\r\nGET /three-crlf-first HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"\nGET /lf-first HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /bare-cr HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"),
    (Stricter, b"GET /spaces  HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET\t/tab HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /version HTTP/1.2\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /version HTTP/2.0\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /simple\r\n\r\n"),
    // Hosts.
    (Stricter, b"GET /empty-host HTTP/1.1\r\nHost:\r\n\r\n"),
    (Same, b"GET /v6 HTTP/1.1\r\nHost: [::1]\r\n\r\n"),
    (Same, b"GET /open-bracket HTTP/1.1\r\nHost: [::1\r\n\r\n"),
    (Same, b"GET /no-port HTTP/1.1\r\nHost: a:\r\n\r\n"),
    (Same, b"GET /odd-port HTTP/1.1\r\nHost: a:b\r\n\r\n"),
    (Stricter, b"GET /two-words HTTP/1.1\r\nHost: a b\r\n\r\n"),
    (Stricter, b"GET /list HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    (Stricter, b"GET /old HTTP/1.0\r\n\r\n"),
    (Same, b"GET /old HTTP/1.0\r\nHost: a\r\n\r\n"),
    (Same, b"GET http://a/absolute HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET http://A/absolute HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET https://a/absolute HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET ftp://a/absolute HTTP/1.1\r\nHost: a\r\n\r\n"),
    // Targets.
    (Stricter, b"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /../b HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /a/%2e%2e/%2e%2e/b HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET //a//b HTTP/1.1\r\nHost: a\r\n\r\n"),
    // The fragment is removed before rules match the path, and before it is forwarded.
    (Clear, b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET /?a?b=%00&c=\"' HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Stricter, b"GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
    // Methods.
    (Same, b"BREW /unknown HTTP/1.1\r\nHost: a\r\n\r\n"),
    // Methods are tokens of any case; nginx knows capital letters only.
    (Clear, b"get /small HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Clear, b"G!T /token HTTP/1.1\r\nHost: a\r\n\r\n"),
    // Fields.
    // Tabs around a value are not part of it.
    (Clear, b"GET /tabs HTTP/1.1\r\nHost:\ta\t\r\nX:\t1\t\r\n\r\n"),
    (Same, b"GET /no-space HTTP/1.1\r\nHost:a\r\nX:1\r\n\r\n"),
    (Same, b"GET /empty HTTP/1.1\r\nHost: a\r\nX:\r\n\r\n"),
    (Same, b"GET /obs-text HTTP/1.1\r\nHost: a\r\nX: \xe9\xff\r\n\r\n"),
    (Same, b"GET /twice HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\n\r\n"),
    (Same, b"GET /odd-name HTTP/1.1\r\nHost: a\r\nX!#$: 1\r\n\r\n"),
    (Same, b"GET /underscore HTTP/1.1\r\nHost: a\r\nContent_Length: 5\r\n\r\n"),
    (Stricter, b"GET /no-name HTTP/1.1\r\nHost: a\r\n: 1\r\n\r\n"),
    (Stricter, b"GET /no-colon HTTP/1.1\r\nHost: a\r\nX\r\n\r\n"),
    (Stricter, b"GET /control HTTP/1.1\r\nHost: a\r\nX: a\x01b\r\n\r\n"),
    (Same, b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"),
    // Lengths.
    (Same, b"POST /zero HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
    (Same, b"POST /none HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
    (Same, b"HEAD /body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
    (Same, b"POST /zeros HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\nhello"),
    (Same, b"POST /space HTTP/1.1\r\nHost: a\r\nContent-Length: 5 \r\n\r\nhello"),
    (Stricter, b"POST /hex HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello"),
    (Stricter, b"POST /same HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    (Stricter, b"POST /empty HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"),
    (Stricter, b"POST /huge HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"),
    (Same, b"POST /expect HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"),
    (Same, b"POST /old HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
    // Chunks.
    (Same, b"POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
    (Same, b"POST /capital HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n"),
    (Same, b"POST /coding-space HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked \r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /coding-list HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /coding-option HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;a=b\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    (Same, b"POST /extension HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0;c\r\n\r\n"),
    (Same, b"POST /quoted HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"\\\";b\"\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /extension-lf HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nhello\r\n0\r\n\r\n"),
    (Same, b"POST /leading HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0005\r\nhello\r\n000\r\n\r\n"),
    (Stricter, b"POST /long-size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00000000000000000005\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /overflow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /size-space HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /space-size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /size-prefix HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /signed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /no-size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n"),
    (Stricter, b"POST /lf-chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n"),
    (Stricter, b"POST /long-chunk HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n"),
    (Same, b"POST /trailer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n"),
    (Same, b"POST /bad-trailer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n"),
    (Stricter, b"POST /trailer-request HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
    // Several requests at once.
    (Same, b"GET /one HTTP/1.1\r\nHost: a\r\n\r\nGET /two HTTP/1.1\r\nHost: b\r\n\r\n"),
    (Same, b"POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\noneGET /two HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"POST /one HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\nPOST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\ntwo"),
    (Same, b"POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none\r\nGET /two HTTP/1.1\r\nHost: a\r\n\r\n"),
    (Same, b"GET /one HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /two HTTP/1.1\r\nHost: a\r\n\r\n"),
];

/// What a service has got through a proxy.
#[derive(Debug)]
struct Passed {
    /// The requests of the input. [`LAST`] is left out, because a proxy may close the connection of
    /// a refused request, or keep it.
    requests: Vec<Message>,
    /// Responses of the service that the client has got.
    answered: usize,
}

/// Method, target, host and body of a request, and its lines with a length, a coding or `X`.
type Message = ([String; 4], Vec<String>);

/// nginx sends a body that has arrived with its length, and the gateway sends chunks as chunks.
fn unified(line: &str, body: &str) -> String {
    let length = match line.strip_prefix("content-length: ") {
        Some(digits) if digits.bytes().all(|it| it.is_ascii_digit()) => digits.parse().ok(),
        _ => (line == "transfer-encoding: chunked").then_some(body.len()),
    };
    length.map_or_else(|| line.to_owned(), |length| format!("content-length: {length}"))
}

/// Sends an input and [`LAST`] to a proxy in front of this service.
fn pass(proxy: SocketAddr, service: &Service, input: &[u8]) -> Passed {
    service.forget();
    let mut socket = connect(proxy);
    socket.set_read_timeout(Some(QUIET)).expect("a socket");
    let _ = socket.write_all(&[input, LAST].concat());
    let (mut answer, mut piece) = (Vec::new(), [0; 4_096]);
    while let Ok(length @ 1..) = socket.read(&mut piece) {
        answer.extend_from_slice(&piece[..length]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let answered =
        answer.matches("HTTP/1.1 200 ").count() + answer.matches("HTTP/1.0 200 ").count();
    let requests = service.requests().into_iter().map(|(head, body)| {
        let mut words = head.split([' ', '\r']).map(ToOwned::to_owned);
        let host = head.split("\r\nhost: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let host = host.unwrap_or_default().to_owned();
        let request = [words.next().unwrap_or_default(), words.next().unwrap_or_default(), host];
        let names = ["content-length:", "transfer-encoding:", "x:"];
        let lines = head.split("\r\n").filter(|line| names.iter().any(|it| line.starts_with(it)));
        let mut lines: Vec<_> = lines.map(|line| unified(line, &body)).collect();
        lines.sort();
        let [method, target, host] = request;
        ([method, target, host, body], lines)
    });
    // A request of the input before may arrive late.
    let is_of_input = |(request, _): &Message| {
        let target = request[1].as_bytes();
        input.windows(target.len().max(1)).any(|part| part == target)
    };
    Passed { requests: requests.filter(is_of_input).collect(), answered }
}

#[test]
fn odd_requests_pass_as_through_nginx_or_are_refused() {
    let front = Front::open(POLICY);
    let (_process, _folder, nginx) = nginx(front.service.address());
    let mut wrong = Vec::new();
    for (expected, input) in INPUTS {
        let ours = pass(front.address(), &front.service, input);
        let theirs = pass(nginx, &front.service, input);
        let is_expected = match expected {
            Same => ours.requests == theirs.requests && !ours.requests.is_empty(),
            Stricter => theirs.requests.starts_with(&ours.requests),
            Clear => ours.requests.len() == 1,
        };
        // A response too many would answer another request.
        if !is_expected || ours.answered > ours.requests.len() + 1 {
            wrong.push(format!(
                "{expected:?} {}\n  ours   {ours:?}\n  nginx  {theirs:?}",
                input.escape_ascii()
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), INPUTS.len(), wrong.join("\n"));
}
