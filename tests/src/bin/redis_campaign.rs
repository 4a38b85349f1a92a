//! Compares a real Redis with the model for a chosen time.
//!
//! ```text
//! redis_campaign [--decisions N] [--seed S] [--algorithm NAME]
//! ```

use std::process::ExitCode;

use tidegate_tests::servers::RedisServer;
use tidegate_tests::shared_comparison::{Crowd, compare, crowd, store};
use tidegate_tests::subject::Subject;

const PROGRESS_EVERY: u64 = 250_000;

struct Arguments {
    decisions: u64,
    seed: u64,
    subjects: Vec<Subject>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("redis_campaign: {problem}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    // A difference panics with the history that led to it.
    runtime.expect("a runtime").block_on(run(&arguments));
    println!("no difference, seed {}", arguments.seed);
    ExitCode::SUCCESS
}

async fn run(arguments: &Arguments) {
    let Arguments { decisions, seed, subjects } = arguments;
    for subject in subjects {
        let server = RedisServer::start();
        let mut next = PROGRESS_EVERY;
        let progress = |decided| {
            if decided >= next {
                eprintln!("{subject}: {decided} of {decisions}");
                next += PROGRESS_EVERY;
            }
        };
        let store = store(&server.url()).await;
        let decided = compare(&store, *subject, *seed, *decisions, progress).await;
        println!("{subject:<16}{decided:>14} decisions");
    }
    let mut together = 0;
    for round in 0.. {
        let server = RedisServer::start();
        let kind = if round % 2 == 0 { Crowd::Mixed } else { Crowd::Buckets };
        together += crowd(&store(&server.url()).await, (seed << 32) + round, kind).await as u64;
        if together >= *decisions {
            break;
        }
    }
    println!("{:<16}{together:>14} decisions", "together");
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self { decisions: 2_000_000, seed: 1, subjects: Subject::ALL.to_vec() };
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || {
                value.replace('_', "").parse().map_err(|_| format!("{flag}: {value} is no number"))
            };
            match flag.as_str() {
                "--decisions" => arguments.decisions = number()?,
                "--seed" => arguments.seed = number()?,
                "--algorithm" => {
                    let subject = value.parse().map_err(|unknown| format!("{unknown}"))?;
                    arguments.subjects = vec![subject];
                }
                _ => return Err(format!("{flag} is unknown: --decisions --seed --algorithm")),
            }
        }
        Ok(arguments)
    }
}
