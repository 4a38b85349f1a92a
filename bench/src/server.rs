//! `server`: the daemon through each of its transports, beside other servers and beside floors. All are up
//! at once and rounds are interleaved, so that a noisy minute affects all servers.

mod calls;
mod cell;
pub mod fleet;
pub mod floor;
pub mod load;
pub mod member;
pub mod proxies;
mod row;
mod table;
mod verdicts;
pub mod wire;

use std::fmt;
use std::time::Duration;

use self::cell::{Cell, Transport};
use self::fleet::{Fleet, LIMITADOR, OURS, THROTTLECRAB};
use self::load::Until;
use self::member::{cpu, rss_mib};
use self::row::{Rounds, Row};
use crate::options::Options;
use crate::{Failure, report};

const KEYS: u32 = 1_000_000;
/// Before each measurement, so that connections and caches are warm.
const WARM_UP: u32 = 5;

/// Why there is no answer.
#[derive(Debug)]
pub struct Trouble(pub String);

impl Trouble {
    pub fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let quick = options.quick;
    let keys = options.keys.as_ref().map_or(if quick { 1_000 } else { KEYS }, |keys| keys[0]);
    let rounds = options.rounds.unwrap_or(if quick { 1 } else { 5 });
    let millis = options.millis.unwrap_or(if quick { 40 } else { 800 });
    let fleet = Fleet::start(quick)?;
    let mut cells = Cell::all(&fleet, keys);
    cells.retain(|cell| options.wants(&cell.label()));

    let memory = fill(&fleet, &cells).map_err(|trouble| trouble.0)?;
    let mut samples: Vec<Vec<Row>> = vec![Vec::new(); cells.len()];
    for round in 1..=rounds {
        for (cell, samples) in cells.iter().zip(&mut samples) {
            let slice = Duration::from_millis(millis) * cell.patience();
            let row = sample(cell, slice)
                .map_err(|trouble| format!("{}: {}", cell.label(), trouble.0))?;
            eprintln!("round {round}/{rounds} {}: {:.2} s/M", cell.label(), row.cpu_s_per_m);
            samples.push(row);
        }
    }
    let rounds: Vec<Rounds> = samples.iter().map(|samples| Rounds::of(samples)).collect();
    table::print(&rounds, &memory, &fleet.left_out);
    report::plain_targets(&verdicts::evaluate(&rounds, &memory));
    let rows: Vec<&Row> = rounds.iter().map(|rounds| &rounds.row).chain(&memory).collect();
    report::write(&options.out("server.json"), &rows)
}

/// Uses every key once on each server with state in memory, and reports the growth of its memory.
fn fill(fleet: &Fleet, cells: &[Cell]) -> Result<Vec<Row>, Trouble> {
    let mut grown = Vec::new();
    for cell in cells.iter().filter(|cell| cell.fills) {
        let before = rss_mib(cell.pid);
        cell.load.run(Until::All)?;
        let rss_mib = rss_mib(cell.pid) - before;
        let fresh = match cell.name {
            THROTTLECRAB => cell.transport == Transport::Resp,
            // With windows of an hour, so that no key is evicted.
            OURS | LIMITADOR => cell.transport == Transport::Grpc,
            _ => false,
        };
        if fresh && fleet.get(cell.name).is_some() {
            grown.push(Row { rss_mib, ..Row::empty(cell.name, Transport::Memory) });
        }
        eprintln!("filled {}: {rss_mib:+.0} MiB", cell.label());
    }
    Ok(grown)
}

fn sample(cell: &Cell, slice: Duration) -> Result<Row, Trouble> {
    cell.load.run(Until::Over(slice / WARM_UP))?;
    let (before, store) = (cpu(cell.pid), cell.store.map(cpu));
    let seen = cell.load.run(Until::Over(slice))?;
    let per_million = |seconds: f64| seconds * 1e6 / seen.decisions as f64;
    Ok(Row {
        pipeline: cell.pipeline(),
        conns: Some(cell.load.conns),
        cpu_s_per_m: per_million(cpu(cell.pid) - before),
        redis_cpu_s_per_m: cell.store.zip(store).map(|(pid, store)| per_million(cpu(pid) - store)),
        rps: seen.decisions as f64 / seen.wall.as_secs_f64(),
        p50_us: seen.percentile(50),
        p99_us: seen.percentile(99),
        rss_mib: rss_mib(cell.pid),
        ..Row::empty(cell.name, cell.transport)
    })
}
