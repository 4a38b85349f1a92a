//! Putting a limiter together.

use std::fmt;
use std::io;
use std::time::Duration;

use tidegate_core::Limit;
use tidegate_core::algorithm::inflight::InFlight;

use super::Limiter;
use super::limits::NamedLimit;
#[cfg(feature = "redis")]
use super::shared::SharedLimiter;
use crate::clock::Clock;
use crate::key::Hashing;
use crate::store::MAX_TOGETHER;
#[cfg(feature = "redis")]
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// Collects limits and options; [`LimiterBuilder::build`] makes the limiter.
#[derive(Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct LimiterBuilder {
    limits: Vec<(String, Limit)>,
    max_bytes: u64,
    hashing: Hashing,
    clock: Clock,
}

impl Default for LimiterBuilder {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            max_bytes: MemoryStore::DEFAULT_BYTES,
            hashing: Hashing::default(),
            clock: Clock::default(),
        }
    }
}

impl LimiterBuilder {
    /// Adds a limit that every request must pass. The name identifies the limit in verdicts and in
    /// [`Limiter::set_limit`].
    pub fn limit(mut self, name: impl Into<String>, limit: Limit) -> Self {
        self.limits.push((name.into(), limit));
        self
    }

    /// The most memory the limiter may take; 256 MiB by default, for about 11 million keys.
    pub const fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// How keys are hashed.
    #[doc(hidden)]
    pub const fn hashing(mut self, hashing: Hashing) -> Self {
        self.hashing = hashing;
        self
    }

    /// Sets the clock; a [`ManualClock`](crate::ManualClock) in tests.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Checks everything and makes the limiter.
    pub fn build(self) -> Result<Limiter, BuildError> {
        let entries = self.entries()?;
        if self.max_bytes < MemoryStore::MIN_BYTES {
            return Err(BuildError::TooLittleMemory(self.max_bytes));
        }
        let store = MemoryStore::new(self.max_bytes, self.hashing).map_err(BuildError::Memory)?;
        Ok(Limiter::over_memory(entries, store, self.clock))
    }

    /// Checks all options and makes a limiter whose state is in `store`, shared by all nodes with
    /// the same store. The options for memory and hashing have no effect.
    #[cfg(feature = "redis")]
    pub fn shared<S: Store + 'static>(self, store: S) -> Result<SharedLimiter<S>, BuildError> {
        let entries = self.entries()?;
        let limiter = SharedLimiter::over_shared(entries, store, self.clock);
        self.limits.iter().try_for_each(|(name, limit)| limiter.accepts(name, limit))?;
        Ok(limiter)
    }

    fn entries(&self) -> Result<Vec<NamedLimit>, BuildError> {
        if self.limits.is_empty() {
            return Err(BuildError::NoLimit);
        }
        if self.limits.len() > MAX_TOGETHER {
            return Err(BuildError::TooManyLimits(self.limits.len()));
        }
        for (i, (name, _)) in self.limits.iter().enumerate() {
            if self.limits[..i].iter().any(|(earlier, _)| earlier == name) {
                return Err(BuildError::SameName(name.clone()));
            }
        }
        Ok(self.limits.iter().map(|(name, limit)| NamedLimit::new(name, *limit)).collect())
    }
}

/// Why a limiter, or new numbers for one of its limits, were refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// No limit was given.
    NoLimit,
    /// There are more limits than can be decided together.
    TooManyLimits(usize),
    /// Two limits have this name.
    SameName(String),
    /// The memory bound is below [`MemoryStore::MIN_BYTES`].
    TooLittleMemory(u64),
    /// A shared store got an in-flight limit whose leases last longer than
    /// [`InFlight::MAX_SHARED_TTL`]. After a crash of their holder, its places would stay taken for
    /// that long.
    LeaseTooLong {
        /// The name of the limit.
        name: String,
        /// The time to live of its leases.
        ttl: Duration,
    },
    /// The limiter has no limit of this name.
    UnknownLimit(String),
    /// The system refused to reserve address space.
    Memory(io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimit => write!(f, "a limiter needs at least one limit"),
            Self::TooManyLimits(count) => {
                write!(f, "{count} limits on one request, at most {MAX_TOGETHER} are possible")
            }
            Self::SameName(name) => write!(f, "two limits are called {name:?}"),
            Self::TooLittleMemory(bytes) => {
                let least = MemoryStore::MIN_BYTES;
                write!(f, "max_bytes is {bytes}, at least {least} are needed")
            }
            Self::LeaseTooLong { name, ttl } => write!(
                f,
                "the leases of limit {name:?} last {ttl:?}, and a process that crashes keeps its places \
                 in a shared store for as long; give the limit a time to live of at most {} (permits \
                 renew their leases)",
                InFlight::MAX_SHARED_TTL
            ),
            Self::UnknownLimit(name) => write!(f, "no limit is called {name:?}"),
            Self::Memory(_) => write!(f, "the system refused to reserve address space"),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use tidegate_core::Span;

    use super::*;

    /// If the holder of a lease crashes, the place is taken until the lease ends.
    #[test]
    fn a_shared_store_takes_no_lease_that_lasts_longer_than_a_day() {
        let store = || MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).unwrap();
        let places = |ttl| Limit::in_flight(5, ttl).unwrap();
        let shared = |ttl| LimiterBuilder::default().limit("at once", places(ttl)).shared(store());
        let longer = InFlight::MAX_SHARED_TTL + Span::from_micros(1);
        for ttl in [InFlight::NO_EXPIRY, longer] {
            let error = shared(ttl).unwrap_err().to_string();
            assert!(error.starts_with("the leases of limit \"at once\" last "), "{error}");
            assert!(error.contains("at most 1day") || error.contains("86400"), "{error}");
        }
        let limiter = shared(InFlight::MAX_SHARED_TTL).unwrap();
        let other = limiter.set_limit("at once", places(InFlight::NO_EXPIRY));
        assert!(matches!(other, Err(BuildError::LeaseTooLong { .. })), "{other:?}");
        let other = limiter.set_limit("elsewhere", places(Span::from_secs(1)));
        assert!(matches!(other, Err(BuildError::UnknownLimit(_))), "{other:?}");
        limiter.set_limit("at once", places(Span::from_secs(1))).unwrap();
        // Within one process the holder cannot get lost.
        let builder = LimiterBuilder::default().limit("at once", places(InFlight::NO_EXPIRY));
        assert!(builder.build().is_ok());
    }
}
