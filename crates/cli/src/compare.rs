//! `tidegate compare`: the same traffic through every algorithm.

mod json;
mod table;

use std::fmt::Write;

use tidegate_core::AlgorithmName;
use tidegate_sim::{Comparison, Setup, spell, verdict};

use crate::args::Compare;
use crate::chart::chart;
use crate::terminal::Terminal;

/// The output of `tidegate compare`.
pub(crate) fn compare(args: &Compare, terminal: Terminal) -> Result<String, clap::Error> {
    let setup = args.setup()?;
    let algorithms = args.algorithms();
    let shapes = args.shapes().into_iter();
    let comparisons: Vec<_> =
        shapes.map(|shape| Comparison::of(&setup, shape, &algorithms)).collect();
    if args.json {
        return Ok(json::document(&setup, &comparisons));
    }
    let mut out = terminal.wrap("", &heading(&setup));
    for comparison in &comparisons {
        out.push('\n');
        section(&mut out, comparison, args, terminal);
    }
    if let Some(note) = twins(&comparisons) {
        out.push('\n');
        out.push_str(&terminal.wrap("", &note));
    }
    out.push('\n');
    out.push_str(GUIDE);
    Ok(out)
}

fn heading(setup: &Setup) -> String {
    format!(
        "Limit {} with a burst of {}, seed {}, simulated time. max/{} and max/2s: the most that \
         started within any such span, * if above the limit. Bars: requests started, algorithms \
         on one scale, the tallest column on the right.",
        setup.rate(),
        setup.burst(),
        setup.seed().0,
        spell(setup.rate().per),
    )
}

fn section(out: &mut String, comparison: &Comparison, args: &Compare, terminal: Terminal) {
    let shape = comparison.shape;
    let _ = writeln!(out, "{}: {}", terminal.bold(shape.as_str()), shape.description());
    out.push_str(&table::table(comparison, terminal));
    if !args.no_chart && comparison.simulated().next().is_some() {
        out.push('\n');
        out.push_str(&chart(comparison, terminal));
    }
    let verdict = verdict(comparison).join(" ");
    if !verdict.is_empty() {
        out.push_str(&terminal.wrap("  ", &verdict));
    }
}

/// A sentence that GCRA equals a token bucket, if every decision of every shape agrees.
fn twins(comparisons: &[Comparison]) -> Option<String> {
    let run = |comparison: &Comparison, algorithm| {
        let mut rows = comparison.simulated();
        rows.find(|row| row.algorithm == algorithm).map(|row| row.run.clone())
    };
    let alike = |comparison: &Comparison| {
        let bucket = run(comparison, AlgorithmName::TokenBucket);
        bucket.is_some() && bucket == run(comparison, AlgorithmName::Gcra)
    };
    let burst = comparisons.first()?.setup.burst();
    comparisons.iter().all(alike).then(|| {
        format!(
            "gcra and token_bucket decided alike throughout: with the same burst ({burst}) they are \
             one algorithm."
        )
    })
}

const GUIDE: &str = "\
Which one?
  token_bucket     bursts are a feature: public APIs, clients that come and go
  sliding_window   bursts are the threat: log-ins, the edge; some error is fine
  leaky_bucket     what is behind needs an even stream, and callers can wait
  gcra, burst 1    an even stream too, but callers are denied, not delayed
  sliding_log      exact in every window, for small limits: password resets
  fixed_window     a quota by the day or month; twice the limit across its edge
                   does no harm
";
