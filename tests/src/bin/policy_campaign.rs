//! Feeds malformed policies to the loader for a chosen time. The loader must not panic or take
//! long, and an accepted policy must decide requests.
//!
//! ```text
//! policy_campaign [--minutes N] [--seed S] FILE...
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tidegate_tests::mutation::{Mutator, try_policy};

/// Longer than a text of this size may take, also on a busy machine.
const SLOW: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("policy_campaign: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a campaign lasts as long as it is told to")]
fn run(arguments: &Arguments) -> Result<String, String> {
    let mut mutator = Mutator::new(arguments.seed, arguments.texts.clone());
    let (started, mut tried, mut accepted) = (Instant::now(), 0_u64, 0_u64);
    let mut slowest = Duration::ZERO;
    while started.elapsed() < arguments.length {
        let text = mutator.next_text();
        let one = Instant::now();
        accepted += u64::from(try_policy(&text));
        slowest = slowest.max(one.elapsed());
        if slowest > SLOW {
            return Err(format!("took {slowest:?} over this text:\n{text}"));
        }
        tried += 1;
        if tried % 500_000 == 0 {
            eprintln!("{tried} texts, {accepted} of them policies, {:?}", started.elapsed());
        }
    }
    let seed = arguments.seed;
    Ok(format!("{tried} texts, {accepted} of them policies, slowest {slowest:?}, seed {seed}"))
}

struct Arguments {
    length: Duration,
    seed: u64,
    texts: Vec<String>,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut minutes, mut seed, mut texts) = (10, 1, Vec::new());
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let text = arguments.next().unwrap_or_default();
                text.parse().map_err(|_| format!("{argument} takes a whole number"))
            };
            match argument.as_str() {
                "--minutes" => minutes = number()?,
                "--seed" => seed = number()?,
                file => texts.push(
                    std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?,
                ),
            }
        }
        if texts.is_empty() {
            return Err("name policies to start from, such as examples/policies/*.yaml".into());
        }
        Ok(Self { length: Duration::from_secs(60 * minutes), seed, texts })
    }
}
