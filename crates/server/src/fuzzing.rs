//! Entry points for fuzzers: every parser of client input, with properties that hold for any bytes.
//! Not part of the public interface; behind the feature `fuzzing`.

#![allow(clippy::expect_used, clippy::panic, reason = "a fuzzer is told by a panic")]

use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Uri};
use tidegate::policy::{
    CheckError, Descriptor, Entry, HttpRequest, Loaded, Merging, Policy, Request as Asked, leaves,
};
use tidegate::{Clock, ManualClock, Timestamp};

use crate::observability::log::Level;
use crate::service::RateLimitService;
use crate::settings::{Answers, ProxyHeaders};
use crate::transport::access::Caller;
use crate::transport::{admin, gateway, grpc, http, resp, rls};

/// The domain whose requests cause a panic, as a bug in the daemon would.
pub const MISTAKE: &str = "\u{1}mistake";

/// More polls than the longest batch needs.
const MAX_POLLS: usize = 1 << 20;

/// A policy whose rules match the requests of the seeds.
const POLICY: &str = "
domain: api
requests:
  trusted_proxies: 1
  rules:
    - path: /items/{id}
      descriptors:
        - entries:
            - {key: api_key, header: x-api-key}
        - entries:
            - {key: item, path_parameter: id}
            - {key: session, cookie: session}
    - path: /files/{rest...}
      methods: [GET, PUT]
      hosts: [example.org, '*.example.com']
      descriptors:
        - entries:
            - {key: user, api_key: true}
        - entries:
            - {key: user, query: user}
        - entries:
            - {key: user, path: true, default: none}
    - descriptors:
        - entries:
            - {key: client, client_ip: true}
            - {key: host, host: true}
            - {key: method, method: true}
descriptors:
  - key: client
    descriptors:
      - key: host
        descriptors:
          - {key: method, rate: 3/s}
  - key: item
    descriptors:
      - {key: session, rate: 2/s, algorithm: leaky_bucket}
  - key: api_key
    rate: 5/s
  - key: user
    limits:
      - {name: fast, rate: 10/s, algorithm: gcra}
      - {name: day, rate: 100/day, algorithm: sliding_window}
  - key: legacy
    rate_limit: {unit: minute, requests_per_unit: 3}
";

/// One service for all calls, with little memory, so that evictions are tested as well.
fn service() -> &'static RateLimitService {
    static SERVICE: OnceLock<RateLimitService> = OnceLock::new();
    SERVICE.get_or_init(new_service)
}

fn new_service() -> RateLimitService {
    let clock = Clock::from(ManualClock::new());
    let service = RateLimitService::in_memory(1 << 20, clock).expect("a megabyte");
    service
        .replace(Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse).policy.expect(POLICY));
    service
}

/// Polls a future until it is ready. The future may yield, but never waits for an event.
fn finished<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..MAX_POLLS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("a question to the memory store is still waiting after {MAX_POLLS} polls");
}

/// Bytes of a Redis client. The first byte chooses where the rest is split into pieces.
pub fn redis(bytes: &[u8]) {
    let Some((split, bytes)) = bytes.split_first() else { return };
    resp::try_bytes(service(), bytes, usize::from(*split));
}

/// The body of a request in JSON.
pub fn question(bytes: &[u8]) {
    finished(http::try_body(service(), bytes));
}

/// A message to the rate limit service. A valid message gets an answer, in protobuf and in JSON.
pub fn rate_limit(bytes: &[u8]) {
    for proxy_headers in [ProxyHeaders::Standard, ProxyHeaders::Envoy(Default::default())] {
        let answers = Answers { proxy_headers, dynamic_metadata: true, ..Answers::default() };
        finished(rls::try_message(service(), bytes, &answers));
    }
}

/// A document to `/json`.
pub fn json(bytes: &[u8]) {
    let (head, mut settings) = http::local();
    settings.answers.dynamic_metadata = true;
    let caller = Caller { head: &head, settings: &settings };
    finished(rls::json(service(), &caller, bytes));
}

/// Frames, heads and messages of gRPC calls to other services.
pub fn call(bytes: &[u8]) {
    grpc::try_call(bytes);
}

