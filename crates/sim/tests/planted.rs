//! Planted bugs: the judge finds each of them. `--nocapture` prints the first world that shows it.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

#[path = "planted/abandoned.rs"]
mod abandoned;
#[path = "planted/clocked.rs"]
mod clocked;
#[path = "planted/layer.rs"]
mod layer;

use std::io;

use tidegate::store::OnStoreFailure;
use tidegate::store::background::Background;
use tidegate::{Clock, ManualClock};
use tidegate_core::{AlgorithmName, Limit, Rate, Span, Timestamp};
use tidegate_sim::Seed;
use tidegate_sim::world::{
    Fault, Idle, NodeParts, NodeStack, Stack, WorldSetup, production, production_with, simulate,
    simulate_as_set_up,
};

use abandoned::{Abandoned, Left};
use clocked::{Clocked, WrongClock};
use layer::{Bug, Layer};

/// A bug is found in one of so many worlds.
const WORLDS: u64 = 3_000;

/// Runs worlds until one breaks the promise that `complaint` names.
fn found<S: NodeStack>(
    bug: &str,
    complaint: &str,
    setup: impl Fn(WorldSetup) -> WorldSetup,
    stack: impl Fn(&WorldSetup, NodeParts) -> io::Result<S>,
) {
    let broken = (0..WORLDS).find_map(|seed| {
        let setup = setup(WorldSetup::drawn(Seed(seed)));
        let report = simulate(&setup, |parts| stack(&setup, parts)).unwrap();
        Some((seed, report.broken?)).filter(|(_, broken)| broken.what.contains(complaint))
    });
    let (seed, broken) = broken.unwrap_or_else(|| panic!("{bug}: not found in {WORLDS} worlds"));
    println!("{bug}: seed {seed}: {broken}");
}

/// The production stack with a bug in front of it.
fn in_front(setup: &WorldSetup, parts: NodeParts, bug: Bug) -> io::Result<impl NodeStack + use<>> {
    Ok(Layer::new(production(setup, parts)?, bug))
}

/// The production stack with a bug between it and the store.
fn behind(setup: &WorldSetup, parts: NodeParts, bug: Bug) -> io::Result<impl NodeStack + use<>> {
    let NodeParts { store, clock, background, .. } = parts;
    production_with(setup, Layer::new(store, bug), clock, &background)
}

/// Worlds without layers.
fn bare(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { stack: Stack::Bare, in_flight: false, refunds: 0, ..drawn }
}

/// Worlds with all layers, without leases.
fn exact(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { stack: Stack::Exact, in_flight: false, ..drawn }
}

#[test]
fn a_timed_out_command_is_refunded() {
    found("refund of a timed-out command", "more than its limit", bare, |_, parts| {
        Ok(Layer::new(parts.store, Bug::RefundsTimeouts))
    });
}

#[test]
fn a_timed_out_command_is_sent_again() {
    found("charged again after a timeout", "and was charged", bare, |_, parts| {
        Ok(Layer::new(parts.store, Bug::Retries))
    });
}

#[test]
fn a_timed_out_request_is_admitted() {
    found("admitted after a timeout", "had not granted", bare, |_, parts| {
        Ok(Layer::new(parts.store, Bug::AdmitsTimeouts))
    });
}

#[test]
fn a_request_waits_for_a_probe() {
    found("request waits for a probe", "waited", bare, |_, parts| {
        Ok(Layer::new(parts.store, Bug::WaitsForProbe))
    });
}

#[test]
fn a_breaker_never_closes() {
    found("breaker that never closes", "after the store recovered", exact, |setup, parts| {
        let NodeParts { store, clock, .. } = parts;
        production_with(setup, store, clock, &Background::new(Idle))
    });
}

/// Worlds without layers, where some callers give up.
fn given_up(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { faults: vec![Fault::GiveUp, Fault::Loss], ..bare(drawn) }
}

#[test]
fn an_abandoned_request_keeps_its_lock() {
    found("lock kept by an abandoned request", "never answered", given_up, |_, parts| {
        Ok(Abandoned::new(parts.store, Left::Lock))
    });
}

