//! Compares decisions without the store with those of the memory store. Each is made through
//! [`Store`], and is ready at the first poll.
//!
//! The clock is moved by hand, so that a lease is valid during the measurement; refills are not measured. Keys that
//! share their slot with too many others are left out, because the store decides them.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::slice;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::tidegate::store::lease::{LEASE, leased};
use ::tidegate::store::memory::MemoryStore;
use ::tidegate::store::{Batch, Charge, LimitOptions, Store, Tier};
use ::tidegate::{Clock, Decision, Limit, ManualClock, Op, Rate, Span};
use ::tidegate::{Hashing, Key, Scope};
use serde::{Deserialize, Serialize};

use super::stack;
use crate::measure::thread_cpu;
use crate::redis::contender::Trouble;
use crate::redis::server::Control;
use crate::row::median;
use crate::traffic::{Names, Random};

/// The units that a key holds during the measurement. A single key gets them from a bucket of a
/// million per second.
const HELD_BY_ONE: u64 = 25_000;
const HELD_BY_EACH: u64 = 2_000;
/// The fewest decisions between two clock readings, so that a reading's cost is negligible.
const PASS: usize = 1_000;

/// One measurement: the holder of the state, the answer, and the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub store: Holder,
    pub answer: Answer,
    pub keys: u32,
}

/// The holder of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    Memory,
    /// In Redis, behind all layers.
    Layers,
}

/// The measured answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Admission: behind layers, from a lease.
    Allow,
    /// Denial: behind layers, by the deny cache.
    Deny,
}

/// One round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    cell: Cell,
    ns: f64,
}

/// The median of all rounds, and how far they lie apart.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub cell: Cell,
    pub ns_per_decision: f64,
    pub ns_min: f64,
    pub ns_max: f64,
}

impl Cell {
    /// All cells; `keys` is the number for "some".
    pub fn all(keys: u32) -> Vec<Self> {
        let of = |answer, keys| {
            [Holder::Memory, Holder::Layers].map(|store| Self { store, answer, keys })
        };
        let both = |keys| [of(Answer::Allow, keys), of(Answer::Deny, keys)];
        [both(1), both(keys)].into_iter().flatten().flatten().collect()
    }
}

impl Row {
    pub fn of(samples: &[Sample]) -> Option<Self> {
        let all = || samples.iter().map(|sample| sample.ns);
        Some(Self {
            cell: samples.first()?.cell,
            ns_per_decision: median(all().collect()),
            ns_min: all().fold(f64::MAX, f64::min),
            ns_max: all().fold(f64::MIN, f64::max),
        })
    }
}

pub async fn measure(url: &str, cell: Cell, slice: Duration) -> Result<Sample, Trouble> {
    let _: () = Control::connect(url)?.ask(&["FLUSHALL", "SYNC"])?;
    let time = ManualClock::at(Clock::default().now());
    let clock = Clock::from(time.clone());
    let ns = match cell.store {
        Holder::Memory => {
            let store = MemoryStore::new(MemoryStore::DEFAULT_BYTES, Hashing::Fast);
            let store = store.map_err(Trouble::of)?.with_clock(clock);
            Bench::new(store, cell, time)?.ns(slice).await?
        }
        Holder::Layers => {
            let store = stack::whole(url, &clock).await?;
            Bench::new(store, cell, time)?.ns(slice).await?
        }
    };
    Ok(Sample { cell, ns })
}

/// A store, and the requests to it.
struct Bench<S> {
    store: S,
    time: ManualClock,
    answer: Answer,
    scope: Scope,
    limit: Limit,
    options: LimitOptions,
    /// In the order that they are asked for.
    keys: Vec<String>,
    held: u64,
}

impl<S: Store> Bench<S> {
    fn new(store: S, cell: Cell, time: ManualClock) -> Result<Self, Trouble> {
        let (rate, burst, tier) = match cell.answer {
            Answer::Allow => (Rate::per_second(1_000_000), 1_000_000_000, Tier::Leased),
            Answer::Deny => (Rate::new(1, Span::from_secs(3_600)), 1, Tier::Exact),
        };
        let limit = Limit::token_bucket(rate).burst(burst).build().map_err(Trouble::of)?;
        let limit = match tier {
            Tier::Leased => leased(&limit).ok_or_else(|| Trouble("cannot be leased".into()))?,
            Tier::Exact | Tier::Local => limit,
        };
        let scope = Scope::new("bench", &limit);
        let options = LimitOptions::default().tier(tier);
        let held = if cell.keys == 1 { HELD_BY_ONE } else { HELD_BY_EACH };
        let (keys, answer) = (shuffled(cell.keys), cell.answer);
        Ok(Self { store, time, answer, scope, limit, options, keys, held })
    }

