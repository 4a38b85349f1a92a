//! The layer in real servers: axum, tonic and hyper, asked by reqwest, tonic and hyper.
//!
//! One program, because linking one for each file takes longer than most of the tests in it.

mod answers;
mod bodies;
mod clients;
mod grpc;
mod identity;
mod overload;
mod policies;
mod settling;
mod setup;
mod shaping;
mod state;
mod storm;
