//! Ways to limit concurrency, side by side.

use std::fmt;
use std::str::FromStr;

/// A concurrency limiter under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// No limit at all.
    Unlimited,
    /// A constant limit of twice the server's workers, without a queue.
    Fixed,
    /// `aimd` of this library; a request past its deadline counts as dropped.
    Aimd,
    /// Gradient2 of Netflix's concurrency-limits: its arithmetic and defaults, windows of a second.
    Gradient2,
    /// Vegas of Netflix's concurrency-limits: its arithmetic and defaults, fed by each request.
    Vegas,
    /// `adaptive` of this library, with its shares and its queue.
    Adaptive,
    /// `adaptive` with the utilisation shedder.
    Shedder,
}

impl Contender {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Unlimited,
        Self::Fixed,
        Self::Aimd,
        Self::Gradient2,
        Self::Vegas,
        Self::Adaptive,
        Self::Shedder,
    ];

    /// The name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unlimited => "none",
            Self::Fixed => "fixed",
            Self::Aimd => "aimd",
            Self::Gradient2 => "gradient2",
            Self::Vegas => "vegas",
            Self::Adaptive => "adaptive",
            Self::Shedder => "utilisation",
        }
    }
}

impl FromStr for Contender {
    type Err = UnknownContender;

    fn from_str(name: &str) -> Result<Self, UnknownContender> {
        Self::ALL.into_iter().find(|one| one.as_str() == name).ok_or(UnknownContender)
    }
}

/// The error for an unknown name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownContender;

impl fmt::Display for UnknownContender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown concurrency limiter")
    }
}

impl std::error::Error for UnknownContender {}