#[test]
fn an_abandoned_request_is_refunded() {
    found("refund of an abandoned request", "more than its limit", given_up, |_, parts| {
        Ok(Abandoned::new(parts.store, Left::Refund))
    });
}

/// Worlds where many requests ask for two keys, all or nothing.
fn in_pairs(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { keys: 3, pairs: 500, ..bare(drawn) }
}

#[test]
fn two_keys_are_not_all_or_nothing() {
    found("charged for one key, denied another", "was denied, and", in_pairs, |_, parts| {
        Ok(Layer::new(parts.store, Bug::DecidesEach))
    });
}

fn in_flight(mut drawn: WorldSetup) -> WorldSetup {
    drawn.make_in_flight();
    WorldSetup { stack: Stack::Exact, pre_limit: None, ..drawn }
}

#[test]
fn denials_of_places_are_repeated() {
    found("denial of a place repeated", "had room for", in_flight, |setup, parts| {
        in_front(setup, parts, Bug::RepeatsDenials(Span::from_millis(100)))
    });
}

#[test]
fn a_place_is_released_at_once() {
    found("place released while in use", "more than its limit", in_flight, |setup, parts| {
        in_front(setup, parts, Bug::ReleasesAtOnce)
    });
}

/// Fewer places than before, and a server that has forgotten some.
fn in_flight_and_pushed(drawn: WorldSetup) -> WorldSetup {
    let faults = vec![Fault::PolicyPush, Fault::StoreClock, Fault::Failover];
    WorldSetup { burst: 6, faults, ..in_flight(drawn) }
}

#[test]
fn more_places_than_there_are() {
    let worlds = in_flight_and_pushed;
    found("one place too many", "more than its limit", worlds, |setup, parts| {
        let more = Limit::in_flight(setup.burst + 1, Span::from_millis(700)).unwrap();
        in_front(setup, parts, Bug::Uses(more))
    });
}

#[test]
fn denials_are_repeated_for_too_long() {
    found("denial repeated for too long", "had room for", exact, |setup, parts| {
        in_front(setup, parts, Bug::RepeatsDenials(Span::from_millis(300)))
    });
}

/// Worlds where each key is divided.
fn sharded(drawn: WorldSetup) -> WorldSetup {
    let algorithm = AlgorithmName::TokenBucket;
    WorldSetup { shards: 4, algorithm, faults: Vec::new(), burst: 40, ..exact(drawn) }
}

#[test]
fn every_shard_has_the_whole_limit() {
    found("shards not divided", "more than its limit", sharded, |setup, parts| {
        behind(setup, parts, Bug::Uses(setup.limit().unwrap()))
    });
}

/// Worlds with a small pre-limit on each node.
fn pre_limited(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { pre_limit: Some((2, 3)), ..exact(drawn) }
}

#[test]
fn a_pre_limit_is_ignored() {
    found("pre-limit ignored", "above its pre-limit", pre_limited, |setup, parts| {
        in_front(setup, parts, Bug::IgnoresPreLimits)
    });
}

fn local(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { on_store_failure: OnStoreFailure::Local, ..exact(drawn) }
}

#[test]
fn every_node_admits_the_whole_limit() {
    found("fallback without shares", "above its share", local, |setup, parts| {
        production(&WorldSetup { nodes: 1, ..setup.clone() }, parts)
    });
}

/// A share that other requests have emptied since would look impossible, and be refilled.
#[test]
fn a_share_decides_by_an_old_time() {
    found("share decided as of the arrival", "above its share", local, |setup, parts| {
        let NodeParts { store, background, .. } = parts;
        let stands_still = Clock::from(ManualClock::at(Timestamp::EPOCH));
        production_with(setup, store, stands_still, &background)
    });
}

/// Limits that refill so slowly that pending debits do not settle themselves.
fn slow(drawn: WorldSetup) -> WorldSetup {
    let rate = Rate::new(60, Span::from_secs(60));
    WorldSetup { rate, burst: 20, load: 2_000, shards: 1, ..local(drawn) }
}

