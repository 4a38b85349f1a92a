//! A server under more load than it can serve, behind a concurrency limiter.
//!
//! Clients send requests at their own pace, whether or not the server keeps up, and give up after a
//! deadline. [`simulate`] plays one [`Scenario`] with one [`Contender`]; the same seed sends the
//! same requests to each, so the contenders can be compared.
//!
//! ```
//! use tidegate_sim::overload::{Contender, Phase, Scenario, simulate};
//!
//! let scenario = Scenario { phases: vec![Phase::load(200, 10)], ..Scenario::default() };
//! let protected = simulate(&scenario, Contender::Adaptive);
//! let unprotected = simulate(&scenario, Contender::Unlimited);
//! assert!(protected.goodput(5..10) > 90); // per cent of the server's capacity
//! assert!(unprotected.goodput(5..10) < 10);
//! ```

mod arrivals;
mod chart;
mod contender;
mod limiter;
mod peers;
mod report;
mod run;
mod scenario;
mod server;

pub use chart::{Chart, Panel};
pub use contender::{Contender, UnknownContender};
pub use report::{OverloadReport, Second};
pub use run::simulate;
pub use scenario::{CLASSES, Phase, Scenario, ServerKind, ServiceTimes, UnknownServer};
