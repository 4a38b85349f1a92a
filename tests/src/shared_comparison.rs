//! The model and a shared store, side by side on the same requests.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::{RedisConfig, RedisStore, TimeSource};
use tidegate::store::{Batch, Charge, ReservationId, Reserving, Store};
use tidegate::{Detail, Explanation, Hashing, Key, Limit, Op, Rate, Scope, Span, Timestamp};
use tidegate_core::{Algorithm, State};

use crate::model::Model;
use crate::subject::Subject;
use crate::trace::{Step, Trace};

const TRACE_LENGTH: u64 = 256;
const AT_ONCE: u64 = 64;
const EXPLAINED_EVERY: u64 = 16;
/// The year 2153. A hundred years later, which is the longest refill, is still below 2^53, the
/// largest integer that Lua represents exactly.
const LATEST: Timestamp = Timestamp::from_micros(5_800_000_000_000_000);

/// A store that uses the caller's clock, so that a trace can set the time freely.
pub async fn store(url: &str) -> RedisStore {
    let config = RedisConfig::new(url)
        .expect("a valid address")
        .deadline(Duration::from_secs(10))
        .connect_timeout(Duration::from_secs(10))
        .settles_after(Duration::ZERO)
        .time(TimeSource::Caller);
    RedisStore::connect(config).await.expect("a fresh server")
}

/// Compares at least `decisions` decisions, trace by trace; returns their number. `progress` gets
/// the count from time to time.
///
/// # Panics
/// At the first difference, with the history that led to it.
pub async fn compare(
    store: &RedisStore,
    subject: Subject,
    seed: u64,
    decisions: u64,
    mut progress: impl FnMut(u64),
) -> u64 {
    let (mut decided, mut trace) = (0, seed << 32);
    while decided < decisions {
        let traces = (trace..trace + AT_ONCE).map(|seed| run_trace(store, subject, seed));
        decided += join_all(traces).await.into_iter().sum::<u64>();
        trace += AT_ONCE;
        progress(decided);
    }
    decided
}

/// The trace of one key, on the engine and on the store.
async fn run_trace(store: &RedisStore, subject: Subject, seed: u64) -> u64 {
    let mut trace = Trace::new(subject, seed);
    let (mut numbers, mut state, mut history) = (None, State::default(), Vec::new());
    let text = format!("{subject}:{seed}");
    let mut decided = 0;
    while decided < TRACE_LENGTH {
        let step = trace.step();
        history.push(step);
        let (now, op) = match step {
            Step::Renumber(next) => {
                numbers = next.limit().ok();
                continue;
            }
            Step::Decide(now, op) => (now, op),
        };
        let Some(limit) = &numbers else { continue };
        if now > LATEST {
            break;
        }
        let key = Key::new(Scope::new("trace", limit), text.as_bytes());
        let expected = limit.decide(&mut state, now, op);
        let mut found = Vec::new();
        let charge = Charge::new(key, limit, op);
        let decided_there = store.decide(now, Batch::one(&charge), &mut found).await;
        let recent = || {
            let steps = history.iter().rev().take(12).rev().map(ToString::to_string);
            steps.collect::<Vec<_>>().join("\n")
        };
        if let Err(error) = decided_there {
            panic!("{text}: {error} after\n{}", recent());
        }
        assert_eq!(found, [expected], "{text} {limit:?} after\n{}", recent());
        if decided % EXPLAINED_EVERY == 0 {
            let there = store.explain(now, &charge).await.expect("a store that decides");
            let (there, here) = (in_order(there), in_order(limit.explain(&state, now)));
            assert_eq!(there, here, "{text} {limit:?} after\n{}", recent());
        }
        trace.learn(&expected);
        decided += 1;
    }
    decided
}

/// Leases that end at the same instant may be listed in any order.
fn in_order(mut explanation: Explanation) -> Explanation {
    if let Detail::InFlight { leases, .. } = &mut explanation.detail {
        leases.sort_by_key(|lease| (lease.expires, lease.id));
    }
    explanation
}

