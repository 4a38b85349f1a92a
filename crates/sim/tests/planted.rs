//! Bugs, planted on purpose: whoever breaks a promise is found. `--nocapture` tells in which world.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

#[path = "planted/books.rs"]
mod books;
#[path = "planted/elsewhen.rs"]
mod elsewhen;
#[path = "planted/layer.rs"]
mod layer;
#[path = "planted/unfinished.rs"]
mod unfinished;

use std::io;

use tidegate::store::OnStoreFailure;
use tidegate::store::background::Background;
use tidegate::store::breaker::Breaker;
use tidegate::store::deny_cache::DenyCache;
use tidegate::store::lease::{Lease, LeaseStats};
use tidegate::{Clock, ManualClock};
use tidegate_core::{AlgorithmName, Limit, Rate, Span, Timestamp};
use tidegate_sim::Seed;
use tidegate_sim::world::{
    Fault, Idle, NodeParts, NodeStack, SimStore, Stack, WorldSetup, answered_for, guarded,
    simulate, simulate_as_set_up,
};

use books::Books;
use elsewhen::Elsewhen;
use layer::{Layer, Wrong};
use unfinished::{Left, Unfinished};

/// In the first of so many worlds or never.
const WORLDS: u64 = 3_000;

/// Runs worlds until one breaks the promise that the complaint is about.
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

/// Worlds of rates, without layers.
fn bare(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { stack: Stack::Bare, ..drawn }
}

/// Worlds with all layers.
fn with_layers(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { stack: Stack::Guarded, ..drawn }
}

/// The production layers, with something wrong right behind the fallback.
fn behind_fallback(
    setup: &WorldSetup,
    parts: NodeParts,
    wrong: Wrong,
) -> io::Result<impl NodeStack + use<>> {
    let NodeParts { store, clock, background, .. } = parts;
    let breaker = Breaker::on(store.clone(), clock.clone(), &background);
    let layer = Layer::new(DenyCache::repeatable(breaker), store, wrong);
    answered_for(setup, layer, clock, &background)
}

#[test]
fn what_timed_out_is_given_back() {
    found("refund of a timed-out command", "nobody gave back", bare, |_, parts| {
        Ok(Layer::new(parts.store.clone(), parts.store, Wrong::Refunds))
    });
}

#[test]
fn what_timed_out_is_asked_for_again() {
    found("charged again after a timeout", "was charged twice", bare, |_, parts| {
        Ok(Layer::new(parts.store.clone(), parts.store, Wrong::AsksAgain))
    });
}

#[test]
fn what_timed_out_is_let_in() {
    found("let in without a word of the policy", "for nothing", bare, |_, parts| {
        Ok(Layer::new(parts.store.clone(), parts.store, Wrong::LetsIn))
    });
}

#[test]
fn a_request_waits_for_a_probe() {
    found("request waits for a probe", "waited", bare, |_, parts| {
        Ok(Layer::new(parts.store.clone(), parts.store, Wrong::Probes))
    });
}

#[test]
fn a_user_request_is_the_probe() {
    found("probe on a user request", "known to be away", with_layers, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let breaker = Breaker::on(store.clone(), clock.clone(), &background);
        let layer = Layer::new(breaker, store, Wrong::AsksWhileAway);
        answered_for(setup, DenyCache::repeatable(layer), clock, &background)
    });
}

#[test]
fn a_breaker_never_closes() {
    found("breaker that never closes", "in calm", with_layers, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let breaker = Breaker::on(store, clock.clone(), &Background::new(Idle));
        answered_for(setup, DenyCache::repeatable(breaker), clock, &background)
    });
}

/// Worlds without layers, where some callers give up.
fn given_up(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { faults: vec![Fault::GiveUp], in_flight: false, refunds: 0, ..bare(drawn) }
}

#[test]
fn who_gives_up_keeps_its_turn() {
    found("turn kept by who gave up", "never answered", given_up, |_, parts| {
        Ok(Unfinished::new(parts.store, Left::Turn))
    });
}

#[test]
fn who_gives_up_gets_a_refund() {
    found("refund to who gave up", "nobody gave back", given_up, |_, parts| {
        Ok(Unfinished::new(parts.store, Left::Refund))
    });
}

/// Worlds where many requests ask for two keys, all or nothing.
fn in_pairs(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { keys: 3, pairs: 500, in_flight: false, ..drawn }
}

#[test]
fn two_keys_are_not_all_or_nothing() {
    let worlds = |drawn| in_pairs(bare(drawn));
    found("charged for one key, denied another", "and kept out", worlds, |_, parts| {
        Ok(Layer::new(parts.store.clone(), parts.store, Wrong::Splits))
    });
    let worlds = |drawn| in_pairs(with_leases(drawn));
    found("lease spent on who is denied", "was kept out, and", worlds, |setup, parts| {
        above_leases(setup, parts, Wrong::Splits)
    });
}

