//! The registry on the admin port of daemons.

use serde_json::Value;
use tidegate::policy::{Merging, Policy};
use tidegate::store::Nodes;
use tidegate::store::shared::SharedOptions;
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http;

use super::*;

const POLICY: &str = "domain: api\ndescriptors: [{ key: user, rate: 60/day }]\n";
/// The same with other words around it.
const SAME: &str =
    "# From another file.\ndomain: api\ndescriptors:\n  - key: user\n    rate: 60/day\n";
const OTHER: &str = "domain: api\ndescriptors: [{ key: user, rate: 6/day }]\n";

struct Daemon {
    // Ends before the store that it asks.
    server: Server,
    service: RateLimitService,
}

fn policy(file: &str, text: &str) -> Policy {
    let loaded = Policy::load(&[(file, text)], Merging::Refuse);
    loaded.policy.expect(&loaded.findings)
}

impl Daemon {
    fn start(redis: &RedisServer, name: &str, options: SharedOptions) -> Self {
        let config = config(&redis.url()).node_name(name);
        let service = RateLimitService::connect_with(config, options)
            .unwrap_or_else(|error| panic!("{error}"));
        service.replace(policy(name, if name == "a" { POLICY } else { SAME }));
        let any = || Some(([127, 0, 0, 1], 0).into());
        let settings = Settings { http: any(), admin: any(), ..Settings::default() };
        Self { server: serve(&settings, &service).expect("it starts"), service }
    }

    fn tell(&self, path: &str) -> Value {
        let answer = http::get(self.server.admin().expect("open"), path, "");
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body))
    }

    /// Whether so many nodes are live, and this count is in use.
    fn has(&self, live: usize, count: u32) -> bool {
        let reply = self.tell("/v1/nodes");
        reply["nodes"].as_array().map(Vec::len) == Some(live) && reply["count"] == count
    }

    /// Requests of a new user that pass while the store is unavailable.
    fn passing(&self, user: &str) -> usize {
        let body = format!(r#"{{"domain":"api","descriptors":[{{"user":"{user}"}}]}}"#);
        let transport = self.server.http().expect("open");
        let pass = |_: &usize| http::ask(transport, "POST /v1/check", "", &body).status == 200;
        (0..100).filter(pass).count()
    }
}

/// Done when 2: the share follows, and the admin port shows it.
#[test]
fn the_share_follows_daemons_that_start_and_die() {
    let redis = RedisServer::start();
    let start = |name| Daemon::start(&redis, name, SharedOptions::default());
    let first = start("a");
    wait_until("one node", LIMIT, || first.has(1, 1));
    let second = start("b");
    wait_until("two nodes", LIMIT, || first.has(2, 2) && second.has(2, 2));
    let third = start("c");
    wait_until("three nodes", LIMIT, || [&first, &second, &third].iter().all(|it| it.has(3, 3)));
    let reply = first.tell("/v1/nodes");
    assert_eq!((&reply["auto"], &reply["error"]), (&Value::Bool(true), &Value::Null), "{reply}");
    let nodes = reply["nodes"].as_array().expect("a list");
    let own: Vec<_> = nodes.iter().filter(|node| node["this"] == true).collect();
    assert!(own.len() == 1 && own[0]["id"].as_str().is_some_and(|id| id.starts_with("a-")));
    assert!(nodes.iter().all(|node| node["last_seen"].is_string()), "{reply}");
    wait_until("all hold one revision, whatever the file", LIMIT, || {
        let reply = first.tell("/v1/nodes");
        let nodes = reply["nodes"].as_array().cloned().unwrap_or_default();
        let revision = nodes[0]["policy"]["api"].as_str().map(str::len);
        revision == Some(16) && nodes.iter().all(|it| it["policy"] == nodes[0]["policy"])
    });
    let status = first.tell("/v1/status");
    assert_eq!((&status["nodes"]["count"], &status["nodes"]["auto"]), (&3.into(), &true.into()));
    let metrics = first.tell("/metrics");
    assert!(metrics.as_str().is_some_and(|page| page.contains("\ntidegate_nodes 3\n")));
    drop(third);
    wait_until("the dead are not counted", LIMIT, || first.has(2, 2) && second.has(2, 2));
    // The store has decided, so that a share is a whole one.
    assert!(first.passing("known") == 60);
    redis.kill();
    wait_until("it is noticed", LIMIT, || {
        first.passing("lost");
        first.tell("/v1/status")["state"] == "degraded"
    });
    assert_eq!(first.passing("new"), 45, "60 × 1.5 / 2");
}

#[test]
fn a_number_overrides_the_registry() {
    let redis = RedisServer::start();
    let nodes = Nodes::try_from(5).expect("at least one");
    let fixed = Daemon::start(&redis, "a", SharedOptions::default().nodes(nodes));
    let auto = Daemon::start(&redis, "b", SharedOptions::default());
    wait_until("both are listed", LIMIT, || fixed.has(2, 5) && auto.has(2, 2));
    assert_eq!(fixed.tell("/v1/nodes")["auto"], false);
}

#[test]
fn a_daemon_with_another_policy_is_named() {
    let redis = RedisServer::start();
    let daemons = ["a", "b"].map(|name| Daemon::start(&redis, name, SharedOptions::default()));
    let lagging = |daemon: &Daemon| daemon.tell("/v1/status")["repair"]["lagging"].clone();
    let repairs = |daemon: &Daemon| daemon.tell("/v1/status")["repair"]["active"] == true;
    wait_until("both agree", LIMIT, || daemons.iter().all(repairs));
    daemons[1].service.replace(policy("p.yaml", OTHER));
    assert!(!repairs(&daemons[1]), "its limits have just changed");
    wait_until("each names the other", LIMIT, || {
        let named = |by: &Daemon, id: &str| {
            lagging(by)[0]["id"].as_str().is_some_and(|named| named.starts_with(id))
        };
        named(&daemons[0], "b-") && named(&daemons[1], "a-") && !repairs(&daemons[0])
    });
    daemons[0].service.replace(policy("p.yaml", OTHER));
    wait_until("both agree again", LIMIT, || daemons.iter().all(repairs));
    assert_eq!(lagging(&daemons[0]), Value::Array(Vec::new()));
}

/// The same revision may hide other numbers: an override with numbers of its own counts as a change.
#[test]
fn an_override_with_its_own_numbers_is_another_revision() {
    let redis = RedisServer::start();
    let daemons = ["a", "b"].map(|name| Daemon::start(&redis, name, SharedOptions::default()));
    let repairs = |daemon: &Daemon| daemon.tell("/v1/status")["repair"]["active"] == true;
    wait_until("both agree", LIMIT, || daemons.iter().all(repairs));
    let admin = daemons[0].server.admin().expect("open");
    let id = "api/user#";
    let body = format!(r#"{{"limit":"{id}","rate":"5/day","seconds":60}}"#);
    let headers = "Content-Type: application/json\r\n";
    let answer = http::ask(admin, "PUT /v1/overrides", headers, &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    wait_until("it differs", LIMIT, || !daemons.iter().any(repairs));
    let body = format!(r#"{{"limit":"{id}"}}"#);
    let answer = http::ask(admin, "DELETE /v1/overrides", headers, &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    wait_until("both agree again", LIMIT, || daemons.iter().all(repairs));
}
