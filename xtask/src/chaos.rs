//! `chaos`: causes every failure of the failure table, and writes the results.

use crate::peers;
use crate::step::{Failure, Step, Summary, root};

/// The page that the whole run writes.
const PAGE: &str = "docs/failures.md";
/// The case that also measures envoyproxy/ratelimit, and the variable that names its program.
const COMPARES: &str = "starved";
const RATELIMIT: &str = "TIDEGATE_ENVOY_RATELIMIT";

pub(crate) fn run(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    // The daemon, and the nodes in separate processes.
    Step::cargo("build --release --package tidegate-cli --package tidegate-tests --bin tidegate --bin chaos_node --bin redis_client")
        .run()?;
    let mut chaos =
        Step::cargo("run --release --package tidegate-tests --bin chaos --").with(options);
    if options.is_empty() || options.iter().any(|option| option == COMPARES) {
        match peers::ratelimit() {
            Ok(program) => chaos = chaos.env(RATELIMIT, &program.display().to_string()),
            Err(failure) => {
                println!("\n!!! LEFT OUT: envoyproxy/ratelimit, because\n!!! {failure}")
            }
        }
    }
    if options.is_empty() {
        let page = root().join(PAGE).display().to_string();
        chaos.with(&["--write".into(), page]).run()?;
        summary.passed(format!("every failure measured: {PAGE}"));
    } else {
        // Only a full run writes the page.
        chaos.run()?;
        summary.passed("failures measured");
    }
    Ok(())
}
