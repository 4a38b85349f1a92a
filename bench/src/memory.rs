//! `memory`: every implementation at every key count, in rounds, each in a separate process.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::candidate::{self, Candidate};
use crate::measure::{self, Memory};
use crate::options::{self, Options};
use crate::row::{Cell, Row, Rows};
use crate::traffic::{self, Access};
use crate::{Failure, growth, report, targets};

/// The candidates of a smoke run: the two references, and all of Tidegate.
const QUICK: [&str; 5] = [
    "slot_gcra_thp",
    "slot_gcra_thp_b16",
    "governor_dashmap",
    "governor_dashmap_deny",
    "governor_direct",
];

/// Bytes per key of the largest peer's table while it grows.
pub const WARM_BYTES_PER_KEY: u64 = 128;

pub fn run(options: &Options) -> Result<(), Failure> {
    let plan = Plan::new(options);
    let (rows, mut failures) = plan.measure();
    plan.keys.iter().for_each(|&keys| report::speed(&rows, keys));
    let largest = plan.keys.iter().copied().max().unwrap_or(1);
    // Half as many keys again, to measure the growth of the largest table as well.
    let grown = growth::fill_all(options, largest / 2 * 3)?;
    let targets = targets::evaluate(&rows, &grown, largest);
    report::targets(&targets, largest);
    report::write(&options.out("memory.json"), &rows.0)?;
    if options.out.is_none() {
        report::write(&options.out("targets.json"), &targets)?;
    }
    let wrong = rows.0.iter().filter(|row| !row.decides_rightly());
    failures.extend(wrong.map(|row| {
        let share = row.allowed * 100.0;
        let (access, path) = (row.access.as_str(), row.path);
        format!("{} x {} {access}: allowed {share:.2} % on the {path:?} path", row.name, row.keys)
    }));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

struct Plan {
    keys: Vec<u32>,
    rounds: usize,
    millis: u64,
    candidates: Vec<&'static Candidate>,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let quick = options.quick;
        let chosen = |name: &str| !quick || name.starts_with("tidegate") || QUICK.contains(&name);
        let keys = if quick { vec![1, 100_000] } else { vec![1, 1_000_000, 10_000_000] };
        let mut candidates = candidate::all();
        candidates.retain(|candidate| chosen(candidate.name) && options.wants(candidate.name));
        Self {
            keys: options.keys.clone().unwrap_or(keys),
            rounds: options.rounds.unwrap_or(if quick { 1 } else { 5 }),
            millis: options.millis.unwrap_or(if quick { 20 } else { 150 }),
            candidates,
        }
    }

    /// The medians, and the errors.
    fn measure(&self) -> (Rows, Vec<String>) {
        let covered = |candidate: &&'static Candidate, keys| keys <= candidate.most_keys;
        let jobs: Vec<(u32, &Candidate)> = (self.keys.iter())
            .flat_map(|&keys| {
                let here = self.candidates.iter().copied();
                here.filter(move |candidate| covered(candidate, keys)).map(move |one| (keys, one))
            })
            .collect();
        let mut cells: BTreeMap<_, Vec<Row>> = BTreeMap::new();
        let mut failures = Vec::new();
        for round in 1..=self.rounds {
            for (number, &(keys, candidate)) in jobs.iter().enumerate() {
                let step = format!("round {round}/{} {}/{}", self.rounds, number + 1, jobs.len());
                let (name, count) = (candidate.name, keys.to_string());
                let arguments = ["one-memory", name, &count, &self.millis.to_string()];
                match crate::child::in_child::<Vec<Row>>(&arguments) {
                    Ok(rows) => {
                        eprintln!("{step} {name} x {keys}: {:.1} ns", rows[0].ns_per_decision);
                        for row in rows {
                            let cell = (number, row.access, row.threads, row.shape);
                            cells.entry(cell).or_default().push(row);
                        }
                    }
                    Err(failure) => {
                        eprintln!("{step} {failure}");
                        failures.push(failure.to_string());
                    }
                }
            }
        }
        (Rows(cells.values().map(|rounds| Row::median(rounds)).collect()), failures)
    }
}

/// `one-memory NAME KEYS MILLIS`: fills one table and takes one sample of everything.
pub fn child(arguments: &[String]) -> Result<(), Failure> {
    let [name, keys, millis] = arguments else { return Err("NAME KEYS MILLIS".into()) };
    let candidate = candidate::find(name).ok_or("no such name")?;
    let (keys, millis) = (options::number(keys)?, options::number(millis)?);
    let rows = measure_one(candidate, keys, Duration::from_millis(u64::from(millis)));
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

fn measure_one(candidate: &Candidate, keys: u32, slice: Duration) -> Vec<Row> {
    Memory::warm(u64::from(keys) * WARM_BYTES_PER_KEY);
    let before = Memory::now().resident;
    // Leaked, because dropping ten million keys takes longer than measuring them.
    let decider = Box::leak((candidate.build)(candidate.setup(keys)));
    let users = candidate.users(keys);
    let inserts = measure::fill(decider, candidate.names, candidate.path, 0..users);
    let memory = Memory::now();
    let per_key = |bytes: u64| bytes.saturating_sub(before) as f64 / f64::from(keys);
    decider.filled();

    let mut rows = Vec::new();
    for &access in Access::over(keys) {
        let tapes = [7, 99].map(|seed| traffic::requests(candidate.names, users, access, seed));
        for cell in [Cell::single(access), Cell::isolated(access), Cell::double(access)] {
            let sample = measure::sample(decider, &tapes[..cell.threads], cell.shape, slice);
            let (ns, millions) = (sample.ns_per_decision(), sample.per_second / 1e6);
            rows.push(Row {
                name: candidate.name.to_owned(),
                keys,
                threads: cell.threads,
                access,
                path: candidate.path,
                shape: cell.shape,
                ns_per_decision: ns,
                ns_min: ns,
                ns_max: ns,
                mdecisions_per_s: millions,
                mdecisions_min: millions,
                mdecisions_max: millions,
                bytes_per_key: (keys > 1).then(|| per_key(memory.resident)),
                peak_bytes_per_key: (keys > 1).then(|| per_key(memory.peak)),
                insert_ns: inserts.mean_ns(),
                worst_insert_us: inserts.worst_cpu.as_secs_f64() * 1e6,
                allowed: sample.allowed_share(),
            });
        }
    }
    rows
}
