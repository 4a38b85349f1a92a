//! Random limits over the whole range of valid numbers, and traces in their rhythm.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::algorithm::blocking::Blocking;
use tidegate_core::algorithm::bucket::Bucket;
use tidegate_core::algorithm::fixed_window::{Denied, FixedWindow};
use tidegate_core::algorithm::inflight::InFlight;
use tidegate_core::algorithm::sliding_log::SlidingLog;
use tidegate_core::algorithm::sliding_window::SlidingWindow;
use tidegate_core::laws::{Step, Trace};
use tidegate_core::{Algorithm, LeaseId, Limit, Op, Rate, Span, Timestamp};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;
const YEAR: u64 = 365 * DAY;
const MAX_STEPS: usize = 40;

/// A limit and what happens to one key under it.
#[derive(Clone, Debug)]
pub(crate) struct Case<A> {
    pub(crate) algorithm: A,
    pub(crate) trace: Trace,
}

/// Numbers that change in the middle of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Change<A> {
    pub(crate) before: A,
    pub(crate) after: A,
    pub(crate) trace: Trace,
    pub(crate) at: usize,
}

/// What is interesting about a limit's numbers.
#[derive(Clone, Debug)]
struct Rhythm {
    limit: u64,
    /// The spans at whose edges decisions change: an interval, a refill, a window.
    spans: Vec<u64>,
}

/// Between 1 and `max`, any order of magnitude being equally likely.
fn magnitude(max: u64) -> impl Strategy<Value = u64> {
    (0..=max.ilog2()).prop_flat_map(move |bits| {
        let low = 1_u64 << bits;
        low..=(low * 2 - 1).min(max)
    })
}

/// From 1 a year to 10^12 a second, over periods of 1 us to a year.
fn rate() -> impl Strategy<Value = Rate> {
    let count = prop_oneof![
        Just(1),
        1..=1_000_u64,
        prop::sample::select(vec![3, 7, 60, 100, 600_000_000, 1_000_000_000_000, 999_999_999_989]),
        magnitude(1_000_000_000_000),
    ];
    let per = prop_oneof![
        Just(SECOND),
        prop::sample::select(vec![1, 1_000, 60 * SECOND, 3_600 * SECOND, DAY, YEAR]),
        magnitude(YEAR),
    ];
    (count, per).prop_map(|(count, per)| Rate::new(count, Span::from_micros(per)))
}

fn burst() -> impl Strategy<Value = u64> {
    prop_oneof![1..=12_u64, magnitude(1_000_000)]
}

