//! One measured line, as the JSON has it.

use serde::{Deserialize, Serialize};

use crate::candidate::Path;
use crate::measure::Loop;
use crate::traffic::Access;

/// One implementation, key count, access, thread count and loop. A child reports one sample, the
/// parent the median of all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    #[serde(rename = "impl")]
    pub name: String,
    pub keys: u32,
    pub threads: usize,
    pub access: Access,
    pub path: Path,
    #[serde(rename = "loop")]
    pub shape: Loop,
    /// Thread time.
    pub ns_per_decision: f64,
    pub ns_min: f64,
    pub ns_max: f64,
    /// Wall time, all threads together.
    pub mdecisions_per_s: f64,
    pub mdecisions_min: f64,
    pub mdecisions_max: f64,
    /// Resident memory; means nothing for one key.
    pub bytes_per_key: Option<f64>,
    pub peak_bytes_per_key: Option<f64>,
    pub insert_ns: f64,
    /// Thread time of sixteen inserts in a row, the worst of the fill.
    pub worst_insert_us: f64,
    /// Share of the decisions that were "yes".
    pub allowed: f64,
}

impl Row {
    /// One row of the rounds' rows, which must be of one kind.
    pub fn median(rounds: &[Self]) -> Self {
        let middle = |field: fn(&Self) -> f64| median(rounds.iter().map(field).collect());
        let most = |field: fn(&Self) -> f64| rounds.iter().map(field).fold(f64::MIN, f64::max);
        let least = |field: fn(&Self) -> f64| rounds.iter().map(field).fold(f64::MAX, f64::min);
        let some = |field: fn(&Self) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().filter_map(field).collect();
            (!values.is_empty()).then(|| median(values))
        };
        Self {
            ns_per_decision: middle(|row| row.ns_per_decision),
            ns_min: least(|row| row.ns_min),
            ns_max: most(|row| row.ns_max),
            mdecisions_per_s: middle(|row| row.mdecisions_per_s),
            mdecisions_min: least(|row| row.mdecisions_min),
            mdecisions_max: most(|row| row.mdecisions_max),
            bytes_per_key: some(|row| row.bytes_per_key),
            peak_bytes_per_key: some(|row| row.peak_bytes_per_key),
            insert_ns: middle(|row| row.insert_ns),
            worst_insert_us: middle(|row| row.worst_insert_us),
            allowed: middle(|row| row.allowed),
            ..rounds[0].clone()
        }
    }

    /// Whether the candidate admitted or denied as expected.
    pub fn decides_rightly(&self) -> bool {
        match self.path {
            Path::Allow => self.allowed >= 0.999,
            Path::Deny => self.allowed <= 0.001,
        }
    }

    pub fn is(&self, cell: Cell) -> bool {
        (self.access, self.threads, self.shape) == (cell.access, cell.threads, cell.shape)
    }
}

/// One of the measurements made on a filled table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub access: Access,
    pub threads: usize,
    pub shape: Loop,
}

impl Cell {
    pub const fn single(access: Access) -> Self {
        Self { access, threads: 1, shape: Loop::Tight }
    }

    pub const fn isolated(access: Access) -> Self {
        Self { access, threads: 1, shape: Loop::Isolated }
    }

    pub const fn double(access: Access) -> Self {
        Self { access, threads: 2, shape: Loop::Tight }
    }
}

/// All medians of a run.
#[derive(Debug, Default)]
pub struct Rows(pub Vec<Row>);

impl Rows {
    pub fn find(&self, name: &str, keys: u32, cell: Cell) -> Option<&Row> {
        self.0.iter().find(|row| row.name == name && row.keys == keys && row.is(cell))
    }
}

/// The median; of an even number of values, the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { values[half - 1].midpoint(values[half]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
