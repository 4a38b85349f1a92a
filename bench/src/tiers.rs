//! `tiers`: the costs and savings of the layers in front of a shared store. Compares decisions
//! without the store with those of the memory store, keys that are not hot with the bare store, and
//! measures eight nodes that share one key.

mod cold;
mod excess;
mod near;
mod nodes;
mod stack;
mod table;
mod verdicts;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_tests::servers::RedisServer;

use crate::options::{self, Options};
use crate::redis::contender::Trouble;
use crate::targets::Target;
use crate::{Failure, report};

/// Numbers of keys: few share a node's caches, and many exceed the processor's caches in Redis.
const FEW: u32 = 10_000;
const MANY: u32 = 100_000;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cell {
    Near(near::Cell),
    Cold(cold::Cell),
    Nodes(nodes::Cell),
}

/// The results of a run.
#[derive(Debug, Serialize)]
struct Results {
    near: Vec<near::Row>,
    cold: Vec<cold::Row>,
    nodes: Vec<nodes::Row>,
    targets: Vec<Target>,
}

/// The length, the rounds and the server of a measurement.
struct Plan<'a> {
    options: &'a Options,
    url: String,
    rounds: usize,
    millis: u64,
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let quick = options.quick;
    let server = RedisServer::start();
    let plan = Plan {
        options,
        url: server.url(),
        rounds: options.rounds.unwrap_or(if quick { 1 } else { 3 }),
        millis: options.millis.unwrap_or(if quick { 40 } else { 1_000 }),
    };
    let few = options.keys.as_ref().map_or(if quick { 100 } else { FEW }, |keys| keys[0]);
    let many = if quick { 2_000 } else { MANY };
    let near: Vec<Vec<near::Sample>> = plan.measure(&near::Cell::all(few), Cell::Near)?;
    let cold: Vec<Vec<cold::Row>> = plan.measure(&cold::Cell::all(many), Cell::Cold)?;
    let nodes: Vec<Vec<nodes::Row>> = plan.measure(&nodes::Cell::ALL, Cell::Nodes)?;
    let mut results = Results {
        near: near.iter().filter_map(|samples| near::Row::of(samples)).collect(),
        cold: cold.iter().filter_map(|rows| cold::Row::of(rows)).collect(),
        nodes: nodes.iter().filter_map(|rows| nodes::Row::of(rows)).collect(),
        targets: Vec::new(),
    };
    results.targets = verdicts::evaluate(&results);
    table::print(&results);
    report::plain_targets(&results.targets);
    report::write(&options.out("tiers.json"), &results)
}

impl Plan<'_> {
    /// All rounds of each cell, interleaved.
    fn measure<C: Copy, S: DeserializeOwned>(
        &self,
        cells: &[C],
        kind: fn(C) -> Cell,
    ) -> Result<Vec<Vec<S>>, Failure> {
        let mut samples: Vec<Vec<S>> = cells.iter().map(|_| Vec::new()).collect();
        for round in 1..=self.rounds {
            for (cell, samples) in cells.iter().zip(&mut samples) {
                let text = serde_json::to_string(&kind(*cell))?;
                if !self.options.wants(&text) {
                    continue;
                }
                eprintln!("round {round}/{} {text}", self.rounds);
                let millis = self.millis.to_string();
                samples.push(crate::child::in_child(&["one-tiers", &self.url, &text, &millis])?);
            }
        }
        Ok(samples)
    }
}

/// `one-tiers URL CELL MILLIS`: one round of one cell.
pub fn child(arguments: &[String]) -> Result<(), Failure> {
    let [url, cell, millis] = arguments else { return Err("URL CELL MILLIS".into()) };
    let cell: Cell = serde_json::from_str(cell)?;
    let slice = Duration::from_millis(u64::from(options::number(millis)?));
    // One thread, as each core of a busy node has: the other core of this machine is the server's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sample = runtime.block_on(async {
        match cell {
            Cell::Near(cell) => near::measure(url, cell, slice).await.and_then(answer),
            Cell::Cold(cell) => cold::measure(url, cell, slice).await.and_then(answer),
            Cell::Nodes(cell) => nodes::measure(url, cell, slice).await.and_then(answer),
        }
    });
    println!("{}", sample.map_err(|trouble| trouble.0)?);
    Ok(())
}

fn answer<T: Serialize>(sample: T) -> Result<String, Trouble> {
    serde_json::to_string(&sample).map_err(Trouble::of)
}
