//! `soak`: the daemon under load for a long time.

use crate::step::{Failure, Step, Tally};

pub(crate) fn run(tally: &mut Tally, options: &[String]) -> Result<(), Failure> {
    Step::cargo("build --release --package tidegate-cli").run()?;
    Step::cargo("run --release --package tidegate-tests --bin soak -- target/release/tidegate")
        .with(options)
        .run()?;
    tally.passed("soak: memory flat, no wrong answer");
    Ok(())
}
