//! What can be said of a world.

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use tidegate::store::OnStoreFailure;
use tidegate_core::{AlgorithmName, Rate};
use tidegate_sim::Seed;
use tidegate_sim::world::{Fault, InvalidWorld, Stack, WorldSetup};

use super::names;

/// Run nodes and their store on simulated time, with everything going wrong
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    #[command(subcommand)]
    pub(crate) what: Simulated,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Simulated {
    Cluster(Cluster),
}

/// Many nodes share one store: does the limit hold?
///
/// Nodes run the production algorithms and layers: leases, the deny cache, the circuit breaker, the fallback.
/// Clocks, network and the store's server are simulated: messages are late, lost or copied, nodes crash
/// and stand still, clocks are set, limits change, the store hangs, goes away or is replaced by a server
/// that lacks its last writes. Everything follows from the seed, as does every number that is not given.
/// Exits with 1 if a promise was broken.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{FIGURES}\n\n{EXAMPLES}"), after_help = EXAMPLES)]
pub(crate) struct Cluster {
    /// Where everything that is left to chance comes from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,

    /// So many worlds, of this seed and the ones after it; ends with the first that breaks a promise
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    pub(crate) worlds: u64,

    /// Nodes that requests come in at
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,

    /// Keys that are asked for
    #[arg(long, value_name = "N")]
    keys: Option<usize>,

    /// Simulated seconds; nothing goes wrong in the last four
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,

    /// How many requests per how long each key may make, as COUNT/PERIOD
    #[arg(long, value_name = "RATE")]
    limit: Option<Rate>,

    /// What buckets hold
    #[arg(long, value_name = "N")]
    burst: Option<u64>,

    /// How the limit decides
    #[arg(
        long,
        value_name = "NAME",
        value_parser = names::<AlgorithmName>(&AlgorithmName::ALL.map(AlgorithmName::as_str)),
    )]
    algorithm: Option<AlgorithmName>,

    /// Requests for each key, in hundredths of its limit
    #[arg(long, value_name = "PERCENT")]
    load: Option<u64>,

    /// How close to the store decisions are made: in it, from units taken ahead, or in it with no layer before
    /// it
    #[arg(long, value_name = "TIER", value_parser = names::<Stack>(&Stack::ALL.map(Stack::as_str)))]
    tier: Option<Stack>,

    /// What nodes answer when the store does not
    #[arg(
        long,
        value_name = "MODE",
        value_parser = PossibleValuesParser::new(OnStoreFailure::ALL.map(OnStoreFailure::as_str)),
    )]
    on_store_failure: Option<String>,

    /// Only this goes wrong; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "no_faults",
        value_parser = names::<Fault>(&Fault::ALL.map(Fault::as_str)),
    )]
    fault: Vec<Fault>,

    /// Nothing goes wrong
    #[arg(long)]
    no_faults: bool,
}

impl Cluster {
    /// The world of this seed, or why there is none.
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
        // Numbers of a rate, or a mode other than the one for places, ask for no places.
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

    /// What was given besides the seed, as it has to be given to see a world again.
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

/// What is said of numbers that no world can be made of.
pub(crate) fn no_such_world(why: &InvalidWorld) -> clap::Error {
    let message = format!("there is no such world: {why}\n");
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
  of two keys  requests for units of two keys: all or nothing, or each alone
  admitted     units let in
  limit alone  the most that the limit allows in this time, over all keys, if nothing goes wrong. Faults
               such as failover and store_down add to it: see docs/reference/simulated-promises.md
  utilisation  admitted, of what was asked for or of the limit alone, whichever is less
  denied       requests denied by the limit
  fallback     requests answered without the store, as on_store_failure says
  failed       requests that nobody gave an answer to
  dropped      requests that were gone with their node
  store calls  commands sent to the store; in all, and per request
  trace        a hash of everything that happened: the same seed gives the same";
