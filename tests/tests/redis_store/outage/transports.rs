//! The same over every transport of the daemon.

use redis::Connection;
use serde_json::{Value, json};
use tidegate::store::Nodes;
use tidegate::store::shared::SharedOptions;
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http::{self, Answer as HttpAnswer};
use tidegate_tests::rls::RateLimitRequest;

use super::*;

/// A daemon in front of a Redis.
struct Daemon {
    server: Server,
    _service: RateLimitService,
}

impl Daemon {
    /// One of so many, with this for limits that come with the request.
    fn start(redis: &RedisServer, nodes: u32, otherwise: OnStoreFailure) -> Self {
        let config = RedisConfig::new(&redis.url()).expect("an address").deadline(DEADLINE);
        Self::start_with(config, nodes, otherwise)
    }

    fn start_with(config: RedisConfig, nodes: u32, otherwise: OnStoreFailure) -> Self {
        let nodes = Nodes::try_from(nodes).expect("at least one");
        let options = SharedOptions::default().nodes(nodes).on_store_failure(otherwise);
        let service = RateLimitService::connect_with(config, options);
        let service = service.unwrap_or_else(|error| panic!("{error}"));
        service.replace(policy());
        let any = || Some(([127, 0, 0, 1], 0).into());
        let settings =
            Settings { http: any(), grpc: any(), resp: any(), admin: any(), ..Settings::default() };
        let server = serve(&settings, &service).expect("it starts");
        Self { server, _service: service }
    }

    fn post(&self, path: &str, body: &Value) -> HttpAnswer {
        let (address, body) = (self.server.http().expect("open"), body.to_string());
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        http::send(address, head + &body)
    }

    fn check(&self, key: &str) -> HttpAnswer {
        self.post("/v1/check", &json!({"domain": "shop", "descriptors": [{ key: "bob" }]}))
    }

    fn admin(&self, path: &str) -> HttpAnswer {
        http::get(self.server.admin().expect("open"), path, "")
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.admin("/v1/status").body).expect("a document")
    }

    fn resp(&self) -> Connection {
        let address = self.server.resp().expect("open");
        let client = redis::Client::open(format!("redis://{address}")).expect("an address");
        client.get_connection().expect("it listens")
    }

    fn grpc(&self, key: &str) -> i32 {
        let mut client = GrpcClient::connect(self.server.grpc().expect("open"));
        let request = RateLimitRequest::one("shop", key, "bob");
        client.should_rate_limit(&request).expect("never an error").overall_code
    }

    fn until_degraded(&self) {
        wait_until("it is degraded", TIMEOUT, || {
            self.check("allow");
            self.status()["state"] == "degraded"
        });
    }
}

/// Every transport says what the policy does, and none an error; the daemon stays ready.
#[test]
fn every_transport_answers_while_redis_is_unavailable() {
    let redis = RedisServer::start();
    let daemon = Daemon::start(&redis, 1, OnStoreFailure::Deny);
    assert_eq!(daemon.admin("/readyz").body, "ready\n");
    assert_eq!(daemon.status()["state"], "healthy");
    // From the first answer of Redis on, the share is the whole one.
    assert_eq!(daemon.check("local").status, 200);
    redis.kill();
    daemon.until_degraded();
    let ready = daemon.admin("/readyz");
    assert!(ready.status == 200 && ready.body.contains("the store is unavailable"), "{ready:?}");

    assert_eq!(daemon.check("allow").status, 200);
    let denied = daemon.check("deny");
    assert_eq!((denied.status, denied.header("retry-after")), (503, Some("1")), "{denied:?}");
    let statuses: Vec<u16> = (0..40).map(|_| daemon.check("local").status).collect();
    let (passed, over) = statuses.split_at(28);
    assert!(passed.iter().all(|status| *status == 200), "{statuses:?}");
    assert!(over.iter().all(|status| *status == 429), "{statuses:?}");
    let given = daemon.post("/v1/check", &json!({"key": "bob", "rate": "10/hour"}));
    assert_eq!((given.status, given.header("retry-after")), (503, Some("1")), "store.on_failure");

    let over_limit = 2;
    assert_eq!((daemon.grpc("allow"), daemon.grpc("deny")), (1, over_limit));
    let mut client = daemon.resp();
    let mut answer = |words: &str| -> Vec<redis::Value> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().expect("a name"));
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut client).expect("never an error")
    };
    assert_eq!(answer("TG.CHECK shop allow bob")[0], redis::Value::Int(0));
    assert_eq!(answer("TG.CHECK shop deny bob")[0], redis::Value::Int(1));
    let cell = answer("CL.THROTTLE bob 9 1 3600");
    assert_eq!((&cell[0], &cell[3]), (&redis::Value::Int(1), &redis::Value::Int(1)));

    let metrics = daemon.admin("/metrics").body;
    let server = redis.address();
    for line in [
        &*format!("tidegate_store_circuit{{server=\"{server}\",state=\"open\"}} 1"),
        &format!("tidegate_store_circuit_trips_total{{server=\"{server}\"}} 1"),
        "tidegate_fallback_charges_total{mode=\"deny\"}",
        "tidegate_store_errors_total{kind=\"unavailable\"}",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let of = |user: &str| json!({"domain": "shop", "descriptors": [[["local", user]]]}).to_string();
    let reset =
        |body: &str| http::ask(daemon.server.admin().expect("open"), "POST /v1/reset", "", body);
    for body in [of("ann"), json!({"key": "ann"}).to_string()] {
        let refused = reset(&body);
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{body}");
        assert!(refused.body.contains("store"), "it gives the reason: {refused:?}");
    }
    assert_eq!(reset("{}").status, 400);
    redis.restart();
    wait_until("it is healthy again", TIMEOUT, || daemon.status()["state"] == "healthy");
    wait_until("no debit is pending", TIMEOUT, || daemon.status()["store"]["owing_keys"] == 0);
    assert_eq!(daemon.check("deny").status, 200);
    assert_eq!(daemon.check("local").status, 429, "what was let in has been booked");
    assert_eq!((reset(&of("bob")).status, daemon.check("local").status), (200, 200));
}