#[test]
fn debits_are_made_twice() {
    found("debited twice", "and debited", slow, |setup, parts| {
        behind(setup, parts, Bug::DebitsTwice)
    });
}

#[test]
fn debits_are_never_made() {
    found("never debited", "never debited", slow, |setup, parts| {
        behind(setup, parts, Bug::DropsDebits)
    });
}

fn leased(mut drawn: WorldSetup) -> WorldSetup {
    drawn.make_leased();
    WorldSetup { algorithm: AlgorithmName::TokenBucket, shards: 1, pre_limit: None, ..drawn }
}

#[test]
fn a_lease_is_spent_after_its_end() {
    found("lease spent after its end", "had not granted", leased, |setup, parts| {
        in_front(setup, parts, Bug::IsLate)
    });
}

/// Leases of windows that are used up in some periods, and just not in others.
fn leased_windows(drawn: WorldSetup) -> WorldSetup {
    let algorithm = AlgorithmName::FixedWindow;
    WorldSetup { algorithm, faults: Vec::new(), load: 100, ..leased(drawn) }
}

#[test]
fn a_lease_outlives_its_window() {
    found("lease spent after its window", "more than its limit", leased_windows, |setup, parts| {
        behind(setup, parts, Bug::StretchesWindows)
    });
}

#[test]
fn a_lease_is_counted_from_the_answer() {
    found("lease counted from the answer", "had not granted", leased, |setup, parts| {
        let NodeParts { store, background, .. } = parts;
        let clock = WrongClock::Ahead(ManualClock::new());
        let store = production_with(setup, store, clock.clock(), &background)?;
        Ok(Clocked { store, clock })
    });
}

/// Nodes that are paused while they hold leases, and whose wall clocks are set.
fn paused(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { faults: vec![Fault::Pause, Fault::NodeClock], ..leased(drawn) }
}

#[test]
fn a_lease_ends_by_the_wall_clock() {
    found("lease ends by the wall clock", "had not granted", paused, |setup, parts| {
        let NodeParts { store, wall, background, .. } = parts;
        let clock = WrongClock::Wall(wall);
        let store = production_with(setup, store, clock.clock(), &background)?;
        Ok(Clocked { store, clock })
    });
}

#[test]
fn a_leased_bucket_is_not_reduced() {
    found("leased bucket not reduced", "more than its limit", leased, |setup, parts| {
        in_front(setup, parts, Bug::Uses(setup.limit().unwrap()))
    });
}

/// Leases whose numbers change, without another fault.
fn pushed(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { faults: vec![Fault::PolicyPush], seconds: 10, ..leased(drawn) }
}

#[test]
fn old_numbers_stay_in_force() {
    found("old numbers kept after a change", "more than its limit", pushed, |setup, parts| {
        in_front(setup, parts, Bug::KeepsFirstLimit)
    });
}

#[test]
fn a_leased_bucket_is_enlarged_after_a_change() {
    found("smaller bucket enlarged", "more than its limit", pushed, |setup, parts| {
        in_front(setup, parts, Bug::EnlargesForLeases)
    });
}

#[test]
fn leased_units_are_returned_twice() {
    found("lease returned twice", "had not granted", leased, |setup, parts| {
        behind(setup, parts, Bug::ReturnsTwice)
    });
}

#[test]
fn a_grant_is_presumed_after_a_timeout() {
    found("grant presumed after a timeout", "had not granted", leased, |setup, parts| {
        behind(setup, parts, Bug::PresumesGrants)
    });
}

/// The worlds above keep their promises without a bug.
#[test]
fn the_production_stack_is_not_blamed() {
    for seed in 0..100 {
        for worlds in [
            bare,
            given_up,
            in_pairs,
            in_flight,
            in_flight_and_pushed,
            sharded,
            pre_limited,
            local,
            slow,
            leased,
            leased_windows,
            paused,
            pushed,
        ] {
            let setup = worlds(WorldSetup::drawn(Seed(seed)));
            let report = simulate_as_set_up(&setup).unwrap();
            assert_eq!(report.broken, None, "seed {seed}: {setup:?}");
        }
    }
}
