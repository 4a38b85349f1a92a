//! Errors of stores.

use std::fmt;
use std::sync::Arc;

use tidegate_core::Span;

/// Why a store gave no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store sent nothing until the deadline. The charge may have been carried out.
    Timeout,
    /// The store answers, but this answer did not arrive within the deadline. The charge may have been
    /// carried out.
    Slow(Arc<str>),
    /// No connection, or it broke; the store is starting, failing over or moving the key.
    Unavailable(Arc<str>),
    /// The circuit is open: the store did not answer, and gets no requests until a probe succeeds.
    CircuitOpen {
        /// How long to wait before the next attempt.
        retry_after: Span,
    },
    /// An operator rehearses an outage: the store gets no requests for a while.
    Drill {
        /// How long the drill still takes.
        retry_after: Span,
    },
    /// The queue to the store is full: this process is overloaded, and the store may be available.
    Overloaded,
    /// The store refuses; an operator has to change something.
    Misconfigured(Misconfigured, Arc<str>),
    /// The store sent an answer that this library cannot read.
    Protocol(Arc<str>),
}

/// What an operator has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(hidden)]
pub enum Misconfigured {
    /// Wrong or missing user or password.
    Authentication,
    /// The user may not run a command or touch the keys that are needed.
    Permission,
    /// One of Tidegate's keys holds another program's data.
    WrongType,
    /// Keys of one request lie in different slots, or a cluster is not used as one.
    CrossSlot,
    /// The server is full and evicts nothing.
    OutOfMemory,
    /// The server is a replica, or refuses writes because it lacks replicas or disk space.
    ReadOnly,
    /// The server is too old, or lacks a command.
    Version,
    /// An address, a certificate or another setting is wrong.
    Setting,
    /// The program has no tokio runtime, or one without a timer.
    Runtime,
}

impl Misconfigured {
    /// What to do about it.
    #[doc(hidden)]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Authentication => {
                "check user and password in the store's URL (redis://user:password@host)"
            }
            // Exactly the commands of the scripts, the registry and the inspections.
            Self::Permission => {
                "grant the user, with ACL SETUSER: ~<namespace>:* +eval +evalsha +time +get +set \
                 +del +pexpire +lindex +lrange +lset +ltrim +rpop +rpush +zadd +zincrby +zmscore \
                 +zcount +zrangebyscore +zrem +zrevrange +zscore +info +role; for another database \
                 than 0 +select; in a cluster +cluster|slots +asking +ping; to check persistence \
                 +config|get"
            }
            Self::WrongType => {
                "another program writes under our keys: give Tidegate a namespace of its own"
            }
            Self::CrossSlot => {
                "the server is a node of a cluster: use a redis+cluster:// URL with its nodes"
            }
            Self::OutOfMemory => {
                "raise maxmemory or move other data away; limits expire by themselves, so do not \
                 evict them"
            }
            Self::ReadOnly => {
                "point the URL at the primary, or use redis+sentinel:// or redis+cluster:// to \
                 follow it, for decisions are never made on a replica; a primary that refuses to \
                 write lacks disk space or replicas, which its log and INFO tell"
            }
            Self::Version => "use Redis 6.2 or later, or Valkey 7.2 or later",
            Self::Setting => "correct the store's URL or its settings",
            Self::Runtime => {
                "build it with tokio::runtime::Builder and enable_all, or at least enable_io and \
                 enable_time"
            }
        }
    }
}

#[cfg(feature = "redis")]
impl StoreError {
    pub(crate) fn unavailable(why: impl fmt::Display) -> Self {
        Self::Unavailable(why.to_string().into())
    }

    pub(crate) fn protocol(why: impl fmt::Display) -> Self {
        Self::Protocol(why.to_string().into())
    }

    pub(crate) fn misconfigured(what: Misconfigured, why: impl fmt::Display) -> Self {
        Self::Misconfigured(what, why.to_string().into())
    }

    /// The error with advice for a first start, where the address may be wrong.
    pub(crate) fn at_start(self) -> Self {
        match self {
            Self::Unavailable(why) => Self::unavailable(format!(
                "{why}; check that the URL names the server, with rediss:// if it speaks TLS, \
                 that the server runs, and that it can be reached from here"
            )),
            other => other,
        }
    }
}

impl StoreError {
    /// True if the store is unavailable and may recover by itself. Otherwise an operator has to act, and a
    /// silent fallback would hide that.
    pub const fn is_outage(&self) -> bool {
        !matches!(self, Self::Misconfigured(..) | Self::Protocol(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("the store sent nothing within the deadline"),
            Self::Slow(why) => write!(f, "the store is slow: {why}"),
            Self::Unavailable(why) => write!(f, "the store is unavailable: {why}"),
            Self::CircuitOpen { .. } => {
                f.write_str("the store is unavailable: its circuit is open until a probe succeeds")
            }
            Self::Drill { .. } => {
                f.write_str("the store is unavailable: an outage drill is under way")
            }
            Self::Overloaded => f.write_str("too many requests wait for the store"),
            Self::Misconfigured(what, why) => {
                write!(f, "the store refuses: {why}; {}", what.advice())
            }
            Self::Protocol(why) => write!(f, "the store answered something unexpected: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}
