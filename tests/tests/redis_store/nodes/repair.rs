//! Nodes whose numbers differ do not refill each other's buckets.

use tidegate::store::{Batch, Charge, Store};
use tidegate::{Key, Limit, Op, Rate, Scope, Span, Timestamp};

use super::*;

/// No unit comes back while a test runs.
fn bucket(burst: u64) -> Limit {
    let rate = Rate::new(1, Span::from_secs(86_400));
    Limit::token_bucket(rate).burst(burst).build().expect("valid numbers")
}

/// Repairs as soon as all nodes agree, and else not while a test runs.
fn patient(url: &str) -> RedisConfig {
    config(url).settles_after(Duration::from_secs(3_600))
}

fn repairs(node: &Node) -> bool {
    node.client.store.repairs()
}

impl Node {
    /// Reads a key by the next revision of the limits.
    fn change_limits(&self, limit: &Limit) {
        let key = Key::new(Scope::new("changed", limit), b"key");
        let read = Charge::new(key, limit, Op::Read(0));
        let batch = Batch::one(&read).revision(1);
        let mut decisions = Vec::new();
        let decided = self.client.store.decide(Timestamp::EPOCH, batch, &mut decisions);
        self.client.runtime.block_on(decided).expect("a server");
    }
}

/// Units that both nodes admit of one key, asked in turns.
fn admitted(nodes: &[(&Node, &Limit)], text: &str, turns: usize) -> usize {
    let each = nodes.iter().cycle().take(turns * nodes.len());
    let take = |(node, limit): &&(&Node, &Limit)| {
        let taken = node.client.ask(limit, text, Op::Take(1));
        taken.unwrap_or_else(|error| panic!("{error}")).is_allowed()
    };
    each.filter(take).count()
}

/// A lowered limit that one of two nodes has loaded: whichever asks, the key has no more than the larger
/// burst. Once both hold the lower one, it is repaired.
#[test]
fn bursts_of_1000_and_10_on_one_key_do_not_refill_each_other() {
    let server = RedisServer::start();
    let [large, small] = [bucket(1_000), bucket(10)];
    let nodes = [1, 1].map(|revision| Node::start(patient(&server.url()), revision));
    nodes.iter().for_each(|node| node.sees(2));
    wait_until("both agree", LIMIT, || nodes.iter().all(repairs));
    *nodes[1].revision.lock().expect("whole") = 2;
    nodes[1].change_limits(&small);
    assert!(!repairs(&nodes[1]), "its numbers have just changed");
    wait_until("the other sees it", LIMIT, || !repairs(&nodes[0]));
    wait_until("the lagging node is named", LIMIT, || {
        let lagging = nodes[1].client.store.registry().lagging;
        lagging.len() == 1 && lagging[0].1[0].revision == 1
    });
    let both = [(&nodes[0], &large), (&nodes[1], &small)];
    let all = admitted(&both, "canary", 3_000);
    assert!(all <= 1_001, "{all} of 1,000 units");
    assert!(nodes.iter().all(|node| !repairs(node)), "they still differ");
    // The other follows, and a client need not wait for 1,000 days.
    *nodes[0].revision.lock().expect("whole") = 2;
    wait_until("both agree", LIMIT, || nodes.iter().all(repairs));
    let wait = nodes[1].client.ask(&small, "canary", Op::Take(1)).expect("a server").reset_after;
    assert!(wait <= Span::from_secs(10 * 86_400), "{wait}");
}

#[test]
fn a_node_that_lags_for_ever_is_not_waited_for_for_ever() {
    let server = RedisServer::start();
    let config = config(&server.url()).settles_after(10 * INTERVAL);
    let nodes = [1, 2].map(|revision| Node::start(config.clone(), revision));
    nodes.iter().for_each(|node| node.sees(2));
    wait_until("it is repaired", LIMIT, || nodes.iter().all(repairs));
    assert_eq!(nodes[0].client.store.registry().lagging.len(), 1, "it is still named");
}

/// A rolling upgrade: a node of a release without the registry decides beside nodes with it. All have
/// the same policy, so whatever each repairs, the key has its burst once; and a state that no policy
/// could have left locks no client out.
#[test]
fn nodes_without_the_registry_share_limits_with_nodes_that_have_it() {
    let server = RedisServer::start();
    let limit = bucket(100);
    let old = config(&server.url()).without_registry().settles_after(10 * INTERVAL);
    let old = Node::start(old, 1);
    let new = [1, 1].map(|revision| Node::start(patient(&server.url()), revision));
    new.iter().for_each(|node| node.sees(2));
    assert_eq!((old.count(), old.client.store.registry().nodes.len()), (1, 0));
    let all = [(&old, &limit), (&new[0], &limit), (&new[1], &limit)];
    assert_eq!(admitted(&all, "upgrade", 50), 100);
    wait_until("all repair", LIMIT, || repairs(&old) && new.iter().all(repairs));
    assert_eq!(admitted(&all, "upgrade", 10), 0, "nothing is impossible");
    // A limit of 1,000 was lowered to 100 before the upgrade.
    assert_eq!(admitted(&[(&old, &bucket(1_000))], "lowered", 1_001), 1_000);
    for node in [&new[0], &old, &new[1]] {
        let denied = node.client.ask(&limit, "lowered", Op::Take(1)).expect("a server");
        assert!(!denied.is_allowed() && denied.reset_after <= Span::from_secs(100 * 86_400));
    }
}

/// A caller that sends two sets of numbers for one key: the request with the smaller burst clamps the
/// debt to its own burst, and the next one with the larger burst has the difference again.
#[test]
fn a_caller_with_two_bursts_for_one_key_gets_the_difference_again() {
    let server = RedisServer::start();
    let node = Node::start(config(&server.url()).settles_after(Duration::ZERO), 1);
    let take = |burst, units| {
        let taken = node.client.ask(&bucket(burst), "caller", Op::Take(units));
        taken.expect("a server").is_allowed()
    };
    assert!(take(1_000, 1_000) && !take(1_000, 1));
    for _ in 0..3 {
        assert!(!take(10, 1), "denied, and the debt is clamped to 10 units");
        assert!(take(1_000, 990), "what the larger burst has beyond that");
        assert!(!take(1_000, 1), "and no more");
    }
}
