//! The admin transport, asked by sockets: metrics, readiness, and changes that every transport obeys.

mod access;
mod changes;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::policy::{Merging, Policy};
use tidegate::store::redis::RedisConfig;
use tidegate::{ManualClock, Timestamp};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http;

const TIMEOUT: Duration = Duration::from_secs(60);

const POLICY: &str = "
domain: api
descriptors:
  - key: user
    rate: 4/min
  - key: envoy
    value: a
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: free
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
";

struct Daemon {
    server: Server,
    service: RateLimitService,
    clock: ManualClock,
}

fn daemon(token: Option<&str>) -> Daemon {
    daemon_with(|settings| settings.token = token.map(Into::into))
}

/// A daemon on loopback whose settings are then changed.
fn daemon_with(change: impl FnOnce(&mut Settings)) -> Daemon {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_secs(1_700_000_000));
    let service = RateLimitService::with_clock(clock.clone().into()).expect("memory");
    let loaded = Policy::load(&[("p.yaml", POLICY)], Merging::Refuse);
    service.replace(loaded.policy.expect(&loaded.findings));
    let here = Some(([127, 0, 0, 1], 0).into());
    let mut settings = Settings {
        http: here.clone(),
        resp: here.clone(),
        admin: here.clone(),
        metrics: here,
        envoy_metrics: true,
        threads: NonZeroUsize::new(2).expect("two"),
        ..Settings::default()
    };
    change(&mut settings);
    let server = serve(&settings, &service).expect("it starts");
    Daemon { server, service, clock }
}

/// The status and the body of an answer; headers are given as `Name: value\r\n`.
fn ask(address: SocketAddr, call: &str, headers: &str, body: &str) -> (u16, String) {
    let answer = http::ask(address, call, headers, body);
    (answer.status, answer.body)
}

impl Daemon {
    fn admin(&self, call: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = ask(self.server.admin().expect("open"), call, "", &body);
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn page(&self, path: &str) -> String {
        let call = format!("GET {path}");
        let (status, text) = ask(self.server.admin().expect("open"), &call, "", "");
        assert_eq!(status, 200, "{path}: {text}");
        text
    }

    /// Whether the policy lets a request through, over HTTP.
    fn check(&self, key: &str, value: &str) -> bool {
        let body = json!({ "domain": "api", "descriptors": [{ key: value }] }).to_string();
        let (status, text) = ask(self.server.http().expect("open"), "POST /v1/check", "", &body);
        assert!([200, 429].contains(&status), "{text}");
        status == 200
    }

    /// The same over RESP.
    fn check_resp(&self, key: &str, value: &str) -> bool {
        let mut socket = TcpStream::connect(self.server.resp().expect("open")).expect("open");
        socket.set_read_timeout(Some(TIMEOUT)).expect("not zero");
        write!(socket, "TG.CHECK api {key} {value}\r\nQUIT\r\n").expect("it reads");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        text.starts_with("*6\r\n:0\r\n")
    }

    fn passed(&self, value: &str) -> usize {
        (0..10).filter(|_| self.check("user", value)).count()
    }
}

#[test]
fn decisions_are_counted_under_both_kinds_of_names() {
    let daemon = daemon(None);
    assert_eq!(daemon.passed("bob"), 4);
    assert!(daemon.check_resp("user", "ann"));
    for _ in 0..6 {
        daemon.check("envoy", "a");
    }
    assert!(daemon.check("shadow", "x") && daemon.check("shadow", "x"));
    let metrics = daemon.page("/metrics");
    for line in [
        "tidegate_requests_total{listener=\"HTTP\",verdict=\"allowed\"} 11",
        "tidegate_requests_total{listener=\"HTTP\",verdict=\"denied\"} 7",
        "tidegate_requests_total{listener=\"RESP\",verdict=\"allowed\"} 1",
        "tidegate_limit_units_total{domain=\"api\",limit=\"api/user#\",outcome=\"within_limit\"} 4",
        "tidegate_limit_units_total{domain=\"api\",limit=\"api/user#\",outcome=\"near_limit\"} 1",
        "tidegate_limit_units_total{domain=\"api\",limit=\"api/user#\",outcome=\"over_limit\"} 6",
        "ratelimit_service_rate_limit_total_hits{domain=\"api\",key1=\"envoy_a\"} 6",
        "ratelimit_service_rate_limit_over_limit{domain=\"api\",key1=\"envoy_a\"} 1",
        "ratelimit_service_rate_limit_near_limit{domain=\"api\",key1=\"envoy_a\"} 1",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"api\",key1=\"shadow\"} 1",
        "tidegate_limit_units_total{domain=\"api\",limit=\"api/shadow#\",outcome=\"over_limit\"} 0",
        "tidegate_limit_units_total{domain=\"api\",limit=\"api/shadow#\",outcome=\"shadow\"} 1",
        "tidegate_request_seconds_count{listener=\"HTTP\"} 18",
        "tidegate_request_seconds_count{listener=\"RESP\"} 1",
        "tidegate_store_evicted_total 0",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}\n{metrics}");
    }
    let stats = daemon.page("/stats");
    for line in [
        "ratelimit.service.rate_limit.api.envoy_a.within_limit: 5",
        "ratelimit.service.rate_limit.api.shadow.over_limit: 1",
        "ratelimit.service.config_load_success: 0",
    ] {
        assert!(stats.lines().any(|it| it == line), "{line}\n{stats}");
    }
    let rules = daemon.page("/rlconfig");
    for line in [
        "api.envoy_a: unit=MINUTE requests_per_unit=5, shadow_mode: false, quota_mode: false",
        "api.shadow: unit=YEAR requests_per_unit=1, shadow_mode: true, quota_mode: true",
        "api.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false",
    ] {
        assert!(rules.lines().any(|it| it == line), "{line}\n{rules}");
    }
}