/// `units` intervals of `rate`, rounded down.
fn intervals(rate: Rate, units: u64) -> u64 {
    let ticks = u128::from(rate.per.as_micros()) * u128::from(units) / u128::from(rate.count);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

fn bucket_rhythm(rate: Rate, capacity: u64) -> Rhythm {
    let (one, all) = (intervals(rate, 1), intervals(rate, capacity));
    Rhythm { limit: capacity, spans: vec![one, one + 1, all, all + 1, intervals(rate, 2)] }
}

fn window_rhythm(limit: u64, length: u64) -> Rhythm {
    // Among them the step in which a sliding window's weight moves.
    let step = length.div_ceil(1 << 20);
    // And the hour for which a window that starts next is kept.
    let hour = (3_600 * SECOND).min(length);
    let spans = vec![length, length / 2, length / 3, step, 2 * length, hour, length - hour];
    Rhythm { limit, spans }
}

/// Raw numbers behind one step; the smaller, the duller, so that shrinking leads somewhere.
type Raw = ((u8, u64), (u8, u8, u64));

fn step(rhythm: &Rhythm, ((pace, far), (kind, size, cost)): Raw) -> Step {
    let span = rhythm.spans[far as usize % rhythm.spans.len()];
    let widest = rhythm.spans.iter().copied().max().unwrap_or(1);
    let signed = |micros: u64| i64::try_from(micros.min(100 * YEAR)).expect("valid numbers");
    let micros = match pace {
        0..=7 => 0,
        8 => 1,
        9 => -1,
        10..=11 => signed(span),
        12 => signed(span) - 1,
        13 => signed(span) + 1,
        14..=15 => signed(far % (rhythm.spans[0].saturating_mul(2) + 1)),
        16..=17 => signed(far % (widest.saturating_mul(2) + 1)),
        18 => -signed(far % (rhythm.spans[0] + 1)),
        19 => -signed(span),
        20 => -signed(span) - 1,
        21 => -signed(far % (widest.saturating_mul(3) + 1)),
        22 => signed(far % YEAR),
        _ => -signed(far % YEAR),
    };
    let limit = rhythm.limit;
    let cost = match size {
        0..=4 => 1,
        5..=6 => cost % 4,
        7..=9 => cost % (limit + 3),
        10..=11 => limit / (1 + cost % 5),
        12 => limit + cost % 3,
        13 => limit.saturating_sub(cost % 3),
        14 => cost % 50,
        _ => u64::MAX - cost % 2,
    };
    let op = match kind {
        0..=11 => Op::Take(cost),
        12 => Op::Read(cost),
        13..=14 => Op::Return(cost),
        15..=16 => Op::Force(cost),
        17..=18 => Op::Release(LeaseId::new(far.max(1)).expect("valid numbers")),
        19 => Op::Renew(LeaseId::new(far.max(1)).expect("valid numbers")),
        21 => Op::ReturnOwed { units: cost, until: Timestamp::from_micros(far % (2 * YEAR)) },
        20 => Op::Block(Span::from_micros(far % (2 * DAY))),
        _ => Op::Reset,
    };
    Step::new(micros, op)
}

fn trace(rhythm: Rhythm) -> impl Strategy<Value = Trace> {
    let raw = ((0..24_u8, any::<u64>()), (0..23_u8, 0..16_u8, any::<u64>()));
    let start = prop_oneof![
        Just(0),
        0..=2 * DAY,
        1_700_000_000 * SECOND..1_800_000_000 * SECOND,
        // Around a boundary, where windows turn.
        (0..=1_000_u64, 0..3_u64).prop_map({
            let length = rhythm.spans[0].clamp(1, YEAR);
            move |(index, tick)| (index * length + tick).saturating_sub(1)
        }),
    ];
    (start, vec(raw, 1..=MAX_STEPS)).prop_map(move |(start, steps)| Trace {
        start: Timestamp::from_micros(start),
        steps: steps.into_iter().map(|raw| step(&rhythm, raw)).collect(),
    })
}

fn case<A: Clone + Debug>(algorithm: A, rhythm: Rhythm) -> impl Strategy<Value = Case<A>> {
    (Just(algorithm), trace(rhythm)).prop_map(|(algorithm, trace)| Case { algorithm, trace })
}

fn bucket(rate: Rate, burst: u64, queue: Option<u64>) -> Option<(Bucket, Rhythm)> {
    let made = match queue {
        None => Bucket::new(rate, burst),
        Some(queue) => Bucket::shaping(rate, burst, queue),
    };
    Some((made.ok()?, bucket_rhythm(rate, burst + queue.unwrap_or(0))))
}

pub(crate) fn token_bucket() -> impl Strategy<Value = Case<Bucket>> {
    (rate(), burst())
        .prop_filter_map("fills within 100 years", |(rate, burst)| bucket(rate, burst, None))
        .prop_flat_map(|(bucket, rhythm)| case(bucket, rhythm))
}

pub(crate) fn gcra() -> impl Strategy<Value = Case<Bucket>> {
    rate()
        .prop_filter_map("fills within 100 years", |rate| bucket(rate, 1, None))
        .prop_flat_map(|(bucket, rhythm)| case(bucket, rhythm))
}

pub(crate) fn leaky_bucket() -> impl Strategy<Value = Case<Bucket>> {
    (rate(), burst(), prop_oneof![Just(0), burst()])
        .prop_filter_map("fills within 100 years", |(rate, burst, queue)| {
            bucket(rate, burst, Some(queue))
        })
        .prop_flat_map(|(bucket, rhythm)| case(bucket, rhythm))
}

pub(crate) fn spaced_leaky_bucket() -> impl Strategy<Value = (Rate, u64, Trace)> {
    (rate(), burst())
        .prop_filter_map("fills within 100 years", |(rate, queue)| {
            bucket(rate, 1, Some(queue)).map(|(_, rhythm)| (rate, queue, rhythm))
        })
        .prop_flat_map(|(rate, queue, rhythm)| (Just(rate), Just(queue), trace(rhythm)))
}

pub(crate) fn any_bucket() -> impl Strategy<Value = Case<Bucket>> {
    prop_oneof![token_bucket(), gcra(), leaky_bucket()]
}

fn window_length() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..=20_u64,
        prop::sample::select(vec![SECOND, 60 * SECOND, 3_600 * SECOND, DAY, YEAR]),
        magnitude(YEAR),
        // Where the sliding window's weight begins to move in steps.
        (1 << 20) - 2..=(1 << 21) + 2_u64,
    ]
}

fn window_limit(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..=12_u64, magnitude(max), Just(max)]
}

