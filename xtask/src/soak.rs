//! `soak`: the daemon under load for a long time.

use crate::step::{Failure, Step, Summary, built};

pub(crate) fn run(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    Step::cargo("build --release --package tidegate-cli").run()?;
    let daemon = built("release/tidegate").display().to_string();
    Step::cargo("run --release --package tidegate-tests --bin soak --")
        .with(&[daemon])
        .with(options)
        .run()?;
    summary.passed("soak: memory flat, every reload in force, no wrong answer");
    Ok(())
}
