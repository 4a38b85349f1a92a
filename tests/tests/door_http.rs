//! The HTTP door, asked by sockets: what is sent is what stands here.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock, Span};
use tidegate_server::{Gate, Server, Settings, serve};

const PATIENCE: Duration = Duration::from_secs(30);

const POLICY: &str = "
domain: api
requests:
  rules:
    - path: /items/{id}
      descriptors:
        - entries:
            - {key: api_key, header: x-api-key}
descriptors:
  - key: api_key
    limits:
      - name: per_minute
        rate: 2/min
        burst: 2
  - key: tenant
    descriptors:
      - key: user
        rate: 1/s
        burst: 1
";

struct Door {
    server: Server,
    clock: ManualClock,
}

/// An answer, taken apart.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self { status: status.expect("a status"), head: head.to_lowercase(), body: body.into() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Door {
    fn open() -> Self {
        let clock = ManualClock::new();
        let gate = Gate::with_clock(Clock::from(clock.clone())).expect("memory");
        let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
        gate.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
        let http = Some(([127, 0, 0, 1], 0).into());
        let threads = NonZeroUsize::MIN;
        let settings = Settings { http, threads, drain: PATIENCE, ..Settings::default() };
        let server = serve(&settings, &gate).unwrap_or_else(|error| panic!("{error}"));
        Self { server, clock }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.server.http().expect("asked for"));
        let socket = socket.expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("not zero");
        socket
    }

    fn send(&self, request: &str) -> Answer {
        let mut socket = self.connect();
        // It may be closed before all of it is sent.
        let _ = socket.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        Answer::read(&String::from_utf8_lossy(&answer))
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n"))
    }

    fn post(&self, body: &str) -> Answer {
        let length = body.len();
        self.send(&format!(
            "POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    }

    fn check(&self, question: &Value) -> Answer {
        self.post(&question.to_string())
    }
}

#[test]
fn a_limit_that_comes_with_the_request_is_answered() {
    let door = Door::open();
    let question = json!({"key": "user:1", "rate": "60/60s", "burst": 2});
    let first = door.check(&question);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"given\";q=2;w=2"));
    assert_eq!(first.header("ratelimit"), Some("\"given\";r=1;t=1"));
    assert_eq!(first.header("retry-after"), None);
    let limit = json!({
        "name": "given", "algorithm": "token_bucket", "allowed": true, "limit": 2, "remaining": 1,
        "retry_after_ms": null, "reset_after_ms": 1_000,
    });
    let expected = json!({
        "allowed": true, "limit": 2, "remaining": 1, "retry_after_ms": null,
        "reset_after_ms": 1_000, "delay_ms": 0, "limits": [limit],
    });
    assert_eq!(first.json(), expected);
    assert_eq!(door.check(&question).status, 200);
    let third = door.check(&question);
    assert_eq!((third.status, third.header("retry-after")), (429, Some("1")));
    assert_eq!(third.json()["retry_after_ms"], 1_000);
    assert_eq!(third.header("ratelimit"), Some("\"given\";r=0;t=1"));
    door.clock.advance(Span::from_secs(1));
    assert_eq!(door.check(&question).status, 200);
}

#[test]
fn what_never_fits_is_told_without_a_time() {
    let door = Door::open();
    let answer = door.check(&json!({"key": "k", "rate": "1/s", "burst": 5, "cost": 6}));
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));
    assert_eq!(answer.json()["never"], true);
    assert_eq!(answer.json()["retry_after_ms"], Value::Null);
}

#[test]
fn every_algorithm_can_be_asked_for() {
    let door = Door::open();
    for algorithm in
        ["token_bucket", "gcra", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]
    {
        let question = json!({"key": algorithm, "rate": "10/10s", "algorithm": algorithm});
        let answer = door.check(&question);
        assert_eq!(answer.status, 200, "{algorithm}: {answer:?}");
        assert_eq!(answer.json()["limits"][0]["algorithm"], algorithm);
        assert!(answer.header("ratelimit-policy").is_some_and(|it| it.contains(";w=")));
        // Only this one holds a single unit unless told otherwise.
        assert_eq!(door.check(&question).status == 429, algorithm == "gcra", "{algorithm}");
    }
}