/// A request that no limit applies to is a sign of a typing error in the policy or in the client.
#[test]
fn requests_without_a_limit_are_counted() {
    let daemon = daemon(None);
    let check = |body: &Value| {
        let address = daemon.server.http().expect("open");
        ask(address, "POST /v1/check", "", &body.to_string()).0
    };
    assert_eq!(check(&json!({ "domain": "apj", "descriptors": [{ "user": "x" }] })), 200);
    let two = json!([{ "user": "x" }, { "usr": "x" }, { "free": "x" }, { "uesr": "x" }]);
    assert_eq!(check(&json!({ "domain": "api", "descriptors": two })), 200);
    let metrics = daemon.page("/metrics");
    for line in [
        "tidegate_unknown_domain_requests_total{domain=\"apj\"} 1",
        "tidegate_unmatched_descriptors_total 2",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}\n{metrics}");
    }
}

/// The latency of commands that a pipeline or a transaction brings is counted for each of them.
#[test]
fn every_decision_over_resp_has_a_latency() {
    let daemon = daemon(None);
    let mut socket = TcpStream::connect(daemon.server.resp().expect("open")).expect("open");
    socket.set_read_timeout(Some(TIMEOUT)).expect("not zero");
    let commands = "CL.THROTTLE a 9 1 60\r\nPING\r\nTG.CHECK api user bob\r\nMULTI\r\n\
                    CL.THROTTLE a 9 1 60\r\nCL.THROTTLE b 9 1 60\r\nEXEC\r\nQUIT\r\n";
    socket.write_all(commands.as_bytes()).expect("it reads");
    socket.read_to_string(&mut String::new()).expect("an answer");
    let metrics = daemon.page("/metrics");
    for line in [
        "tidegate_requests_total{listener=\"RESP\",verdict=\"allowed\"} 4",
        "tidegate_request_seconds_count{listener=\"RESP\"} 4",
        "tidegate_request_seconds_bucket{le=\"+Inf\",listener=\"RESP\"} 4",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}\n{metrics}");
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(metrics.contains(&format!("\n{name} ")), "{name}\n{metrics}");
    }
}

