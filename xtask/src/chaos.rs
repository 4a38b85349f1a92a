//! `chaos`: everything goes wrong, and what that costs is written down.

use crate::step::{Failure, Step, Tally, root};

/// The page that the whole run writes.
const PAGE: &str = "docs/failures.md";

pub(crate) fn run(tally: &mut Tally, options: &[String]) -> Result<(), Failure> {
    // The daemon, and the nodes that are processes of their own.
    Step::cargo("build --release --package tidegate-cli --package tidegate-tests --bins").run()?;
    let chaos = Step::cargo("run --release --package tidegate-tests --bin chaos --").with(options);
    if options.is_empty() {
        let page = root().join(PAGE).display().to_string();
        chaos.with(&["--write".into(), page]).run()?;
        tally.passed(format!("every failure measured: {PAGE}"));
    } else {
        // A part of the table, or a short look at it, is no page.
        chaos.run()?;
        tally.passed("failures measured");
    }
    Ok(())
}