/// F12: what does not pass by itself turns health red.
#[test]
fn a_daemon_whose_redis_refuses_is_not_ready() {
    let redis = RedisServer::start();
    let daemon = Daemon::start(&redis, 1, OnStoreFailure::Local);
    super::refusal::lock(&redis);
    wait_until("it is not ready", TIMEOUT, || daemon.admin("/readyz").status == 503);
    let why = daemon.admin("/readyz").body;
    assert!(why.contains("password"), "{why}");
    assert_eq!(daemon.check("deny").status, 503);
    let allowed = (0..1_600).filter(|_| daemon.check("allow").status == 200).count();
    assert!(allowed <= 1_500, "{allowed} went ahead");
    let metrics = daemon.admin("/metrics").body;
    assert!(!metrics.contains("tidegate_store_errors_total{kind=\"refused\"} 0"), "{metrics}");
}

/// No request has to find out that the store cannot be reached.
#[test]
fn a_daemon_whose_redis_cannot_be_resolved_starts_degraded() {
    let config = RedisConfig::new("redis://redis.invalid:6379").expect("an address");
    let daemon = Daemon::start_with(config.start_without_server(), 1, OnStoreFailure::Deny);
    let status = daemon.status();
    assert_eq!(status["state"], "degraded", "{status}");
    let failure = status["store"]["last_failure"]["error"].as_str().unwrap_or_default();
    assert!(failure.contains("redis.invalid"), "{status}");
    let ready = daemon.admin("/readyz");
    assert!(ready.status == 200 && ready.body.contains("the store is unavailable"), "{ready:?}");
    assert_eq!((daemon.check("allow").status, daemon.check("deny").status), (200, 503));
    let errors = "tidegate_store_errors_total{kind=\"unavailable\"} 0";
    let metrics = daemon.admin("/metrics").body;
    assert!(!metrics.contains(errors), "{metrics}");
}

/// A server that answers later than the daemon starts is tested as if it had answered then: a full one
/// refuses to write, which no request has met yet.
#[test]
fn the_self_test_runs_when_redis_first_answers() {
    let redis = RedisServer::start();
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    redis.pause();
    let config = RedisConfig::new(&redis.url()).expect("an address");
    let daemon = Daemon::start_with(config.start_without_server(), 1, OnStoreFailure::Deny);
    let ready = daemon.admin("/readyz");
    assert!(ready.status == 200 && ready.body.contains("the store is unavailable"), "{ready:?}");
    redis.resume();
    wait_until("the fault is found", TIMEOUT, || daemon.admin("/readyz").status == 503);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_until("the fault is gone", TIMEOUT, || daemon.admin("/readyz").body == "ready\n");
    assert_eq!(daemon.check("deny").status, 200);
}
