//! What was reserved for a request that is denied after all is taken back, but only as far as it is
//! still debt: no units of other requests are returned.

mod crossing;

use redis::Value;
use tidegate::store::redis::RedisStore;
use tidegate::store::{Batch, Charge, Store};
use tidegate::{Algorithm, Key, Limit, Op, Scope, State, Timestamp};
use tidegate_tests::clients::limit;
use tidegate_tests::servers::RedisServer;
use tidegate_tests::shared_comparison::store;

/// A whole second, hour and day.
const START: u64 = 1_800_057_600_000_000;
const SECOND: u64 = 1_000_000;

const FIVE: [&str; 4] = [
    "token_bucket:5:1000000:5",
    "fixed_window:5:1000000",
    "sliding_window:5:1000000",
    "sliding_log:5:1000000",
];

/// One key under one limit, by given times: microseconds after `START`.
struct Bench {
    store: RedisStore,
    limit: Limit,
    server: RedisServer,
}

impl Bench {
    async fn start(text: &str) -> Self {
        let server = RedisServer::start();
        Self { store: store(&server.url()).await, limit: limit(text), server }
    }

    fn charge(&self, op: Op) -> Charge<'_> {
        Charge::new(Key::new(Scope::new("undo", &self.limit), b"key"), &self.limit, op)
    }

    async fn does(&self, at: u64, op: Op) -> bool {
        let (now, mut decisions) = (Timestamp::from_micros(START + at), Vec::new());
        let decided = self.store.decide(now, Batch::one(&self.charge(op)), &mut decisions).await;
        decided.expect("a sound server");
        decisions[0].is_allowed()
    }

    async fn takes(&self, at: u64, units: u64) -> bool {
        self.does(at, Op::Take(units)).await
    }

    async fn undoes(&self, at: u64, units: u64, taken_at: u64) {
        let [at, taken_at] = [at, taken_at].map(|at| Timestamp::from_micros(START + at));
        let undone = self.store.undo(at, &self.charge(Op::Take(units)), taken_at).await;
        undone.expect("a sound server");
    }

    /// Exactly so many units can be taken, and none is.
    async fn has(&self, at: u64, units: u64) {
        assert!(units == 0 || self.does(at, Op::Read(units)).await, "less than {units} at {at}");
        assert!(!self.does(at, Op::Read(units + 1)).await, "more than {units} at {at}");
    }
}

#[tokio::test]
async fn units_still_owed_are_returned() {
    for text in FIVE {
        let bench = Bench::start(text).await;
        assert!(bench.takes(100_000, 2).await && bench.takes(100_001, 3).await);
        bench.undoes(100_001, 3, 100_001).await;
        bench.has(100_001, 3).await;
    }
}

#[tokio::test]
async fn a_window_that_is_over_gives_nothing_to_the_next() {
    let bench = Bench::start("fixed_window:5:1000000").await;
    assert!(bench.takes(SECOND - 1_000, 5).await);
    assert!(bench.takes(SECOND, 4).await);
    bench.undoes(SECOND + 1, 5, SECOND - 1_000).await;
    bench.has(SECOND + 1, 1).await;
    // Nor if the next window is still empty.
    assert!(bench.takes(2 * SECOND - 1, 1).await);
    bench.undoes(2 * SECOND, 1, 2 * SECOND - 1).await;
    bench.has(2 * SECOND, 5).await;
    // Until its last instant it does.
    assert!(bench.takes(3 * SECOND - 2, 5).await);
    bench.undoes(3 * SECOND - 1, 5, 3 * SECOND - 2).await;
    bench.has(3 * SECOND - 1, 5).await;
}

#[tokio::test]
async fn a_sliding_window_gives_back_on_its_own_side_of_a_boundary_only() {
    let bench = Bench::start("sliding_window:10:1000000").await;
    assert!(bench.takes(SECOND - 2, 6).await);
    assert!(bench.takes(SECOND - 1, 4).await);
    bench.undoes(SECOND - 1, 4, SECOND - 1).await;
    bench.has(SECOND - 1, 4).await;
    assert!(bench.takes(SECOND - 1, 4).await);
    // All ten weigh on the next window, and its own come on top.
    assert!(bench.takes(SECOND + 500_000, 5).await);
    bench.undoes(SECOND + 500_000, 4, SECOND - 1).await;
    bench.has(SECOND + 500_000, 0).await;
    // More than the window has is not taken from the one before.
    bench.undoes(SECOND + 500_000, 9, SECOND + 500_000).await;
    bench.has(SECOND + 500_000, 5).await;
}

