//! The failure table, and the documentation page that contains it.

use std::fmt;

use tidegate_tests::chaos::{Case, Figure};

const INTRO: &str = "\
<!-- Written by `cargo xtask chaos`: run it instead of editing this page. -->
# What failures cost

`cargo xtask chaos` causes each of these failures on real servers under load, measures the effect, and writes this page.
Tests cite the rows by their number (F1 …). [When Redis is down](guide/when-redis-is-down.md) explains the settings and
their bounds.

A missed target is marked, with the difference. Load and Redis share one machine, so times include their contention.
";

/// The results so far.
#[derive(Default)]
pub(crate) struct Page {
    rows: Vec<String>,
    targets: usize,
    missed: usize,
    has_failed: bool,
}

impl Page {
    pub(crate) fn add(&mut self, case: &Case, figures: &[Figure]) {
        for (number, figure) in figures.iter().enumerate() {
            // Only the first row of a failure names it.
            let (id, outage) = if number == 0 { (case.id, case.outage) } else { ("", "") };
            let [measured, target, met] = figure.cells();
            let behaviour = &figure.behaviour;
            let row = format!("| {id} | {outage} | {behaviour} | {measured} | {target} | {met} |");
            eprintln!("{row}");
            self.rows.push(row);
            self.targets += usize::from(figure.has_target());
            self.missed += usize::from(!figure.is_met());
            // A busy machine excuses long times, but never units admitted above a limit.
            self.has_failed |= !figure.holds_on_a_busy_machine();
        }
    }

    /// Records a case that could not be measured.
    pub(crate) fn fail(&mut self, case: &Case) {
        let Case { id, outage, .. } = case;
        self.rows.push(format!("| {id} | {outage} | could not be measured | – | – | no |"));
        self.has_failed = true;
    }

    /// Whether every case was measured, and every missed target is explained by a busy machine.
    pub(crate) const fn is_sound(&self) -> bool {
        !self.has_failed
    }

    pub(crate) fn sum(&self) -> String {
        format!("{} of {} targets are met.", self.targets - self.missed, self.targets)
    }

    pub(crate) fn table(&self) -> String {
        let heading = "| | failure | measure | measured | target | met |\n\
                       |---|---|---|---|---|---|";
        format!("{heading}\n{}", self.rows.join("\n"))
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INTRO}\n{}\n\n{}", self.sum(), self.table())
    }
}