pub(crate) fn fixed_window(denied: Denied) -> impl Strategy<Value = Case<FixedWindow>> {
    (window_limit(FixedWindow::MAX), window_length(), any::<u64>()).prop_flat_map(
        move |(limit, length, offset)| {
            let offset = Span::from_micros(offset % length);
            let made = FixedWindow::new(limit, Span::from_micros(length), offset, denied);
            case(made.expect("valid numbers"), window_rhythm(limit, length))
        },
    )
}

pub(crate) fn sliding_window() -> impl Strategy<Value = Case<SlidingWindow>> {
    (window_limit(SlidingWindow::MAX), window_length()).prop_flat_map(|(limit, length)| {
        let made = SlidingWindow::new(limit, Span::from_micros(length));
        case(made.expect("valid numbers"), window_rhythm(limit, length))
    })
}

pub(crate) fn sliding_log() -> impl Strategy<Value = Case<SlidingLog>> {
    (window_limit(SlidingLog::MAX), window_length()).prop_flat_map(|(limit, length)| {
        let made = SlidingLog::new(limit, Span::from_micros(length));
        case(made.expect("valid numbers"), window_rhythm(limit, length))
    })
}

pub(crate) fn in_flight() -> impl Strategy<Value = Case<InFlight>> {
    (prop_oneof![1..=12_u64, magnitude(InFlight::MAX)], window_length()).prop_flat_map(
        |(limit, ttl)| {
            let made = InFlight::new(limit, Span::from_micros(ttl));
            case(made.expect("valid numbers"), window_rhythm(limit, ttl))
        },
    )
}

/// Any algorithm behind the one type that names them all.
pub(crate) fn any_limit() -> impl Strategy<Value = Case<Limit>> {
    fn named<A>(case: Case<A>, limit: fn(A) -> Limit) -> Case<Limit> {
        Case { algorithm: limit(case.algorithm), trace: case.trace }
    }
    prop_oneof![
        any_bucket().prop_map(|case| named(case, Limit::Bucket)),
        fixed_window(Denied::Ignored).prop_map(|case| named(case, Limit::FixedWindow)),
        sliding_window().prop_map(|case| named(case, Limit::SlidingWindow)),
        sliding_log().prop_map(|case| named(case, Limit::SlidingLog)),
        in_flight().prop_map(|case| named(case, Limit::InFlight)),
    ]
}

/// Any rate, with a block from a microsecond to a day.
pub(crate) fn blocking() -> impl Strategy<Value = Case<Blocking>> {
    let rates =
        any_limit().prop_filter("a rate", |case| !matches!(case.algorithm, Limit::InFlight(_)));
    (rates, magnitude(DAY)).prop_map(|(case, block_for)| {
        let made = Blocking::new(case.algorithm, Span::from_micros(block_for.max(1)));
        Case { algorithm: made.expect("valid numbers"), trace: case.trace }
    })
}

/// Two limits whose numbers have nothing to do with one another; the trace is in the rhythm of the
/// first, then of the second.
pub(crate) fn changed<A: Algorithm + Clone + Debug, S: Strategy<Value = Case<A>>>(
    limits: fn() -> S,
) -> impl Strategy<Value = Change<A>> {
    (limits(), limits()).prop_map(|(before, after)| {
        let at = before.trace.steps.len();
        let mut trace = before.trace;
        trace.steps.extend(after.trace.steps);
        Change { before: before.algorithm, after: after.algorithm, trace, at }
    })
}

/// The length of a window and its offset are part of the key, so only the limit can change.
pub(crate) fn changed_fixed_window() -> impl Strategy<Value = Change<FixedWindow>> {
    let denied = prop::sample::select(vec![Denied::Ignored, Denied::Counted]);
    let limits = || window_limit(FixedWindow::MAX);
    (limits(), limits(), window_length(), any::<u64>(), (denied, 0..MAX_STEPS)).prop_flat_map(
        |(old, new, length, offset, (denied, at))| {
            let made = |limit| {
                let offset = Span::from_micros(offset % length);
                FixedWindow::new(limit, Span::from_micros(length), offset, denied)
                    .expect("valid numbers")
            };
            let (before, after) = (made(old), made(new));
            trace(window_rhythm(old.min(new), length)).prop_map(move |trace| Change {
                before,
                after,
                trace,
                at,
            })
        },
    )
}

pub(crate) fn changed_sliding_window() -> impl Strategy<Value = Change<SlidingWindow>> {
    let limits = || window_limit(SlidingWindow::MAX);
    (limits(), limits(), window_length(), 0..MAX_STEPS).prop_flat_map(|(old, new, length, at)| {
        let made =
            |limit| SlidingWindow::new(limit, Span::from_micros(length)).expect("valid numbers");
        let (before, after) = (made(old), made(new));
        trace(window_rhythm(old.min(new), length)).prop_map(move |trace| Change {
            before,
            after,
            trace,
            at,
        })
    })
}
