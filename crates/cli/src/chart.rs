//! Requests over time, one line of blocks per algorithm.

use std::fmt::Write;

use tidegate_core::{Span, Timestamp};
use tidegate_sim::{Comparison, View, spell};

use crate::terminal::Terminal;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LABEL: usize = 17;
/// Room for the number at the end of a line.
const PEAK: usize = 8;

/// Draws the offered requests, and below them those that each algorithm started, over one time axis.
///
/// The algorithms share a scale, so that heights compare; the offered requests have their own.
pub(crate) fn chart(comparison: &Comparison, terminal: Terminal) -> String {
    let columns = terminal.width - LABEL - PEAK;
    let view = comparison.view;
    let offered = view.bins(&comparison.demand, columns);
    let lanes: Vec<_> = comparison
        .simulated()
        .map(|row| (row.algorithm.as_str(), view.bins(&row.run.starts, columns)))
        .collect();
    let tallest = lanes.iter().map(|(_, bins)| peak(bins)).max().unwrap_or(0);
    let mut out = String::new();
    let mut lane = |name: &str, bins: &[u64], scale| {
        let bars = terminal.bars(&blocks(bins, scale));
        let _ = writeln!(out, "  {name:<width$}{bars}{:>PEAK$}", peak(bins), width = LABEL - 2);
    };
    lane("offered", &offered, peak(&offered));
    for (name, bins) in &lanes {
        lane(name, bins, tallest);
    }
    let axis = Axis::of(view, columns);
    let column = Span::from_micros(view.until.since(view.from).as_micros() / columns as u64);
    let scale = format!("  column {}", spell(column));
    for (label, line) in [(scale.as_str(), axis.line()), ("", axis.labels())] {
        let _ = writeln!(out, "{}", terminal.faint(&format!("{label:<LABEL$}{line}")));
    }
    out
}

pub(crate) fn peak(bins: &[u64]) -> u64 {
    bins.iter().copied().max().unwrap_or(0)
}

/// A block per bin, with `scale` as the full height. Every count above zero is visible.
pub(crate) fn blocks(bins: &[u64], scale: u64) -> String {
    let block = |count: &u64| match (count * 8).div_ceil(scale.max(1)) {
        0 => ' ',
        eighths => BLOCKS[usize::try_from(eighths - 1).unwrap_or(7).min(7)],
    };
    bins.iter().map(block).collect()
}

/// Ticks at round times.
struct Axis {
    columns: usize,
    /// Column and label, left to right.
    ticks: Vec<(usize, String)>,
}

impl Axis {
    fn of(view: View, columns: usize) -> Self {
        let length = view.until.since(view.from).as_micros().max(1);
        let (step, unit, name) = step(length, (columns / 10).max(1) as u64);
        let first = view.from.as_micros().next_multiple_of(step);
        let ticks = (0..)
            .map(|i| Timestamp::from_micros(first + i * step))
            .take_while(|time| *time <= view.until)
            .map(|time| {
                let offset = u128::from(time.since(view.from).as_micros());
                let column = offset * columns as u128 / (u128::from(length) + 1);
                let label = match time.as_micros() / unit {
                    0 => "0".to_owned(),
                    units => format!("{units}{name}"),
                };
                (usize::try_from(column).unwrap_or(columns), label)
            })
            .collect();
        Self { columns, ticks }
    }

    fn line(&self) -> String {
        let ticked = |column| self.ticks.iter().any(|(tick, _)| *tick == column);
        (0..self.columns).map(|column| if ticked(column) { '┴' } else { '─' }).collect()
    }

    /// The labels below their ticks, as far as there is room.
    fn labels(&self) -> String {
        let mut line = String::new();
        for (tick, label) in &self.ticks {
            let free = line.is_empty() || line.len() < *tick;
            if free && tick + label.len() <= self.columns + PEAK {
                let _ = write!(line, "{:1$}", "", tick - line.len());
                line.push_str(label);
            }
        }
        line
    }
}

/// The smallest round step that needs at most `most` ticks; with the unit to count it in.
fn step(length: u64, most: u64) -> (u64, u64, &'static str) {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;
    const UNITS: [(u64, &str, &[u64]); 6] = [
        (1, "us", &[1, 2, 5, 10, 20, 50, 100, 200, 500]),
        (1_000, "ms", &[1, 2, 5, 10, 20, 50, 100, 200, 500]),
        (SECOND, "s", &[1, 2, 5, 10, 15, 30]),
        (60 * SECOND, "min", &[1, 2, 5, 10, 15, 30]),
        (3_600 * SECOND, "h", &[1, 2, 3, 6, 12]),
        (DAY, "d", &[1, 2, 5, 10, 30, 60, 120, 365, 730, 1_825, 3_650, 36_500]),
    ];
    UNITS
        .iter()
        .flat_map(|(unit, name, steps)| steps.iter().map(move |step| (step * unit, *unit, *name)))
        .find(|(step, ..)| length / step <= most)
        .unwrap_or((36_500 * DAY, DAY, "d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_count_is_visible_and_the_largest_is_full() {
        assert_eq!(blocks(&[0, 1, 50, 100], 100), " ▁▄█");
        assert_eq!(blocks(&[0, 0], 0), "  ");
    }

    #[test]
    fn ticks_are_round_times() {
        let view = View { from: Timestamp::from_secs(30), until: Timestamp::from_secs(150) };
        let axis = Axis::of(view, 50);
        let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["30s", "60s", "90s", "120s", "150s"]);
        assert_eq!(axis.ticks[0].0, 0);
        assert_eq!(axis.line().chars().count(), 50);
    }

    #[test]
    fn a_step_never_needs_more_ticks_than_there_is_room_for() {
        for exponent in 0..53 {
            let length = 1u64 << exponent;
            assert!(length / step(length, 5).0 <= 5, "{length}");
        }
    }
}