    /// Thread time of a decision.
    async fn ns(&mut self, slice: Duration) -> Result<f64, Trouble> {
        let (mut spent, mut decisions) = (Duration::ZERO, 0);
        while spent < slice {
            self.prepare().await?;
            let repeats = (PASS / self.keys.len()).max(1);
            // The store hands out pieces of a sixteenth, whole ones only.
            let passes = self.held * 7 / 8 / repeats as u64;
            // The first pass is not counted: it is for the caches.
            for pass in 0..passes {
                let before = thread_cpu();
                for _ in 0..repeats {
                    self.pass()?;
                }
                if pass > 0 {
                    spent += thread_cpu() - before;
                    decisions += repeats * self.keys.len();
                }
                if spent >= slice {
                    break;
                }
            }
        }
        Ok(spent.as_nanos() as f64 / decisions as f64)
    }

    /// Prepares every key for the measured answer, and leaves out keys with another answer.
    async fn prepare(&mut self) -> Result<(), Trouble> {
        let wanted = self.answer == Answer::Allow;
        // Earlier grants have expired by then, and the demand in between determines the next ones.
        self.time.advance(LEASE);
        // A key with fewer than three requests is not leased.
        self.ask_all(1).await?;
        self.ask_all(1).await?;
        self.ask_all(if wanted { 2 * self.held } else { 1 }).await?;
        if wanted {
            self.time.advance(LEASE);
        }
        self.ask_all(1).await?;
        let keys = std::mem::take(&mut self.keys);
        let mut decisions = Vec::with_capacity(1);
        let (here, there): (Vec<String>, Vec<String>) = keys.into_iter().partition(
            |key| matches!(self.at_once(key, &mut decisions), Ok(allowed) if allowed == wanted),
        );
        if here.len() < there.len() {
            return Err(Trouble(format!("of {} keys the store is asked", there.len())));
        }
        self.keys = here;
        Ok(())
    }

    /// Takes `cost` units of each key, and waits for the answers.
    async fn ask_all(&self, cost: u64) -> Result<(), Trouble> {
        let mut decisions = Vec::with_capacity(1);
        for key in &self.keys {
            decisions.clear();
            let charge = self.charge(key, cost);
            let charges = slice::from_ref(&charge);
            let asked =
                self.store.decide(self.time.now(), Batch::together(charges), &mut decisions);
            asked.await.map_err(Trouble::of)?;
        }
        Ok(())
    }

    /// Asks for each key once.
    fn pass(&self) -> Result<(), Trouble> {
        let wanted = self.answer == Answer::Allow;
        let mut decisions = Vec::with_capacity(1);
        for key in &self.keys {
            if self.at_once(key, &mut decisions)? != wanted {
                return Err(Trouble(format!("{key}: {decisions:?}")));
            }
        }
        Ok(())
    }

    /// Takes a unit; an error if the decision is not ready at once.
    #[inline(always)]
    fn at_once(&self, key: &str, decisions: &mut Vec<Decision>) -> Result<bool, Trouble> {
        decisions.clear();
        let charge = self.charge(key, 1);
        let asked = self.store.decide(self.time.now(), Batch::one(&charge), decisions);
        match pin!(asked).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => return Err(Trouble::of(error)),
            Poll::Pending => return Err(Trouble(format!("{key} was not answered at once"))),
        }
        Ok(black_box(decisions).first().is_some_and(Decision::is_allowed))
    }

    #[inline(always)]
    fn charge<'a>(&'a self, key: &'a str, cost: u64) -> Charge<'a> {
        let key = Key::new(self.scope, key.as_bytes());
        Charge::new(key, &self.limit, Op::Take(cost)).on(self.options)
    }
}

/// This many keys in random order.
fn shuffled(keys: u32) -> Vec<String> {
    let mut request = Names::Single.request();
    let mut names: Vec<(u64, String)> = (0..keys)
        .map(|index| {
            Names::Single.write(&mut request, index);
            (Random::mix(u64::from(index)), request.key.clone())
        })
        .collect();
    names.sort_unstable();
    names.into_iter().map(|(_, name)| name).collect()
}
