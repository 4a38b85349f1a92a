//! `chaos`: everything goes wrong, and what that costs is written down.

use crate::peers;
use crate::step::{Failure, Step, Tally, root};

/// The page that the whole run writes.
const PAGE: &str = "docs/failures.md";
/// The case that measures envoyproxy/ratelimit as well, and the variable that names its program.
const COMPARES: &str = "starved";
const RATELIMIT: &str = "TIDEGATE_ENVOY_RATELIMIT";

pub(crate) fn run(tally: &mut Tally, options: &[String]) -> Result<(), Failure> {
    // The daemon, and the nodes that are processes of their own.
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
        tally.passed(format!("every failure measured: {PAGE}"));
    } else {
        // A part of the table, or a short look at it, is no page.
        chaos.run()?;
        tally.passed("failures measured");
    }
    Ok(())
}
