//! Keys that are not hot: the overhead of the layers over the bare store in Redis.

use std::sync::Arc;
use std::time::Duration;

use ::tidegate::store::lease::leased;
use ::tidegate::store::{Batch, Charge, LimitOptions, Store, Tier};
use ::tidegate::{Clock, Decision, Limit, Op};
use ::tidegate::{Key, Scope};
use serde::{Deserialize, Serialize};

use super::stack;
use crate::candidate::{self, Path};
use crate::measure::process_cpu;
use crate::redis::contender::{Contender, Trouble};
use crate::redis::load;
use crate::redis::server::Control;
use crate::row::median;
use crate::tidegate::bucket;
use crate::traffic::{self, Access, Names};

/// Callers that keep a server busy.
pub const MANY: usize = 64;

/// One measurement: the layers, and the numbers of keys and of concurrent callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub way: Way,
    pub keys: u32,
    pub callers: usize,
}

/// The layers in front of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Nothing.
    Bare,
    /// All layers, with limits that are decided in the store.
    Exact,
    /// All layers, with leased limits; each key gets too few requests for a lease.
    Leased,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    pub cell: Cell,
    pub decisions_per_s: f64,
    /// Processor seconds per million decisions.
    pub client_cpu_s_per_m: f64,
    pub redis_cpu_s_per_m: f64,
    pub commands_per_decision: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Cell {
    pub fn all(keys: u32) -> Vec<Self> {
        let of =
            |callers| [Way::Bare, Way::Exact, Way::Leased].map(|way| Self { way, keys, callers });
        [of(MANY), of(1)].into_iter().flatten().collect()
    }
}

impl Row {
    /// Medians of rounds.
    pub fn of(rows: &[Self]) -> Option<Self> {
        let middle = |field: fn(&Self) -> f64| median(rows.iter().map(field).collect());
        Some(Self {
            cell: rows.first()?.cell,
            decisions_per_s: middle(|row| row.decisions_per_s),
            client_cpu_s_per_m: middle(|row| row.client_cpu_s_per_m),
            redis_cpu_s_per_m: middle(|row| row.redis_cpu_s_per_m),
            commands_per_decision: middle(|row| row.commands_per_decision),
            p50_us: middle(|row| row.p50_us),
            p99_us: middle(|row| row.p99_us),
        })
    }
}

pub async fn measure(url: &str, cell: Cell, slice: Duration) -> Result<Row, Trouble> {
    let clock = Clock::default();
    match cell.way {
        Way::Bare => sample(url, cell, slice, Asked::new(stack::bare(url).await?, clock, cell)?),
        Way::Exact | Way::Leased => {
            let store = stack::whole(url, &clock).await?;
            return sample(url, cell, slice, Asked::new(store, clock, cell)?).await;
        }
    }
    .await
}

async fn sample<C: Contender>(
    url: &str,
    cell: Cell,
    slice: Duration,
    asked: C,
) -> Result<Row, Trouble> {
    let mut control = Control::connect(url)?;
    let _: () = control.ask(&["FLUSHALL", "SYNC"])?;
    load::fill(&asked, cell.keys, MANY).await?;
    let requests = traffic::requests(Names::Single, cell.keys, Access::Uniform, 7).into();
    load::run(&asked, &requests, cell.callers, slice / 4).await?;
    let (before, cpu) = (control.account()?, process_cpu());
    let seen = load::run(&asked, &requests, cell.callers, slice).await?;
    let (cpu, after) = (process_cpu() - cpu, control.account()?);
    let per_million = |seconds: f64| seconds * 1e6 / seen.decisions();
    Ok(Row {
        cell,
        decisions_per_s: seen.decisions() / seen.wall.as_secs_f64(),
        client_cpu_s_per_m: per_million(cpu.as_secs_f64()),
        redis_cpu_s_per_m: per_million(after.cpu() - before.cpu()),
        commands_per_decision: (after.calls(C::COMMANDS) - before.calls(C::COMMANDS))
            / seen.decisions(),
        p50_us: seen.percentile(50),
        p99_us: seen.percentile(99),
    })
}

/// A store, and the limit that it is asked about.
struct Asked<S> {
    store: Arc<S>,
    clock: Clock,
    scope: Scope,
    limit: Limit,
    options: LimitOptions,
}

impl<S> Clone for Asked<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), clock: self.clock.clone(), ..*self }
    }
}

impl<S: Store> Asked<S> {
    fn new(store: S, clock: Clock, cell: Cell) -> Result<Self, Trouble> {
        let limit = bucket(candidate::LimitNumbers::of(Path::Allow, cell.keys));
        let limit = leased(&limit).ok_or_else(|| Trouble("cannot be leased".into()))?;
        let tier = if cell.way == Way::Leased { Tier::Leased } else { Tier::Exact };
        let (scope, options) = (Scope::new("bench", &limit), LimitOptions::default().tier(tier));
        Ok(Self { store: Arc::new(store), clock, scope, limit, options })
    }
}

impl<S: Store + 'static> Contender for Asked<S> {
    const COMMANDS: &'static [&'static str] = &["evalsha", "eval"];

    async fn decide(&mut self, key: &str) -> Result<bool, Trouble> {
        let key = Key::new(self.scope, key.as_bytes());
        let charge = Charge::new(key, &self.limit, Op::Take(1)).on(self.options);
        let mut decisions = Vec::with_capacity(1);
        let asked = self.store.decide(self.clock.now(), Batch::one(&charge), &mut decisions);
        asked.await.map_err(Trouble::of)?;
        Ok(decisions.first().is_some_and(Decision::is_allowed))
    }
}
