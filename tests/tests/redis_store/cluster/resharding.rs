//! Slots move with their keys under load: MOVED, ASK and TRYAGAIN.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::StoreError;
use tidegate_tests::servers::{Cluster, RedisServer};
use tokio::time::Instant;

use crate::load::{Answer, Load, Wanted, connect, consumed, daily, errors, runtime, take};

const TENANTS: usize = 4;
/// The limits that every tenant meets: the first also alone, all of them together. The last is used
/// up while slots move.
const BURSTS: [(&str, u64); 3] = [("minute", 30_000), ("hour", 20_000), ("day", 400)];
/// An error this long after a slot has moved has nothing to do with it.
const AFTERWARDS: Duration = Duration::from_millis(500);

/// What is asked for: an even number is one limit of a tenant, an odd number all three.
fn wanted(what: usize, texts: &[String]) -> Vec<Wanted<'_>> {
    let count = if is_group(what) { BURSTS.len() } else { 1 };
    let limits = BURSTS.iter().take(count);
    limits.map(|(name, burst)| (*name, daily(*burst), texts[what / 2].as_str())).collect()
}

fn is_group(what: usize) -> bool {
    what % 2 == 1
}

#[test]
fn requests_are_decided_while_slots_move_and_no_unit_is_lost_or_won() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    let texts: Arc<Vec<String>> = Arc::new((0..TENANTS).map(|n| format!("tenant:{n}")).collect());
    let store = Arc::new(runtime.block_on(connect(&cluster.url())));
    let load = {
        let (store, texts) = (Arc::clone(&store), Arc::clone(&texts));
        Load::start(&runtime, 32, 2 * TENANTS, move |what| {
            let (store, texts) = (Arc::clone(&store), Arc::clone(&texts));
            async move { take(&store, &wanted(what, &texts)).await }
        })
    };
    load.wait_for(50, 0..2 * TENANTS);
    let mut moves = Vec::new();
    for (tenant, text) in texts.iter().enumerate() {
        let slot = cluster.slot_of(text);
        let (from, to) = (cluster.primary_of(slot), cluster.other_primary(slot));
        let others = (0..2 * TENANTS).filter(|what| what / 2 != tenant);
        let begun = Instant::now();
        cluster.begin_migration(slot, to);
        let names = keys_of(from, slot);
        assert_eq!(names.len(), BURSTS.len(), "all limits of {text} lie in slot {slot}");
        // Half of the keys here, half there: requests with one key are decided, and
        // other slots are not affected.
        cluster.migrate_keys(slot, to, &[&names[0]]);
        load.wait_for(100, others.chain([2 * tenant]));
        cluster.finish_migration(slot, to);
        moves.push((begun, Instant::now()));
        load.wait_for(20, 0..2 * TENANTS);
        // And back at once, in one go.
        cluster.migrate_slot(slot, from);
        load.wait_for(20, 0..2 * TENANTS);
        moves.push((begun, Instant::now()));
    }
    let answers = load.stop(&runtime);

    let singles = errors(answers.iter().filter(|attempt| !is_group(attempt.what)));
    assert_eq!(singles, [], "one key is always somewhere");
    let failed: Vec<&Answer> = answers.iter().filter(|attempt| attempt.answer.is_err()).collect();
    assert!(!failed.is_empty(), "keys of one request were on two nodes, and no request failed");
    for attempt in &failed {
        let error = attempt.answer.as_ref().expect_err("only failures");
        assert!(error.is_outage(), "{error}");
        let (begun, ended) = moves[2 * (attempt.what / 2)];
        let during = attempt.answered > begun && attempt.asked < ended + AFTERWARDS;
        assert!(
            during,
            "{error} {:?} after the move",
            attempt.asked.saturating_duration_since(ended)
        );
    }
    for tenant in 0..TENANTS {
        let count = |what: usize, counts: fn(&Answer) -> bool| {
            answers.iter().filter(|attempt| attempt.what == what && counts(attempt)).count() as u64
        };
        let times_out = |attempt: &Answer| attempt.answer == Err(StoreError::Timeout);
        let together = count(2 * tenant + 1, Answer::is_admitted);
        // Requests that were given up may have been booked.
        let unsure = count(2 * tenant + 1, times_out);
        for (place, wanted) in wanted(2 * tenant + 1, &texts).into_iter().enumerate() {
            let alone = if place == 0 { count(2 * tenant, Answer::is_admitted) } else { 0 };
            let gone = runtime.block_on(consumed(&store, wanted));
            let admitted = alone + together;
            assert!(
                gone >= admitted && gone <= admitted + unsure,
                "{wanted:?}: {gone}, {admitted}"
            );
        }
        let (_, day) = BURSTS[2];
        assert!(
            together <= day && together + unsure >= day,
            "{together} of {day}, {unsure} unsure"
        );
    }
    println!("{} asked, {:?}", answers.len(), errors(failed.into_iter()));
}

fn keys_of(server: &RedisServer, slot: u16) -> Vec<String> {
    let keys = server.command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]);
    redis::from_redis_value(keys).expect("names of keys")
}
