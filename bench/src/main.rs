//! Measures Tidegate beside its peers and what the machine could do at best; see `README.md`.

mod allocations;
mod attack;
mod candidate;
mod child;
mod floor;
mod governed;
mod growth;
mod machine;
#[cfg(feature = "peers")]
mod maps;
mod measure;
mod memory;
mod options;
#[cfg(feature = "peers")]
mod peers;
mod policy;
mod redis;
mod report;
mod row;
mod server;
mod targets;
mod tidegate;
mod traffic;

use std::process::ExitCode;

use crate::options::Options;

/// A run ends with a sentence if it fails.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "\
usage: tidegate-bench COMMAND [OPTIONS]

  memory   decisions per second and bytes per key, beside peers and floors; then growth, half as far again
  growth   only the growth: bytes per key and pauses while a table fills
  attack   a bounded table under a flood of distinct keys
  redis    the store in Redis: processor time of server and client, commands, latency, bytes per key
  policy   finding the rule of a descriptor among few rules and many; loading many
  server   the daemon through each door, beside other servers: processor time, latency, memory
  list     the names --only can choose from

  --keys N,N,..   memory: how many keys [1,1000000,10000000]; growth, attack: how far;
                  redis [100000]; server [1000000]
  --rounds N      memory, redis, server: interleaved rounds, medians of them are reported [5]
  --millis N      memory, redis, server: length of one measurement [150, 1000, 800]
  --only A,B,..   memory, growth, redis, server: only names that contain one of these
  --max-mib N     attack: the bound of the table [256]
  --quick         a smoke run of seconds
  --out FILE      where the JSON goes [target/bench/COMMAND.json]";

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
        "policy" => policy::run(&Options::parse(rest)?),
        "server" => server::run(&Options::parse(rest)?),
        "list" => {
            candidate::all().iter().for_each(|candidate| println!("{}", candidate.name));
            Ok(())
        }
        // The children of `memory`, `growth` and `redis`: one process per measurement.
        "one-memory" => memory::child(rest),
        "one-growth" => growth::child(rest),
        "one-redis" => redis::child(rest),
        // And of `server`: what the doors could cost at least.
        "floor-resp" | "floor-rls" => server::floor::serve(command, rest),
        _ => Err(USAGE.into()),
    }
}
