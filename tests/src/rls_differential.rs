//! Sends the same requests to envoyproxy/ratelimit and to Tidegate in its place, and compares each
//! answer.
//!
//! Both run in the same environment with the same policy files, and get the same requests one after
//! the other, so that only the programs can cause differences. Windows must not differ either: no
//! request is sent near the end of a second ([`Moment`]), and an answer that was delayed into the
//! next second is not compared.

mod answer;
mod differences;
mod moment;
mod service;
mod traffic;
mod web;

pub use answer::Fields;
pub use differences::Differences;
pub use moment::{Moment, Seam};
pub use service::{Program, Service, Stage};
pub use traffic::{Asked, Edition, Traffic};
