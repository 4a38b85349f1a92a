//! `campaign`: the tests that take too long for every change.

use std::fs;

use crate::step::{Failure, Step, Summary, root};

const TWO_HOURS_S: u32 = 2 * 60 * 60;
const MUTANTS: &str = "target/mutants/mutants.out";

/// A decision in Redis takes about five times as long as one by the oracle.
const REDIS_SHARE: u64 = 5;

const POLICY_MINUTES: u32 = 10;

/// The exit status of `timeout` when it had to stop the command.
const TIMED_OUT: i32 = 124;

pub(crate) fn run(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    let plan = Plan::parse(options)?;
    if plan.oracle {
        let decisions = plan.decisions;
        Step::cargo(&format!(
            "run --release --package tidegate-tests --bin campaign -- --decisions {decisions}"
        ))
        .run()?;
        summary.passed(format!("{decisions} decisions per algorithm equal to the oracle's"));
        let decisions = decisions.div_ceil(REDIS_SHARE);
        Step::cargo(&format!(
            "run --release --package tidegate-tests --bin redis_campaign -- --decisions {decisions}"
        ))
        .run()?;
        summary
            .passed(format!("{decisions} decisions per algorithm in Redis equal to the model's"));
        Step::cargo(&format!(
            "run --release --package tidegate-tests --bin policy_campaign -- --minutes {POLICY_MINUTES}"
        ))
        .with(&policies()?)
        .run()?;
        summary.passed(format!("{POLICY_MINUTES} minutes of nonsense for the loader of policies"));
        let worlds = plan.worlds;
        let simulate = format!("run --release -- simulate cluster --worlds {worlds}");
        Step::cargo(&format!("{simulate} --tier leased")).run()?;
        summary.passed(format!("{worlds} simulated clusters with leases kept every promise"));
        Step::cargo(&simulate).run()?;
        summary.passed(format!("{worlds} simulated clusters of all kinds kept every promise"));
        crate::fuzz::run(summary, &[])?;
    }
    if plan.mutants {
        summary.passed(mutants()?);
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Plan {
    decisions: u64,
    worlds: u64,
    oracle: bool,
    mutants: bool,
}

impl Plan {
    fn parse(options: &[String]) -> Result<Self, Failure> {
        let mut plan = Self { decisions: 10_000_000, worlds: 100_000, oracle: true, mutants: true };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match option.as_str() {
                "--decisions" => plan.decisions = number(option, options.next())?,
                "--worlds" => plan.worlds = number(option, options.next())?,
                "--skip-mutants" => plan.mutants = false,
                "--mutants-only" => plan.oracle = false,
                unknown => {
                    return Err(Failure::new(format!(
                        "unknown option `{unknown}`; known: --decisions N, --worlds N, \
                         --skip-mutants, --mutants-only"
                    )));
                }
            }
        }
        if !plan.oracle && !plan.mutants {
            return Err(Failure::new("--skip-mutants and --mutants-only leave nothing to do"));
        }
        Ok(plan)
    }
}

/// The examples, from which malformed policies are made.
fn policies() -> Result<Vec<String>, Failure> {
    let folder = root().join("examples/policies");
    let files = fs::read_dir(&folder).map_err(|error| Failure::new(error.to_string()))?;
    let paths = files.filter_map(Result::ok).map(|file| file.path());
    let yaml = paths.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    Ok(yaml.map(|path| path.display().to_string()).collect())
}

fn number(option: &str, text: Option<&String>) -> Result<u64, Failure> {
    let number = text.and_then(|text| text.replace('_', "").parse().ok());
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| Failure::new(format!("{option} takes a whole number above 0")))
}

/// Changes the algorithms one operator at a time; the tests should notice 95 % of the changes.
fn mutants() -> Result<String, Failure> {
    if !Step::cargo("mutants --version").succeeds_quietly() {
        Step::cargo("install cargo-mutants --locked").run()?;
    }
    fs::create_dir_all(root().join("target/mutants"))
        .map_err(|error| Failure::new(format!("could not create target/mutants: {error}")))?;
    // The tool has no time limit for a whole run. An interrupt lets it write its results so far;
    // its order is random, so a shortened run is a fair sample.
    let step = Step::new(
        "timeout",
        &format!(
            "--signal=INT --kill-after=60 {TWO_HOURS_S} \
             cargo mutants --package tidegate-core --file crates/core/src/algorithm/*.rs \
             --test-package tidegate-core,tidegate-tests --shuffle --no-times \
             --output target/mutants"
        ),
    );
    let status = step.status()?;
    // 0 all caught, 2 some missed, 3 some hung (which counts as caught).
    if !matches!(status.code(), Some(0 | 2 | 3 | TIMED_OUT)) {
        return Err(Failure::new(format!("mutation testing did not run ({status}):\n  {step}")));
    }
    if status.code() == Some(TIMED_OUT) {
        println!("stopped after two hours; what follows counts those tested until then");
    }
    let score = Score { noticed: count("caught") + count("timeout"), missed: count("missed") };
    println!("{score}; those missed are listed in {MUTANTS}/missed.txt");
    if score.is_enough() { Ok(score.to_string()) } else { Err(Failure::new(score.to_string())) }
}

fn count(outcome: &str) -> usize {
    let file = root().join(MUTANTS).join(format!("{outcome}.txt"));
    fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

struct Score {
    noticed: usize,
    missed: usize,
}

impl Score {
    const LEAST_PERCENT: usize = 95;

    fn is_enough(&self) -> bool {
        self.noticed > 0 && self.noticed * 100 >= self.tested() * Self::LEAST_PERCENT
    }

    fn tested(&self) -> usize {
        self.noticed + self.missed
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let least = Self::LEAST_PERCENT;
        write!(f, "{} of {} mutants noticed (at least {least} %)", self.noticed, self.tested())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<Plan, String> {
        let options: Vec<String> = options.iter().map(|&text| text.into()).collect();
        Plan::parse(&options).map_err(|failure| failure.to_string())
    }

    #[test]
    fn options_choose_what_runs() {
        let all = Plan { decisions: 10_000_000, worlds: 100_000, oracle: true, mutants: true };
        assert_eq!(parse(&[]).unwrap(), all);
        let short = Plan { decisions: 1_000, worlds: 5_000, oracle: true, mutants: false };
        let options = ["--decisions", "1_000", "--worlds", "5000", "--skip-mutants"];
        assert_eq!(parse(&options).unwrap(), short);
    }

    #[test]
    fn wrong_options_are_refused() {
        assert!(parse(&["--decisions"]).unwrap_err().contains("whole number"));
        assert!(parse(&["--decisions", "0"]).unwrap_err().contains("whole number"));
        assert!(parse(&["--worlds", "all"]).unwrap_err().contains("--worlds takes"));
        assert!(parse(&["--fast"]).unwrap_err().contains("--fast"));
        assert!(parse(&["--skip-mutants", "--mutants-only"]).unwrap_err().contains("nothing"));
    }

    #[test]
    fn ninety_five_percent_are_enough() {
        assert!(Score { noticed: 95, missed: 5 }.is_enough());
        assert!(!Score { noticed: 94, missed: 6 }.is_enough());
        assert!(!Score { noticed: 0, missed: 0 }.is_enough());
    }
}
