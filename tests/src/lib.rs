//! Tests across crates: the oracle, and tools that the test files share.

pub mod chaos;
pub mod clients;
pub mod comparison;
pub mod conformance;
pub mod deny_comparison;
pub mod fault_proxy;
pub mod grpc;
#[cfg(doctest)]
mod guides;
pub mod history;
pub mod hostile;
pub mod http;
pub mod model;
pub mod mutation;
pub mod oracle;
pub mod rls;
pub mod rls_differential;
pub mod servers;
pub mod shared_comparison;
pub mod subject;
pub mod tls;
pub mod trace;