/// The mix of requests in a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Requests of every shape: single and grouped, with keys used once and keys used often.
    Mixed,
    /// The same, with requests that reserve units and settle them.
    Reserving,
    /// Takes on buckets with distinct keys, except for repetitions of one take. Most requests are
    /// of this kind, so they have a separate script.
    Buckets,
}

/// Sends requests at one instant. They are decided in the order of arrival, however they are
/// grouped into commands.
///
/// # Panics
/// At the first difference.
pub async fn crowd(store: &RedisStore, seed: u64, crowd: Crowd) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let memory = MemoryStore::new(64 << 20, Hashing::Fast).expect("address space");
    let (mut model, mut decided) = (Model::default(), 0);
    let limits = limits();
    let (mut open, mut ids) = (Vec::new(), 0);
    let mut now = Timestamp::from_secs(1_800_000_000);
    for _ in 0..120 {
        now = now + Span::from_micros(rng.u64(0..2_000_000));
        if rng.u8(0..10) == 0 {
            now = now - Span::from_micros(rng.u64(0..5_000_000));
        }
        let requests: Vec<Vec<Asked>> = match crowd {
            Crowd::Mixed => (0..rng.usize(1..120)).map(|_| request(&mut rng)).collect(),
            Crowd::Reserving => (0..rng.usize(1..120))
                .map(|_| match rng.u8(0..4) {
                    0 => request(&mut rng),
                    _ => reserve(&mut rng, &open, &mut ids),
                })
                .collect(),
            Crowd::Buckets => bucket_requests(&mut rng),
        };
        // A reservation id is known once its take was answered.
        let opens = |asked: &&Asked| matches!(asked.reserving, Some(Reserving::Open(_)));
        let opened: Vec<Asked> = requests.iter().flatten().filter(opens).cloned().collect();
        let charges: Vec<Vec<Charge<'_>>> = requests
            .iter()
            .map(|request| request.iter().map(|asked| asked.charge(&limits)).collect())
            .collect();
        let asked = charges.iter().map(|charges| async {
            let mut decisions = Vec::new();
            store.decide(now, Batch::together(charges), &mut decisions).await.map(|_| decisions)
        });
        let found = join_all(asked).await;
        for (charges, found) in charges.iter().zip(found) {
            let expected = model.decide(now, charges);
            assert_eq!(found.as_ref(), Ok(&expected), "seed {seed} at {now}: {charges:?}");
            decided += charges.len();
            if crowd == Crowd::Buckets {
                // Many keys share lines of the table: where a state was idle before the clock went
                // back, another may be by now.
                continue;
            }
            let mut remembered = Vec::new();
            Store::decide(&memory, now, Batch::together(charges), &mut remembered)
                .await
                .expect("memory always answers");
            assert_eq!(remembered, expected, "memory, seed {seed} at {now}: {charges:?}");
        }
        open.extend(opened);
        open.drain(..open.len().saturating_sub(100));
    }
    decided
}

/// A charge, by the numbers of its limit and key.
#[derive(Clone, Debug)]
struct Asked {
    limit: usize,
    text: String,
    op: Op,
    reserving: Option<Reserving>,
}

impl Asked {
    fn charge<'a>(&'a self, limits: &'a [(&'static str, Limit)]) -> Charge<'a> {
        let (name, limit) = &limits[self.limit];
        let key = Key::new(Scope::new(name, limit), self.text.as_bytes());
        Charge { reserving: self.reserving, ..Charge::new(key, limit, self.op) }
    }
}

