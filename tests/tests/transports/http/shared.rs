//! The transport in front of stores that keep it waiting: a real Redis, a cluster, sentinels.

use serde_json::{Value, json};
use tidegate::store::OnStoreFailure;
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::SharedOptions;
use tidegate_server::{RateLimitService, serve};
use tidegate_tests::servers::{Cluster, RedisServer, Sentinels, wait_until};

use super::*;

const SHARED: &str = "
domain: api
defaults: {on_store_failure: deny}
descriptors:
  - key: user
    limits:
      - {name: few, rate: 10/hour}
      - {name: many, rate: 1000/day, algorithm: sliding_window}
";

fn transport(url: &str, deadline: Duration) -> Transport {
    let config = RedisConfig::new(url).expect("the address of a test's server");
    let config = config.deadline(deadline).connect_timeout(TIMEOUT);
    let deny = SharedOptions::default().on_store_failure(OnStoreFailure::Deny);
    let service =
        RateLimitService::connect_with(config, deny).unwrap_or_else(|error| panic!("{error}"));
    service.replace(policy(SHARED));
    let server = serve(&settings(), &service).unwrap_or_else(|error| panic!("{error}"));
    Transport { server, clock: ManualClock::new() }
}

fn question() -> Value {
    json!({"domain": "api", "descriptors": [{"user": "bob"}]})
}

/// Two daemons admit together what one would, by the policy and by limits that come along.
fn share_one_limit(url: &str) {
    let transports = [transport(url, TIMEOUT), transport(url, TIMEOUT)];
    for question in [question(), json!({"key": "bob", "rate": "10/hour"})] {
        let allowed =
            (0..20).filter(|number| transports[number % 2].check(&question).status == 200);
        assert_eq!(allowed.count(), 10, "{question}");
        let denied = transports[0].check(&question);
        assert_eq!((denied.status, denied.header("retry-after")), (429, Some("360")));
    }
    let refunded = transports[1].post("/v1/refund", &question().to_string());
    assert_eq!((refunded.status, &refunded.json()["remaining"]), (200, &json!(1)));
    assert_eq!(transports[0].post("/v1/peek", &question().to_string()).status, 200);
    // What another node gives back is noticed within a second.
    wait_until("it is noticed", TIMEOUT, || transports[0].check(&question()).status == 200);
    let explained = transports[1].post("/v1/explain", &question().to_string()).json();
    assert_eq!(explained["limits"][0]["name"], "few", "{explained}");
}

#[test]
fn two_daemons_share_one_redis() {
    share_one_limit(&RedisServer::start().url());
}

#[test]
fn two_daemons_share_one_cluster() {
    share_one_limit(&Cluster::start().url());
}

/// After a failover it is one limit still.
#[test]
fn daemons_go_on_after_sentinels_promote_another() {
    let sentinels = Sentinels::start();
    let transports = [(), ()].map(|()| transport(&sentinels.url(), Duration::from_millis(250)));
    let question = json!({"key": "bob", "rate": "10/hour"});
    for transport in &transports {
        assert_eq!(transport.check(&question).status, 200);
    }
    // So that what has been charged is there too.
    sentinels.primary().set_on_replicas("mark", 2);
    sentinels.kill_primary();
    wait_until("decisions go on", TIMEOUT, || {
        let answer = transports[0].post("/v1/peek", &question.to_string());
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        answer.status == 200
    });
    wait_until("so do the other's", TIMEOUT, || {
        transports[1].post("/v1/peek", &question.to_string()).status == 200
    });
    let allowed = (0..20).filter(|number| transports[number % 2].check(&question).status == 200);
    assert_eq!(allowed.count(), 8);
}

#[test]
fn a_store_that_is_away_is_told() {
    let redis = RedisServer::start();
    let transport = transport(&redis.url(), Duration::from_millis(250));
    assert_eq!(transport.check(&question()).status, 200);
    redis.kill();
    for question in [question(), json!({"key": "bob", "rate": "10/hour"})] {
        wait_until("it is told", TIMEOUT, || transport.check(&question).status == 503);
        let answer = transport.check(&question);
        assert_eq!(answer.status, 503);
        // Keys of a window are sent back at different instants, up to five seconds apart.
        let wait: u64 = answer.header("retry-after").expect("a wait").parse().expect("a number");
        assert!((1..=6).contains(&wait), "{answer:?}");
        assert_eq!(answer.json()["allowed"], json!(false), "{answer:?}");
        let batch = transport.post("/v1/batch", &json!({"questions": [question]}).to_string());
        assert_eq!(batch.status, 200);
        assert_eq!(batch.json()["answers"][0]["allowed"], json!(false));
    }
    redis.restart();
    wait_until("it decides again", TIMEOUT, || transport.check(&question()).status == 200);
}

/// How often scripts were called.
fn scripts(redis: &RedisServer) -> u64 {
    let reply = redis.command(&["INFO", "commandstats"]);
    let reply = redis::from_redis_value::<String>(reply).expect("text");
    let calls =
        reply.lines().filter_map(|line| line.split_once("cmdstat_eval")?.1.split_once("calls="));
    let numbers = calls.filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok());
    numbers.sum()
}

#[test]
fn a_batch_takes_few_round_trips() {
    let redis = RedisServer::start();
    let transport = transport(&redis.url(), TIMEOUT);
    let given = |number: usize| json!({"key": format!("k{number}"), "rate": "1/hour"});
    let batch = json!({"questions": (0..64).map(given).collect::<Vec<_>>()}).to_string();
    let before = scripts(&redis);
    for status in [true, false] {
        let answers = transport.post("/v1/batch", &batch).json();
        let answers = answers["answers"].as_array().expect("a list").clone();
        assert_eq!(answers.len(), 64);
        assert!(answers.iter().all(|answer| answer["allowed"] == status), "{answers:?}");
    }
    let calls = scripts(&redis) - before;
    assert!(calls < 64, "{calls} calls for 128 questions");
}
