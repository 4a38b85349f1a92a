//! Traffic shapes and clusters on simulated time.
//!
//! A [`Shape`] describes clients; [`Setup::traffic`] scales it to a limit. [`run`] runs it through a limit, one
//! decision after the other, on a simulated clock. [`Comparison`] does so for several algorithms, and [`verdict`]
//! describes the result in words. [`world`] simulates a cluster with faults.
//!
//! Everything is deterministic: the same setup and seed give the same figures, to the last unit.
//!
//! ```
//! use tidegate_core::{AlgorithmName, Rate};
//! use tidegate_sim::{Comparison, Seed, Setup, Shape};
//!
//! let setup = Setup::new(Rate::per_minute(100), None, Seed(1))?;
//! let burst = Comparison::of(&setup, Shape::BoundaryBurst, &[AlgorithmName::FixedWindow]);
//! let figures = &burst.simulated().next().expect("a fixed window takes any limit").figures;
//! assert_eq!(figures.max_in_2s, 200);
//! # Ok::<(), tidegate_sim::InvalidSetup>(())
//! ```

mod client;
mod comparison;
mod footprint;
pub mod overload;
mod report;
mod run;
mod seed;
mod setup;
mod shape;
mod spell;
mod traffic;
mod verdict;
pub mod world;

pub use client::{Client, OnDenial};
pub use comparison::{Comparison, Row, Simulated, View};
pub use footprint::state_bytes;
pub use report::{Figures, most_within};
pub use run::{Run, run};
pub use seed::Seed;
pub use setup::{InvalidSetup, Setup};
pub use shape::{Shape, UnknownShape};
pub use spell::spell;
pub use traffic::Traffic;
pub use verdict::verdict;
