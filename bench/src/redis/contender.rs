//! Contenders: implementations that decide over a network.

use std::fmt::Display;
use std::future::Future;

use serde::{Deserialize, Serialize};

/// Something that charges one unit to a key.
pub trait Contender: Clone + Send + 'static {
    /// The commands that its clients send for a decision, without those inside of a script.
    const COMMANDS: &'static [&'static str];

    /// True if allowed.
    fn decide(&mut self, key: &str) -> impl Future<Output = Result<bool, Trouble>> + Send;

    /// Number of decisions that were restarted so far.
    fn retries(&self) -> u64 {
        0
    }
}

/// Why there is no decision.
#[derive(Debug)]
pub struct Trouble(pub String);

impl Trouble {
    pub fn of(error: impl Display) -> Self {
        Self(error.to_string())
    }
}

/// One measurement: the contender, its mode, and the numbers of keys and of concurrent callers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    #[serde(rename = "impl")]
    pub name: Name,
    pub mode: Mode,
    pub keys: u32,
    pub callers: usize,
}

/// The contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Name {
    /// No limiter: the least that a counter in Redis costs.
    Incr,
    /// A minimal script by `EVALSHA`.
    GcraScript,
    /// The same without a script, restarted if another client was faster.
    GcraWatch,
    /// The module.
    RedisCell,
    Tidegate,
}

/// The mode of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One decision per command.
    Single,
    /// Concurrent decisions share commands.
    Batched,
    /// Concurrent decisions share commands, all for one key.
    Hot,
    /// As `Single`, with an interval that is not a whole number of microseconds.
    FractionalSingle,
    FractionalBatched,
    /// Three limits of one tenant in one decision, one decision per command.
    ThreeLimits,
    ThreeLimitsBatched,
    /// Other families, batched.
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Inflight,
}

/// Callers that keep a server busy.
pub const MANY: usize = 64;

impl Cell {
    const fn new(name: Name, mode: Mode, keys: u32, callers: usize) -> Self {
        Self { name, mode, keys, callers }
    }

    /// All cells. `keys` is the number for "many"; `module` is whether redis-cell is available.
    pub fn all(keys: u32, module: bool) -> Vec<Self> {
        use Mode::{Batched, Hot, Inflight, Single};
        use Name::{GcraScript, GcraWatch, Incr, RedisCell, Tidegate};
        const MODES: [Mode; 10] = [
            Single,
            Batched,
            Mode::FractionalSingle,
            Mode::FractionalBatched,
            Mode::ThreeLimits,
            Mode::ThreeLimitsBatched,
            Mode::FixedWindow,
            Mode::SlidingWindow,
            Mode::SlidingLog,
            Inflight,
        ];
        let rivals = [Incr, GcraScript, GcraWatch, RedisCell];
        let many = rivals.map(|name| Self::new(name, Single, keys, MANY)).into_iter();
        let many = many.chain(MODES.map(|mode| Self::new(Tidegate, mode, keys, MANY)));
        let hot = rivals.map(|name| Self::new(name, Hot, 1, MANY));
        let alone = [Incr, GcraScript, GcraWatch, RedisCell, Tidegate];
        let alone = alone.map(|name| Self::new(name, Single, keys, 1));
        let cells = many.chain(hot).chain([Self::new(Tidegate, Hot, 1, MANY)]).chain(alone);
        cells.filter(|cell| module || cell.name != RedisCell).collect()
    }

    pub fn label(&self) -> String {
        let Self { keys, callers, .. } = self;
        format!("{} {} x {keys}, {callers} callers", self.name.as_str(), self.mode.as_str())
    }
}

impl Name {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Incr => "incr",
            Self::GcraScript => "gcra_script",
            Self::GcraWatch => "gcra_watch",
            Self::RedisCell => "redis_cell",
            Self::Tidegate => "tidegate",
        }
    }
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Batched => "batched",
            Self::Hot => "hot",
            Self::FractionalSingle => "fractional_single",
            Self::FractionalBatched => "fractional_batched",
            Self::ThreeLimits => "three_limits",
            Self::ThreeLimitsBatched => "three_limits_batched",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::Inflight => "inflight",
        }
    }

    /// Whether several decisions may share a command.
    pub const fn batches(self) -> bool {
        !matches!(self, Self::Single | Self::FractionalSingle | Self::ThreeLimits)
    }
}
