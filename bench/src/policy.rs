//! `policy`: the cost of finding the rule of a descriptor, with few rules and with many, and the
//! time to load a large policy.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};

use crate::allocations::counted;
use crate::measure::thread_cpu;
use crate::options::Options;
use crate::report::{self, Table, short};
use crate::targets::{Bound, Target};
use crate::{Failure, report::grouped};

const FEW: u32 = 10;
const MANY: u32 = 10_000;
/// Number of wildcards among many rules, all on the second level.
const WILDCARDS: u32 = 100;

/// The measurements with one number of rules.
#[derive(Clone, Debug, Serialize)]
struct Row {
    rules: u32,
    wildcards: u32,
    resolve_ns: f64,
    resolve_allocations: f64,
    /// Resolve, decide and fold in memory.
    check_ns: f64,
    check_allocations: f64,
    load_ms: f64,
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    rows: &'a [Row],
    targets: &'a [Target],
}

pub fn run(options: &Options) -> Result<(), Failure> {
    let rounds = if options.quick { 3 } else { 21 };
    let repeats = if options.quick { 200 } else { 20_000 };
    let rows = [FEW, MANY].map(|rules| measure(rules, rounds, repeats));
    let rows: Vec<Row> = rows.into_iter().collect::<Result<_, _>>()?;
    let mut table = Table::new(&[
        "rules",
        "wildcards",
        "resolve ns",
        "allocations",
        "check ns",
        "allocations",
        "load ms",
    ]);
    for row in &rows {
        table.push(vec![
            grouped(row.rules),
            grouped(row.wildcards),
            short(Some(row.resolve_ns)),
            short(Some(row.resolve_allocations)),
            short(Some(row.check_ns)),
            short(Some(row.check_allocations)),
            short(Some(row.load_ms)),
        ]);
    }
    table.print();
    let [few, many] = &rows[..] else { return Err("two sizes are measured".into()) };
    let targets = [
        Target::new(
            "resolve, 10,000 rules / 10 rules",
            Bound::AtMost(2.0),
            Some(many.resolve_ns / few.resolve_ns),
        ),
        Target::new("resolve, 10,000 rules, ns", Bound::AtMost(1_000.0), Some(many.resolve_ns)),
        Target::new(
            "resolve, 10,000 rules, allocations",
            Bound::AtMost(0.0),
            Some(many.resolve_allocations),
        ),
        Target::new("load, 10,000 rules, ms", Bound::AtMost(1_000.0), Some(many.load_ms)),
    ];
    report::plain_targets(&targets);
    report::write(&options.out("policy.json"), &Results { rows: &rows, targets: &targets })
}

fn measure(rules: u32, rounds: usize, repeats: u32) -> Result<Row, Failure> {
    let text = policy(rules);
    let load = |_| {
        let started = Instant::now();
        let loaded = Policy::load(&[("bench.yaml", &text)], Merging::Refuse);
        let elapsed = started.elapsed().as_secs_f64() * 1e3;
        loaded.policy.map(|policy| (policy, elapsed)).ok_or(loaded.findings)
    };
    let loads: Vec<(Policy, f64)> = (0..3).map(load).collect::<Result<_, _>>()?;
    let load_ms = median(loads.iter().map(|(_, elapsed)| *elapsed).collect());
    let (policy, _) = loads.into_iter().next().ok_or("loaded three times")?;
    let domain = policy.domain("bench").ok_or("the domain is there")?;
    let questions = questions(rules);
    let entries: Vec<[Entry<'_>; 3]> = questions.iter().map(entries).collect();
    let mut key = Vec::with_capacity(256);
    let mut resolve = || {
        for entries in &entries {
            key.clear();
            black_box(domain.resolve(black_box(entries), &mut key).map(|found| found.value));
        }
    };
    let (resolve_ns, resolve_allocations) = timed(rounds, repeats, entries.len(), &mut resolve);
    let limiter = PolicyLimiter::in_memory(policy.clone())?;
    let mut check = || {
        for entries in &entries {
            let descriptors = [Descriptor::new(entries)];
            let request = Request { domain: "bench", descriptors: &descriptors, hits: None };
            black_box(limiter.check_now(&request).map(|answer| answer.is_allowed())).ok();
        }
    };
    let (check_ns, check_allocations) = timed(rounds, repeats / 4, entries.len(), &mut check);
    let wildcards = wildcards(rules);
    Ok(Row {
        rules,
        wildcards,
        resolve_ns,
        resolve_allocations,
        check_ns,
        check_allocations,
        load_ms,
    })
}

/// Nanoseconds of processor time and allocations of one question: medians of the rounds.
fn timed(rounds: usize, repeats: u32, questions: usize, ask: &mut dyn FnMut()) -> (f64, f64) {
    let repeats = (repeats as usize / questions).max(1);
    let count = (repeats * questions) as f64;
    ask();
    let samples = (0..rounds).map(|_| {
        let (started, allocated) = (thread_cpu(), counted());
        (0..repeats).for_each(|_| ask());
        let nanos = (thread_cpu() - started).as_nanos() as f64;
        (nanos / count, (counted() - allocated) as f64 / count)
    });
    let (nanos, allocations): (Vec<f64>, Vec<f64>) = samples.unzip();
    (median(nanos), median(allocations))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const fn wildcards(rules: u32) -> u32 {
    if rules > WILDCARDS { WILDCARDS } else { 1 }
}

/// Three levels: tenants, paths below any tenant (some of them wildcards), methods below paths.
fn policy(rules: u32) -> String {
    let wildcards = wildcards(rules);
    // Each path has three rules: its own and those of two methods.
    let paths = (rules - wildcards * 3) / 6;
    let tenants = rules - wildcards * 3 - paths * 3 - 1;
    let mut text = String::from("domain: bench\ndescriptors:\n");
    for tenant in 0..tenants {
        let _ = writeln!(text, "  - {{key: tenant, value: tenant-{tenant}, rate: 1000/s}}");
    }
    text.push_str("  - key: tenant\n    rate: 100/s\n    descriptors:\n");
    for number in 0..wildcards + paths {
        let star = if number < wildcards { "/*" } else { "" };
        let _ = write!(
            text,
            "      - key: path\n        value: /v1/service-{number}{star}\n        descriptors:\n          \
             - {{key: method, value: POST, rate: 1000000/s}}\n          \
             - {{key: method, rate: 1000000/s}}\n"
        );
    }
    text
}

/// Descriptors of three entries; every other one is found by a wildcard.
fn questions(rules: u32) -> Vec<[String; 3]> {
    let wildcards = wildcards(rules);
    let paths = (rules - wildcards * 3) / 6;
    (0..64)
        .map(|number| {
            let path = match number % 2 {
                0 => format!("/v1/service-{}/users/{number}", number % wildcards),
                _ => format!("/v1/service-{}", wildcards + number % paths.max(1)),
            };
            let method = if number % 3 == 0 { "POST" } else { "GET" };
            [format!("customer-{number}"), path, method.to_owned()]
        })
        .collect()
}

fn entries([tenant, path, method]: &[String; 3]) -> [Entry<'_>; 3] {
    [
        Entry { key: "tenant", value: tenant },
        Entry { key: "path", value: path },
        Entry { key: "method", value: method },
    ]
}
