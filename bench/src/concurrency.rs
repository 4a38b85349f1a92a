//! `concurrency`: the cost of a permit of a concurrency limiter, of a shed request, and of the end
//! of a window.

use std::hint::black_box;

use serde::Serialize;
use tidegate::concurrency::{Class, ConcurrencyLimiter, Outcome};
use tidegate::{ManualClock, Span, SystemClock};

use crate::Failure;
use crate::measure::thread_cpu;
use crate::options::Options;
use crate::report::{self, Table, short};
use crate::targets::{Bound, Target};

/// A measurement, in nanoseconds of processor time.
#[derive(Clone, Debug, Serialize)]
struct Row {
    what: &'static str,
    min_ns: f64,
    median_ns: f64,
    max_ns: f64,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    rows: &'a [Row],
    targets: &'a [Target],
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let rounds = if options.quick { 3 } else { 41 };
    let repeats = if options.quick { 1_000 } else { 200_000 };
    let clock = SystemClock::new();
    let adaptive = ConcurrencyLimiter::adaptive().build();
    let full = ConcurrencyLimiter::fixed(1).build();
    let _held = full.try_acquire(Class::CRITICAL)?;
    let rows = [
        measure("two readings of the clock", rounds, repeats, || {
            black_box((clock.now(), clock.now()));
        }),
        measure("acquire, sample, release", rounds, repeats, || {
            if let Ok(permit) = adaptive.try_acquire(Class::CRITICAL) {
                black_box(permit).finish(Outcome::Success);
            }
        }),
        measure("shed", rounds, repeats, || {
            black_box(full.try_acquire(Class::new(2)).is_err());
        }),
        window_end(rounds * 50)?,
    ];
    let mut table = Table::new(&["operation", "min ns", "median ns", "max ns"]);
    for row in &rows {
        let numbers = [row.min_ns, row.median_ns, row.max_ns].map(|ns| short(Some(ns)));
        table.push([row.what.to_owned()].into_iter().chain(numbers).collect());
    }
    table.print();
    let [_, permit, shed, end] = &rows;
    let targets = [
        Target::new("acquire, sample, release, ns", Bound::AtMost(35.0), Some(permit.median_ns)),
        Target::new("shed, ns", Bound::AtMost(10.0), Some(shed.median_ns)),
        Target::new("end of a window, ns", Bound::AtMost(5_000.0), Some(end.median_ns)),
    ];
    report::plain_targets(&targets);
    report::write(&options.out("concurrency.json"), &Results { rows: &rows, targets: &targets })
}

fn measure(what: &'static str, rounds: usize, repeats: u32, mut call: impl FnMut()) -> Row {
    let samples = (0..rounds).map(|_| {
        let started = thread_cpu();
        (0..repeats).for_each(|_| call());
        (thread_cpu() - started).as_nanos() as f64 / f64::from(repeats)
    });
    Row::new(what, samples.collect())
}

/// A release that completes a window of 60 requests in many buckets, with two readings of the
/// thread's clock.
fn window_end(windows: usize) -> Result<Row, Failure> {
    let clock = ManualClock::new();
    let limiter = ConcurrencyLimiter::gradient2().clock(clock.clone()).build();
    let mut samples = Vec::new();
    for window in 0..windows {
        for request in 0..60 {
            let permit = limiter.try_acquire(Class::CRITICAL)?;
            clock.advance(Span::from_micros(100 + 20 * request));
            permit.finish(Outcome::Success);
        }
        let permit = limiter.try_acquire(Class::CRITICAL)?;
        clock.advance(Span::from_millis(100));
        let started = thread_cpu();
        permit.finish(Outcome::Success);
        samples.push((thread_cpu() - started).as_nanos() as f64);
        debug_assert!(limiter.stats().baseline.is_some(), "window {window} is complete");
    }
    Ok(Row::new("end of a window", samples))
}

impl Row {
    fn new(what: &'static str, mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let (last, middle) = (samples.len() - 1, samples.len() / 2);
        Self { what, min_ns: samples[0], median_ns: samples[middle], max_ns: samples[last] }
    }
}
