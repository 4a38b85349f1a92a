//! Command-line arguments.

mod overload;
mod serve;
mod simulate;

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgGroup, Args, ColorChoice, Parser, Subcommand};
use tidegate_core::{AlgorithmName, Rate};
use tidegate_sim::{InvalidSetup, Seed, Setup, Shape};

pub(crate) use self::overload::Overload;
pub(crate) use self::serve::{Gateway, Serve};
pub(crate) use self::simulate::{Cluster, Simulate, Simulated, no_such_world};

/// Tidegate, a rate limiter: daemon, policy tools, simulator
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    /// When to use colour; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Check(Check),
    Compare(Compare),
    Explain(Explain),
    Gateway(Gateway),
    Lint(Lint),
    Schema(Schema),
    Serve(Serve),
    Simulate(Simulate),
}

/// Decide one request by a policy, and charge it
///
/// On a shared store this is an ordinary request. The exit status is 0 if the request is allowed, 1 if it is
/// denied, and 2 if it could not be decided.
#[derive(Debug, Args)]
#[command(after_help = CHECKS)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) question: DecisionArgs,
}

/// Show the limits that apply to a request, the reasons, their state, and which one binds
///
/// Changes nothing, and decides as `tidegate check` would. Names the plan, the override and the percentage
/// that chose a limit's numbers.
///
/// A bucket keeps the share that a key has used when its limit changes: with 3 of 5 used, a limit raised
/// to 10 leaves 4; with 5 of 5 used, a limit raised to 8 denies until the first unit is refilled. A reset
/// or an override with a rate gives relief at once: see "During an incident" in the guide.
#[derive(Debug, Args)]
#[command(after_help = EXPLANATIONS)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) question: DecisionArgs,
}

/// A request, and the policy and state to decide it with.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("policy").args(["config", "url"]).required(true).multiple(true)),
    group(ArgGroup::new("asked").args(["descriptor", "request"]).required(true).multiple(true)),
)]
pub(crate) struct DecisionArgs {
    /// Policy files, or folders whose .yaml and .yml files are read
    #[arg(long, short, value_name = "FILE|DIR")]
    pub(crate) config: Vec<PathBuf>,

    /// Use a running daemon with its policy and state: http://127.0.0.1:8080
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "store", "request"])]
    pub(crate) url: Option<String>,

    /// Allow several files to define one domain
    #[arg(long)]
    pub(crate) merge: bool,

    /// The domain; optional if the policy has only one
    #[arg(long, value_name = "NAME")]
    pub(crate) domain: Option<String>,

    /// A descriptor, its entries separated by commas (\, is a comma); may be repeated
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(crate) descriptor: Vec<String>,

    /// An HTTP request, turned into descriptors by the domain's `requests`
    #[arg(long, value_name = "METHOD PATH", conflicts_with = "descriptor")]
    pub(crate) request: Option<String>,

    /// A header of the HTTP request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "request")]
    pub(crate) headers: Vec<String>,

    /// Client address of the HTTP request
    #[arg(long, value_name = "ADDRESS", requires = "request", default_value = "127.0.0.1")]
    pub(crate) peer: IpAddr,

    /// The file of the daemon's policy.enforce_secret_file, if it has one; without this flag,
    /// TIDEGATE__POLICY__ENFORCE_SECRET_FILE counts
    #[arg(long, value_name = "FILE")]
    pub(crate) enforce_secret_file: Option<PathBuf>,

    /// Cost of the request, instead of each limit's `cost`
    #[arg(long, value_name = "N")]
    pub(crate) hits: Option<u64>,

    /// State to use: memory, which starts empty, or a Redis such as redis://127.0.0.1:6379
    #[arg(long, value_name = "STORE", default_value = "memory")]
    pub(crate) store: String,

    /// Print one JSON document, with times in milliseconds
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a JSON Schema of policy files, for editors
///
/// Save it beside the policy and start the policy with `# yaml-language-server: $schema=FILE`, or
/// with `$schema: FILE`.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// Print the reference page with every field instead
    #[arg(long)]
    pub(crate) reference: bool,
}

/// Check policy files, and report mistakes with their place
///
/// Reads policies in the form of envoyproxy/ratelimit and in the native form. Reports all mistakes in one
/// run, as file:line:column: message. The exit status is 0 if the policy can be used, 1 if it cannot, and 2
/// if a file cannot be read.
#[derive(Debug, Args)]
pub(crate) struct Lint {
    /// Policy files, or folders whose .yaml and .yml files are read
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) files: Vec<PathBuf>,

    /// The file of the daemon's policy.enforce_secret_file, if it has one; without this flag,
    /// TIDEGATE__POLICY__ENFORCE_SECRET_FILE counts
    #[arg(long, value_name = "FILE")]
    pub(crate) enforce_secret_file: Option<PathBuf>,

    /// Treat warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,

    /// Allow several files to define one domain
    #[arg(long)]
    pub(crate) merge: bool,

    /// Compare with the policy in force, and warn about limits whose keys get their whole quota again: a
    /// changed time zone, week start, window or algorithm [repeatable]
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) previous: Vec<PathBuf>,
}

