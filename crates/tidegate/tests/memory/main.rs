//! The memory store against the pure functions: one thread and many, growing, and full.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod bound;
mod differential;
mod growth;
mod histories;
mod reference;
mod threads;
mod traffic;
