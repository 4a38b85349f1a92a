//! Places in flight while the store is unavailable: a share of them, held and given back here.

use tidegate::{Limit, Limiter};

use super::*;

#[test]
fn places_are_a_share_and_come_back() {
    let redis = RedisServer::start();
    let Node { runtime, limiter } = Node::start(&redis.url(), 2);
    let limit = Limit::in_flight(4, Span::from_secs(3_600)).expect("places");
    let _entered = runtime.enter();
    let store = runtime.block_on(async {
        let config = RedisConfig::new(&redis.url()).expect("an address").deadline(DEADLINE);
        let two = SharedOptions::default().nodes(Nodes::try_from(2).expect("two"));
        SharedStore::connect(config, two, Clock::default()).await.expect("a server")
    });
    drop(limiter);
    let jobs = Limiter::builder().limit("jobs", limit).shared(store).expect("one limit");
    let acquire = || runtime.block_on(jobs.acquire("bob")).expect("an answer").permit();
    let before = acquire().expect("a place of the store's");
    redis.kill();
    let held: Vec<_> = (0..10).filter_map(|_| acquire()).collect();
    assert_eq!(held.len(), 3, "four times 1.5 for two nodes");
    drop(held);
    let mut kept = None;
    wait_until("places come back", TIMEOUT, || {
        kept = acquire();
        kept.is_some()
    });
    let kept = kept.expect("there are three");
    redis.restart();
    wait_until("the store decides again", TIMEOUT, || {
        jobs.store().circuits()[0].state == CircuitState::Closed
    });
    // Neither knows of the other's lease, so releasing one frees no place of the other.
    runtime.block_on(kept.release()).expect("it was given here");
    drop(before);
}
