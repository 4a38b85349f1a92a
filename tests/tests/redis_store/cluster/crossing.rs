//! Requests whose limits lie on different nodes: reserved one after the other, given back if a later
//! one denies. That may deny too much for an instant, but never admits too much.

use std::sync::Arc;

use tidegate::store::StoreError;
use tidegate::store::redis::RedisStore;
use tidegate_tests::servers::{Cluster, wait_until};
use tokio::runtime::Runtime;

use crate::load::{Answer, Load, TIMEOUT, Wanted, connect, consumed, daily, errors, runtime, take};

/// One limit on each primary, and how much it admits.
type Limits = [(&'static str, u64); 3];
/// Used up within a second.
const TIGHT: Limits = [("user", 500), ("tenant", 700), ("region", 400)];
/// Not used up while a test lasts.
const WIDE: Limits = [("user", 20_000), ("tenant", 20_000), ("region", 20_000)];
/// What is taken back is less by what refilled meanwhile: in all, less than a unit.
const HELD: u64 = 1;
/// Which of them a request meets. Orders differ, as policies may.
const SHAPES: [&[usize]; 4] = [&[0, 1], &[2, 1], &[1, 2, 0], &[0, 2]];

/// A text for each limit, so that each lies on another primary.
fn texts(cluster: &Cluster) -> Vec<String> {
    let (mut texts, mut owners) = (Vec::new(), Vec::new());
    for number in 0.. {
        let text = format!("text:{number}");
        let owner = cluster.primary_of(cluster.slot_of(&text)).port();
        if !owners.contains(&owner) {
            owners.push(owner);
            texts.push(text);
        }
        if texts.len() == TIGHT.len() {
            break;
        }
    }
    texts
}

fn wanted<'a>(shape: &[usize], limits: Limits, texts: &'a [String]) -> Vec<Wanted<'a>> {
    let want = |limit: &usize| (limits[*limit].0, daily(limits[*limit].1), texts[*limit].as_str());
    shape.iter().map(want).collect()
}

fn start(
    runtime: &Runtime,
    store: &Arc<RedisStore>,
    limits: Limits,
    texts: &Arc<Vec<String>>,
) -> Load {
    let (store, texts) = (Arc::clone(store), Arc::clone(texts));
    Load::start(runtime, 40, SHAPES.len(), move |shape| {
        let (store, texts) = (Arc::clone(&store), Arc::clone(&texts));
        async move { take(&store, &wanted(SHAPES[shape], limits, &texts)).await }
    })
}

/// Requests that met this limit and were told something.
fn count(answers: &[Answer], limit: usize, counts: impl Fn(&Answer) -> bool) -> u64 {
    let met =
        answers.iter().filter(|attempt| SHAPES[attempt.what].contains(&limit) && counts(attempt));
    met.count() as u64
}

#[test]
fn limits_on_different_nodes_never_admit_too_much_and_give_back_what_was_denied() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    let texts = Arc::new(texts(&cluster));
    let store = Arc::new(runtime.block_on(connect(&cluster.url())));
    let load = start(&runtime, &store, TIGHT, &texts);
    load.wait_for(1_500, 0..SHAPES.len());
    let answers = load.stop(&runtime);
    assert_eq!(errors(answers.iter()), [], "nothing failed");

    let mut gone = [0; 3];
    for (limit, (name, most)) in TIGHT.into_iter().enumerate() {
        let admitted = count(&answers, limit, Answer::is_admitted);
        assert!(admitted <= most, "{name} admitted {admitted} of {most}");
        let wanted = (name, daily(most), texts[limit].as_str());
        // Returns are not awaited.
        wait_until("what was denied is given back", TIMEOUT, || {
            gone[limit] = runtime.block_on(consumed(&store, wanted));
            gone[limit] <= admitted + HELD
        });
        assert!(gone[limit] >= admitted, "{name} has forgotten: {} of {admitted}", gone[limit]);
    }
    // One of each pair is used up, or all that asked for both was denied for no reason.
    let rest = |limit: usize| TIGHT[limit].1 - gone[limit];
    let spent = SHAPES.iter().all(|shape| shape.iter().any(|limit| rest(*limit) == 0));
    assert!(spent || rest(0).min(rest(1)).min(rest(2)) < 40, "{gone:?} of {TIGHT:?}");
    let denied = answers.iter().filter(|attempt| attempt.answer == Ok(false)).count();
    println!("{gone:?} of {TIGHT:?}, {denied} denied");
}

#[test]
fn a_primary_that_dies_between_reservations_leaves_nothing_admitted_too_often() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    let texts = Arc::new(texts(&cluster));
    let store = Arc::new(runtime.block_on(connect(&cluster.url())));
    let load = start(&runtime, &store, WIDE, &texts);
    load.wait_for(10, 0..SHAPES.len());
    // The second limit is in three of four shapes; the last shape goes on.
    let slot = cluster.slot_of(&texts[1]);
    let fallen = cluster.failover(slot);
    load.wait_for(10, [SHAPES.len() - 1]);
    cluster.wait_for_promotion(slot, TIMEOUT);
    load.wait_for(400, 0..SHAPES.len());
    let answers = load.stop(&runtime);
    assert!(!fallen.is_answering());

    let fresh_decision = answers.iter().filter(|attempt| !SHAPES[attempt.what].contains(&1));
    assert_eq!(errors(fresh_decision), [], "F4: requests to other nodes do not notice");
    let is_unsure = |attempt: &Answer| attempt.answer.is_err();
    assert!(count(&answers, 1, is_unsure) > 0, "the outage must affect requests");
    for error in answers.iter().filter_map(|attempt| attempt.answer.as_ref().err()) {
        assert!(error.is_outage(), "{error}");
    }
    for (limit, (name, most)) in WIDE.into_iter().enumerate() {
        let admitted = count(&answers, limit, Answer::is_admitted);
        let wanted = (name, daily(most), texts[limit].as_str());
        let mut gone = runtime.block_on(consumed(&store, wanted));
        if limit == 1 {
            // Its replica may not have heard of the last ones.
            continue;
        }
        let unsure = count(&answers, limit, |attempt| attempt.answer == Err(StoreError::Timeout));
        wait_until("what was not decided is given back", TIMEOUT, || {
            gone = runtime.block_on(consumed(&store, wanted));
            gone <= admitted + unsure + HELD
        });
        assert!(gone >= admitted, "{name} has forgotten: {gone} of {admitted}");
        println!("{name}: {admitted} of {most} admitted, {gone} gone, {unsure} unsure");
    }
    println!("{:?}", errors(answers.iter()));
}
