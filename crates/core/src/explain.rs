//! [`Explanation`]: a key's state in numbers and in words.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::algorithm::bucket::Moment;
use crate::algorithm::inflight::Lease;
use crate::algorithm::sliding_log::Entry;
use crate::time::{Span, Timestamp};

/// A key's state in readable form. `Display` writes it as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The most units a fully idle key can take at once.
    pub limit: u64,
    /// Units that could be taken now.
    pub remaining: u64,
    /// When one more unit is allowed: now, later, or never (a limit of 0).
    pub next_allowed_at: Option<Timestamp>,
    /// From this instant on, the state equals that of a key never seen.
    pub idle_at: Timestamp,
    /// The stored values.
    pub detail: Detail,
}

/// The stored values of each family of state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detail {
    /// Token bucket, GCRA, leaky bucket.
    Bucket {
        /// The theoretical arrival time (TAT): when the bucket is full again.
        full_at: Moment,
        /// The denominator of the fraction of `full_at`.
        denominator: u64,
        /// Units taken and not yet refilled, rounded up.
        debt_units: u64,
        /// The time that refilling them takes.
        debt_time: Span,
    },
    /// Fixed window.
    FixedWindow {
        /// The window's start.
        start: Timestamp,
        /// The window's end, where the next one starts.
        end: Timestamp,
        /// Units counted in it.
        count: u64,
    },
    /// Sliding window counter.
    SlidingWindow {
        /// The newer window's start.
        start: Timestamp,
        /// The newer window's end, where the next one starts.
        end: Timestamp,
        /// Units of the previous window.
        previous: u64,
        /// Units of the newer window.
        current: u64,
        /// The weighted sum that is compared with the limit.
        estimate: u64,
    },
    /// Sliding log.
    SlidingLog {
        /// Units within the window.
        sum: u64,
        /// When each unit was admitted: the audit trail.
        entries: Vec<Entry>,
    },
    /// In-flight.
    InFlight {
        /// Units held.
        held: u64,
        /// The leases that hold them.
        leases: Vec<Lease>,
    },
    /// A rate whose key is blocked.
    Blocked {
        /// When the block ends.
        until: Timestamp,
        /// The state of the rate.
        rate: Box<Self>,
    },
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} left: {}; ", self.remaining, self.limit, self.detail)?;
        match self.next_allowed_at {
            _ if self.remaining > 0 => write!(f, "one more is allowed now")?,
            Some(at) => write!(f, "one more is allowed at {at}")?,
            None => write!(f, "nothing is ever allowed")?,
        }
        match self.idle_at {
            Timestamp::EPOCH => Ok(()),
            at => write!(f, "; equals a fresh key from {at}"),
        }
    }
}

/// A span, printed in seconds if it is longer than one second and not a whole number of
/// milliseconds.
struct Exact(Span);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_micros() {
            us if us > 1_000_000 && us % 1_000 != 0 => {
                write!(f, "{}.{:06}s", us / 1_000_000, us % 1_000_000)
            }
            _ => self.0.fmt(f),
        }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { debt_units: 0, .. } => f.write_str("no debt"),
            Self::Bucket { full_at, denominator, debt_units, debt_time } => {
                let whole = Timestamp::from_micros(full_at.ticks);
                let refill = Exact(*debt_time);
                write!(f, "{debt_units} owed, {refill} to refill, full at {whole}")?;
                if full_at.part > 0 {
                    write!(f, " and {}/{denominator} us", full_at.part)?;
                }
                Ok(())
            }
            Self::FixedWindow { start, end, count } => {
                write!(f, "{count} counted in the window from {start} to {end}")
            }
            Self::SlidingWindow { start, end, previous, current, estimate } => write!(
                f,
                "{current} in the window from {start} to {end} and {previous} in the one before, \
                 weighed to {estimate}"
            ),
            Self::SlidingLog { sum, entries } => match (entries.first(), entries.last()) {
                (Some(first), Some(last)) => write!(
                    f,
                    "{sum} admitted between {} and {}",
                    Timestamp::from_micros(first.at),
                    Timestamp::from_micros(last.at)
                ),
                _ => write!(f, "nothing admitted within the window"),
            },
            Self::InFlight { held, leases } => {
                write!(f, "{held} in flight under {} leases", leases.len())
            }
            Self::Blocked { until, rate } => write!(f, "blocked until {until}, {rate}"),
        }
    }
}
