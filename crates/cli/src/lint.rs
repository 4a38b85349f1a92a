//! `tidegate lint`: checks policy files.

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate::policy::{Merging, Policy, Source};

use crate::args::Lint;
use crate::secret::enforce_secret_of;

/// Prints one finding per line. The exit status tells whether the policy can be used.
pub(crate) fn lint(args: &Lint) -> ExitCode {
    match run(args) {
        Ok(code) => code,
        Err(problem) => {
            let _ = writeln!(io::stderr(), "error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Lint) -> Result<ExitCode, String> {
    let secret = enforce_secret_of(args.enforce_secret_file.as_ref())?;
    let merging = if args.merge { Merging::Allow } else { Merging::Refuse };
    let texts = Source::new(args.files.iter().cloned(), merging).read();
    let texts = texts.map_err(|error| error.to_string())?;
    let mut loaded = texts.load();
    let shares = loaded.policy.as_ref().and_then(Policy::predictable_shares);
    if let Some(warning) = shares.filter(|_| secret.is_none()) {
        loaded.findings = format!("{}\n{warning}", loaded.findings).trim_start().to_owned();
    }
    let mut out = io::stdout().lock();
    // A closed pipe (`| head`) is not a failure.
    if !loaded.findings.is_empty() {
        let _ = writeln!(out, "{}", loaded.findings);
    }
    let mut fresh_starts = Vec::new();
    if let Some(policy) = &loaded.policy
        && !args.previous.is_empty()
    {
        let previous = Source::new(args.previous.iter().cloned(), merging).load();
        let previous = previous.map_err(|error| error.to_string())?;
        let Some(previous) = previous.policy else {
            let _ = writeln!(out, "error: --previous cannot be used\n{}", previous.findings);
            return Ok(ExitCode::from(2));
        };
        fresh_starts = policy.fresh_starts(&previous);
    }
    for message in &fresh_starts {
        let _ = writeln!(out, "warning: {message}");
    }
    if let Some(policy) = loaded.policy {
        for note in policy.notes() {
            let _ = writeln!(out, "{note}");
        }
        let rules: usize = policy.domains().map(|domain| domain.rules().len()).sum();
        let (domains, files) = (policy.domains().count(), texts.file_count());
        let (rules, domains, files) =
            (counted(rules, "rule"), counted(domains, "domain"), counted(files, "file"));
        let _ = writeln!(out, "{rules} in {domains} of {files} can be used");
    }
    let has_warnings = !loaded.findings.is_empty() || !fresh_starts.is_empty();
    let refused = loaded.errors > 0 || (args.strict && has_warnings);
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// `1 rule`, `2 rules`.
fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