/// What Prometheus would refuse: a line without a name, or two heads of one metric.
#[test]
fn metrics_are_well_formed() {
    let daemon = daemon(None);
    daemon.passed("bob");
    let metrics = daemon.page("/metrics");
    let mut heads = Vec::new();
    for line in metrics.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let name = head.split(' ').next().expect("a name").to_owned();
            assert!(!heads.contains(&name), "{name} stands twice");
            heads.push(name);
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect(line);
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = series.split('{').next().expect("a name");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = |name: &str| heads.last().is_some_and(|head| head == name);
            assert!(known(name) || base.is_some_and(known), "{line}");
        }
    }
    assert!(heads.len() > 20);
}

/// Overrides and switches act where all transports ask, outlive the policy, and end.
#[test]
fn overrides_hold_for_every_transport_and_end() {
    let daemon = daemon(None);
    let wish =
        json!({ "limit": "api/user#", "percent": 50, "seconds": 600, "reason": "incident 7" });
    let (status, reply) = daemon.admin("PUT /v1/overrides", &wish);
    assert_eq!((status, &reply["overrides"][0]["percent"]), (200, &json!(50)), "{reply}");
    assert_eq!(daemon.passed("a"), 2);
    assert_eq!((0..10).filter(|_| daemon.check_resp("user", "b")).count(), 2);
    let loaded = Policy::load(&[("p.yaml", POLICY)], Merging::Refuse);
    daemon.service.replace(loaded.policy.expect("as before"));
    assert_eq!(daemon.passed("c"), 2);
    let (_, policy) = daemon.admin("GET /v1/policy", &Value::Null);
    assert_eq!(policy["overrides"][0]["reason"], "incident 7");
    daemon.clock.set(Timestamp::from_secs(1_700_000_600));
    assert_eq!(daemon.passed("d"), 4);
    let rate = json!({ "limit": "api/user#", "rate": "1/h", "burst": 7, "seconds": 60 });
    assert_eq!(daemon.admin("PUT /v1/overrides", &rate).0, 200);
    assert_eq!(daemon.passed("e"), 7);
    let (_, ended) = daemon.admin("DELETE /v1/overrides", &json!({ "limit": "api/user#" }));
    assert_eq!(ended, json!({ "ended": true }));
    assert_eq!(daemon.passed("f"), 4);
    for wrong in [
        json!({ "limit": "api/user#", "percent": 50 }),
        json!({ "limit": "api/user#", "percent": 50, "seconds": 0 }),
        json!({ "limit": "api/user#", "percent": 50, "seconds": 31 * 86_400 }),
        json!({ "limit": "api/user#", "percent": 50, "rate": "1/s", "seconds": 60 }),
        json!({ "limit": "unknown", "percent": 50, "seconds": 60 }),
        json!({ "limit": "api/user#", "rate": "fast", "seconds": 60 }),
    ] {
        let (status, reply) = daemon.admin("PUT /v1/overrides", &wrong);
        assert!(status == 400 && reply["error"].is_string(), "{wrong}: {reply}");
    }
}

#[test]
fn the_kill_switch_admits_every_request_and_counts() {
    let daemon = daemon(None);
    for target in
        [json!({ "limit": "api/user#" }), json!({ "domain": "api" }), json!({ "all": true })]
    {
        let name = target.to_string();
        assert_eq!(daemon.admin("PUT /v1/kill-switch", &target).0, 200, "{name}");
        assert_eq!(daemon.passed("x"), 10, "{name}");
        let (_, reply) = daemon.admin("GET /v1/kill-switch", &Value::Null);
        assert_eq!(reply["kill_switch"], json!([target]));
        let (_, ended) = daemon.admin("DELETE /v1/kill-switch", &target);
        assert_eq!(ended, json!({ "ended": true }));
        assert_eq!(daemon.passed("x"), 0, "{name}");
    }
    assert_eq!(daemon.admin("PUT /v1/kill-switch", &json!({ "domain": "none" })).0, 400);
    assert_eq!(daemon.admin("PUT /v1/kill-switch", &json!({})).0, 400);
}