/// A request forwarded by a proxy: its method and target in the first line, then its headers.
pub fn forward(bytes: &[u8]) {
    let Some((head, _)) = head(bytes) else { return };
    let status = finished(http::try_forward(service(), &head));
    assert!([200, 400, 404, 422, 429].contains(&status), "{status}");
}

/// The body of a batch.
pub fn batch(bytes: &[u8]) {
    let status = finished(http::try_batch(service(), bytes));
    assert!([200, 400, 422].contains(&status), "{status}");
}

/// A change on the admin port: a head, an empty line and a body. After the change, the next request
/// is decided normally. Changes persist, so they use a separate service.
pub fn change(bytes: &[u8]) {
    static SERVICE: OnceLock<RateLimitService> = OnceLock::new();
    let service = SERVICE.get_or_init(new_service);
    let Some((head, body)) = head(bytes) else { return };
    // Each change is logged, and the log is not meant for this many.
    service.status().log().set_level(Level::Error);
    finished(admin::try_change(service, &head, body));
    ask(service, "api", &[("user", "u1")]);
    ask(service, "api", &[("legacy", "l1")]);
}

/// The bytes of a connection to the gateway. The first byte chooses where the rest is split into
/// pieces. If the head guard passes the bytes, hyper and an independent reader frame them in the
/// same way.
pub fn requests(bytes: &[u8]) {
    let Some((split, bytes)) = bytes.split_first() else { return };
    gateway::try_requests(bytes, usize::from(*split) + 1);
}

/// The bytes of an upstream's response; bits of the first byte choose the request and the end of
/// the connection. An independent reader frames the gateway's response in the same way, and bytes
/// after a response never answer another request.
pub fn responses(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    gateway::try_responses(bytes, *choice);
}

/// A policy file. It is either loaded, and then decides a request, or refused with errors and their
/// positions.
pub fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let files = [("policy.yaml", text)];
    let loaded = Policy::load_at(&files, Merging::Allow, Timestamp::from_micros(1));
    let Loaded { policy, errors, findings } = loaded;
    assert_eq!(policy.is_some(), errors == 0, "{findings}");
    assert!(errors == 0 || findings.starts_with("policy.yaml:"), "{findings}");
    // Settings files have the same syntax.
    let _ = leaves("settings.yaml", text);
    let Some(policy) = policy else { return };
    static SERVICE: OnceLock<RateLimitService> = OnceLock::new();
    let service = SERVICE.get_or_init(new_service);
    service.replace(policy);
    for domain in service.policy().domains() {
        for pairs in [&[("user", "u1")][..], &[("tenant", "t1"), ("user", "u1")]] {
            ask(service, domain.name(), pairs);
        }
        let headers = [("x-api-key", "k1"), ("cookie", "session=s1")];
        let (path, peer) = ("/items/1?user=u1", Some([192, 0, 2, 1].into()));
        let host = Some("a.example.com:80");
        let request = HttpRequest { method: "GET", path, host, headers: &headers, peer };
        let described = domain.requests().describe(&request);
        described.iter().flat_map(|it| it.descriptors()).for_each(drop);
    }
}

/// Decides one descriptor by the policy.
fn ask(service: &RateLimitService, domain: &str, pairs: &[(&str, &str)]) {
    let entries: Vec<Entry<'_>> = pairs.iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptors = [Descriptor::new(&entries)];
    let request = Asked { domain, descriptors: &descriptors, hits: None };
    let answer = finished(service.check(&request));
    assert!(!matches!(answer, Err(CheckError::Store(_))), "memory decides");
}

/// Parses a head, and returns it with the bytes after its empty line; `None` if hyper would refuse
/// it. Lines end with `\n`, because the framing of heads is not tested here.
fn head(bytes: &[u8]) -> Option<(Parts, &[u8])> {
    let (head, body) = match bytes.windows(2).position(|two| two == b"\n\n") {
        Some(end) => (&bytes[..end], &bytes[end + 2..]),
        None => (bytes, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let method = Method::from_bytes(&first[..space]).ok()?;
    let target = Uri::try_from(&first[space + 1..]).ok()?;
    let (mut parts, ()) = Request::builder().method(method).uri(target).body(()).ok()?.into_parts();
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        parts.headers.try_append(name, value).ok()?;
    }
    Some((parts, body))
}