#[test]
fn a_policy_is_asked_by_descriptors() {
    let door = Door::open();
    let question = json!({"domain": "api", "descriptors": [{"api_key": "k1"}]});
    let first = door.check(&question);
    assert_eq!((first.status, &first.json()["remaining"]), (200, &json!(1)));
    assert_eq!(first.json()["limits"][0]["name"], "per_minute");
    assert_eq!(first.header("ratelimit-policy"), Some("\"per_minute\";q=2;w=60"));
    let pairs = json!([["tenant", "t"], ["user", "bob"]]);
    let deep = json!({"domain": "api", "descriptors": [pairs, {"api_key": "k1"}]});
    assert_eq!(door.check(&deep).status, 200);
    let denied = door.check(&deep);
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("30")));
    assert_eq!(denied.json()["limits"].as_array().map(Vec::len), Some(2));
    let elsewhere = json!({"domain": "elsewhere", "descriptors": [{"a": "b"}]});
    let elsewhere = door.check(&elsewhere);
    assert_eq!((elsewhere.status, &elsewhere.json()["limit"]), (200, &Value::Null));
}

#[test]
fn questions_that_cannot_be_answered_are_told_why() {
    let door = Door::open();
    for (question, why) in [
        (json!({}), "say key and rate"),
        (json!({"key": "k", "domain": "api"}), "say key and rate"),
        (json!({"key": "k"}), "needs a rate"),
        (json!({"key": "k", "rate": "often"}), "COUNT/PERIOD"),
        (json!({"key": "k", "rate": "0/s", "burst": 1}), "count of a rate"),
        (json!({"key": "k", "rate": "1/s", "burst": 0}), "burst must be"),
        (json!({"key": "k", "rate": "1/s", "burst": -1}), "invalid value"),
        (json!({"key": "k", "rate": "1/s", "algorithm": "magic"}), "algorithm must be one of"),
        (json!({"key": "k", "rate": "1/s", "colour": "red"}), "unknown field"),
        (json!({"domain": "api"}), "descriptor list must not be empty"),
        (json!({"domain": "api", "descriptors": [{}]}), "no entries"),
        (json!({"domain": "api", "descriptors": [{"a": "1", "b": "2"}]}), "an object has no order"),
        (json!({"domain": "api", "descriptors": [], "rate": "1/s"}), "in its policy"),
        (json!([]), "invalid"),
    ] {
        let answer = door.check(&question);
        assert_eq!(answer.status, 400, "{question}");
        let told = answer.json()["error"].to_string();
        assert!(told.contains(why), "{question}: {told}");
    }
    assert_eq!(door.post("{").status, 400);
    assert_eq!(door.post(&" ".repeat(65_537)).status, 413);
    assert_eq!(door.get("/v1/check", "").status, 405);
    assert_eq!(door.get("/nothing", "").status, 404);
    assert_eq!(door.get("/healthz", "").status, 200);
    assert_eq!(door.get("/healthz", &format!("x: {}\r\n", "y".repeat(300_000))).status, 431);
}

#[test]
fn a_proxy_asks_before_it_forwards() {
    let door = Door::open();
    for (number, headers) in [
        "x-forwarded-method: GET\r\nx-forwarded-uri: /items/7?x=1\r\nx-api-key: k9\r\n",
        "x-original-method: POST\r\nx-original-uri: /items/8\r\nx-api-key: k9\r\n",
        "x-original-url: https://example.org/items/9\r\nx-api-key: k9\r\n",
    ]
    .iter()
    .enumerate()
    {
        let path = ["/v1/auth?domain=api", "/v1/auth"][number % 2];
        let answer = door.get(path, headers);
        let denied = number == 2;
        assert_eq!(answer.status, if denied { 429 } else { 200 }, "{headers}: {answer:?}");
        assert_eq!(answer.header("retry-after"), denied.then_some("30"));
        assert!(answer.header("ratelimit").is_some());
        assert_eq!(answer.body, "");
    }
    // Nothing limits what no rule describes.
    assert_eq!(door.get("/v1/auth", "x-forwarded-uri: /other\r\nx-api-key: k9\r\n").status, 200);
    assert_eq!(door.get("/v1/auth", "x-forwarded-uri: /items/7\r\n").status, 200);
    // A slip in a proxy's configuration must not pass everything in silence.
    assert_eq!(door.get("/v1/auth?domain=apo", "x-forwarded-uri: /items/7\r\n").status, 400);
}

#[test]
fn stopping_closes_connections_that_are_kept_alive() {
    let door = Door::open();
    let mut kept = door.connect();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut start = [0; 15];
    kept.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    door.server.stop();
    let mut rest = Vec::new();
    kept.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"ok\n"));
}
