//! The arguments of `simulate overload`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use tidegate_core::Span;
use tidegate_sim::Seed;
use tidegate_sim::overload::{Contender, Phase, Scenario, ServerKind};

use super::{chosen, names};

/// Compare concurrency limiters in front of an overloaded server
///
/// Clients send requests whether or not the server keeps up, and give up after a deadline. The same
/// requests go to each limiter. `adaptive` is the default limiter of the library; `utilisation`
/// adds the utilisation shedder; `gradient2` and `vegas` follow the arithmetic and the defaults of
/// Netflix's concurrency-limits.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{FIGURES}\n\n{EXAMPLES}"), after_help = EXAMPLES)]
pub(crate) struct Overload {
    /// How the server works: 16 workers and a queue, 2 shared cores, 8 connections, or requests that
    /// slow each other down
    #[arg(
        long,
        value_name = "KIND",
        default_value = "pool",
        value_parser = names::<ServerKind>(&ServerKind::ALL.map(ServerKind::as_str)),
    )]
    server: ServerKind,

    /// Load in per cent of the server's capacity, each with its length in seconds: 80x30,1000x30,80x60
    #[arg(long, value_name = "PERCENT[xSECONDS],...", default_value = "200x60")]
    load: Loads,

    /// Mean milliseconds of work per request
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    service_ms: u64,

    /// Milliseconds after which a client gives up
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    deadline_ms: u64,

    /// Number of times that a client retries at once
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10))]
    retries: u32,

    /// Only this limiter; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        value_parser = names::<Contender>(&Contender::ALL.map(Contender::as_str)),
    )]
    limiter: Vec<Contender>,

    /// Seed of all random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Also write the chart to this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

impl Overload {
    pub(crate) fn scenario(&self) -> Scenario {
        Scenario {
            server: self.server,
            service: Span::from_millis(self.service_ms),
            deadline: Span::from_millis(self.deadline_ms),
            retries: self.retries,
            phases: self.load.0.clone(),
            seed: Seed(self.seed),
            ..Scenario::default()
        }
    }

    pub(crate) fn limiters(&self) -> Vec<Contender> {
        chosen(&Contender::ALL, &self.limiter)
    }
}

/// The loads and their durations.
#[derive(Clone, Debug)]
struct Loads(Vec<Phase>);

/// The error for an invalid load.
#[derive(Clone, Debug)]
struct InvalidLoad(String);

impl Loads {
    const SECONDS: u64 = 60;
    const MOST_SECONDS: u64 = 7_200;
    const MOST_PERCENT: u64 = 2_000;
}

impl FromStr for Loads {
    type Err = InvalidLoad;

    fn from_str(text: &str) -> Result<Self, InvalidLoad> {
        let phase = |part: &str| {
            let (load, seconds) = match part.split_once('x') {
                Some((load, seconds)) => (load.parse().ok()?, seconds.parse().ok()?),
                None => (part.parse().ok()?, Self::SECONDS),
            };
            let is_valid = load <= Self::MOST_PERCENT && seconds > 0;
            is_valid.then(|| Phase::load(load, seconds))
        };
        let phases: Option<Vec<Phase>> = text.split(',').map(phase).collect();
        let phases = phases.ok_or_else(|| InvalidLoad(text.to_owned()))?;
        let seconds = phases.iter().fold(0_u64, |sum, phase| sum.saturating_add(phase.seconds));
        if seconds > Self::MOST_SECONDS {
            return Err(InvalidLoad(text.to_owned()));
        }
        Ok(Self(phases))
    }
}

impl fmt::Display for InvalidLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, seconds) = (Loads::MOST_PERCENT, Loads::MOST_SECONDS);
        write!(
            f,
            "expected up to {percent} per cent for up to {seconds} s, such as 80x30,1000x30: "
        )?;
        write!(f, "found `{}`", self.0)
    }
}

impl std::error::Error for InvalidLoad {}

const EXAMPLES: &str = "\
Examples:
  tidegate simulate overload
  tidegate simulate overload --load 120x3600 --limiter gradient2 --limiter adaptive
  tidegate simulate overload --load 80x10,1000x30,80x60 --retries 3 --limiter none --limiter adaptive
  tidegate simulate overload --server thrashing --load 300 --svg overload.svg";

const FIGURES: &str = "\
Figures:
  goodput   requests answered within their deadline, in per cent of what the server can serve
  p99       99 % of the admitted requests took no longer from arrival to response
  limit     requests that may be in progress
  success   requests of a class answered within their deadline";
