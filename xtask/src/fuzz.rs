//! `fuzz`: coverage-guided fuzzing of every parser of client input.

use std::fs;
use std::path::Path;

use crate::step::{Failure, Step, Summary, built, root};

/// Minutes for each parser in a campaign.
const MINUTES: f64 = 10.0;

/// Without the sanitizers, which need another compiler. There is no unsafe code for them to check.
const FLAGS: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Build scripts must not be instrumented; naming a target excludes them.
const TARGET: &str = "x86_64-unknown-linux-gnu";

const USAGE: &str = "usage: cargo xtask fuzz [--minutes N] [--only PARSER]";

/// Runs the targets one after the other. Two runs may overlap: cargo allows one build at a time,
/// and each parser has separate files.
pub(crate) fn run(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    let wish = Wish::read(options)?;
    let all = targets()?;
    let chosen: Vec<&String> =
        all.iter().filter(|name| wish.only.as_ref().is_none_or(|only| only == *name)).collect();
    if chosen.is_empty() {
        return Err(Failure::new(format!("--only takes one of {}", all.join(", "))));
    }
    let folder = built("fuzz");
    let build = Step::cargo(&format!(
        "build --release --manifest-path fuzz/Cargo.toml --target {TARGET} --target-dir"
    ));
    build.with(&[text(&folder)]).env("RUSTFLAGS", FLAGS).run()?;
    for target in chosen {
        let corpus = folder.join("corpus").join(target);
        fs::create_dir_all(&corpus).map_err(|error| Failure::new(error.to_string()))?;
        let program = folder.join(TARGET).join("release").join(target);
        let bounds = format!(
            "-max_total_time={} -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
             -print_final_stats=1 -verbosity=0",
            wish.seconds
        );
        let found = format!("-artifact_prefix={}-", text(&folder.join(target)));
        let places = [text(&corpus), format!("fuzz/seeds/{target}"), found];
        Step::new(&text(&program), &bounds).with(&places).run()?;
        summary.passed(format!("{} s of odd bytes for {target}", wish.seconds));
    }
    Ok(())
}

/// The selected targets, and the time for each.
struct Wish {
    seconds: u64,
    only: Option<String>,
}

impl Wish {
    fn read(options: &[String]) -> Result<Self, Failure> {
        let (mut minutes, mut only) = (MINUTES, None);
        for pair in options.chunks(2) {
            match pair {
                [name, value] if name == "--minutes" => {
                    let number = value.parse().ok().filter(|it| (0.01..=10_000.0).contains(it));
                    minutes = number.ok_or_else(|| {
                        Failure::new("--minutes takes a number from 0.01 to 10000")
                    })?;
                }
                [name, value] if name == "--only" => only = Some(value.clone()),
                _ => return Err(Failure::new(USAGE)),
            }
        }
        // The float is only a duration; no decision depends on it.
        Ok(Self { seconds: (minutes * 60.0).ceil() as u64, only })
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// One target for each file in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, Failure> {
    let folder = root().join("fuzz/fuzz_targets");
    let files = fs::read_dir(folder).map_err(|error| Failure::new(error.to_string()))?;
    let paths = files.filter_map(Result::ok).map(|file| file.path());
    let mut names: Vec<String> =
        paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}
