//! `tower`: the overhead of the layer and of `tower_governor` per request, in process and over
//! loopback.

mod in_process;
mod loopback;

use serde::Serialize;
use tidegate::{Limit, Limiter, Rate};
use tidegate_tower::{Answers, Header, RateLimitLayer};

use crate::Failure;
use crate::options::Options;
use crate::report::{self, Table, short};
use crate::targets::{Bound, Target};

/// The header that both layers take the key from.
const KEY: &str = "x-user";

/// A measurement, in nanoseconds of processor time per request.
#[derive(Clone, Debug, Serialize)]
struct Row {
    what: &'static str,
    min_ns: f64,
    median_ns: f64,
    max_ns: f64,
    /// Median of the differences to the base, round by round.
    added_ns: f64,
    /// Median of the ratios to the base, round by round.
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    in_process: &'a [Row],
    loopback: &'a [Row],
    targets: &'a [Target],
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let in_process = in_process::measure(options)?;
    println!("\n### In process, over a no-op layer\n");
    print(&in_process);
    let loopback = loopback::measure(options)?;
    println!("\n### Server over loopback, over bare axum\n");
    print(&loopback);
    let added = |what: &str| in_process.iter().find(|row| row.what == what).map(|row| row.added_ns);
    let ratio = |what: &str| loopback.iter().find(|row| row.what == what).map(|row| row.ratio);
    let share = |ours, theirs| added(ours).zip(added(theirs)).map(|(a, b): (f64, f64)| a / b);
    let targets = [
        Target::new("in process, no fields, ns added", Bound::AtMost(150.0), added(PLAIN)),
        Target::new("in process, fields, ns added", Bound::AtMost(450.0), added(FIELDS)),
        Target::new("no fields, time added / tower_governor", Bound::AtMost(0.5), {
            share(PLAIN, PEER)
        }),
        Target::new("fields, time added / tower_governor", Bound::AtMost(0.5), {
            share(FIELDS, PEER_FIELDS)
        }),
        Target::new("over loopback, no fields, processor time / axum", Bound::AtMost(1.05), {
            ratio(PLAIN)
        }),
        Target::new("over loopback, fields, processor time / axum", Bound::AtMost(1.1), {
            ratio(FIELDS)
        }),
    ];
    let time = |what: &str| in_process.iter().find(|row| row.what == what).map(|row| row.median_ns);
    let permits = time(PROTECT).zip(time(SHED)).map(|(ours, theirs)| ours / theirs);
    let what = "in process, concurrency limiter, time / LoadShed + ConcurrencyLimit";
    let targets = targets.into_iter().chain([Target::new(what, Bound::AtMost(1.05), permits)]);
    let targets: Vec<Target> = targets.collect();
    report::plain_targets(&targets);
    let results = Results { in_process: &in_process, loopback: &loopback, targets: &targets };
    report::write(&options.out("tower.json"), &results)
}

const BARE: &str = "bare axum";
const NO_OP: &str = "no-op layer";
const PLAIN: &str = "tidegate";
const FIELDS: &str = "tidegate, fields";
const PERMIT: &str = "tidegate, concurrency";
const POLICY: &str = "tidegate, policy";
/// A concurrency limiter without limits, and the same by a policy.
const PROTECT: &str = "tidegate, concurrency only";
const PROTECT_POLICY: &str = "tidegate, policy with concurrency only";
const SHED: &str = "LoadShed + ConcurrencyLimit";
const PEER: &str = "tower_governor";
const PEER_FIELDS: &str = "tower_governor, fields";

/// A layer with one limit in memory that admits everything.
fn layer(answers: Answers) -> Result<RateLimitLayer, Failure> {
    let limit = Limit::token_bucket(Rate::per_second(1_000_000)).burst(4_000_000_000).build()?;
    Ok(RateLimitLayer::limit(Limiter::new(limit)).identify(Header::named(KEY)).answers(answers))
}

/// Rows of interleaved rounds; `base` is the one that others are compared with.
fn rows(names: &[&'static str], base: &str, rounds: &[Vec<f64>]) -> Vec<Row> {
    let base = names.iter().position(|name| *name == base).unwrap_or(0);
    let column = |of: &dyn Fn(&Vec<f64>) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let middle = |values: &[f64]| values[values.len() / 2];
    let row = |(number, what): (usize, &&'static str)| {
        let times = column(&|round| round[number]);
        Row {
            what,
            min_ns: times[0],
            median_ns: middle(&times),
            max_ns: times[times.len() - 1],
            added_ns: middle(&column(&|round| round[number] - round[base])),
            ratio: middle(&column(&|round| round[number] / round[base])),
        }
    };
    names.iter().enumerate().map(row).collect()
}

fn print(rows: &[Row]) {
    let mut table = Table::new(&["service", "ns", "min..max", "added ns", "ratio"]);
    for row in rows {
        table.push(vec![
            row.what.to_owned(),
            short(Some(row.median_ns)),
            format!("{}..{}", short(Some(row.min_ns)), short(Some(row.max_ns))),
            short(Some(row.added_ns)),
            format!("{:.3}", row.ratio),
        ]);
    }
    table.print();
}
