//! Traffic shapes.

use std::fmt;
use std::str::FromStr;

/// A built-in traffic shape; [`crate::Setup::traffic`] scales it to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// The whole limit just before a window ends, and again just after.
    BoundaryBurst,
    /// The whole limit at the very end of a window, then a drip at twice the rate.
    WindowDrip,
    /// Three times the limit at once; denied clients retry.
    RetryStorm,
    /// Nine tenths of the rate, a little uneven.
    Steady,
    /// A client that returns after half an hour with many requests.
    IdleThenBurst,
    /// Workers that go through a queue and honour `retry_after`.
    BatchJob,
    /// Ten times the limit within half a period, on top of the usual.
    FlashSale,
}

impl Shape {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::BoundaryBurst,
        Self::WindowDrip,
        Self::RetryStorm,
        Self::Steady,
        Self::IdleThenBurst,
        Self::BatchJob,
        Self::FlashSale,
    ];

    /// The name in commands and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BoundaryBurst => "boundary_burst",
            Self::WindowDrip => "window_drip",
            Self::RetryStorm => "retry_storm",
            Self::Steady => "steady",
            Self::IdleThenBurst => "idle_then_burst",
            Self::BatchJob => "batch_job",
            Self::FlashSale => "flash_sale",
        }
    }

    /// A description in one line.
    pub const fn description(self) -> &'static str {
        match self {
            Self::BoundaryBurst => "the whole limit just before a window ends, again just after",
            Self::WindowDrip => "the whole limit as a window ends, then a drip at twice the rate",
            Self::RetryStorm => "3x the limit at once; clients retry at once, back off or wait",
            Self::Steady => "90 % of the rate, a little uneven",
            Self::IdleThenBurst => "idle for half an hour or longer, then 2x the limit at once",
            Self::BatchJob => "eight workers with 3x the limit of work, which honour retry_after",
            Self::FlashSale => "half the rate, then 10x the limit within half a period",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Shape {
    type Err = UnknownShape;

    fn from_str(text: &str) -> Result<Self, UnknownShape> {
        Self::ALL.into_iter().find(|shape| shape.as_str() == text).ok_or(UnknownShape)
    }
}

/// The error for an unknown shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownShape;

impl fmt::Display for UnknownShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("shape must be one of")?;
        Shape::ALL.iter().try_for_each(|shape| write!(f, " {shape}"))
    }
}

impl std::error::Error for UnknownShape {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for shape in Shape::ALL {
            assert_eq!(shape.to_string().parse(), Ok(shape));
        }
        let unknown = "flash".parse::<Shape>().unwrap_err().to_string();
        assert!(unknown.ends_with("batch_job flash_sale"), "{unknown}");
    }
}
