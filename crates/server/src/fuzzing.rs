//! What fuzzers call: every parser of what strangers send, with what must hold for any bytes.
//!
//! No part of the interface; behind the feature `fuzzing`.

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

/// The domain whose decisions panic, as if the daemon had a bug.
pub const MISTAKE: &str = "\u{1}mistake";

/// More often than the longest batch yields.
const MAX_POLLS: usize = 1 << 20;

/// A policy whose rules are met by what the seeds ask.
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

/// One for all calls, in whose memory little fits: what is forgotten is part of what is tried.
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

/// Polls a future until it is ready. Nothing wakes it: it may yield to others, but waits for nothing.
fn finished<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..MAX_POLLS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("a question to the memory store is still waiting after {MAX_POLLS} polls");
}

/// Bytes that a client of Redis sends: the first says where they are torn apart.
pub fn redis(bytes: &[u8]) {
    let Some((split, bytes)) = bytes.split_first() else { return };
    resp::try_bytes(service(), bytes, usize::from(*split));
}

/// The body of a question in JSON.
pub fn question(bytes: &[u8]) {
    finished(http::try_body(service(), bytes));
}

/// A message to the rate limit service. What is read is answered, in both spellings.
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

/// Frames, heads and messages of gRPC that are not about limits.
pub fn call(bytes: &[u8]) {
    grpc::try_call(bytes);
}

/// A request that a proxy holds: its method and target in the first line, then its headers.
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

/// A change on the admin port: a head, an empty line and a body. Whatever the result, the next
/// request is decided. The changes stay, so they are made on a separate service.
pub fn change(bytes: &[u8]) {
    static SERVICE: OnceLock<RateLimitService> = OnceLock::new();
    let service = SERVICE.get_or_init(new_service);
    let Some((head, body)) = head(bytes) else { return };
    // Each is told in the log, which is for one at a time.
    service.status().log().set_level(Level::Error);
    finished(admin::try_change(service, &head, body));
    ask(service, "api", &[("user", "u1")]);
    ask(service, "api", &[("legacy", "l1")]);
}

/// The bytes of a connection to the gateway: the first says where they are torn apart. What the head guard
/// passes, hyper frames as an independent reader does.
pub fn requests(bytes: &[u8]) {
    let Some((split, bytes)) = bytes.split_first() else { return };
    gateway::try_requests(bytes, usize::from(*split) + 1);
}

/// What the service behind the gateway sends: bits of the first byte choose the request and the end of the
/// connection. What the gateway hands on, an independent reader frames in the same way, and no byte behind a
/// response answers another request.
pub fn responses(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    gateway::try_responses(bytes, *choice);
}

/// A policy file. It is read, or it is told what is wrong and where; and what was read decides.
pub fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let files = [("policy.yaml", text)];
    let loaded = Policy::load_at(&files, Merging::Allow, Timestamp::from_micros(1));
    let Loaded { policy, errors, findings } = loaded;
    assert_eq!(policy.is_some(), errors == 0, "{findings}");
    assert!(errors == 0 || findings.starts_with("policy.yaml:"), "{findings}");
    // Settings are written in the same language.
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

/// Decides on one descriptor by the policy.
fn ask(service: &RateLimitService, domain: &str, pairs: &[(&str, &str)]) {
    let entries: Vec<Entry<'_>> = pairs.iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptors = [Descriptor::new(&entries)];
    let request = Asked { domain, descriptors: &descriptors, hits: None };
    let answer = finished(service.check(&request));
    assert!(!matches!(answer, Err(CheckError::Store(_))), "memory decides");
}

/// The head that these bytes make, and what follows its empty line; `None` if hyper would not hand it
/// on. Lines end with `\n`: how a head is framed is not what is tried.
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
