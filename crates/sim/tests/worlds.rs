//! Worlds by the hundred: promises are kept whatever goes wrong, and whoever breaks one is found.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tidegate::Explanation;
use tidegate::store::{Basis, Charge, Store, StoreError};
use tidegate_core::{Decision, Op, Timestamp};
use tidegate_sim::Seed;
use tidegate_sim::world::{Fault, SimStore, WorldReport, WorldSetup, simulate};

fn exact(seed: u64) -> WorldReport {
    simulate(&WorldSetup::drawn(Seed(seed)), |store| store).unwrap()
}

/// Says how to see it again.
fn complain(seed: u64, report: &WorldReport) {
    if let Some(broken) = &report.broken {
        panic!("{broken}; see it again: cargo run -- simulate cluster --seed {seed}");
    }
}

#[test]
fn the_exact_tier_keeps_its_promises() {
    let (mut admitted, mut failed, mut denied, mut dropped) = (0, 0, 0, 0);
    let mut faults = BTreeSet::new();
    for seed in 0..400 {
        let report = exact(seed);
        complain(seed, &report);
        admitted += report.admitted;
        failed += report.failed;
        denied += report.denied;
        dropped += report.dropped;
        faults.extend(report.faults);
    }
    let seen = [admitted, failed, denied];
    assert!(seen.iter().all(|figure| *figure > 1_000) && dropped > 10, "{seen:?} {dropped}");
    assert_eq!(faults.len(), Fault::ALL.len(), "{faults:?}");
}

#[test]
fn a_seed_tells_the_same_story_every_time() {
    let stories = || (0..20).map(|seed| exact(seed).trace.to_string()).collect::<Vec<_>>();
    let first = stories();
    assert_eq!(first, stories());
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len());
}

/// However it is compiled and wherever it runs. Whoever changes what worlds do changes this number.
#[test]
fn a_story_is_the_same_in_every_build() {
    assert_eq!(exact(7).trace.to_string(), "922a072a350e8009");
}

#[test]
fn without_faults_nobody_fails_and_everybody_is_asked_for_once() {
    for seed in 0..20 {
        let setup = WorldSetup { faults: Vec::new(), ..WorldSetup::drawn(Seed(seed)) };
        let report = simulate(&setup, |store| store).unwrap();
        complain(seed, &report);
        assert_eq!((report.failed, report.dropped), (0, 0), "seed {seed}");
        assert_eq!(report.store_calls, report.requests, "seed {seed}");
    }
}

/// What a layer does wrong when an answer does not come in time.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// Gives back what nobody knows to be taken.
    Refunds,
    /// Asks again, and is charged again.
    AsksAgain,
    /// Lets everybody in, without a word of any policy.
    LetsIn,
    /// Keeps the request waiting until the store is back.
    Probes,
}

#[derive(Debug)]
struct Layer {
    store: SimStore,
    wrong: Wrong,
}

impl Store for Layer {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<Basis, StoreError> {
        let answer = self.store.decide(now, charges, decisions).await;
        let Op::Take(cost) = charges[0].op else { return answer };
        if answer != Err(StoreError::Timeout) {
            return answer;
        }
        let ask = async |op| {
            let mut decisions = Vec::new();
            let asked = [Charge { op, ..charges[0] }];
            self.store.decide(now, &asked, &mut decisions).await.map(|_| decisions)
        };
        match self.wrong {
            Wrong::Refunds => {
                // Sent, and not waited for.
                let mut back = pin!(ask(Op::Return(cost)));
                poll_fn(|context| Poll::Ready(back.as_mut().poll(context).is_ready())).await;
                answer
            }
            Wrong::AsksAgain => self.store.decide(now, charges, decisions).await,
            Wrong::LetsIn => Ok(Basis::Store),
            Wrong::Probes => {
                let _ = ask(Op::Read(0)).await;
                answer
            }
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }
}

/// What breaks first that is blamed on this, and in which world.
fn found(wrong: Wrong, complaint: &str) -> (u64, String) {
    let broken = (0..1_000).find_map(|seed| {
        let setup = WorldSetup::drawn(Seed(seed));
        let report = simulate(&setup, |store| Layer { store, wrong }).unwrap();
        Some((seed, report.broken?.what)).filter(|(_, what)| what.contains(complaint))
    });
    broken.unwrap_or_else(|| panic!("{wrong:?} was not found in 1,000 worlds"))
}

#[test]
fn layers_that_do_wrong_are_found() {
    for (wrong, complaint) in [
        (Wrong::Refunds, "above the envelope"),
        (Wrong::AsksAgain, "was charged twice"),
        (Wrong::LetsIn, "was let in for nothing"),
        (Wrong::Probes, "waited"),
    ] {
        let (seed, what) = found(wrong, complaint);
        println!("{wrong:?}: seed {seed}: {what}");
    }
}
