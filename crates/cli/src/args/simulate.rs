//! The arguments of `simulate`.

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use tidegate::store::OnStoreFailure;
use tidegate_core::{AlgorithmName, Rate};
use tidegate_sim::Seed;
use tidegate_sim::world::{Fault, InvalidWorld, Stack, WorldSetup};

use super::{Overload, names};

/// Run nodes and their store with faults, or an overloaded server, on simulated time
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    #[command(subcommand)]
    pub(crate) what: Simulated,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Simulated {
    Cluster(Cluster),
    Overload(Overload),
}

/// Check that the limit holds when many nodes share one store
///
/// Nodes run the production stack: local pre-limits, fallback, leases, shards, deny cache and circuit breaker.
/// Clocks, network and the store's server are simulated: messages are delayed, lost or duplicated, nodes crash
/// and pause, clocks are set, limits change, the store hangs, goes down or fails over to a replica that lacks
/// its last writes. The seed determines everything that happens, and every number that is not given.
/// Exits with 1 if a promise was broken.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{FIGURES}\n\n{EXAMPLES}"), after_help = EXAMPLES)]
pub(crate) struct Cluster {
    /// Determines everything that is random
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Number of worlds, from this seed on; ends with the first that breaks a promise
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    pub(crate) worlds: u64,

    /// Number of nodes
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,

    /// Number of keys
    #[arg(long, value_name = "N")]
    keys: Option<usize>,

    /// Simulated seconds; the last four are without faults
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,

    /// Limit of each key, as COUNT/PERIOD
    #[arg(long, value_name = "RATE")]
    limit: Option<Rate>,

    /// Burst of a bucket
    #[arg(long, value_name = "N")]
    burst: Option<u64>,

    /// Algorithm of the limit
    #[arg(
        long,
        value_name = "NAME",
        value_parser = names::<AlgorithmName>(&AlgorithmName::ALL.map(AlgorithmName::as_str)),
    )]
    algorithm: Option<AlgorithmName>,

    /// Requests for each key, in percent of its limit
    #[arg(long, value_name = "PERCENT")]
    load: Option<u64>,

    /// Tier of the limit: `exact`, `leased`, or `bare` for the store without layers
    #[arg(long, value_name = "TIER", value_parser = names::<Stack>(&Stack::ALL.map(Stack::as_str)))]
    tier: Option<Stack>,

    /// Fallback of the nodes while the store is unavailable
    #[arg(
        long,
        value_name = "MODE",
        value_parser = PossibleValuesParser::new(OnStoreFailure::ALL.map(OnStoreFailure::as_str)),
    )]
    on_store_failure: Option<String>,

    /// Only this fault strikes; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "no_faults",
        value_parser = names::<Fault>(&Fault::ALL.map(Fault::as_str)),
    )]
    fault: Vec<Fault>,

    /// No fault strikes
    #[arg(long)]
    no_faults: bool,
}

impl Cluster {
    /// The world of this seed, or why it cannot be simulated.
    pub(crate) fn setup(&self, seed: u64) -> Result<WorldSetup, clap::Error> {
        let mut setup = WorldSetup::drawn(Seed(seed));
        match self.tier {
            Some(Stack::Leased) => setup.make_leased(),
            tier => setup.stack = tier.unwrap_or(setup.stack),
        }
        setup.nodes = self.nodes.unwrap_or(setup.nodes);
        setup.keys = self.keys.unwrap_or(setup.keys);
        setup.seconds = self.seconds.unwrap_or(setup.seconds);
        setup.rate = self.limit.unwrap_or(setup.rate);
        setup.burst = self.burst.or(self.limit.map(|rate| rate.count)).unwrap_or(setup.burst);
        setup.algorithm = self.algorithm.unwrap_or(setup.algorithm);
        setup.load = self.load.unwrap_or(setup.load);
        let is_chosen =
            |mode: &OnStoreFailure| self.on_store_failure.as_deref() == Some(mode.as_str());
        let mode = OnStoreFailure::ALL.into_iter().find(is_chosen);
        setup.on_store_failure = mode.unwrap_or(setup.on_store_failure);
        // The numbers of a rate, or a mode, exclude a limit of concurrent requests.
        let is_rate = self.limit.is_some() || self.algorithm.is_some() || mode.is_some();
        setup.in_flight &= !is_rate && self.burst.is_none();
        if self.no_faults || !self.fault.is_empty() {
            setup.faults = self.fault.clone();
        }
        match setup.limit() {
            Ok(_) => Ok(setup),
            Err(why) => Err(no_such_world(&why)),
        }
    }

    /// The options beside the seed that repeat a world.
    pub(crate) fn given(&self) -> String {
        fn option<T: ToString>(name: &str, value: Option<T>) -> Option<String> {
            value.map(|value| format!(" --{name} {}", value.to_string()))
        }
        let options = [
            option("nodes", self.nodes),
            option("keys", self.keys),
            option("seconds", self.seconds),
            option("limit", self.limit),
            option("burst", self.burst),
            option("algorithm", self.algorithm),
            option("load", self.load),
            option("tier", self.tier),
            option("on-store-failure", self.on_store_failure.as_ref()),
            self.no_faults.then(|| " --no-faults".to_owned()),
        ];
        let faults = self.fault.iter().map(|fault| format!(" --fault {fault}"));
        options.into_iter().flatten().chain(faults).collect()
    }
}

/// The error for numbers that cannot be simulated.
pub(crate) fn no_such_world(why: &InvalidWorld) -> clap::Error {
    let message = format!("cannot simulate this world: {why}\n");
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

const EXAMPLES: &str = "\
Examples:
  tidegate simulate cluster --nodes 64 --seed 7
  tidegate simulate cluster --limit 100/1s --load 300 --fault failover
  tidegate simulate cluster --tier leased --nodes 8 --limit 1000/1s --load 100 --no-faults
  tidegate simulate cluster --worlds 1000";

const FIGURES: &str = "\
Figures:
  of two keys  requests for two keys: all or nothing, or each alone
  admitted     units admitted
  limit alone  the most that the limit allows in this time, over all keys, without faults. Faults such as
               failover and store_down add to it: see docs/reference/simulated-promises.md
  utilisation  admitted, of what was asked for or of the limit alone, whichever is less
  denied       requests denied by the limit
  fallback     requests answered without the store, as on_store_failure says
  failed       requests that got an error
  dropped      requests lost with their node, or abandoned by their callers
  store calls  commands sent to the store; in all, and per request
  trace        a hash of all events: the same seed gives the same";
