//! Rust model = memory store = Lua on a real Redis, decision by decision and field by field.

use tidegate_core::AlgorithmName;
use tidegate_tests::servers::RedisServer;
use tidegate_tests::shared_comparison::{self, Crowd, crowd, store};
use tidegate_tests::subject::Subject;

const DECISIONS: u64 = 100_000;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn compare(subject: Subject) {
    let server = RedisServer::start();
    let decided = runtime().block_on(async {
        let store = store(&server.url()).await;
        shared_comparison::compare(&store, subject, 0, DECISIONS, |_| {}).await
    });
    assert!(decided >= DECISIONS);
}

#[test]
fn a_fixed_window_in_redis_decides_as_the_model_does() {
    compare(Subject::Rated(AlgorithmName::FixedWindow));
}

#[test]
fn a_sliding_window_in_redis_decides_as_the_model_does() {
    compare(Subject::Rated(AlgorithmName::SlidingWindow));
}

#[test]
fn a_sliding_log_in_redis_decides_as_the_model_does() {
    compare(Subject::Rated(AlgorithmName::SlidingLog));
}

#[test]
fn a_token_bucket_in_redis_decides_as_the_model_does() {
    compare(Subject::Rated(AlgorithmName::TokenBucket));
}

#[test]
fn gcra_in_redis_decides_as_the_model_does() {
    compare(Subject::Rated(AlgorithmName::Gcra));
}

#[test]
fn a_leaky_bucket_in_redis_decides_as_the_model_does() {
    compare(Subject::Rated(AlgorithmName::LeakyBucket));
}

#[test]
fn an_in_flight_limit_in_redis_decides_as_the_model_does() {
    compare(Subject::InFlight);
}

#[test]
fn requests_that_come_together_are_decided_in_order() {
    let one = |seed| {
        let server = RedisServer::start();
        runtime().block_on(async { crowd(&store(&server.url()).await, seed, Crowd::Mixed).await })
    };
    // The last meets a group that is denied on one key twice, where the second denial counts only
    // because of the first.
    let decided: usize = (0..7).chain([(1 << 32) + 8]).map(one).sum();
    assert!(decided > 100_000, "{decided}");
}

/// Opened in the step of the take, closed once, and worth as much in memory as in Lua and in the model.
#[test]
fn reservations_are_settled_as_the_model_settles_them() {
    let one = |seed| {
        let server = RedisServer::start();
        let crowd = async { crowd(&store(&server.url()).await, seed, Crowd::Reserving).await };
        runtime().block_on(crowd)
    };
    let decided: usize = (20..26).map(one).sum();
    assert!(decided > 50_000, "{decided}");
}

#[test]
fn takes_on_buckets_that_come_together_are_decided_in_order() {
    let one = |seed| {
        let server = RedisServer::start();
        runtime().block_on(async { crowd(&store(&server.url()).await, seed, Crowd::Buckets).await })
    };
    let decided: usize = (0..8).map(one).sum();
    assert!(decided > 50_000, "{decided}");
}