fn many_keys(drawn: WorldSetup) -> WorldSetup {
    WorldSetup {
        keys: 64,
        rate: Rate::per_second(10),
        algorithm: AlgorithmName::TokenBucket,
        burst: 10,
        load: 100,
        nodes: 3,
        faults: vec![Fault::StoreHang],
        in_flight: false,
        ..with_layers(drawn)
    }
}

#[test]
fn there_is_no_ramp() {
    found("no ramp after an outage", "at once", many_keys, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let hand = ManualClock::new();
        let breaker = Breaker::on(store.clone(), Clock::from(hand.clone()), &background);
        let layer = Layer::hurried(DenyCache::repeatable(breaker), store, hand);
        answered_for(setup, layer, clock, &background)
    });
}

fn in_flight(mut drawn: WorldSetup) -> WorldSetup {
    drawn.make_in_flight();
    with_layers(drawn)
}

#[test]
fn denials_of_places_are_repeated() {
    found("deny cached for concurrency", "without asking", in_flight, |setup, parts| {
        behind_fallback(setup, parts, Wrong::Denies(Span::from_millis(100)))
    });
}

#[test]
fn a_place_is_given_back_at_once() {
    found("place given back in use", "that is in use", in_flight, |setup, parts| {
        behind_fallback(setup, parts, Wrong::Vacates)
    });
}

/// Fewer places than there were, and a server that has forgotten some.
fn in_flight_and_pushed(drawn: WorldSetup) -> WorldSetup {
    let faults = vec![Fault::PolicyPush, Fault::StoreClock, Fault::Failover];
    WorldSetup { burst: 6, faults, ..in_flight(drawn) }
}

#[test]
fn more_places_than_there_are() {
    let worlds = in_flight_and_pushed;
    found("one place too many", "above the envelope", worlds, |setup, parts| {
        let more = Limit::in_flight(setup.burst + 1, Span::from_millis(700)).unwrap();
        behind_fallback(setup, parts, Wrong::Enlarges(more))
    });
}

#[test]
fn denials_are_repeated_for_too_long() {
    let rates = |drawn: WorldSetup| WorldSetup { in_flight: false, ..with_layers(drawn) };
    found("deny entry kept too long", "without asking", rates, |setup, parts| {
        behind_fallback(setup, parts, Wrong::Denies(Span::from_millis(100)))
    });
}

fn local(drawn: WorldSetup) -> WorldSetup {
    let on_store_failure = OnStoreFailure::Local;
    WorldSetup { on_store_failure, in_flight: false, ..with_layers(drawn) }
}

#[test]
fn every_node_lets_in_the_whole_limit() {
    found("fallback without shares", "may let in", local, |setup, parts| {
        guarded(&WorldSetup { nodes: 1, ..setup.clone() }, parts)
    });
}

/// A share that others have emptied since would be taken for impossible, and refilled.
#[test]
fn a_share_decides_by_an_old_time() {
    found("share decided as of the request's start", "may let in", local, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let store = DenyCache::repeatable(Breaker::on(store, clock, &background));
        let stands_still = Clock::from(ManualClock::at(Timestamp::EPOCH));
        answered_for(setup, store, stands_still, &Background::new(Idle))
    });
}

#[test]
fn what_is_owed_is_booked_twice() {
    found("owed booked twice", "more than it let in", local, |setup, parts| {
        behind_fallback(setup, parts, Wrong::Books)
    });
}

/// Limits that refill so slowly that what is owed does not settle itself.
fn slow(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { rate: Rate::new(60, Span::from_secs(60)), burst: 20, load: 2_000, ..local(drawn) }
}

#[test]
fn what_is_owed_is_never_booked() {
    found("owed never booked", "never booked", slow, |setup, parts| {
        behind_fallback(setup, parts, Wrong::Forgets)
    });
}

fn with_leases(mut drawn: WorldSetup) -> WorldSetup {
    drawn.make_leased();
    drawn.algorithm = AlgorithmName::TokenBucket;
    drawn
}

/// What is below the leases of a node, with something wrong in it.
fn below(
    store: SimStore,
    clock: &Clock,
    background: &Background,
    wrong: Wrong,
) -> Layer<DenyCache<Breaker<SimStore>>> {
    let breaker = Breaker::on(store.clone(), clock.clone(), background);
    Layer::new(DenyCache::repeatable(breaker), store, wrong)
}

/// Leases whose time is not the one that they are told.
fn above_leases(
    setup: &WorldSetup,
    parts: NodeParts,
    wrong: Wrong,
) -> io::Result<impl NodeStack + use<>> {
    let NodeParts { store, clock, background, .. } = parts;
    let breaker = Breaker::on(store.clone(), clock.clone(), &background);
    let leases = Lease::repeatable(DenyCache::repeatable(breaker), clock.clone());
    answered_for(setup, Layer::new(leases, store, wrong), clock, &background)
}

