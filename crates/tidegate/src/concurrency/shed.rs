//! Shed requests, and the reasons for shedding them.

use std::fmt;
use std::time::Duration;

use tidegate_core::shed::{Class, retry_after};

/// A request that was refused to protect the server. Answer it with 503, not with 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    class: Class,
    reason: ShedReason,
    /// The number of the request among the shed ones, and the number of seconds to spread their
    /// retries over.
    ticket: u64,
    spread: u32,
}

impl Shed {
    #[inline]
    pub(super) fn new(class: Class, reason: ShedReason, ticket: u64, spread: u32) -> Self {
        Self { class, reason, ticket, spread }
    }

    /// How important the request was.
    #[doc(hidden)]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Why the request was shed.
    pub const fn reason(&self) -> ShedReason {
        self.reason
    }

    /// When the client may retry, in whole seconds. The larger the fraction of shed requests, the
    /// longer the time over which retries are spread.
    pub fn retry_after(&self) -> Duration {
        retry_after(self.ticket, self.spread).into()
    }
}

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request of class {} shed: {}", self.class.rank(), self.reason.name())
    }
}

impl std::error::Error for Shed {}

/// Why a request was shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShedReason {
    /// The share of the request's class is full, and the request does not wait.
    Limit,
    /// The queue is full.
    QueueFull,
    /// A more important request took its place in the queue.
    Displaced,
    /// The request waited for the queue timeout.
    QueueTimeout,
    /// The deadline of the request passed while it waited.
    Deadline,
    /// The workers are busy, and the class of the request is one of the least important.
    Busy,
}

impl ShedReason {
    /// All reasons, for metrics.
    #[doc(hidden)]
    pub const ALL: [Self; 6] = [
        Self::Limit,
        Self::QueueFull,
        Self::Displaced,
        Self::QueueTimeout,
        Self::Deadline,
        Self::Busy,
    ];

    /// The reason as a metric's label.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::QueueFull => "queue_full",
            Self::Displaced => "displaced",
            Self::QueueTimeout => "queue_timeout",
            Self::Deadline => "deadline",
            Self::Busy => "busy",
        }
    }
}
