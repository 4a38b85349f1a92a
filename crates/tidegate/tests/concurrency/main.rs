//! Concurrency limits: exact under threads, by class, with a short queue.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod permits;
#[cfg(feature = "tokio")]
mod queue;
