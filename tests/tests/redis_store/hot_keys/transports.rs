//! Local overrides of keys, through the admin port of a daemon.

use serde_json::{Value, json};
use tidegate::store::Nodes;
use tidegate::store::shared::SharedOptions;
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http;

use super::*;

struct Daemon {
    server: Server,
    _service: RateLimitService,
}

impl Daemon {
    fn start(redis: &RedisServer, nodes: u32) -> Self {
        let config = RedisConfig::new(&redis.url()).expect("an address").deadline(DEADLINE);
        let nodes = Nodes::try_from(nodes).expect("at least one");
        let options = SharedOptions::default().nodes(nodes);
        let service = RateLimitService::connect_with(config, options)
            .unwrap_or_else(|error| panic!("{error}"));
        service.replace(policy());
        let any = || Some(([127, 0, 0, 1], 0).into());
        let settings = Settings { http: any(), admin: any(), ..Settings::default() };
        let server = serve(&settings, &service).expect("it starts");
        Self { server, _service: service }
    }

    fn ask(&self, transport: std::net::SocketAddr, line: &str, body: &Value) -> (u16, String) {
        let body = body.to_string();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: {transport}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answer = http::send(transport, head + &body);
        (answer.status, answer.body)
    }

    fn admin(&self, line: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.ask(self.server.admin().expect("open"), line, body);
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn passing(&self, requests: usize, value: &str) -> usize {
        let body = json!({ "domain": "platform", "descriptors": [{ "plain": value }] });
        let transport = self.server.http().expect("open");
        (0..requests).filter(|_| self.ask(transport, "POST /v1/check", &body).0 == 200).count()
    }

    fn metric(&self, line: &str) -> u64 {
        let page = http::get(self.server.admin().expect("open"), "/metrics", "").body;
        let value = page.lines().find_map(|it| it.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {line} in {page}"))
    }
}

/// A local override keeps one key from the store; other keys are decided as usual.
#[test]
fn a_busy_key_gets_a_local_override_and_loses_it() {
    let redis = RedisServer::start();
    let daemon = Daemon::start(&redis, 5);
    let key = json!({ "domain": "platform", "descriptor": [["plain", "whale"]] });
    let mut wish = key.clone();
    wish["seconds"] = 600.into();
    wish["reason"] = "incident 7".into();
    let (status, reply) = daemon.admin("PUT /v1/local-overrides", &wish);
    assert_eq!(
        (status, &reply["local_overrides"][0]["reason"]),
        (200, &json!("incident 7")),
        "{reply}"
    );
    assert_eq!(reply["local_overrides"][0]["descriptor"], json!([["plain", "whale"]]));
    assert_eq!(reply["local_overrides"][0]["nodes"], 5);

    // 100 times 1.5 for five nodes.
    assert_eq!(daemon.passing(60, "whale"), 30);
    let keys: Vec<String> = from_redis_value(redis.command(&["KEYS", "tg:*"])).expect("names");
    assert!(!keys.iter().any(|key| key.contains("whale")), "{keys:?}");
    assert_eq!(daemon.passing(110, "other"), 100);
    assert_eq!(daemon.metric("tidegate_local_overrides"), 1);
    assert_eq!(daemon.metric("tidegate_local_charges_total{outcome=\"denied\"}"), 30);
    let (_, policy) = daemon.admin("GET /v1/policy", &Value::Null);
    assert_eq!(policy["local_overrides"], 1, "{policy}");

    let (_, ended) = daemon.admin("DELETE /v1/local-overrides", &key);
    assert_eq!(ended, json!({ "ended": true }));
    assert_eq!(daemon.passing(110, "whale"), 100, "the store knows nothing of it");
    let (_, reply) = daemon.admin("GET /v1/local-overrides", &Value::Null);
    assert_eq!(reply, json!({ "local_overrides": [] }));
}

#[test]
fn a_local_override_names_a_key_and_ends_in_time() {
    let redis = RedisServer::start();
    let daemon = Daemon::start(&redis, 2);
    for (wish, why) in [
        (json!({ "domain": "unknown", "descriptor": [["plain", "whale"]] }), "no such domain"),
        (json!({ "domain": "platform", "descriptor": [] }), "at least one entry"),
        (
            json!({ "domain": "platform", "descriptor": [["a", "b"]], "seconds": 0 }),
            "the end must be in the future",
        ),
        (json!({ "domain": "platform" }), "descriptor"),
        (json!({ "domain": "platform", "descriptor": [["a", "b"]], "nodes": 3 }), "unknown field"),
    ] {
        let (status, reply) = daemon.admin("PUT /v1/local-overrides", &wish);
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(why), "{wish}: {reply}");
    }
    assert_eq!(daemon.admin("POST /v1/local-overrides", &json!({})).0, 405);
    // In memory there is nothing to spare.
    let service = RateLimitService::new().expect("a store");
    let settings = Settings { admin: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
    let daemon =
        Daemon { server: serve(&settings, &service).expect("it starts"), _service: service };
    let wish = json!({ "domain": "platform", "descriptor": [["a", "b"]] });
    let (status, reply) = daemon.admin("PUT /v1/local-overrides", &wish);
    assert!(status == 400 && reply["error"].as_str().unwrap_or_default().contains("this process"));
}
