//! Laws of the estimators (AD-1 to AD-9), and the pitfalls of adaptive limits on a small server.

mod laws;
mod pitfalls;
mod server;
