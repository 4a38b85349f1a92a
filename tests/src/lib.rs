//! Tests across crates: the oracle, and helpers the test files share.
