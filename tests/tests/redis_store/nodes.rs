//! The registry: how many nodes share a store, and what each of them holds.

mod repair;
mod transports;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::store::redis::{Condition, Finding, RedisConfig};
use tidegate::store::{DomainRevision, StoreError};
use tidegate_tests::servers::{Cluster, RedisServer, Sentinels, wait_until};

use crate::client::{self, Client, LIMIT};

/// Instead of 5 s: a dead node stops counting after 1.2 s instead of a minute.
const INTERVAL: Duration = Duration::from_millis(100);
const KEY: &str = "tg:nodes:v1";

fn config(url: &str) -> RedisConfig {
    client::config(url).register_every(INTERVAL)
}

/// A node and the revision of `api` that it holds.
struct Node {
    client: Client,
    revision: Arc<Mutex<u64>>,
}

impl Node {
    fn start(config: RedisConfig, revision: u64) -> Self {
        let client = Client::connect(config).unwrap_or_else(|error| panic!("{error}"));
        let revision = Arc::new(Mutex::new(revision));
        let held = Arc::clone(&revision);
        client.store.revisions().publish(move || {
            vec![DomainRevision { domain: "api".into(), revision: *held.lock().expect("whole") }]
        });
        Self { client, revision }
    }

    fn count(&self) -> u32 {
        self.client.store.nodes().count().get()
    }

    /// The findings about the registry.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = self.client.store.findings();
        findings.retain(|finding| finding.condition == Condition::Registry);
        findings
    }

    /// Waits until this node sees so many nodes with a policy.
    fn sees(&self, nodes: usize) {
        wait_until("the nodes are registered", LIMIT, || {
            let live = self.client.store.registry().nodes;
            live.len() == nodes && live.iter().all(|node| !node.domains.is_empty())
        });
    }
}

fn nodes_come_and_go(url: &str) {
    let first = Node::start(config(url).node_name("first"), 1);
    first.sees(1);
    assert_eq!(first.count(), 1);
    let others = [2, 3].map(|revision| Node::start(config(url), revision));
    first.sees(3);
    wait_until("all are counted", LIMIT, || first.count() == 3 && others[1].count() == 3);
    others[0].sees(3);
    let answer = others[0].client.store.registry();
    let own: Vec<_> = answer.nodes.iter().filter(|node| node.is_own).collect();
    assert_eq!((own.len(), own[0].domains[0].revision), (1, 2), "{answer:?}");
    assert!(answer.nodes.iter().any(|node| node.id.starts_with("first-")), "{answer:?}");
    assert_eq!(answer.lagging.len(), 2, "{answer:?}");
    drop(others);
    first.sees(1);
    assert_eq!(first.count(), 3, "the largest count is kept for a while");
    wait_until("the dead are not counted", LIMIT, || first.count() == 1);
    assert_eq!(first.client.store.registry().lagging, []);
    first.client.decides("meanwhile");
}

#[test]
fn nodes_come_and_go_on_one_server() {
    nodes_come_and_go(&RedisServer::start().url());
}

#[test]
fn nodes_come_and_go_with_sentinels() {
    nodes_come_and_go(&Sentinels::start().url());
}

#[test]
fn nodes_come_and_go_in_a_cluster() {
    nodes_come_and_go(&Cluster::start().url());
}

#[test]
fn the_count_is_kept_while_the_store_is_unavailable() {
    let server = RedisServer::start();
    let nodes = [1, 1].map(|revision| Node::start(config(&server.url()), revision));
    wait_until("both are counted", LIMIT, || nodes.iter().all(|node| node.count() == 2));
    server.kill();
    wait_until("the registry is unavailable", LIMIT, || {
        nodes[0].client.store.registry().error.is_some()
    });
    let clock = tidegate::Clock::default();
    let (started, kept) = (clock.now(), tidegate::Span::from(15 * INTERVAL));
    wait_until("longer than counts are kept", LIMIT, || clock.now().since(started) > kept);
    assert_eq!(nodes[0].count(), 2);
    assert_eq!(nodes[0].findings(), [], "an outage is no finding");
    server.restart();
    wait_until("it is read again", LIMIT, || nodes[0].client.store.registry().error.is_none());
    wait_until("both are there", LIMIT, || nodes[0].client.store.registry().nodes.len() == 2);
}

/// Decisions go on; the lack is a finding, and it ends.
#[test]
fn rights_to_the_registry_only_may_be_missing() {
    let server = RedisServer::start();
    // Every key of a limit has a brace in it, and the registry has none.
    let user = ["ACL", "SETUSER", "limiter", "on", ">secret", "+@all"];
    let permit = |keys| server.command(&[&user[..], &["resetkeys", keys]].concat());
    permit("~tg:*{*");
    let url = format!("redis://limiter:secret@{}", server.address());
    let node = Node::start(config(&url), 1);
    let findings = node.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].message.contains(KEY), "{findings:?}");
    let error = node.client.store.registry().error;
    assert!(matches!(error, Some(StoreError::Misconfigured(..))), "{error:?}");
    assert_eq!((node.count(), node.client.store.fault()), (1, None));
    node.client.decides("without the registry");
    permit("~tg:*");
    wait_until("the finding ends", LIMIT, || node.findings().is_empty());
    node.sees(1);
}

/// What another program or another release left there is pruned or left out; a key of another type is
/// a finding.
#[test]
fn odd_entries_do_no_harm() {
    let server = RedisServer::start();
    let far = "4000000000000000";
    for (score, member) in [("1", "old\n"), (far, "future\n"), ("nan", "x"), ("1", "")] {
        let _ = server.try_command(&["ZADD", KEY, score, member]);
    }
    let node = Node::start(config(&server.url()), 1);
    node.sees(1);
    assert_eq!(node.count(), 1);
    let ttl: i64 = redis::from_redis_value(server.command(&["PTTL", KEY])).expect("a number");
    assert!((1..=300).contains(&ttl), "it goes with its last node: {ttl}");
    server.command(&["SET", KEY, "text"]);
    wait_until("it is found", LIMIT, || node.findings().len() == 1);
    node.client.decides("whatever the registry holds");
}

/// No more than 1,024 nodes: the registry neither grows nor loses those it has.
#[test]
fn the_registry_is_bounded() {
    let server = RedisServer::start();
    let now: Vec<String> = redis::from_redis_value(server.command(&["TIME"])).expect("two numbers");
    let score = format!("{}000000", now[0]);
    let members: Vec<String> = (0..1_024).map(|number| format!("node-{number}\n")).collect();
    let pairs = members.iter().flat_map(|member| [&*score, member]);
    let words: Vec<&str> = ["ZADD", KEY].into_iter().chain(pairs).collect();
    server.command(&words);
    // So that none of them dies while the test runs.
    let every = Duration::from_secs(60);
    let client = Client::connect(client::config(&server.url()).register_every(every));
    let client = client.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(client.store.nodes().count().get(), 1_024);
    let kept: i64 = redis::from_redis_value(server.command(&["ZCARD", KEY])).expect("a number");
    assert_eq!(kept, 1_024);
}
