//! Compares the engine with the oracle for a chosen time.
//!
//! ```text
//! campaign [--decisions N] [--seed S] [--algorithm NAME] [--trace K]
//! ```

use std::process::ExitCode;

use tidegate_tests::comparison::{Comparison, Coverage, Mismatch};
use tidegate_tests::subject::Subject;

const PROGRESS_EVERY: u64 = 1_000_000;

struct Arguments {
    decisions: u64,
    seed: u64,
    subjects: Vec<Subject>,
    /// Replays only this trace.
    trace: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("campaign: {problem}");
            return ExitCode::from(2);
        }
    };
    let mut table = Vec::new();
    for &subject in &arguments.subjects {
        match run(&arguments, subject) {
            Ok(coverage) => table.push((subject, coverage)),
            Err(mismatch) => {
                eprintln!("{mismatch}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{:<16}{:>14}{:>14}{:>14}{:>14}",
        "algorithm", "decisions", "waits", "nevers", "delays"
    );
    for (subject, Coverage { decisions, waits, nevers, delays }) in table {
        println!("{subject:<16}{decisions:>14}{waits:>14}{nevers:>14}{delays:>14}");
    }
    println!("no mismatch, seed {}", arguments.seed);
    ExitCode::SUCCESS
}

fn run(arguments: &Arguments, subject: Subject) -> Result<Coverage, Box<Mismatch>> {
    let comparison = Comparison { subject, seed: arguments.seed };
    if let Some(trace) = arguments.trace {
        let mut coverage = Coverage::default();
        comparison.run_trace(trace, &mut coverage)?;
        return Ok(coverage);
    }
    let mut next = PROGRESS_EVERY;
    comparison.run(arguments.decisions, |decisions| {
        if decisions >= next {
            eprintln!("{subject}: {decisions} of {}", arguments.decisions);
            next += PROGRESS_EVERY;
        }
    })
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments =
            Self { decisions: 10_000_000, seed: 1, subjects: Subject::ALL.to_vec(), trace: None };
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || {
                value.replace('_', "").parse().map_err(|_| format!("{flag}: {value} is no number"))
            };
            match flag.as_str() {
                "--decisions" => arguments.decisions = number()?,
                "--seed" => arguments.seed = number()?,
                "--trace" => arguments.trace = Some(number()?),
                "--algorithm" => {
                    let subject = value.parse().map_err(|unknown| format!("{unknown}"))?;
                    arguments.subjects = vec![subject];
                }
                _ => {
                    return Err(format!(
                        "{flag} is unknown: --decisions --seed --algorithm --trace"
                    ));
                }
            }
        }
        Ok(arguments)
    }
}
