//! No value in Redis loses a digit, and no key expires before its state is idle.

mod kept;
mod many;

use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join;
use redis::{Commands, Connection};
use tidegate::store::redis::{RedisConfig, RedisStore, TimeSource};
use tidegate::store::{Batch, Charge, Store};
use tidegate::{Algorithm, InFlight, Key, Limit, Op, Rate, Scope, Span, State, Timestamp};
use tidegate_core::Builder;
use tidegate_tests::servers::RedisServer;

/// The year 2153: a full refill of a hundred years later is just below 2^53.
const LATE: u64 = 5_800_000_000_000_000;
const YEAR: u64 = 365 * 86_400_000_000;
/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Bench {
    store: RedisStore,
    control: Connection,
    // Stopped last.
    _server: RedisServer,
}

impl Bench {
    async fn start(time: TimeSource) -> Self {
        let server = RedisServer::start();
        let config = RedisConfig::new(&server.url()).expect("a valid address");
        let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT).time(time);
        let store = RedisStore::connect(config.settles_after(Duration::ZERO)).await;
        let control = server.connection();
        Self { store: store.expect("a fresh server"), control, _server: server }
    }

    /// By the script for one key.
    async fn alone(&self, now: u64, limit: &Limit, text: &str, op: Op) {
        let key = Key::new(Scope::new("digits", limit), text.as_bytes());
        let (charge, now) = (Charge::new(key, limit, op), Timestamp::from_micros(now));
        let decided = self.store.decide(now, Batch::one(&charge), &mut Vec::new()).await;
        decided.unwrap_or_else(|error| panic!("{limit:?} {op:?}: {error}"));
    }

    /// Beside another key, by the script for many.
    async fn beside(&self, now: u64, limit: &Limit, text: &str, op: Op) {
        let other = format!("{text}:other");
        join(self.alone(now, limit, text, op), self.alone(now, limit, &other, op)).await;
    }

    fn kept(&mut self, limit: &Limit, text: &str) -> State {
        kept::read(&mut self.control, &name(limit, text), limit)
    }
}

fn name(limit: &Limit, text: &str) -> String {
    format!("tg:{}:{{{text}}}", Scope::new("digits", limit))
}

fn built(builder: Builder) -> Limit {
    builder.build().expect("valid numbers")
}

/// Numbers at the edge of what is allowed, with costs that reach the edge of what is kept.
fn extremes() -> Vec<Limit> {
    let micros = |count, micros| Rate::new(count, Span::from_micros(micros));
    let mut limits = vec![
        // A hundred years to refill.
        built(Limit::token_bucket(Rate::per_day(1)).burst(36_500)),
        built(Limit::token_bucket(micros(3, 10 * YEAR)).burst(30)),
        built(Limit::leaky_bucket(micros(7, 10 * YEAR)).queue(69)),
        // Parts of a microsecond near 2^52.
        built(Limit::token_bucket(micros((1 << 52) - 1, 10 * YEAR)).burst(1 << 32)),
        built(Limit::token_bucket(micros((1 << 52) - 3, 1)).burst(1 << 32)),
        built(Limit::token_bucket(Rate::per_second(1_000_000_000_039)).burst(1 << 32)),
        built(Limit::gcra(Rate::per_second(1_000_000_000_000)).burst(1_000_000)),
        // Counts of 2^52 and 2^32.
        built(Limit::fixed_window(micros(1 << 52, 10 * YEAR))),
        built(Limit::fixed_window(micros(1 << 52, 1_000)).count_denied()),
        built(Limit::sliding_window(micros(1 << 32, 10 * YEAR))),
        built(Limit::sliding_window(micros(1 << 32, 1_000_003))),
        built(Limit::sliding_log(micros(1_000_000, 10 * YEAR)).large_log()),
        built(Limit::sliding_log(micros(10_000, 1_000_000))),
    ];
    for ttl in [InFlight::NO_EXPIRY, Span::from_millis(1)] {
        limits.push(Limit::in_flight(InFlight::MAX, ttl).expect("valid numbers"));
    }
    limits
}

