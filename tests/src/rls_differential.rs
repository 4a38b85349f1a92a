//! The same requests to envoyproxy/ratelimit and to Tidegate in its place, answer by answer.
//!
//! Both get the same environment, the same policy files and requests one after the other, so that
//! nothing but what they are can make them differ. Each has the clock of the machine to itself: nothing
//! is asked near the end of a second ([`Moment`]), and what was held up over one is not compared.

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
