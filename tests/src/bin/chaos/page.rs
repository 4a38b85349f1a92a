//! The table, and the page of the documentation that it stands in.

use std::fmt;

use tidegate_tests::chaos::{Case, Figure};

const INTRO: &str = "\
<!-- Written by `cargo xtask chaos`: run it instead of editing this page. -->
# What failures cost

Every failure here was made to happen, to real servers under load, and measured: `cargo xtask chaos` runs it all and
writes this page. The numbers (F1 …) are those of the failure table that the tests cite. What you can choose, and what
it can admit at most, is in [when Redis is down](guide/when-redis-is-down.md).

A target that is not met says by how much. Load and store share one machine, so that times include what they take from
each other.
";

/// What has been measured so far.
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
            // What goes wrong is said once.
            let (id, outage) = if number == 0 { (case.id, case.outage) } else { ("", "") };
            let [measured, target, met] = figure.cells();
            let behaviour = &figure.behaviour;
            let row = format!("| {id} | {outage} | {behaviour} | {measured} | {target} | {met} |");
            eprintln!("{row}");
            self.rows.push(row);
            self.targets += usize::from(figure.has_target());
            self.missed += usize::from(!figure.is_met());
            // That a machine is busy excuses a time, and never an admission too many.
            self.has_failed |= !figure.holds_on_a_busy_machine();
        }
    }

    /// A case that could not be measured.
    pub(crate) fn fail(&mut self, case: &Case) {
        let Case { id, outage, .. } = case;
        self.rows.push(format!("| {id} | {outage} | could not be measured | – | – | no |"));
        self.has_failed = true;
    }

    /// Whether every case was measured, and nothing is off that no busy machine explains.
    pub(crate) const fn is_sound(&self) -> bool {
        !self.has_failed
    }

    pub(crate) fn sum(&self) -> String {
        format!("{} of {} targets are met.", self.targets - self.missed, self.targets)
    }

    pub(crate) fn table(&self) -> String {
        let heading = "| | what goes wrong | what has to hold | measured | target | met |\n\
                       |---|---|---|---|---|---|";
        format!("{heading}\n{}", self.rows.join("\n"))
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INTRO}\n{}\n\n{}", self.sum(), self.table())
    }
}
