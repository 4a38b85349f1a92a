//! The outage drill over the admin port of a daemon with a healthy Redis.

use serde_json::{Value, json};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http;

use super::*;

fn daemon(redis: &RedisServer) -> (Server, RateLimitService) {
    let config = RedisConfig::new(&redis.url()).expect("an address").deadline(DEADLINE);
    let options = SharedOptions::default().nodes(Nodes::try_from(2).expect("two"));
    let service = RateLimitService::connect_with(config, options);
    let service = service.unwrap_or_else(|error| panic!("{error}"));
    service.replace(policy());
    let any = || Some(([127, 0, 0, 1], 0).into());
    let settings = Settings { http: any(), admin: any(), ..Settings::default() };
    (serve(&settings, &service).expect("it starts"), service)
}

fn admin(server: &Server, line: &str, body: &str) -> (u16, Value) {
    let address = server.admin().expect("open");
    let head = format!(
        "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = http::send(address, head);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::Null))
}

fn check(server: &Server, key: &str, value: &str) -> u16 {
    let body = json!({ "domain": "shop", "descriptors": [{ key: value }] }).to_string();
    let address = server.http().expect("open");
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    http::send(address, head).status
}

fn metric(server: &Server, name: &str) -> String {
    let page = http::get(server.admin().expect("open"), "/metrics", "").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).trim().to_owned()
}

/// Every fallback is in force, Redis gets no script call, and the units are debited afterwards.
#[test]
fn a_drill_rehearses_every_fallback() {
    let redis = RedisServer::start();
    let (server, _service) = daemon(&redis);
    assert_eq!(check(&server, "local", "bob"), 200);
    let wish = r#"{"seconds":600,"reason":"rehearsal"}"#;
    let (status, reply) = admin(&server, "PUT /v1/drill", wish);
    let left = reply["drill"]["seconds_left"].as_u64().expect("seconds");
    assert!(status == 200 && (599..=600).contains(&left), "{reply}");
    let before = calls(&redis);
    assert_eq!(check(&server, "deny", "bob"), 503);
    assert_eq!(check(&server, "allow", "bob"), 200);
    let passed = (0..40).filter(|_| check(&server, "local", "eve") == 200).count();
    assert_eq!(passed, 15, "20 × 1.5 / 2");
    assert_eq!(calls(&redis), before, "the store is not asked");
    let (_, reply) = admin(&server, "GET /v1/status", "");
    assert_eq!(reply["state"], "degraded", "{reply}");
    assert!(reply["store"]["drill"]["seconds_left"].is_u64(), "{reply}");
    let why = reply["store"]["last_failure"]["error"].as_str().expect("a reason").to_owned();
    assert!(why.contains("drill"), "{why}");
    assert_eq!(metric(&server, "tidegate_store_drill"), "1");
    let (status, reply) = admin(&server, "DELETE /v1/drill", "");
    assert_eq!((status, reply), (200, json!({ "ended": true })));
    assert_eq!(admin(&server, "DELETE /v1/drill", "").1, json!({ "ended": false }));
    assert_eq!(admin(&server, "GET /v1/drill", "").1, json!({ "drill": null }));
    assert_eq!(check(&server, "deny", "bob"), 200, "the store decides again");
    wait_until("the drill's units are debited", TIMEOUT, || {
        metric(&server, "tidegate_fallback_owing_keys") == "0"
    });
    let passed = (0..40).filter(|_| check(&server, "local", "eve") == 200).count();
    assert_eq!(passed, 5, "15 of 20 were admitted during the drill");
    assert_eq!(metric(&server, "tidegate_store_drill"), "0");
}

#[test]
fn a_drill_ends_by_itself_and_is_bounded() {
    let redis = RedisServer::start();
    let (server, _service) = daemon(&redis);
    for wrong in [r#"{"seconds":0}"#, r#"{"seconds":3601}"#, "{}", r#"{"minutes":1}"#] {
        assert_eq!(admin(&server, "PUT /v1/drill", wrong).0, 400, "{wrong}");
    }
    assert_eq!(admin(&server, "PUT /v1/drill", r#"{"seconds":1}"#).0, 200);
    assert_eq!(check(&server, "deny", "bob"), 503);
    wait_until("the drill is over", TIMEOUT, || check(&server, "deny", "bob") == 200);
    assert_eq!(admin(&server, "GET /v1/drill", "").1, json!({ "drill": null }));
}