fn limits() -> Vec<(&'static str, Limit)> {
    let rate = Rate::new(7, Span::from_secs(3));
    let built = |builder: tidegate_core::Builder| builder.build().expect("valid numbers");
    vec![
        ("bucket", built(Limit::token_bucket(rate).burst(20))),
        // The same state under other numbers.
        ("bucket", built(Limit::token_bucket(Rate::new(11, Span::from_secs(2))).burst(15))),
        ("whole", built(Limit::gcra(Rate::per_second(10)).burst(30))),
        ("leaky", built(Limit::leaky_bucket(Rate::per_second(5)).queue(12))),
        ("fixed", built(Limit::fixed_window(Rate::new(15, Span::from_secs(2))))),
        ("counts", built(Limit::fixed_window(Rate::new(15, Span::from_secs(2))).count_denied())),
        ("sliding", built(Limit::sliding_window(Rate::new(15, Span::from_secs(2))))),
        ("log", built(Limit::sliding_log(Rate::new(15, Span::from_secs(2))))),
        ("log", built(Limit::sliding_log(Rate::new(9, Span::from_secs(5))))),
        ("flight", Limit::in_flight(15, Span::from_secs(2)).expect("valid numbers")),
    ]
}

fn bucket_requests(rng: &mut fastrand::Rng) -> Vec<Vec<Asked>> {
    let mut keys: Vec<u8> = (0..60).collect();
    rng.shuffle(&mut keys);
    let mut requests = Vec::new();
    while !keys.is_empty() {
        let count = if rng.bool() { 1 } else { rng.usize(2..6) }.min(keys.len());
        let asked = keys.drain(..count).map(|key| {
            let (limit, cost) = (rng.usize(0..4), if rng.bool() { 1 } else { rng.u64(1..22) });
            Asked { limit, text: format!("key:{key}"), op: Op::Take(cost), reserving: None }
        });
        let asked: Vec<Asked> = asked.collect();
        let times = if count == 1 { rng.usize(1..4) } else { 1 };
        requests.extend(std::iter::repeat_n(asked, times));
    }
    requests
}

fn request(rng: &mut fastrand::Rng) -> Vec<Asked> {
    let count = if rng.bool() { 1 } else { rng.usize(2..6) };
    let alone = count == 1;
    // A request has one set of numbers for each limit, before or after a change.
    let changed = rng.bool();
    (0..count)
        .map(|_| {
            let limit = match rng.usize(0..10) {
                0 | 1 => usize::from(changed),
                7 | 8 => 7 + usize::from(changed),
                other => other,
            };
            let text = format!("key:{}", rng.u8(0..4));
            let cost = if rng.u8(0..3) > 0 { 1 } else { rng.u64(0..18) };
            let op = match rng.u8(0..20) {
                0..=1 => Op::Read(cost),
                2 if alone => Op::Return(cost),
                3 if alone => Op::Force(cost),
                4 if alone && rng.u8(0..4) == 0 => Op::Reset,
                _ => Op::Take(cost),
            };
            Asked { limit, text, op, reserving: None }
        })
        .collect()
}

/// Limits that can be settled, among those of [`limits`]: not shaping, not counting denied units,
/// not in-flight.
const SETTLED: [usize; 5] = [0, 2, 4, 6, 7];

/// Takes that open reservations, and charges that close them: some twice, some that were never opened.
fn reserve(rng: &mut fastrand::Rng, open: &[Asked], ids: &mut u64) -> Vec<Asked> {
    if rng.bool()
        && let Some(known) = rng.choice(open)
    {
        let (Some(Reserving::Open(id)), Op::Take(units)) = (known.reserving, known.op) else {
            unreachable!("only such are kept")
        };
        let op = match rng.u8(0..4) {
            0 => Op::Return(0),
            1 => Op::Force(rng.u64(1..20)),
            _ => Op::Return(rng.u64(1..=units)),
        };
        return vec![Asked { op, reserving: Some(Reserving::Close(id)), ..known.clone() }];
    }
    let mut asked: Vec<Asked> = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let limit = *rng.choice(&SETTLED).expect("some");
        let text = format!("key:{}", rng.u8(0..4));
        *ids += 1;
        let reserving = ReservationId::new(*ids).map(Reserving::Open);
        asked.push(Asked { limit, text, op: Op::Take(rng.u64(1..6)), reserving });
    }
    asked
}
