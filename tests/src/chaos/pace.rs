//! How long and how hard: the same cases run for a minute where they are measured, and for a moment
//! where they are only to hold.

use std::time::Duration;

/// Times and loads of a run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests per second.
    pub rate: u32,
    /// Requests per second of a herd.
    pub herd: u32,
    /// For so long nothing is wrong, before and after.
    pub steady: Duration,
    /// For so long something is.
    pub outage: Duration,
    /// For so long the store hangs, which takes longest to show.
    pub hang: Duration,
    /// How long a request waits for the store.
    pub deadline: Duration,
    /// How long a place in flight is leased.
    pub lease: Duration,
}

impl Pace {
    /// What the table is measured with.
    pub const FULL: Self = Self {
        rate: 10_000,
        herd: 20_000,
        steady: Duration::from_secs(5),
        outage: Duration::from_secs(10),
        hang: Duration::from_secs(60),
        deadline: Duration::from_millis(5),
        lease: Duration::from_secs(5),
    };

    /// The same in a few minutes.
    pub const QUICK: Self = Self {
        steady: Duration::from_secs(2),
        outage: Duration::from_secs(3),
        hang: Duration::from_secs(5),
        lease: Duration::from_secs(2),
        ..Self::FULL
    };

    /// A moment of each, for a machine that has other things to do.
    pub const SHORT: Self = Self {
        rate: 500,
        herd: 1_000,
        steady: Duration::from_millis(400),
        outage: Duration::from_millis(800),
        hang: Duration::from_millis(1_000),
        deadline: Duration::from_millis(250),
        lease: Duration::from_millis(1_500),
    };
}