fn op(rng: &mut Rng, limit: &Limit) -> Op {
    let most = match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        Limit::SlidingLog(log) => log.limit(),
        Limit::InFlight(in_flight) => in_flight.limit(),
        _ => unreachable!("every family is above"),
    };
    let units = match rng.u8(0..6) {
        0 => 1,
        1 => rng.u64(1..=most),
        2 => most - rng.u64(0..most.min(3)),
        3 => rng.u64(1..=most.min(1_000)),
        4 => 1 << 32,
        _ => most / 7 + 1,
    };
    match rng.u8(0..8) {
        0 => Op::Return(units),
        1 | 2 => Op::Force(units),
        _ => Op::Take(units),
    }
}

/// Everything a store keeps is the model's state, to the last digit, and written without a point or
/// an exponent.
#[tokio::test]
async fn states_at_the_extremes_keep_every_digit() {
    let mut bench = Bench::start(TimeSource::Caller).await;
    let mut rng = Rng::with_seed(8);
    let mut compared = 0;
    for (number, limit) in extremes().iter().enumerate() {
        for life in 0..8 {
            let (text, mut state, mut now) = (format!("{number}:{life}"), State::default(), LATE);
            for _ in 0..60 {
                now += [0, 1, 7, 999, 1_000, 400_000, 1_000_003, YEAR / 50][rng.usize(0..8)];
                // Beyond, even the model's instants have no room.
                now = now.min(LATE + YEAR);
                let op = op(&mut rng, limit);
                limit.decide(&mut state, Timestamp::from_micros(now), op);
                match rng.bool() {
                    true => bench.alone(now, limit, &text, op).await,
                    false => bench.beside(now, limit, &text, op).await,
                }
                let now = Timestamp::from_micros(now);
                let kept = bench.kept(limit, &text);
                let [kept, known] = [&kept, &state].map(|state| kept::alive(limit, state, now));
                assert_eq!(kept, known, "{limit:?} after {op:?} at {now}");
                compared += 1;
            }
        }
    }
    assert!(compared > 5_000, "{compared}");
}

/// Sums and counts too large to be reached by a test: put there, and counted on.
#[tokio::test]
async fn the_largest_numbers_are_counted_on_exactly() {
    let mut bench = Bench::start(TimeSource::Caller).await;
    let window = built(Limit::fixed_window(Rate::new(1 << 52, Span::from_micros(10 * YEAR))));
    let end = (LATE / (10 * YEAR) + 1) * 10 * YEAR;
    let almost = (1_u64 << 52) - (1 << 32) - 1;
    let () = bench.control.set(name(&window, "count"), format!("{end}:{almost}")).expect("set");
    for expected in [(1_u64 << 52) - 1, (1 << 52) - 1] {
        // The second no longer fits.
        bench.alone(LATE, &window, "count", Op::Take(1 << 32)).await;
        let kept: String = bench.control.get(name(&window, "count")).expect("a text");
        assert_eq!(kept, format!("{end}:{expected}"));
    }
    bench.beside(LATE, &window, "count", Op::Take(1)).await;
    let kept: String = bench.control.get(name(&window, "count")).expect("a text");
    assert_eq!(kept, format!("{end}:{}", 1_u64 << 52));

    // The sum of a log starts again at 2^52, between two entries that still count.
    let log = built(Limit::sliding_log(Rate::new(10_000, Span::from_secs(60))));
    let old = format!("{}:{}:4000", LATE - 1_000, (1_u64 << 52) - 4_000 - 1);
    let () = bench.control.rpush(name(&log, "sum"), &old).expect("pushed");
    bench.alone(LATE, &log, "sum", Op::Take(3_000)).await;
    bench.beside(LATE + 1, &log, "sum", Op::Take(3_000)).await;
    bench.alone(LATE + 2, &log, "sum", Op::Take(1)).await;
    let kept: Vec<String> = bench.control.lrange(name(&log, "sum"), 0, -1).expect("a list");
    let second = format!("{LATE}:{}:3000", (1_u64 << 52) - 1);
    assert_eq!(kept, [old, second, format!("{}:2999:3000", LATE + 1)]);
}

