//! `fuzz`: every parser of what strangers send, led on by the coverage of the last try.

use std::fs;

use crate::step::{Failure, Step, Tally, root};

/// What a campaign gives each parser.
const MINUTES: u32 = 10;

/// Without the sanitizers, which need another compiler: there is no unsafe code to be caught.
const FLAGS: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Build scripts are not to be instrumented, which naming a target sees to.
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run(tally: &mut Tally, options: &[String]) -> Result<(), Failure> {
    let minutes = match options {
        [] => MINUTES,
        [name, minutes] if name == "--minutes" => minutes
            .parse()
            .map_err(|_| Failure::new("--minutes takes a whole number of minutes"))?,
        _ => return Err(Failure::new("usage: cargo xtask fuzz [--minutes N]")),
    };
    Step::cargo(&format!(
        "build --release --manifest-path fuzz/Cargo.toml --target {TARGET} --target-dir target/fuzz"
    ))
    .env("RUSTFLAGS", FLAGS)
    .run()?;
    for target in targets()? {
        let corpus = format!("target/fuzz/corpus/{target}");
        fs::create_dir_all(root().join(&corpus))
            .map_err(|error| Failure::new(error.to_string()))?;
        let seeds = format!("fuzz/seeds/{target}");
        Step::new(
            &format!("target/fuzz/{TARGET}/release/{target}"),
            &format!(
                "{corpus} {seeds} -max_total_time={} -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
                 -print_final_stats=1 -verbosity=0 -artifact_prefix=target/fuzz/{target}-",
                minutes * 60
            ),
        )
        .run()?;
        tally.passed(format!("{minutes} minutes of odd bytes for {target}"));
    }
    Ok(())
}

/// One for each file in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, Failure> {
    let folder = root().join("fuzz/fuzz_targets");
    let files = fs::read_dir(folder).map_err(|error| Failure::new(error.to_string()))?;
    let paths = files.filter_map(Result::ok).map(|file| file.path());
    let mut names: Vec<String> =
        paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}
