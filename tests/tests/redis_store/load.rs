//! Callers that keep asking while servers fail and slots move, and what each was told.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::{Batch, Charge, Store, StoreError};
use tidegate::{Decision, Key, Limit, Op, Rate, Scope, Timestamp};
use tidegate_tests::servers::wait_until;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval};

/// How long a request waits for its decision.
pub(crate) const DEADLINE: Duration = Duration::from_millis(250);
/// The longest wait: the deadline, with slack for a busy machine.
pub(crate) const HANGS: Duration = Duration::from_millis(2_500);
/// How long a test waits for anything at all.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Between two requests of one caller, so that the servers have a processor too.
const PACE: Duration = Duration::from_millis(4);

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

pub(crate) async fn connect(url: &str) -> RedisStore {
    let config = RedisConfig::new(url).expect("a valid address").deadline(DEADLINE);
    RedisStore::connect(config).await.expect("servers that have settled")
}

/// So many at once, and no more while a test lasts.
pub(crate) fn daily(burst: u64) -> Limit {
    Limit::token_bucket(Rate::per_day(1)).burst(burst).build().expect("plain numbers")
}

/// A limit, by its name, and whose.
pub(crate) type Wanted<'a> = (&'static str, Limit, &'a str);

/// Whether one unit of every limit could be taken for its text.
pub(crate) async fn take(store: &RedisStore, wanted: &[Wanted<'_>]) -> Result<bool, StoreError> {
    let decisions = decide(store, wanted, Op::Take(1)).await?;
    Ok(decisions.iter().all(Decision::is_allowed))
}

/// Units that are gone from a limit.
pub(crate) async fn consumed(store: &RedisStore, wanted: Wanted<'_>) -> u64 {
    let decisions = decide(store, &[wanted], Op::Read(0)).await.expect("a server that is well");
    decisions[0].limit - decisions[0].remaining
}

async fn decide(
    store: &RedisStore,
    wanted: &[Wanted<'_>],
    op: Op,
) -> Result<Vec<Decision>, StoreError> {
    let mut charges = Vec::new();
    for (name, limit, text) in wanted {
        let key = Key::new(Scope::new(name, limit), text.as_bytes());
        charges.push(Charge::new(key, limit, op));
    }
    let mut decisions = Vec::new();
    store.decide(Timestamp::EPOCH, Batch::together(&charges), &mut decisions).await?;
    Ok(decisions)
}

/// What one request was told.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Which of the things that can be asked for.
    pub(crate) what: usize,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    pub(crate) answer: Result<bool, StoreError>,
}

impl Answer {
    pub(crate) fn is_admitted(&self) -> bool {
        self.answer == Ok(true)
    }
}

/// Callers that ask until they are stopped.
#[derive(Debug)]
pub(crate) struct Load {
    stops: Arc<AtomicBool>,
    /// Decisions had for each thing that can be asked for.
    decided: Arc<Vec<AtomicU64>>,
    callers: Vec<JoinHandle<Vec<Answer>>>,
}

impl Load {
    /// Each caller asks for one thing after the other, out of `things`.
    pub(crate) fn start<A, F>(runtime: &Runtime, callers: usize, things: usize, ask: A) -> Self
    where
        A: Fn(usize) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<bool, StoreError>> + Send,
    {
        let stops = Arc::new(AtomicBool::new(false));
        let decided: Arc<Vec<AtomicU64>> = Arc::new((0..things).map(|_| 0.into()).collect());
        let caller = |number: usize| {
            let (stops, decided, ask) = (Arc::clone(&stops), Arc::clone(&decided), ask.clone());
            runtime.spawn(async move {
                let (mut answers, mut pace) = (Vec::new(), interval(PACE));
                let mut what = number % things;
                while !stops.load(Ordering::Relaxed) {
                    pace.tick().await;
                    let asked = Instant::now();
                    let answer = ask(what).await;
                    if answer.is_ok() {
                        decided[what].fetch_add(1, Ordering::Relaxed);
                    }
                    answers.push(Answer { what, asked, answered: Instant::now(), answer });
                    what = (what + 1) % things;
                }
                answers
            })
        };
        Self { callers: (0..callers).map(caller).collect(), stops, decided }
    }

    /// Waits for so many more decisions on each of these.
    pub(crate) fn wait_for(&self, more: u64, of: impl IntoIterator<Item = usize>) {
        let decided = |what: usize| self.decided[what].load(Ordering::Relaxed);
        let goals: Vec<(usize, u64)> =
            of.into_iter().map(|what| (what, decided(what) + more)).collect();
        wait_until("requests are decided again", TIMEOUT, || {
            goals.iter().all(|(what, goal)| decided(*what) >= *goal)
        });
    }

    /// Stops the load. No request may have waited much longer than the deadline.
    pub(crate) fn stop(self, runtime: &Runtime) -> Vec<Answer> {
        self.stops.store(true, Ordering::Relaxed);
        let mut answers = Vec::new();
        for caller in self.callers {
            answers.extend(runtime.block_on(caller).expect("a caller does not panic"));
        }
        let slowest = answers.iter().max_by_key(|attempt| attempt.answered - attempt.asked);
        let slowest = slowest.expect("at least one request");
        assert!(slowest.answered - slowest.asked < HANGS, "{slowest:?}");
        answers.sort_by_key(|attempt| attempt.asked);
        answers
    }
}

/// Errors by their text, for people.
pub(crate) fn errors<'a>(answers: impl Iterator<Item = &'a Answer>) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for error in answers.filter_map(|attempt| attempt.answer.as_ref().err()) {
        *counts.entry(error.to_string()).or_default() += 1;
    }
    counts.into_iter().collect()
}
