//! `tidegate lint`: is this policy right?

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate::policy::{Merging, Policy};

use crate::args::Lint;

/// A file larger than this is no policy; its text is not even read.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Prints one finding per line, and says by its exit status whether the policy can be used.
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
    let mut files = Vec::new();
    for path in &args.files {
        collect(path, &mut files)?;
    }
    let texts: Result<Vec<(String, String)>, String> =
        files.iter().map(|file| read(file)).collect();
    let texts = texts?;
    let texts: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (&**name, &**text)).collect();
    let merging = if args.merge { Merging::Allow } else { Merging::Refuse };
    let loaded = Policy::load(&texts, merging);
    let mut out = io::stdout().lock();
    // That the reader has gone (`| head`) changes nothing about the policy.
    if !loaded.findings.is_empty() {
        let _ = writeln!(out, "{}", loaded.findings);
    }
    if let Some(policy) = loaded.policy {
        let rules: usize = policy.domains().map(|domain| domain.rules().len()).sum();
        let (domains, files) = (policy.domains().count(), texts.len());
        let _ = writeln!(out, "{rules} rules in {domains} domains of {files} files can be used");
    }
    let refused = loaded.errors > 0 || (args.strict && !loaded.findings.is_empty());
    Ok(if refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A file itself; of a folder, every `.yaml` and `.yml` in it, by name.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let unreadable = |error| format!("cannot read {}: {error}", path.display());
    let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(unreadable)?.collect();
    let mut found: Vec<PathBuf> = entries
        .map_err(unreadable)?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml" || end == "yml"))
        .collect();
    if found.is_empty() {
        return Err(format!("{} holds no .yaml and no .yml file", path.display()));
    }
    found.sort();
    files.append(&mut found);
    Ok(())
}

fn read(path: &Path) -> Result<(String, String), String> {
    let name = path.display().to_string();
    let unreadable = |error: io::Error| format!("cannot read {name}: {error}");
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("{name} has {size} bytes, at most {MAX_FILE_BYTES} are read"));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    Ok((name, text))
}
