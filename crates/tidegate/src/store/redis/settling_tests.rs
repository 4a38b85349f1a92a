use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::advance;

use super::*;

const DELAY: Duration = Duration::from_secs(60);
const AGREED: Duration = Duration::from_secs(10);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Advances time, and runs the tasks that waited for it.
fn pass(runtime: &Runtime, time: Duration) {
    runtime.block_on(async {
        yield_now().await;
        advance(time).await;
        yield_now().await;
    });
}

fn start(runtime: &Runtime, at_most: Duration) -> Settling {
    runtime.block_on(async { Settling::start(Waits { at_most, agreed: AGREED }) })
}

fn is_settled(settling: &Settling) -> bool {
    settling.flag().load(Ordering::Relaxed)
}

/// Compares with nodes that have these policies.
fn compare(runtime: &Runtime, settling: &Settling, others: &[u64]) {
    let others = others.iter().map(|it| DomainRevision { domain: "api".into(), revision: *it });
    let change = settling.change();
    runtime.block_on(async { settling.compared(change, others.collect()) });
}

/// Also from threads outside a runtime, as this one.
#[test]
fn every_change_starts_over() {
    let runtime = runtime();
    let settling = start(&runtime, DELAY);
    pass(&runtime, DELAY / 2);
    settling.begin();
    pass(&runtime, DELAY / 2 + Duration::from_millis(10));
    assert!(!is_settled(&settling), "the numbers are half as old");
    pass(&runtime, DELAY / 2);
    assert!(is_settled(&settling));
    settling.begin();
    assert!(!is_settled(&settling));
}

#[test]
fn without_a_delay_it_is_settled_at_once() {
    let runtime = runtime();
    let settling = start(&runtime, Duration::ZERO);
    settling.begin();
    assert!(is_settled(&settling));
    compare(&runtime, &settling, &[1]);
    assert!(is_settled(&settling));
}

#[test]
fn nodes_that_agree_repair_sooner() {
    let runtime = runtime();
    let settling = start(&runtime, DELAY);
    compare(&runtime, &settling, &[]);
    assert!(!is_settled(&settling), "others may be about to register");
    pass(&runtime, AGREED);
    compare(&runtime, &settling, &[]);
    assert!(is_settled(&settling));
}

#[test]
fn a_comparison_from_before_a_change_does_not_count() {
    let runtime = runtime();
    let settling = start(&runtime, DELAY);
    compare(&runtime, &settling, &[]);
    pass(&runtime, AGREED);
    let change = settling.change();
    settling.begin();
    runtime.block_on(async { settling.compared(change, BTreeSet::new()) });
    assert!(!is_settled(&settling));
}

#[test]
fn another_policy_is_waited_for_once() {
    let runtime = runtime();
    let settling = start(&runtime, DELAY);
    compare(&runtime, &settling, &[]);
    pass(&runtime, AGREED);
    compare(&runtime, &settling, &[]);
    compare(&runtime, &settling, &[1]);
    assert!(!is_settled(&settling), "a node with another policy has joined");
    pass(&runtime, DELAY / 2);
    compare(&runtime, &settling, &[1]);
    pass(&runtime, DELAY / 2);
    assert!(is_settled(&settling), "the wait has an end");
    compare(&runtime, &settling, &[1]);
    assert!(is_settled(&settling), "the same policy is not waited for again");
    compare(&runtime, &settling, &[1, 2]);
    assert!(!is_settled(&settling), "a third policy is");
}

/// The wait that the change started covers the nodes that are found to lag.
#[test]
fn nodes_that_lag_behind_a_change_do_not_prolong_the_wait() {
    let runtime = runtime();
    let settling = start(&runtime, DELAY);
    pass(&runtime, DELAY / 2);
    compare(&runtime, &settling, &[1]);
    pass(&runtime, DELAY / 2);
    assert!(is_settled(&settling));
}

/// A registry that answers for the first time after the wait.
#[test]
fn a_policy_that_is_first_seen_late_is_waited_for() {
    let runtime = runtime();
    let settling = start(&runtime, DELAY);
    pass(&runtime, DELAY);
    assert!(is_settled(&settling), "no registry has answered");
    compare(&runtime, &settling, &[1]);
    assert!(!is_settled(&settling));
}