#[test]
fn a_lease_is_used_after_it_has_ended() {
    found("lease used after expiry", "had ended", with_leases, |setup, parts| {
        above_leases(setup, parts, Wrong::Dawdles)
    });
}

/// Leases of windows, whose end a step of the store's clock moves.
fn with_windows(mut drawn: WorldSetup) -> WorldSetup {
    drawn.make_leased();
    let faults = vec![Fault::StoreClock, Fault::Failover];
    WorldSetup { algorithm: AlgorithmName::FixedWindow, faults, load: 100, ..drawn }
}

#[test]
fn a_lease_outlives_its_window() {
    found("lease used after its window", "had ended", with_windows, |setup, parts| {
        above_leases(setup, parts, Wrong::Dawdles)
    });
}

#[test]
fn a_lease_is_counted_from_the_answer() {
    found("lease counted from the reply", "had ended", with_leases, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let store = DenyCache::repeatable(Breaker::on(store, clock.clone(), &background));
        answered_for(setup, Elsewhen::when_answered(store), clock, &background)
    });
}

/// Nodes that stand still with units in hand, and whose clocks are set.
fn with_pauses(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { faults: vec![Fault::Pause, Fault::NodeClock], ..with_leases(drawn) }
}

#[test]
fn a_lease_ends_by_the_wall_clock() {
    found("lease expiry by wall clock", "had ended", with_pauses, |setup, parts| {
        let NodeParts { store, clock, wall, background } = parts;
        let store = DenyCache::repeatable(Breaker::on(store, clock.clone(), &background));
        answered_for(setup, Elsewhen::on_the_wall(store, wall), clock, &background)
    });
}

#[test]
fn a_leased_bucket_is_not_reduced() {
    found(
        "leased bucket not reduced at the store",
        "above the envelope",
        with_leases,
        |setup, parts| above_leases(setup, parts, Wrong::Enlarges(setup.limit().unwrap())),
    );
}

/// Leases whose numbers change, and nothing else goes wrong.
fn with_pushes(drawn: WorldSetup) -> WorldSetup {
    WorldSetup { faults: vec![Fault::PolicyPush], load: 400, ..with_leases(drawn) }
}

#[test]
fn old_numbers_stay_in_force() {
    found("old numbers kept after a push", "decided by numbers", with_pushes, |setup, parts| {
        above_leases(setup, parts, Wrong::Keeps)
    });
}

/// The larger numbers of before do not hide it.
#[test]
fn a_leased_bucket_is_not_reduced_after_a_push() {
    found("smaller bucket not reduced", "above the envelope", with_pushes, |setup, parts| {
        above_leases(setup, parts, Wrong::Unreduces)
    });
}

#[test]
fn a_lease_is_given_back_twice() {
    found("lease returned twice", "gave back", with_leases, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let store = below(store, &clock, &background, Wrong::Returns);
        let leases = Lease::repeatable(store, clock.clone());
        answered_for(setup, leases, clock, &background)
    });
}

#[test]
fn a_grant_is_presumed_when_no_answer_comes() {
    found("grant presumed after a timeout", "heard of", with_leases, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let store = below(store, &clock, &background, Wrong::Presumes);
        let leases = Lease::repeatable(store, clock.clone());
        answered_for(setup, leases, clock, &background)
    });
}

/// Leases that are in order, and what the node says of them is not.
fn misstated(bug: &str, complaint: &str, wrong: fn(&mut LeaseStats)) {
    found(bug, complaint, with_leases, |setup, parts| {
        let NodeParts { store, clock, background, .. } = parts;
        let store = DenyCache::repeatable(Breaker::on(store, clock.clone(), &background));
        let books = Books::new(Lease::repeatable(store, clock.clone()), wrong);
        answered_for(setup, books, clock, &background)
    });
}

/// They add up all the same, so only somebody who counts finds them.
#[test]
fn books_are_not_what_happened() {
    misstated("grant booked that was none", "heard of", |says| {
        says.granted += 3;
        says.expired += 3;
    });
    misstated("spent units booked as expired", "for nothing", |says| {
        let units = says.spent.saturating_sub(100);
        says.spent -= units;
        says.expired += units;
    });
    misstated("expired units booked as given back", "gave back", |says| {
        says.returned += std::mem::take(&mut says.expired);
    });
    misstated("expired units booked as held", "can hold", |says| {
        says.outstanding += std::mem::take(&mut says.expired);
    });
}

/// So that what the tests above find is theirs.
#[test]
fn the_right_layers_are_not_found() {
    for seed in 0..100 {
        for worlds in [
            local,
            slow,
            in_flight,
            in_flight_and_pushed,
            given_up,
            many_keys,
            with_leases,
            with_pushes,
            with_windows,
            in_pairs,
        ] {
            let setup = worlds(WorldSetup::drawn(Seed(seed)));
            let report = simulate_as_set_up(&setup).unwrap();
            assert_eq!(report.broken, None, "seed {seed}");
        }
    }
}
