//! `test`: everything that has to hold before a change is merged.

use std::fs;

use crate::step::{Failure, Step, Tally, root};

/// Programs that the tests start, each with the Debian package that brings it.
const PROGRAMS: &[(&str, &str)] = &[];

pub(crate) fn run(tally: &mut Tally) -> Result<(), Failure> {
    install_programs()?;

    Step::cargo("test --workspace --all-features").run()?;
    tally.passed("unit, property, doc and tidy tests");

    // A target directory of its own, because other flags would rebuild everything twice.
    Step::cargo("test --package tidegate --test shuttle --target-dir target/shuttle")
        .env("RUSTFLAGS", "--cfg tidegate_shuttle")
        .run()?;
    tally.passed("schedule explorer");

    let examples = examples()?;
    for example in &examples {
        Step::cargo(&format!("run --quiet --package tidegate-examples {example}")).run()?;
    }
    tally.passed(format!("{} examples", examples.len()));

    Step::cargo(
        "run --release --manifest-path bench/Cargo.toml --no-default-features \
         --target-dir target/bench-build -- memory --quick",
    )
    .run()?;
    tally.passed("bench smoke run");
    Ok(())
}

fn install_programs() -> Result<(), Failure> {
    let names = PROGRAMS.iter().map(|(program, _)| *program);
    let needed: Vec<_> = ["cargo"].into_iter().chain(names).collect();
    println!("the tests need nothing beyond: {}", needed.join(", "));
    for (program, package) in PROGRAMS {
        if !Step::new(program, "--version").succeeds_quietly() {
            Step::new("apt-get", &format!("install --yes --no-install-recommends {package}"))
                .env("DEBIAN_FRONTEND", "noninteractive")
                .run()?;
        }
    }
    Ok(())
}

/// The arguments that run each example, in alphabetical order.
fn examples() -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for (folder, kind) in [("examples/examples", "--example"), ("examples/src/bin", "--bin")] {
        let Ok(entries) = fs::read_dir(root().join(folder)) else { continue };
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            if let Some(name) = path.file_stem().filter(|_| is_source) {
                found.push(format!("{kind} {}", name.display()));
            }
        }
    }
    if found.is_empty() {
        return Err(Failure::new("no examples found in examples/examples or examples/src/bin"));
    }
    found.sort();
    Ok(found)
}