#[test]
fn a_reset_lets_a_key_start_afresh() {
    let daemon = daemon(None);
    assert_eq!((daemon.passed("bob"), daemon.passed("ann")), (4, 4));
    let whose = json!({ "domain": "api", "descriptors": [[["user", "bob"]]] });
    let (status, reply) = daemon.admin("POST /v1/reset", &whose);
    assert_eq!((status, reply), (200, json!({ "limits_reset": 1 })));
    assert_eq!((daemon.passed("bob"), daemon.passed("ann")), (4, 0));
    let (_, reply) = daemon.admin("POST /v1/reset", &json!({ "key": "never seen" }));
    assert_eq!(reply, json!({ "had_state": false }));
    assert_eq!(daemon.admin("POST /v1/reset", &json!({ "key": "a", "domain": "b" })).0, 400);
}

#[test]
fn hot_and_denied_keys_are_told() {
    let daemon = daemon(None);
    daemon.passed("hot");
    daemon.check("user", "cold");
    let (_, reply) = daemon.admin("GET /v1/hot-keys", &Value::Null);
    assert_eq!(reply["asked"][0], json!({ "key": "api/user=hot", "requests": 10 }));
    assert_eq!(reply["asked"].as_array().map(Vec::len), Some(2));
    assert_eq!(reply["denied"], json!([{ "key": "api/user=hot", "requests": 6 }]));
}

#[test]
fn missing_paths_are_refused_with_the_reason() {
    let daemon = daemon(None);
    let list = daemon.page("/");
    assert!(list.contains("/rlconfig: ") && list.contains("/v1/kill-switch: "), "{list}");
    for (call, status) in [
        ("GET /debug/pprof/profile", 404),
        ("GET /nothing", 404),
        ("POST /nothing", 404),
        ("POST /metrics", 405),
        ("GET /v1/reset", 405),
        ("POST /v1/overrides", 405),
    ] {
        let (found, reply) = daemon.admin(call, &Value::Null);
        assert!(found == status && reply["error"].is_string(), "{call}: {found} {reply}");
    }
    let metrics = daemon.server.listeners().iter().find(|(it, _)| it.name() == "metrics");
    let (_, address) = metrics.expect("open");
    let address = address.to_string().parse().expect("an address");
    assert_eq!(ask(address, "GET /metrics", "", "").0, 200);
    for path in ["/", "/v1/policy", "/healthz"] {
        assert_eq!(ask(address, &format!("GET {path}"), "", "").0, 404, "{path}");
    }
    assert_eq!(ask(address, "PUT /v1/log-level", "", "{}").0, 404);
}

#[test]
fn the_daemon_is_ready_until_it_drains() {
    let daemon = daemon(None);
    assert_eq!(daemon.page("/readyz"), "ready\n");
    daemon.service.status().drain();
    let (status, why) = daemon.admin("GET /readyz", &Value::Null);
    assert_eq!((status, why), (503, json!("draining\n")));
    assert_eq!(daemon.page("/healthz"), "ok\n");
}

/// A daemon without its Redis lives, and is ready: its policy says what is answered then.
#[test]
fn the_daemon_is_ready_while_its_store_is_unavailable() {
    // Nothing listens there.
    let config = RedisConfig::new("redis://127.0.0.1:1").expect("a URL").start_without_server();
    let service = RateLimitService::connect(config).expect("it need not be there");
    let admin = Some(([127, 0, 0, 1], 0).into());
    let server = serve(&Settings { admin, ..Settings::default() }, &service).expect("it starts");
    let address = server.admin().expect("open");
    let (status, reply) = ask(address, "GET /readyz", "", "");
    assert!(status == 200 && reply.starts_with("ready"), "{status} {reply}");
    assert_eq!(ask(address, "GET /healthz", "", "").0, 200);
    let (_, metrics) = ask(address, "GET /metrics", "", "");
    assert!(!metrics.contains("tidegate_store_memory_bytes"), "{metrics}");
}