#[tokio::test]
async fn refilled_units_are_not_returned_again() {
    // A unit every tenth of a second.
    let bench = Bench::start("token_bucket:10:1000000:10").await;
    assert!(bench.takes(0, 4).await && bench.takes(0, 6).await);
    bench.undoes(250_000, 4, 0).await;
    // Of 1 s of debt 250 ms had refilled, and of the 400 ms taken back 150 ms were still owed.
    bench.has(250_000, 4).await;
    bench.undoes(400_001, 4, 0).await;
    bench.has(400_001, 5).await;
    assert!(bench.takes(SECOND, 3).await);
    bench.undoes(SECOND + 300_000, 3, SECOND).await;
    bench.has(SECOND + 300_000, 10).await;
    bench.undoes(SECOND + 300_000, 10, SECOND + 300_000).await;
    bench.has(SECOND + 300_000, 10).await;
}

#[tokio::test]
async fn parts_of_a_microsecond_come_back_too() {
    let bench = Bench::start("token_bucket:7:1000000:7").await;
    for round in 0..50 {
        assert!(bench.takes(round, 3).await, "round {round} has lost something");
        bench.undoes(round, 3, round).await;
    }
    bench.has(50, 7).await;
}

#[tokio::test]
async fn a_log_loses_the_entry_of_that_take_and_no_other() {
    let bench = Bench::start("sliding_log:5:1000000").await;
    assert!(bench.takes(0, 2).await && bench.takes(100, 2).await);
    bench.undoes(200, 2, 100).await;
    bench.has(200, 3).await;
    // Its entry is gone; the other has another time.
    bench.undoes(201, 2, 100).await;
    bench.has(201, 3).await;
    // Another request has taken units since: then the charge stays.
    assert!(bench.takes(300, 1).await && bench.takes(400, 1).await);
    bench.undoes(500, 1, 300).await;
    bench.has(500, 1).await;
    // Some of it was given back otherwise: what is left of the entry goes, and not the one before.
    assert!(bench.takes(600, 1).await);
    bench.undoes(700, 3, 600).await;
    bench.has(700, 1).await;
    bench.has(SECOND, 3).await;
}

#[tokio::test]
async fn after_a_reset_there_is_nothing_to_take_back() {
    for text in FIVE {
        let bench = Bench::start(text).await;
        assert!(bench.takes(100_000, 4).await);
        bench.does(100_001, Op::Reset).await;
        bench.undoes(100_002, 4, 100_000).await;
        let key = format!("tg:{}:{{key}}", Scope::new("undo", &bench.limit));
        assert_eq!(bench.server.command(&["EXISTS", &key]), Value::Int(0), "{text}");
        bench.has(100_003, 5).await;
    }
}

/// Then it is unknown how much of it a bucket has refilled, or which entry of a log it is. A window
/// that is kept although it is ahead has it still.
#[tokio::test]
async fn a_clock_that_went_back_gives_nothing_that_is_not_owed() {
    for (text, left) in FIVE.into_iter().zip([0, 3, 3, 0]) {
        let bench = Bench::start(text).await;
        assert!(bench.takes(SECOND + 1, 2).await && bench.takes(SECOND + 2, 3).await);
        bench.undoes(0, 3, SECOND + 2).await;
        bench.has(0, left).await;
    }
    // The state is of a later window than the take.
    for text in &FIVE[1..3] {
        let bench = Bench::start(text).await;
        assert!(bench.takes(SECOND - 10, 1).await && bench.takes(2 * SECOND - 1, 4).await);
        bench.undoes(SECOND - 5, 4, SECOND - 10).await;
        bench.has(2 * SECOND - 1, 1).await;
    }
}

/// Whatever is reserved and taken back meanwhile, nothing is admitted that would not have been
/// admitted to a key that never saw the reservations.
#[tokio::test]
async fn reservations_admit_nothing_that_would_be_denied_without_them() {
    for text in [
        "token_bucket:7:1000000:10",
        "gcra:10:1000000:4",
        "leaky_bucket:7:1000000",
        "fixed_window:7:1000000",
        "sliding_window:9:1000000",
        "sliding_log:7:1000000",
    ] {
        let bench = Bench::start(text).await;
        let (mut admitted, mut undone) = (0, 0);
        for seed in 0..40 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut model, mut at) = (State::default(), seed * 60 * SECOND);
            let mut reserved: Vec<(u64, u64)> = Vec::new();
            for _ in 0..150 {
                at += [0, 0, 1, 1_000, 40_000, 90_000, 300_000][rng.usize(0..7)];
                let units = rng.u64(1..4);
                match rng.u8(0..3) {
                    0 if bench.takes(at, units).await => {
                        let now = Timestamp::from_micros(START + at);
                        let decision = bench.limit.decide(&mut model, now, Op::Take(units));
                        assert!(decision.is_allowed(), "{text}, seed {seed}, at {at}");
                        admitted += 1;
                    }
                    1 if bench.takes(at, units).await => reserved.push((at, units)),
                    2 if !reserved.is_empty() => {
                        let (taken_at, units) = reserved.swap_remove(rng.usize(0..reserved.len()));
                        bench.undoes(at, units, taken_at).await;
                        undone += 1;
                    }
                    _ => {}
                }
            }
        }
        assert!(admitted > 300 && undone > 300, "{text}: {admitted} admitted, {undone} undone");
    }
}
