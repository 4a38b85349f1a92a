//! `growth`: fills an empty table and measures bytes per key while it grows, the ratio of peak to
//! resident memory, and the longest pause of one insert.

use serde::{Deserialize, Serialize};

use crate::candidate;
use crate::measure::{self, Inserts, Memory};
use crate::memory::WARM_BYTES_PER_KEY;
use crate::options::{self, Options};
use crate::{Failure, report};

/// The candidates to fill, if this build has them.
const NAMES: [&str; 4] =
    ["governor_dashmap", "tidegate", "tidegate_fixed_window", "tidegate_sliding_window"];

/// Number of keys between two readings of memory. Readings count from [`FROM`] on; below it, the
/// fixed part of a table dominates.
const STEP: u32 = 250_000;
const FROM: u32 = 1_000_000;

/// The measurements of one table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Growth {
    #[serde(rename = "impl")]
    pub name: String,
    pub keys: u32,
    /// Every [`STEP`] keys from [`FROM`] on.
    pub checkpoints: Vec<Checkpoint>,
    pub max_bytes_per_key: f64,
    /// The largest ratio of peak to resident memory in any step.
    pub peak_ratio: f64,
    pub insert_ns: f64,
    /// Thread time of sixteen inserts in a row.
    pub worst_insert_cpu_us: f64,
    /// Wall time of one insert; on a shared machine mostly that of other processes.
    pub worst_insert_wall_us: f64,
}

/// The table at some point of the fill.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    pub keys: u32,
    pub bytes_per_key: f64,
    pub peak_ratio: f64,
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let most = if options.quick { FROM } else { 15_000_000 };
    let keys = options.keys.as_ref().map_or(most, |keys| keys[0]);
    fill_all(options, keys).map(|_| ())
}

/// Fills all selected candidates up to `keys`, and prints and writes the result.
pub fn fill_all(options: &Options, keys: u32) -> Result<Vec<Growth>, Failure> {
    let keys = keys.max(FROM);
    let mut grown = Vec::new();
    for name in NAMES {
        if candidate::find(name).is_some() && options.wants(name) {
            let growth: Growth = crate::child::in_child(&["one-growth", name, &keys.to_string()])?;
            eprintln!("growth {name} to {keys}: {:.0} ns per insert", growth.insert_ns);
            grown.push(growth);
        }
    }
    report::growth(&grown);
    if options.out.is_none() {
        report::write(&options.out("growth.json"), &grown)?;
    }
    Ok(grown)
}

/// `one-growth NAME KEYS`.
pub fn child(arguments: &[String]) -> Result<(), Failure> {
    let [name, keys] = arguments else { return Err("NAME KEYS".into()) };
    let growth = grow(name, options::number(keys)?)?;
    println!("{}", serde_json::to_string(&growth)?);
    Ok(())
}

fn grow(name: &str, keys: u32) -> Result<Growth, Failure> {
    let candidate = candidate::find(name).ok_or("no such name")?;
    Memory::warm(u64::from(keys) * WARM_BYTES_PER_KEY);
    let before = Memory::now().resident;
    let decider = Box::leak((candidate.build)(candidate.setup(keys)));
    let mut inserts = Inserts::default();
    let mut checkpoints = Vec::new();
    for start in (0..keys).step_by(STEP as usize) {
        let end = keys.min(start + STEP);
        Memory::reset_peak();
        inserts = inserts.and(measure::fill(decider, candidate.names, candidate.path, start..end));
        let memory = Memory::now();
        let resident = memory.resident.saturating_sub(before) as f64;
        if end >= FROM {
            checkpoints.push(Checkpoint {
                keys: end,
                bytes_per_key: resident / f64::from(end),
                peak_ratio: memory.peak.saturating_sub(before) as f64 / resident,
            });
        }
    }
    let most = |field: fn(&Checkpoint) -> f64| checkpoints.iter().map(field).fold(0.0, f64::max);
    Ok(Growth {
        name: name.to_owned(),
        keys,
        max_bytes_per_key: most(|point| point.bytes_per_key),
        peak_ratio: most(|point| point.peak_ratio),
        insert_ns: inserts.mean_ns(),
        worst_insert_cpu_us: inserts.worst_cpu.as_secs_f64() * 1e6,
        worst_insert_wall_us: inserts.worst_wall.as_secs_f64() * 1e6,
        checkpoints,
    })
}