/// A key lives until its state has no meaning any more, and hardly longer.
#[tokio::test]
async fn no_debt_is_forgotten_early_or_kept_for_long() {
    let mut bench = Bench::start(TimeSource::Store).await;
    let mut rng = Rng::with_seed(7);
    let (mut states, mut late) = (0, 0);
    for life in 0..1_500 {
        let limit = random_limit(&mut rng);
        let (text, steps) = (format!("life:{life}"), rng.usize(1..4));
        for _ in 0..steps {
            let op = op(&mut rng, &limit);
            match rng.bool() {
                true => bench.alone(0, &limit, &text, op).await,
                false => bench.beside(0, &limit, &text, op).await,
            }
            let expires: i64 = redis::cmd("PEXPIRETIME")
                .arg(name(&limit, &text))
                .query(&mut bench.control)
                .expect("Redis 7");
            let kept = bench.kept(&limit, &text);
            // It may have lived its life already.
            if expires == -2 || kept == State::Absent {
                continue;
            }
            let idle_at = limit.idle_at(&kept).as_micros();
            let expires = u64::try_from(expires).expect("a time to live") * 1_000;
            assert!(expires >= idle_at, "{limit:?} {kept:?}: {} us early", idle_at - expires);
            states += 1;
            // What was given back leaves a list or a set with the time that it had.
            let listed = matches!(limit, Limit::SlidingLog(_) | Limit::InFlight(_));
            if !(listed && matches!(op, Op::Return(_))) {
                late += u64::from(expires > idle_at + 3_000);
                assert!(expires < idle_at + 1_000_000, "{limit:?} {kept:?} stays too long");
            }
        }
    }
    assert!(states > 2_000, "{states} states seen");
    // Only where the server was interrupted between looking at the clock and writing.
    assert!(late * 50 < states, "{late} of {states} states stay longer than they need");
}

/// A key that expired with the lease as it was taken would free the place of a holder that lives.
#[tokio::test]
async fn a_renewed_lease_keeps_its_key() {
    let mut bench = Bench::start(TimeSource::Caller).await;
    let limit = Limit::in_flight(3, Span::from_secs(60)).expect("valid numbers");
    let left =
        |bench: &mut Bench| -> u64 { bench.control.pttl(name(&limit, "held")).expect("set") };
    bench.alone(LATE, &limit, "held", Op::Take(1)).await;
    let whole = left(&mut bench);
    let lease = tidegate::LeaseId::new(LATE).expect("not 0");
    bench.alone(LATE + 50_000_000, &limit, "held", Op::Renew(lease)).await;
    // By the given clock fifty seconds have passed, by the server's none.
    assert!(left(&mut bench) + 10_000 > whole, "{} of {whole} ms", left(&mut bench));
}

fn random_limit(rng: &mut Rng) -> Limit {
    let mut size = |most: u32| (1_u64 << rng.u32(0..most)) + rng.u64(0..1_000);
    let (count, per, burst) = (size(30), Span::from_micros(20_000 + size(44)), size(12));
    let rate = Rate::new(count, per);
    let small = Rate::new(count % 10_000 + 1, per);
    let limit = match rng.u8(0..6) {
        0 => Limit::token_bucket(rate).burst(burst).build(),
        1 => Limit::leaky_bucket(rate).queue(burst).build(),
        2 => Limit::fixed_window(rate).build(),
        3 => Limit::sliding_window(rate).build(),
        4 => Limit::sliding_log(small).build(),
        _ => Limit::in_flight(burst, per),
    };
    limit.unwrap_or_else(|_| random_limit(rng))
}
