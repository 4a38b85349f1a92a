//! `differential`: sends the same requests to envoyproxy/ratelimit and to Tidegate, and compares
//! the answers.

use crate::peers;
use crate::step::{Failure, Step, Summary, built};

pub(crate) fn run(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    let envoyproxy = match peers::ratelimit() {
        Ok(envoyproxy) => envoyproxy,
        Err(failure) => {
            println!("\n!!! LEFT OUT: nothing is compared, because\n!!! {failure}");
            summary.passed("nothing");
            return Ok(());
        }
    };
    Step::cargo("build --release --package tidegate-cli").run()?;
    let ours = built("release/tidegate");
    let programs = [("--envoyproxy", envoyproxy), ("--ours", ours)];
    let programs = programs.map(|(name, path)| [name.to_owned(), path.display().to_string()]);
    Step::cargo("run --release --package tidegate-tests --bin rls_differential --")
        .with(&programs.concat())
        .with(options)
        .run()?;
    summary.passed("the same answers as those of envoyproxy/ratelimit");
    Ok(())
}
