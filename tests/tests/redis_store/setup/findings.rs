//! Conditions of servers that weaken limits: what the store finds, and what a daemon reports of it.

use serde_json::Value;
use tidegate::store::redis::{Condition, RedisConfig};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http;
use tidegate_tests::servers::{RedisServer, wait_until};

use crate::client::{Client, LIMIT, config};

/// A busy machine must not break the connection: on another one, refused commands are sent again.
fn patient(url: &str) -> RedisConfig {
    config(url).connect_timeout(LIMIT)
}

fn conditions(client: &Client) -> Vec<Condition> {
    client.store.findings().iter().map(|finding| finding.condition).collect()
}

/// Looks at the servers again.
fn inspect(client: &Client) {
    client.runtime.block_on(client.store.inspect()).unwrap_or_else(|error| panic!("{error}"));
}

/// A server that evicts, and takes snapshots.
fn evicting() -> RedisServer {
    let server = RedisServer::builder().arg("maxmemory", "64mb").arg("save", "3600 1");
    server.arg("maxmemory-policy", "allkeys-lru").start()
}

#[test]
fn eviction_is_found_and_its_end_too() {
    let server = evicting();
    let client = Client::connect(patient(&server.url())).expect("it answers");
    client.decides("everything");
    let findings = client.store.findings();
    assert_eq!(conditions(&client), [Condition::Eviction]);
    assert!(findings[0].to_string().contains(&server.address()), "{findings:?}");
    let message = &findings[0].message;
    assert!(message.contains("allkeys-lru") && message.contains("noeviction"), "{message}");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    inspect(&client);
    assert_eq!(conditions(&client), []);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    inspect(&client);
    assert_eq!(conditions(&client), [Condition::Eviction]);
    // What a server that is gone was like is not known, so the last look counts.
    server.kill();
    client.runtime.block_on(client.store.inspect()).expect_err("it is gone");
    assert_eq!(conditions(&client), [Condition::Eviction]);
}

#[test]
fn missing_persistence_is_found_and_its_end_too() {
    let server = RedisServer::start();
    let client = Client::connect(patient(&server.url())).expect("it answers");
    assert_eq!(conditions(&client), [Condition::Persistence]);
    for (setting, on, off) in [("save", "3600 1", ""), ("appendonly", "yes", "no")] {
        server.command(&["CONFIG", "SET", setting, on]);
        inspect(&client);
        assert_eq!(conditions(&client), [], "{setting}");
        server.command(&["CONFIG", "SET", setting, off]);
        inspect(&client);
        assert_eq!(conditions(&client), [Condition::Persistence], "{setting}");
    }
}

/// A refused command is found once, and is not sent again on the same connection.
#[test]
fn a_refused_check_is_found_and_not_repeated() {
    let server = RedisServer::start();
    for (right, times) in [("-info", 1), ("-config|get", 1)] {
        let words = ["ACL", "SETUSER", "limiter", "reset", "on", ">secret", "~*", "+@all", right];
        server.command(&words);
        server.command(&["ACL", "LOG", "RESET"]);
        let url = format!("redis://limiter:secret@{}", server.address());
        let client = Client::connect(patient(&url)).expect("it can decide");
        for _ in 0..3 {
            assert_eq!(conditions(&client), [Condition::Unchecked], "{right}");
            inspect(&client);
        }
        let refused: Vec<Vec<redis::Value>> =
            redis::from_redis_value(server.command(&["ACL", "LOG"])).expect("a list");
        let counts = refused.iter().map(|entry| entry[1].clone());
        assert_eq!(counts.collect::<Vec<_>>(), [redis::Value::Int(times)], "{right}: {refused:?}");
    }
}

/// No decision is made on a replica, and the store says so when its server becomes one.
#[test]
fn a_server_that_becomes_a_replica_is_found() {
    let (server, primary) = (RedisServer::start(), RedisServer::start());
    let quiet = patient(&server.url()).without_registry();
    let client = Client::connect(quiet).expect("it answers");
    server.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    wait_until("it is found", LIMIT, || {
        let _ = client.runtime.block_on(client.store.inspect());
        conditions(&client) == [Condition::Replica]
    });
    assert!(client.take("key").is_err());
    server.command(&["REPLICAOF", "NO", "ONE"]);
    wait_until("it is a primary again", LIMIT, || {
        let _ = client.runtime.block_on(client.store.inspect());
        conditions(&client) == [Condition::Persistence]
    });
}

fn daemon(config: RedisConfig) -> (RateLimitService, Server) {
    let service = RateLimitService::connect(config).unwrap_or_else(|error| panic!("{error}"));
    let admin = Some(([127, 0, 0, 1], 0).into());
    let server = serve(&Settings { admin, ..Settings::default() }, &service).expect("it starts");
    (service, server)
}

fn page(server: &Server, path: &str) -> String {
    let answer = http::get(server.admin().expect("open"), path, "");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn findings(server: &Server) -> Value {
    let status: Value = serde_json::from_str(&page(server, "/v1/status")).expect("a document");
    status["store"]["findings"].clone()
}

/// However late the server comes, its conditions are in the metrics and the status from then on.
#[test]
fn a_daemon_reports_the_conditions_of_a_server_that_came_later() {
    let redis = evicting();
    redis.kill();
    let (_service, server) = daemon(config(&redis.url()).start_without_server());
    assert_eq!(findings(&server), Value::Array(Vec::new()));
    redis.restart();
    wait_until("the condition is reported", LIMIT, || {
        findings(&server) != Value::Array(Vec::new())
    });
    let reply = findings(&server);
    assert_eq!((&reply[0]["condition"], &reply[1]), (&"eviction".into(), &Value::Null), "{reply}");
    assert_eq!(reply[0]["server"], Value::from(redis.address()));
    let metrics = page(&server, "/metrics");
    for line in [
        "tidegate_store_findings{condition=\"eviction\"} 1",
        "tidegate_store_findings{condition=\"replica\"} 0",
        "tidegate_store_findings{condition=\"persistence\"} 0",
        "tidegate_store_findings{condition=\"unchecked\"} 0",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line} is not in\n{metrics}");
    }
    wait_until("the daemon is ready", LIMIT, || page(&server, "/readyz") == "ready\n");
}
