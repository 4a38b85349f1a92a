//! Policies: what files may say, what is decided by them, and how they change.

mod conformance;
mod examples;
mod laws;
mod mutations;
mod reload;
mod schema;
