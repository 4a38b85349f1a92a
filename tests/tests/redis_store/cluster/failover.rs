//! A primary fails, its replica takes over, and the other slots do not notice (F4, F5).

use std::sync::Arc;
use std::time::Duration;

use tidegate::Limit;
use tidegate_tests::servers::{Cluster, RedisServer};
use tokio::time::Instant;

use crate::load::{DEADLINE, Load, TIMEOUT, connect, daily, errors, runtime, take};

/// The promise for Sentinel; a cluster is held to the same.
const RECOVERS: Duration = Duration::from_secs(2);
/// What a primary answered longer ago than this, its replica has.
const LAG: Duration = Duration::from_secs(1);
const KEYS: usize = 12;
/// Used up before the failure: nothing of it can be lost.
const SPENT: u64 = 60;
/// Being used up while the failure happens.
const SPENDING: u64 = 4_000;

fn limit_of(key: usize) -> Limit {
    daily(if key.is_multiple_of(2) { SPENT } else { SPENDING })
}

#[test]
fn a_killed_primary_takes_down_its_own_slots_until_its_replica_takes_over() {
    fails_over(Cluster::failover, RedisServer::restart);
}

#[test]
fn a_silent_primary_takes_down_its_own_slots_until_its_replica_takes_over() {
    fails_over(Cluster::pause_primary_of, RedisServer::resume);
}

fn fails_over(take_down: fn(&Cluster, u16) -> &RedisServer, bring_back: fn(&RedisServer)) {
    let (cluster, runtime) = (Cluster::start(), runtime());
    let texts: Arc<Vec<String>> = Arc::new((0..KEYS).map(|key| format!("user:{key}")).collect());
    let slots: Vec<u16> = texts.iter().map(|text| cluster.slot_of(text)).collect();
    let owners: Vec<u16> = slots.iter().map(|slot| cluster.primary_of(*slot).port()).collect();
    let is_victim = |key: usize| owners[key] == owners[0];
    let victims: Vec<usize> = (0..KEYS).filter(|key| is_victim(*key)).collect();
    assert!(victims.len() >= 2 && victims.len() <= KEYS - 2, "both sides have keys: {owners:?}");

    let store = Arc::new(runtime.block_on(connect(&cluster.url())));
    let load = Load::start(&runtime, 24, KEYS, move |key| {
        let (store, texts) = (Arc::clone(&store), Arc::clone(&texts));
        async move { take(&store, &[("user", limit_of(key), &texts[key])]).await }
    });
    load.wait_for(600, 0..KEYS);
    let down = Instant::now();
    let fallen = take_down(&cluster, slots[0]);
    let promoted = down + cluster.wait_for_promotion(slots[0], TIMEOUT);
    load.wait_for(50, 0..KEYS);
    bring_back(fallen);
    cluster.wait_until_settled(TIMEOUT);
    let settled = Instant::now();
    load.wait_for(50, 0..KEYS);
    let answers = load.stop(&runtime);
    assert_eq!(fallen.info("role"), "slave");

    let bystanders = errors(answers.iter().filter(|attempt| !is_victim(attempt.what)));
    assert_eq!(bystanders, [], "F4: other slots are not touched");
    let failed: Vec<_> = answers
        .iter()
        .filter(|attempt| is_victim(attempt.what) && attempt.answer.is_err())
        .collect();
    assert!(!failed.is_empty(), "the outage must affect requests");
    for attempt in &failed {
        let error = attempt.answer.as_ref().expect_err("only failures");
        assert!(error.is_outage(), "{error}");
        assert!(!error.to_string().contains("given up"), "a reply was dropped");
        let during = attempt.answered > down && attempt.asked < promoted + RECOVERS;
        assert!(during, "{error} {:?} after the promotion", attempt.asked - promoted);
    }
    let mut recovered = Duration::ZERO;
    for victim in victims {
        let good = answers
            .iter()
            .filter(|attempt| {
                attempt.what == victim && attempt.answer.is_ok() && attempt.asked > down + DEADLINE
            })
            .map(|attempt| attempt.answered)
            .min();
        let good = good.expect("waited for it").saturating_duration_since(promoted);
        assert!(good < RECOVERS, "{good:?} until key {victim} was decided again");
        recovered = recovered.max(good);
    }
    for key in 0..KEYS {
        let admitted =
            answers.iter().filter(|attempt| attempt.what == key && attempt.is_admitted());
        let times: Vec<Instant> = admitted.map(|attempt| attempt.answered).collect();
        let limit = if key.is_multiple_of(2) { SPENT } else { SPENDING };
        let lost =
            times.iter().filter(|at| **at + LAG > down && **at < down + DEADLINE).count() as u64;
        let lost = if is_victim(key) { lost } else { 0 };
        let count = times.len() as u64;
        assert!(count <= limit + lost.min(limit), "key {key}: {count} of {limit}, {lost} lost");
        assert!(!key.is_multiple_of(2) || count == limit, "key {key}: {count} of {limit}");
    }
    let errors = errors(failed.into_iter());
    println!(
        "promoted after {:?}, decided {recovered:?} later, settled after {:?}; {} asked, {errors:?}",
        promoted - down,
        settled - down,
        answers.len()
    );
}
