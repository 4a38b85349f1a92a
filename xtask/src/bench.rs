//! `bench`: hands over to the bench crate, which has a lock file of its own.

use crate::step::{Failure, Step, Tally};

const SUITES: [&str; 5] = ["memory", "growth", "attack", "redis", "policy"];

pub(crate) fn run(tally: &mut Tally, options: &[String]) -> Result<(), Failure> {
    let suite = options.first().map_or("", String::as_str);
    if !SUITES.contains(&suite) {
        let known = SUITES.join(", ");
        return Err(Failure::new(format!("name a suite to measure: {known}; found `{suite}`")));
    }
    Step::cargo(
        "run --release --manifest-path bench/Cargo.toml --target-dir target/bench-build --",
    )
    .with(options)
    .run()?;
    tally.passed(format!("{suite}, with its JSON under target/bench/"));
    Ok(())
}
