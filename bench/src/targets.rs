//! The targets, each a ratio within one run, and whether this run met them.

use serde::Serialize;

use crate::growth::Growth;
use crate::row::{Cell, Row, Rows};
use crate::traffic::Access::{self, Hot, Uniform, Zipf};

const OURS: &str = "tidegate";
const BATCH: &str = "tidegate_b16";
const GOVERNOR: &str = "governor_dashmap";
const FLOOR: &str = "slot_gcra_thp";

/// One target and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    pub what: String,
    pub bound: Bound,
    /// Absent if this run did not measure it.
    pub value: Option<f64>,
    pub met: Option<bool>,
}

/// The bound of a value.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub fn new(what: &str, bound: Bound, value: Option<f64>) -> Self {
        let met = value.map(|value| match bound {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
        });
        Self { what: what.to_owned(), bound, value, met }
    }
}

/// All targets; `keys` is the number for "many".
pub fn evaluate(rows: &Rows, grown: &[Growth], keys: u32) -> Vec<Target> {
    let mut targets = speed(&Ratios { rows, keys });
    targets.extend(memory(grown));
    targets
}

fn speed(ratios: &Ratios<'_>) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    let time = |name, base, access| ratios.time(name, base, access);
    let faster = |name, access| time(GOVERNOR, name, access);
    let throughput = |name, access| ratios.throughput(name, GOVERNOR, access);
    let target = Target::new;
    vec![
        target("uniform, time / floor", AtMost(1.5), time(OURS, FLOOR, Uniform)),
        target("uniform, governor's time / ours", AtLeast(4.5), faster(OURS, Uniform)),
        target("uniform, 2 threads, throughput / governor", AtLeast(4.0), {
            throughput(OURS, Uniform)
        }),
        target("zipf, governor's time / ours", AtLeast(3.5), faster(OURS, Zipf)),
        target("hot key, time / governor", AtMost(0.6), time(OURS, GOVERNOR, Hot)),
        target("hot key, 2 threads, throughput / governor", AtLeast(1.8), throughput(OURS, Hot)),
        target("batch of 16, time / single", AtMost(0.45), time(BATCH, OURS, Uniform)),
        target("batch of 16, governor's time / ours", AtLeast(11.0), faster(BATCH, Uniform)),
        target("batch of 16, 2 threads, throughput / governor", AtLeast(10.0), {
            throughput(BATCH, Uniform)
        }),
        target("deny, time / allow (1.0 and noise)", AtMost(1.1), {
            time("tidegate_deny", OURS, Uniform)
        }),
        target("fixed window, time / bucket", AtMost(1.3), {
            time("tidegate_fixed_window", OURS, Uniform)
        }),
        target("sliding window, time / bucket", AtMost(1.3), {
            time("tidegate_sliding_window", OURS, Uniform)
        }),
        target("two keys together, time / single", AtMost(2.2), {
            time("tidegate_together2", OURS, Uniform)
        }),
    ]
}

fn memory(grown: &[Growth]) -> Vec<Target> {
    use Bound::AtMost;
    let of = |name: &str, field: fn(&Growth) -> f64| {
        grown.iter().find(|growth| growth.name == name).map(field)
    };
    let (fixed, sliding) = ("tidegate_fixed_window", "tidegate_sliding_window");
    vec![
        Target::new("bucket, most bytes per key while growing", AtMost(24.0), {
            of(OURS, |growth| growth.max_bytes_per_key)
        }),
        Target::new("bucket, peak / resident while growing", AtMost(1.1), {
            of(OURS, |growth| growth.peak_ratio)
        }),
        Target::new("bucket, worst insert, us of thread time", AtMost(1_000.0), {
            of(OURS, |growth| growth.worst_insert_cpu_us)
        }),
        Target::new("fixed window, most bytes per key while growing", AtMost(48.0), {
            of(fixed, |growth| growth.max_bytes_per_key)
        }),
        Target::new("sliding window, most bytes per key while growing", AtMost(48.0), {
            of(sliding, |growth| growth.max_bytes_per_key)
        }),
    ]
}

struct Ratios<'a> {
    rows: &'a Rows,
    keys: u32,
}

impl Ratios<'_> {
    fn time(&self, name: &str, base: &str, access: Access) -> Option<f64> {
        self.of(name, base, Cell::single(access), |row| row.ns_per_decision)
    }

    fn throughput(&self, name: &str, base: &str, access: Access) -> Option<f64> {
        self.of(name, base, Cell::double(access), |row| row.mdecisions_per_s)
    }

    fn of(&self, name: &str, base: &str, cell: Cell, field: fn(&Row) -> f64) -> Option<f64> {
        let keys = if cell.access == Hot { 1 } else { self.keys };
        let row = |name| self.rows.find(name, keys, cell).map(field);
        Some(row(name)? / row(base)?)
    }
}
