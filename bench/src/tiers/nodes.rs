//! Eight nodes that share one key: their calls to the store, and the units that they admit.
//!
//! Each node has all layers and its own connection. Requests are sent on schedule, whether or not
//! earlier ones are answered.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ::tidegate::store::lease::leased;
use ::tidegate::store::{Batch, Charge, LimitOptions, Store, Tier};
use ::tidegate::{Clock, Decision, Limit, Op, Rate, Span, Timestamp};
use ::tidegate::{Key, Scope};
use serde::{Deserialize, Serialize};
use tokio::task::LocalSet;

use super::excess;
use super::stack::{self, Stack};
use crate::redis::contender::Trouble;
use crate::redis::server::Control;
use crate::row::median;

const NODES: u32 = 8;
/// Units per second, and burst.
const RATE: u32 = 8_000;
/// Number of time slices of one cell, because leases are requested every 20 ms and a burst lasts a
/// second.
const SLICES: u32 = 10;
/// The interval at which all due requests are sent.
const TICK: Duration = Duration::from_millis(1);
const COMMANDS: &[&str] = &["evalsha", "eval"];

/// One measurement: the tier, and the load as a multiple of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub tier: Kind,
    pub times: u32,
}

/// The tier of the limit.
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
    /// The admitted share of the refilled units, once the burst is used up.
    pub admitted_share: f64,
    /// The most that any interval admitted above burst + rate x time; 0 if none did.
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
    /// Medians of the rounds, and the largest excess.
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
    let (length, tasks) = (slice * SLICES, LocalSet::new());
    let offering = tasks.run_until(async {
        // First uses up the burst, more than twice as fast as it refills.
        let burst = length.min(Duration::from_secs(1));
        traffic.offer(&nodes, RATE * cell.times.max(3), burst).await;
        let (start, before) = (traffic.clock.now(), control.account()?.calls(COMMANDS));
        let offered = traffic.offer(&nodes, RATE * cell.times, length).await;
        Ok((start, before, offered as f64))
    });
    let (start, before, offered) = offering.await?;
    // Waits for the outstanding answers.
    tasks.await;
    let (commands, log) = (control.account()?.calls(COMMANDS) - before, traffic.log.borrow());
    if let Some(error) = &log.failed {
        return Err(Trouble(error.clone()));
    }
    let seconds = length.as_secs_f64();
    let end = start + Span::from_micros(length.as_micros() as u64);
    let admitted = log.admitted.iter().filter(|(_, answer)| (start..end).contains(answer));
    let admitted = admitted.count() as f64;
    Ok(Row {
        cell,
        offered_per_s: offered / seconds,
        commands_per_s: commands / seconds,
        commands_per_decision: commands / offered,
        admitted_share: admitted / (f64::from(RATE) * seconds),
        excess: excess::of(&log.admitted, RATE),
    })
}

/// One key, and the outcomes of its requests.
struct Traffic {
    clock: Clock,
    scope: Scope,
    limit: Limit,
    options: LimitOptions,
    log: RefCell<Log>,
}

#[derive(Default)]
struct Log {
    /// The times of request and answer of admitted requests.
    admitted: Vec<(Timestamp, Timestamp)>,
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
        let (scope, options) = (Scope::new("bench", &limit), LimitOptions::default().tier(tier));
        Ok(Self { clock, scope, limit, options, log: RefCell::default() })
    }

    /// Sends requests at this rate to the nodes in turn, without waiting for answers; returns their number.
    async fn offer(self: &Rc<Self>, nodes: &[Rc<Stack>], rate: u32, length: Duration) -> u64 {
        let (start, mut sent) = (Instant::now(), 0);
        let mut ticks = tokio::time::interval(TICK);
        loop {
            ticks.tick().await;
            let passed = start.elapsed().min(length);
            let due = (passed.as_secs_f64() * f64::from(rate)) as u64;
            for number in sent..due {
                let node = Rc::clone(&nodes[number as usize % nodes.len()]);
                tokio::task::spawn_local(Rc::clone(self).ask(node));
            }
            sent = due;
            if passed == length {
                return sent;
            }
        }
    }

    async fn ask(self: Rc<Self>, node: Rc<Stack>) {
        let now = self.clock.now();
        let charge = Charge::new(Key::new(self.scope, b"hot"), &self.limit, Op::Take(1));
        let charge = charge.on(self.options);
        let mut decisions = Vec::with_capacity(1);
        let asked = node.decide(now, Batch::one(&charge), &mut decisions).await;
        let (mut log, answered) = (self.log.borrow_mut(), self.clock.now());
        match asked {
            Ok(_) if decisions.first().is_some_and(Decision::is_allowed) => {
                log.admitted.push((now, answered));
            }
            Ok(_) => {}
            Err(error) => log.failed = Some(error.to_string()),
        }
    }
}
