//! Developer tasks: `cargo xtask <task>`. Nothing but cargo is needed to run them.

mod bench;
mod campaign;
mod check;
mod fuzz;
mod soak;
mod step;
mod test;
mod throwaway;

use std::env;
use std::process::ExitCode;

use step::{Failure, Tally};

const HELP: &str = "\
Developer tasks of Tidegate.

Usage: cargo xtask <task> [options]

  check       Formatting, lints, documentation, and each feature of `tidegate` alone.
  test        Every test: unit, property, doc and tidy tests, the schedule explorer, each example,
              and a short run of the benches. Installs what the tests need.
  campaign    The long run: oracle against engine, then mutation testing of the algorithms.
                --decisions N    decisions per algorithm (default 10000000)
                --skip-mutants   only the oracle
                --mutants-only   only mutation testing
  fuzz        Odd bytes for every parser of what strangers send, led on by coverage.
                --minutes N      for each (default 10)
  soak        The daemon under load for long: keys, clients and policies that come and go.
                --minutes N      how long (default 30)
                --rate N         decisions per second (default 20000)
  bench       Measurements, also written as JSON under target/bench/.
                memory [args]    decisions per second and bytes per key, beside other crates
                growth [args]    only the growth: bytes per key and pauses while a table fills
                attack [args]    a flood of random keys against a bounded table
                redis [args]     the store in Redis, beside scripts, transactions and redis-cell
                policy [args]    finding a rule among many, and loading many
  help        This text.

Each task prints the commands it runs and stops at the first that fails.
`check` and `test` together are what .ci/run runs.";

const TASKS: &str = "check, test, campaign, fuzz, soak, bench, help";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let Some((task, options)) = arguments.split_first() else {
        println!("{HELP}");
        return Err(Failure::new(format!("name a task: {TASKS}")));
    };
    let asks_help = |text: &String| matches!(text.as_str(), "help" | "--help" | "-h");
    if asks_help(task) || options.first().is_some_and(asks_help) {
        println!("{HELP}");
        return Ok(());
    }
    let mut tally = Tally::start(task);
    match task.as_str() {
        "check" => no_options(options).and_then(|()| check::run(&mut tally))?,
        "test" => no_options(options).and_then(|()| test::run(&mut tally))?,
        "campaign" => campaign::run(&mut tally, options)?,
        "fuzz" => fuzz::run(&mut tally, options)?,
        "soak" => soak::run(&mut tally, options)?,
        "bench" => bench::run(&mut tally, options)?,
        unknown => {
            return Err(Failure::new(format!("unknown task `{unknown}`; known: {TASKS}")));
        }
    }
    println!("\n{}", tally.summary());
    Ok(())
}

fn no_options(options: &[String]) -> Result<(), Failure> {
    match options.first() {
        None => Ok(()),
        Some(option) => Err(Failure::new(format!("this task takes no options, found `{option}`"))),
    }
}