/// Run traffic through every algorithm and compare what each admits
///
/// Built-in traffic is scaled to the limit and decided one request at a time, on simulated time, by
/// the same code that decides in production. The same seed gives the same figures.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{FIGURES}\n\n{EXAMPLES}"), after_help = EXAMPLES)]
pub(crate) struct Compare {
    /// The limit, as COUNT/PERIOD: 100/60s, 10/s, 5000/hour
    #[arg(long, value_name = "RATE", default_value = "100/60s")]
    limit: Rate,

    /// Burst of token_bucket and gcra, and queue of leaky_bucket [default: COUNT]
    #[arg(long, value_name = "N")]
    burst: Option<u64>,

    /// Only this traffic; may be repeated
    #[arg(long, value_name = "NAME", value_parser = names::<Shape>(&Shape::ALL.map(Shape::as_str)))]
    shape: Vec<Shape>,

    /// Only this algorithm; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        value_parser = names::<AlgorithmName>(&AlgorithmName::ALL.map(AlgorithmName::as_str)),
    )]
    algorithm: Vec<AlgorithmName>,

    /// Seed of the random parts of the traffic
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print tables without charts
    #[arg(long)]
    pub(crate) no_chart: bool,

    /// Print one JSON document, with times in milliseconds
    #[arg(long)]
    pub(crate) json: bool,
}

impl Compare {
    /// The numbers to compare, or the invalid option and the reason.
    pub(crate) fn setup(&self) -> Result<Setup, clap::Error> {
        Setup::new(self.limit, self.burst, Seed(self.seed)).map_err(|why| {
            let (option, value) = match (why, self.burst) {
                (InvalidSetup::Burst(_), Some(burst)) => ("--burst <N>", burst.to_string()),
                _ => ("--limit <RATE>", self.limit.to_string()),
            };
            let message = format!("invalid value '{value}' for '{option}': {why}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message)
        })
    }

    pub(crate) fn shapes(&self) -> Vec<Shape> {
        chosen(&Shape::ALL, &self.shape)
    }

    pub(crate) fn algorithms(&self) -> Vec<AlgorithmName> {
        chosen(&AlgorithmName::ALL, &self.algorithm)
    }
}

/// The selected values in the order of `all`, each once; all values if none is selected.
fn chosen<T: Copy + PartialEq>(all: &[T], selected: &[T]) -> Vec<T> {
    all.iter().copied().filter(|one| selected.is_empty() || selected.contains(one)).collect()
}

fn names<T>(names: &[&'static str]) -> impl TypedValueParser<Value = T> + use<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names.iter().copied()).try_map(|name| name.parse::<T>())
}

const FIRST_STEPS: &str = "\
Start here:
  tidegate compare                     all algorithms, all traffic, 100 requests per 60 s
  tidegate compare --help              meaning of the figures
  tidegate serve                       serve Redis clients on port 6380, HTTP on 8080
  tidegate lint policy.yaml            mistakes in a policy, with their place
  tidegate explain --help              limits that apply to a request, and why
  tidegate simulate cluster            nodes and a store with faults
  tidegate simulate overload           concurrency limiters in front of an overloaded server";

const CHECKS: &str = "\
Examples:
  tidegate check --config policy.yaml --descriptor user=bob
  tidegate check --config policies/ --domain api --descriptor user=bob,path=/login --json
  tidegate check --config policy.yaml --store redis://127.0.0.1:6379 --descriptor user=bob
  tidegate check --url http://127.0.0.1:8080 --domain api --descriptor user=bob";

const EXPLANATIONS: &str = "\
Examples:
  tidegate explain --config policy.yaml --descriptor user=bob
  tidegate explain --config policy.yaml --request 'GET /v1/users' -H 'x-api-key: k1'
  tidegate explain --config policy.yaml --store redis://127.0.0.1:6379 --descriptor user=bob
  tidegate explain --url http://127.0.0.1:8080 --domain api --descriptor user=bob";

const EXAMPLES: &str = "\
Examples:
  tidegate compare
  tidegate compare --limit 10/1s --shape retry_storm
  tidegate compare --limit 100/60s --burst 50 --algorithm token_bucket --algorithm leaky_bucket
  tidegate compare --json | jq '.shapes[].results[] | {algorithm, max_in_2s}'";

const FIGURES: &str = "\
Figures:
  admitted   requests admitted, at once or after a delay
  denied     denials; in retry_storm and batch_job denied requests are retried, and counted again
  max/60s    most requests that started within any rolling period of the limit (max_in_window)
  max/2s     most requests that started within any 2 seconds (max_in_2s)
  delay      delay of requests that leaky_bucket admitted; other algorithms do not delay.
             A delayed request counts from its start
  bytes      most bytes of state for the key (state_bytes): one or two words of 8 for buckets and
             windows, 16 per entry for sliding_log; without the key and the table";
