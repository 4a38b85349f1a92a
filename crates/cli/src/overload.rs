//! `tidegate simulate overload`: concurrency limiters in front of an overloaded server.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::{fs, thread};

use tidegate_sim::overload::{
    CLASSES, Chart, Contender, OverloadReport, Panel, Scenario, simulate,
};

use crate::args::Overload;
use crate::chart::blocks;
use crate::terminal::Terminal;

const LABEL: usize = 13;
/// Width of the number at the end of a line.
const FIGURE: usize = 11;

/// A limiter and its results.
struct Played {
    contender: Contender,
    report: OverloadReport,
}

/// The quantities that are drawn over time.
#[derive(Clone, Copy)]
enum Metric {
    Goodput,
    P99,
    Limit,
}

/// Runs the scenario with each limiter, in parallel.
pub(crate) fn overload(args: &Overload, terminal: Terminal) -> Result<ExitCode, clap::Error> {
    let scenario = args.scenario();
    let played = play(&scenario, &args.limiters());
    let mut text = heading(&scenario, terminal);
    for metric in [Metric::Goodput, Metric::P99, Metric::Limit] {
        text.push_str(&chart(&scenario, &played, metric, terminal));
    }
    text.push_str(&success(&played, terminal));
    // A closed pipe (`| head`) is not a failure.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    if let Some(path) = &args.svg
        && let Err(error) = fs::write(path, drawn(&scenario, &played).svg())
    {
        let _ = writeln!(io::stderr(), "error: cannot write {}: {error}", path.display());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn play(scenario: &Scenario, contenders: &[Contender]) -> Vec<Played> {
    thread::scope(|scope| {
        let start = |contender: &Contender| {
            let contender = *contender;
            scope.spawn(move || Played { contender, report: simulate(scenario, contender) })
        };
        let running: Vec<_> = contenders.iter().map(start).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined
            .map(|played| played.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn heading(scenario: &Scenario, terminal: Terminal) -> String {
    let phases =
        scenario.phases.iter().map(|phase| format!("{}% for {} s", phase.load, phase.seconds));
    let phases: Vec<String> = phases.collect();
    let text = format!(
        "Server {}, {} of work per request, load {}, deadline {}, {} retries, seed {}.",
        scenario.server.as_str(),
        scenario.service,
        phases.join(", "),
        scenario.deadline,
        scenario.retries,
        scenario.seed.0
    );
    terminal.wrap("", &text)
}

impl Metric {
    /// The values of the metric, one per second.
    fn values(self, report: &OverloadReport) -> Vec<u64> {
        let seconds = report.seconds.iter().enumerate();
        seconds
            .map(|(number, second)| match self {
                Self::Goodput => report.goodput(number..number + 1),
                Self::P99 => second.p99.as_micros() / 1_000,
                Self::Limit => u64::from(second.limit.unwrap_or(0)),
            })
            .collect()
    }

    /// The value at full height. Latencies far above the deadline are cut off.
    fn scale(self, scenario: &Scenario, highest: u64) -> u64 {
        match self {
            Self::Goodput => 100,
            Self::P99 => highest.min(3 * scenario.deadline.as_micros() / 1_000),
            Self::Limit => highest,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Goodput => "goodput, % of capacity (number: mean)",
            Self::P99 => "p99 of admitted requests, ms (number: at the end)",
            Self::Limit => "limit (number: at the end)",
        }
    }

    /// The number at the end of a line.
    fn figure(self, values: &[u64]) -> String {
        let last = values.last().copied().unwrap_or(0);
        match self {
            Self::Goodput => {
                format!("{}%", values.iter().sum::<u64>() / values.len().max(1) as u64)
            }
            Self::P99 => format!("{last} ms"),
            Self::Limit if last == 0 => "none".to_owned(),
            Self::Limit => last.to_string(),
        }
    }
}

/// Goodput, latency and limit over time, one line per limiter.
fn drawn(scenario: &Scenario, played: &[Played]) -> Chart {
    let panel = |metric: Metric| {
        let values: Vec<_> = played.iter().map(|one| metric.values(&one.report)).collect();
        let highest = values.iter().flatten().copied().max().unwrap_or(0);
        let title = metric.title().split(" (").next().unwrap_or_default().to_owned();
        Panel { title, scale: metric.scale(scenario, highest), values }
    };
    let line = |one: &Played| (one.contender.as_str().to_owned(), one.contender as usize);
    Chart {
        lines: played.iter().map(line).collect(),
        panels: [Metric::Goodput, Metric::P99, Metric::Limit].map(panel).into(),
        end: format!("{} s", played.first().map_or(0, |one| one.report.seconds.len())),
    }
}

fn chart(scenario: &Scenario, played: &[Played], metric: Metric, terminal: Terminal) -> String {
    let columns = terminal.width - LABEL - FIGURE;
    let lanes: Vec<(&str, Vec<u64>)> =
        played.iter().map(|one| (one.contender.as_str(), metric.values(&one.report))).collect();
    let highest = lanes.iter().flat_map(|(_, values)| values).copied().max().unwrap_or(0);
    let scale = metric.scale(scenario, highest);
    let mut text = format!("\n{}\n", terminal.bold(metric.title()));
    for (name, values) in &lanes {
        let bars = terminal.bars(&blocks(&means(values, columns), scale));
        let figure = metric.figure(values);
        let pad = columns.min(values.len()) + FIGURE - means(values, columns).len();
        let _ = writeln!(text, "  {name:<width$}{bars}{figure:>pad$}", width = LABEL - 2);
    }
    text
}

/// The mean values in at most `columns` columns.
fn means(values: &[u64], columns: usize) -> Vec<u64> {
    let per_column = values.len().div_ceil(columns.max(1)).max(1);
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    values.chunks(per_column).map(mean).collect()
}

fn success(played: &[Played], terminal: Terminal) -> String {
    let mut text =
        format!("\n{}\n  {:<width$}", terminal.bold("success by class"), "", width = LABEL - 2);
    CLASSES.iter().for_each(|class| {
        let _ = write!(text, "{class:>FIGURE$}");
    });
    text.push('\n');
    for one in played {
        let _ = write!(text, "  {:<width$}", one.contender.as_str(), width = LABEL - 2);
        for class in 0..CLASSES.len() {
            let permille = one.report.success(class, 0..one.report.seconds.len());
            let _ = write!(text, "{:>FIGURE$}", format!("{}.{}%", permille / 10, permille % 10));
        }
        text.push('\n');
    }
    text
}
