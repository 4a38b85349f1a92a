//! [`InvalidLimit`]: why a limit's numbers are refused.

use core::fmt;

/// Why a limit's numbers are refused. Values out of range are refused, never clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidLimit {
    /// A rate is not written as `COUNT/PERIOD`.
    RateText,
    /// The count of a rate is 0 or above 2^52.
    Count,
    /// The period is below 1 us or above 10 years.
    Period,
    /// The burst is 0 or above 2^32.
    Burst,
    /// The queue of a leaky bucket is above 2^32.
    Queue,
    /// An empty bucket would need more than 100 years to fill.
    RefillTime,
    /// The limit of a window is above 2^52, or of a sliding window above 2^32.
    WindowLimit,
    /// A window's offset is not shorter than its length.
    Offset,
    /// A sliding log would hold more entries than allowed.
    LogLength,
    /// An in-flight limit is 0 or above 100,000.
    InFlight,
    /// A lease would live for less than 1 us or longer than 100 years.
    LeaseTime,
    /// A block would last for less than 1 us or longer than 30 days.
    BlockTime,
    /// A block was given to a limit that is not a rate.
    BlockOutsideRate,
    /// `burst` was given to a window.
    BurstOnWindow,
    /// `queue` was given to something other than a leaky bucket.
    QueueOutsideLeakyBucket,
    /// An option of windows (`offset`, `count_denied`) was given to something else.
    WindowOption,
    /// `large_log` was given to something other than a sliding log.
    LogOption,
}

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RateText => {
                "rate must be written COUNT/PERIOD, such as 100/60s, 10/s or 5000/hour"
            }
            Self::Count => "count of a rate must be between 1 and 2^52",
            Self::Period => "period must be between 1us and 10 years",
            Self::Burst => "burst must be between 1 and 2^32",
            Self::Queue => "queue must be at most 2^32",
            Self::RefillTime => {
                "an empty bucket would need more than 100 years to fill: lower the burst or raise the rate"
            }
            Self::WindowLimit => {
                "limit of a window must be at most 2^52, of a sliding window at most 2^32"
            }
            Self::Offset => "offset must be shorter than the window",
            Self::LogLength => {
                "a sliding log keeps one entry per admitted request: at most 10,000, or 1,000,000 with large_log"
            }
            Self::InFlight => "an in-flight limit must be between 1 and 100,000",
            Self::LeaseTime => "a lease must live between 1us and 100 years",
            Self::BlockTime => "a block must last between 1us and 30 days",
            Self::BlockOutsideRate => "only a rate has a block",
            Self::BurstOnWindow => {
                "burst belongs to buckets: a window admits its whole count at once anyway"
            }
            Self::QueueOutsideLeakyBucket => "queue belongs to the leaky bucket only",
            Self::WindowOption => "offset and count_denied belong to the fixed window only",
            Self::LogOption => "large_log belongs to the sliding log only",
        })
    }
}

impl core::error::Error for InvalidLimit {}
