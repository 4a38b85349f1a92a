//! Measures Tidegate, its peers and the floors of the machine; see `README.md`.

mod allocations;
mod attack;
mod candidate;
mod child;
mod concurrency;
mod floor;
mod gateway;
mod governed;
mod growth;
mod machine;
#[cfg(feature = "peers")]
mod maps;
mod measure;
mod memory;
mod options;
#[cfg(feature = "tower")]
mod overload;
#[cfg(feature = "peers")]
mod peers;
mod policy;
mod redis;
mod report;
mod row;
mod server;
mod targets;
mod tidegate;
mod tiers;
#[cfg(feature = "tower")]
mod tower;
mod traffic;
mod usage;

use std::process::ExitCode;

use crate::options::Options;
use crate::usage::USAGE;

/// The error that ends a run.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let (command, rest) = arguments.split_first().ok_or(USAGE)?;
    match command.as_str() {
        "memory" => memory::run(&Options::parse(rest)?),
        "growth" => growth::run(&Options::parse(rest)?),
        "attack" => attack::run(&Options::parse(rest)?),
        "redis" => redis::run(&Options::parse(rest)?),
        "concurrency" => concurrency::run(&Options::parse(rest)?),
        "policy" => policy::run(&Options::parse(rest)?),
        "gateway" => gateway::run(&Options::parse(rest)?),
        "server" => server::run(&Options::parse(rest)?),
        "tiers" => tiers::run(&Options::parse(rest)?),
        #[cfg(feature = "tower")]
        "tower" => tower::run(&Options::parse(rest)?),
        #[cfg(feature = "tower")]
        _ if command.starts_with("overload") => overload::start(command, rest),
        "list" => candidate::list(),
        // The children of `memory`, `growth`, `redis` and `tiers`: one process per measurement.
        "one-memory" => memory::child(rest),
        "one-growth" => growth::child(rest),
        "one-redis" => redis::child(rest),
        "one-tiers" => tiers::child(rest),
        // The children of `server`: floors of the transports.
        "floor-resp" | "floor-rls" => server::floor::serve(command, rest),
        _ => Err(USAGE.into()),
    }
}
