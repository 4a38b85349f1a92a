//! Eight nodes that share one key: how often they ask the store, and how much they let in.
//!
//! Each has all layers and a connection of its own. Requests come at their time, answered or not.

use std::cell::RefCell;
use std::rc::Rc;
use std::slice;
use std::time::{Duration, Instant};

use ::tidegate::store::lease::leased;
use ::tidegate::store::{Charge, Store, Terms, Tier};
use ::tidegate::{Clock, Decision, Limit, Op, Rate, Timestamp};
use ::tidegate::{Key, Scope};
use serde::{Deserialize, Serialize};
use tokio::task::LocalSet;

use super::stack::{self, Stack};
use crate::redis::contender::Trouble;
use crate::redis::server::Control;
use crate::row::median;

const NODES: u32 = 8;
/// Units a second, and at once.
const RATE: u32 = 8_000;
/// As many slices as one of these takes: leases are asked for every 20 ms, and a burst takes a second.
const SLICES: u32 = 10;
/// How often requests come in, all that are due.
const TICK: Duration = Duration::from_millis(1);
const COMMANDS: &[&str] = &["evalsha", "eval"];

/// In which tier, and how many times the limit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub tier: Kind,
    pub times: u32,
}

/// How close to the store it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Exact,
    Leased,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    pub cell: Cell,
    pub offered_per_s: f64,
    pub commands_per_s: f64,
    pub commands_per_decision: f64,
    /// Of what the rate gives, once the burst is used up.
    pub admitted_share: f64,
    /// The most that any interval admitted above burst + rate x time; nought if none did.
    pub excess: f64,
}

impl Cell {
    pub const ALL: [Self; 3] = [
        Self { tier: Kind::Leased, times: 1 },
        Self { tier: Kind::Leased, times: 10 },
        Self { tier: Kind::Exact, times: 10 },
    ];
}

impl Row {
    /// Medians of rounds; of the excess the most.
    pub fn of(rows: &[Self]) -> Option<Self> {
        let middle = |field: fn(&Self) -> f64| median(rows.iter().map(field).collect());
        Some(Self {
            cell: rows.first()?.cell,
            offered_per_s: middle(|row| row.offered_per_s),
            commands_per_s: middle(|row| row.commands_per_s),
            commands_per_decision: middle(|row| row.commands_per_decision),
            admitted_share: middle(|row| row.admitted_share),
            excess: rows.iter().map(|row| row.excess).fold(0.0, f64::max),
        })
    }
}

pub async fn measure(url: &str, cell: Cell, slice: Duration) -> Result<Row, Trouble> {
    let mut control = Control::connect(url)?;
    let _: () = control.ask(&["FLUSHALL", "SYNC"])?;
    let clock = Clock::default();
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(Rc::new(stack::whole(url, &clock).await?));
    }
    let traffic = Rc::new(Traffic::new(clock, cell.tier)?);
    let length = slice * SLICES;
    // The burst first, twice as fast as it could come back.
    traffic.offer(&nodes, RATE * cell.times.max(3), length.min(Duration::from_secs(1))).await;
    let before = control.account()?.calls(COMMANDS);
    let (start, first) = (traffic.clock.now(), traffic.log.borrow().offered);
    traffic.offer(&nodes, RATE * cell.times, length).await;
    let (end, log) = (traffic.clock.now(), traffic.log.borrow());
    let commands = control.account()?.calls(COMMANDS) - before;
    if let Some(error) = &log.failed {
        return Err(Trouble(error.clone()));
    }
    let (offered, seconds) =
        ((log.offered - first) as f64, end.since(start).as_micros() as f64 / 1e6);
    let admitted = log.admitted.iter().filter(|at| **at >= start).count() as f64;
    Ok(Row {
        cell,
        offered_per_s: offered / seconds,
        commands_per_s: commands / seconds,
        commands_per_decision: commands / offered,
        admitted_share: admitted / (f64::from(RATE) * seconds),
        excess: excess(&log.admitted),
    })
}

/// One key, and what became of its requests.
struct Traffic {
    clock: Clock,
    scope: Scope,
    limit: Limit,
    terms: Terms,
    log: RefCell<Log>,
}

#[derive(Default)]
struct Log {
    offered: u64,
    /// When those came that were let in.
    admitted: Vec<Timestamp>,
    failed: Option<String>,
}

impl Traffic {
    fn new(clock: Clock, kind: Kind) -> Result<Self, Trouble> {
        let limit = Limit::token_bucket(Rate::per_second(RATE.into()));
        let limit = limit.build().map_err(Trouble::of)?;
        let (limit, tier) = match kind {
            Kind::Exact => (Some(limit), Tier::Exact),
            Kind::Leased => (leased(&limit), Tier::Leased),
        };
        let limit = limit.ok_or_else(|| Trouble("cannot be leased".into()))?;
        let (scope, terms) = (Scope::new("bench", &limit), Terms::default().tier(tier));
        Ok(Self { clock, scope, limit, terms, log: RefCell::default() })
    }

    /// So many requests a second, by turns to each node.
    async fn offer(self: &Rc<Self>, nodes: &[Rc<Stack>], rate: u32, length: Duration) {
        let tasks = LocalSet::new();
        let offering = async {
            let (start, mut sent) = (Instant::now(), 0_u64);
            let mut ticks = tokio::time::interval(TICK);
            while start.elapsed() < length {
                ticks.tick().await;
                let due = (start.elapsed().min(length).as_secs_f64() * f64::from(rate)) as u64;
                for number in sent..due {
                    let node = Rc::clone(&nodes[number as usize % nodes.len()]);
                    tokio::task::spawn_local(Rc::clone(self).ask(node));
                }
                sent = due;
            }
        };
        tasks.run_until(offering).await;
        // Those who wait still are answered, too.
        tasks.await;
    }

    async fn ask(self: Rc<Self>, node: Rc<Stack>) {
        let now = self.clock.now();
        let charge = Charge::new(Key::new(self.scope, b"hot"), &self.limit, Op::Take(1));
        let charge = charge.on(self.terms);
        let mut decisions = Vec::with_capacity(1);
        let asked = node.decide(now, slice::from_ref(&charge), &mut decisions).await;
        let mut log = self.log.borrow_mut();
        log.offered += 1;
        match asked {
            Ok(_) if decisions.first().is_some_and(Decision::is_allowed) => log.admitted.push(now),
            Ok(_) => {}
            Err(error) => log.failed = Some(error.to_string()),
        }
    }
}

/// How far a bucket of the limit would have run over.
fn excess(admitted: &[Timestamp]) -> f64 {
    let mut admitted = admitted.to_vec();
    admitted.sort_unstable();
    let (mut level, mut last, mut most) = (0.0_f64, None, 0.0_f64);
    for at in admitted {
        let passed = last.map_or(0, |last| at.since(last).as_micros());
        level = (level - passed as f64 * f64::from(RATE) / 1e6).max(0.0) + 1.0;
        (last, most) = (Some(at), most.max(level));
    }
    (most - f64::from(RATE)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_admits_its_burst_and_what_the_rate_gives() {
        let (start, unit) = (Timestamp::from_secs(1), 1_000_000 / u64::from(RATE));
        let burst = vec![start; RATE as usize];
        assert_eq!(excess(&burst), 0.0);
        let at = |micros| Timestamp::from_micros(start.as_micros() + micros);
        assert_eq!(excess(&[burst.clone(), vec![at(unit)]].concat()), 0.0);
        assert_eq!(excess(&[burst, vec![at(unit); 3]].concat()), 2.0);
    }
}
