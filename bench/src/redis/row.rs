//! One measured line, as the JSON has it.

use serde::{Deserialize, Serialize};

use super::contender::{Cell, MANY, Mode, Name};
use crate::row::median;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    pub cell: Cell,
    pub decisions_per_s: f64,
    /// Processor seconds of the server and of the client per million decisions.
    pub redis_cpu_s_per_m: f64,
    pub client_cpu_s_per_m: f64,
    pub commands_per_decision: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Of the server's memory; means nothing for one key.
    pub bytes_per_key: Option<f64>,
}

/// One round of a row, and values that are only printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub row: Row,
    pub retries_per_decision: f64,
    /// The memory that the server reports for one key, without its tables.
    pub memory_usage: Option<f64>,
}

/// The rounds of one cell: the median of each figure, and how far the rounds lie apart.
#[derive(Debug)]
pub struct Rounds {
    pub row: Row,
    pub redis_cpu: (f64, f64),
    pub client_cpu: (f64, f64),
    pub retries_per_decision: f64,
    pub memory_usage: Option<f64>,
}

impl Rounds {
    pub fn of(samples: &[Sample]) -> Self {
        let middle = |field: fn(&Sample) -> f64| median(samples.iter().map(field).collect());
        let apart = |field: fn(&Sample) -> f64| {
            let values = || samples.iter().map(field);
            (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max))
        };
        let some = |field: fn(&Sample) -> Option<f64>| {
            let values: Vec<f64> = samples.iter().filter_map(field).collect();
            (!values.is_empty()).then(|| median(values))
        };
        Self {
            row: Row {
                cell: samples[0].row.cell.clone(),
                decisions_per_s: middle(|sample| sample.row.decisions_per_s),
                redis_cpu_s_per_m: middle(|sample| sample.row.redis_cpu_s_per_m),
                client_cpu_s_per_m: middle(|sample| sample.row.client_cpu_s_per_m),
                commands_per_decision: middle(|sample| sample.row.commands_per_decision),
                p50_us: middle(|sample| sample.row.p50_us),
                p99_us: middle(|sample| sample.row.p99_us),
                bytes_per_key: some(|sample| sample.row.bytes_per_key),
            },
            redis_cpu: apart(|sample| sample.row.redis_cpu_s_per_m),
            client_cpu: apart(|sample| sample.row.client_cpu_s_per_m),
            retries_per_decision: middle(|sample| sample.retries_per_decision),
            memory_usage: some(|sample| sample.memory_usage),
        }
    }
}

/// All medians of a run.
#[derive(Debug)]
pub struct Run {
    /// How many keys are "many".
    pub keys: u32,
    pub rounds: Vec<Rounds>,
    /// Keys like those of redis-cell, if the module is not available.
    pub stand_in: Option<StandIn>,
}

/// Keys as redis-cell would have left them.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    pub bytes_per_key: f64,
    pub memory_usage: f64,
}

impl Run {
    pub fn find(&self, name: Name, mode: Mode, callers: usize) -> Option<&Row> {
        let keys = if mode == Mode::Hot { 1 } else { self.keys };
        let cell = Cell { name, mode, keys, callers };
        self.rounds.iter().map(|rounds| &rounds.row).find(|row| row.cell == cell)
    }

    /// The bytes of a key of redis-cell.
    pub fn cell_bytes(&self) -> Option<f64> {
        let measured = self.find(Name::RedisCell, Mode::Single, MANY);
        let measured = measured.and_then(|row| row.bytes_per_key);
        measured.or_else(|| self.stand_in.map(|stand_in| stand_in.bytes_per_key))
    }

    /// The row of the minimal script with the same keys and callers.
    pub fn script(&self, cell: &Cell) -> Option<&Row> {
        let mode = if cell.keys == 1 { Mode::Hot } else { Mode::Single };
        self.find(Name::GcraScript, mode, cell.callers)
    }
}
