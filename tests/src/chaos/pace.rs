//! Duration and load of the cases: minutes for measurements, moments for tests.

use std::time::Duration;

/// Times and loads of a run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests per second.
    pub rate: u32,
    /// Requests per second of a herd.
    pub herd: u32,
    /// Time without a fault, before and after it.
    pub steady: Duration,
    /// Duration of an outage.
    pub outage: Duration,
    /// Duration of a hang, which takes longest to notice.
    pub hang: Duration,
    /// How long a request waits for the store.
    pub deadline: Duration,
    /// How long a place in flight is leased.
    pub lease: Duration,
    /// Requests for the limits of three daemons under one condition.
    pub requests: u64,
    /// In every other round, requests are spread over this time; in the others they are sent as
    /// fast as possible.
    pub spread: Duration,
    /// Rounds of each kind of starvation; the worst one counts.
    pub rounds: u32,
    /// Numbers of busy loops.
    pub loops: &'static [usize],
    /// CPU limits of each daemon, in ms per 100 ms.
    pub cpu_limits: &'static [u64],
    /// Round trips to Redis, in ms.
    pub round_trips: &'static [u64],
    /// Pauses of Redis, in ms.
    pub pauses: &'static [u64],
    /// Concurrent callers of a daemon whose Redis is far away; 0 skips the throughput measurement.
    pub far_callers: u32,
    /// Whether to measure envoyproxy/ratelimit as well.
    pub compares: bool,
}

impl Pace {
    /// The pace of the published table.
    pub const FULL: Self = Self {
        rate: 10_000,
        herd: 20_000,
        steady: Duration::from_secs(5),
        outage: Duration::from_secs(10),
        hang: Duration::from_secs(60),
        deadline: Duration::from_millis(5),
        lease: Duration::from_secs(5),
        requests: 9_000,
        spread: Duration::from_secs(3),
        rounds: 9,
        loops: &[2, 8, 32],
        cpu_limits: &[50, 20, 10],
        round_trips: &[0, 1, 3, 5, 10, 30, 50, 100],
        pauses: &[100, 1_000, 10_000],
        far_callers: 1_000,
        compares: true,
    };

    /// The same cases in a few minutes.
    pub const QUICK: Self = Self {
        steady: Duration::from_secs(2),
        outage: Duration::from_secs(3),
        hang: Duration::from_secs(5),
        lease: Duration::from_secs(2),
        rounds: 3,
        ..Self::FULL
    };

    /// A moment for each case, for a busy machine.
    pub const SHORT: Self = Self {
        rate: 500,
        herd: 1_000,
        steady: Duration::from_millis(400),
        outage: Duration::from_millis(800),
        hang: Duration::from_millis(1_000),
        deadline: Duration::from_millis(250),
        lease: Duration::from_millis(1_500),
        requests: 4_500,
        spread: Duration::from_millis(1_200),
        rounds: 3,
        loops: &[4],
        cpu_limits: &[20],
        round_trips: &[10, 50],
        pauses: &[100, 1_000],
        far_callers: 0,
        compares: false,
    };
}
