//! `bench`: runs the bench crate, which has a separate lock file.

use std::path::PathBuf;

use crate::step::{Failure, Step, Summary, built, root};
use crate::{peers, test};

const SUITES: [&str; 12] = [
    "memory",
    "growth",
    "attack",
    "redis",
    "policy",
    "concurrency",
    "server",
    "gateway",
    "tiers",
    "tower",
    "hostile",
    "overload",
];

pub(crate) fn run(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    let suite = options.first().map_or("", String::as_str);
    if !SUITES.contains(&suite) {
        let known = SUITES.join(", ");
        return Err(Failure::new(format!("name a suite to measure: {known}; found `{suite}`")));
    }
    if suite == "hostile" {
        return hostile(summary, &options[1..]);
    }
    let build = "run --release --manifest-path bench/Cargo.toml --target-dir target/bench-build";
    // The crates that only other suites measure take minutes to build.
    let features = if suite == "overload" { "--no-default-features --features tower" } else { "" };
    let mut step = Step::cargo(&format!("{build} {features} --")).with(options);
    let quick = options.iter().any(|option| option == "--quick");
    if suite == "server" {
        step = with_peers(step, quick, SERVERS)?;
    }
    if suite == "gateway" {
        step = with_proxies(step, quick)?;
    }
    if suite == "overload" {
        step = with_peers(step, quick, LIMITERS)?;
    }
    step.run()?;
    summary.passed(format!("{suite}, with its JSON under target/bench/"));
    Ok(())
}

/// The 99th percentile of normal clients beside each kind of hostile client.
fn hostile(summary: &mut Summary, options: &[String]) -> Result<(), Failure> {
    Step::cargo("build --release --package tidegate-cli").run()?;
    Step::cargo("run --release --package tidegate-tests --bin hostile --").with(options).run()?;
    summary.passed("hostile clients measured; the table belongs into docs/benchmarks.md");
    Ok(())
}

/// A variable that names a program for the bench, and how the program is built or installed.
type Peer = (&'static str, fn() -> Result<PathBuf, Failure>);

/// Limiters that protect a service in place of Tidegate.
const LIMITERS: &[Peer] = &[
    ("TIDEGATE_ENVOY", test::envoy),
    ("TIDEGATE_OVERLOAD_NETFLIX", peers::netflix),
    ("TIDEGATE_OVERLOAD_FAILSAFE", peers::failsafe),
];

/// Servers that decide in place of Tidegate.
const SERVERS: &[Peer] = &[
    ("TIDEGATE_ENVOY", test::envoy),
    ("TIDEGATE_ENVOY_RATELIMIT", peers::ratelimit),
    ("TIDEGATE_LIMITADOR", peers::limitador),
    ("TIDEGATE_THROTTLECRAB", peers::throttlecrab),
];

/// Builds the gateway, and installs the proxies beside it.
fn with_proxies(step: Step, quick: bool) -> Result<Step, Failure> {
    Step::cargo("build --release --package tidegate-cli").run()?;
    let mut step = step.env("TIDEGATE_PROGRAM", &built("release/tidegate").display().to_string());
    let mut proxies = Vec::new();
    if !quick {
        test::install_load_generator();
        proxies = test::proxies();
        proxies.push(("TIDEGATE_PINGORA", pingora()));
    }
    for (variable, program) in proxies {
        match program {
            Ok(program) => step = step.env(variable, &program.display().to_string()),
            Err(failure) => println!("\n!!! LEFT OUT, because\n!!! {failure}"),
        }
    }
    Ok(step)
}

/// A reverse proxy on Pingora, whose dependencies need cmake.
fn pingora() -> Result<PathBuf, Failure> {
    let build = "build --release --manifest-path bench/pingora/Cargo.toml --target-dir target/bench-pingora";
    Step::cargo(build).run()?;
    Ok(root().join("target/bench-pingora/release/tidegate-bench-pingora"))
}

/// Builds the daemon and its peers; a smoke run uses only installed ones.
fn with_peers(step: Step, quick: bool, all: &[Peer]) -> Result<Step, Failure> {
    Step::cargo("build --release --package tidegate-cli").run()?;
    let mut step = step.env("TIDEGATE_PROGRAM", &built("release/tidegate").display().to_string());
    for (variable, program) in if quick { &[] } else { all } {
        match program() {
            Ok(program) => step = step.env(variable, &program.display().to_string()),
            Err(failure) => println!("\n!!! LEFT OUT, because\n!!! {failure}"),
        }
    }
    Ok(step)
}
