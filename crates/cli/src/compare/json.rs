//! Figures as JSON. Field names are stable; new fields may be added.

use serde::Serialize;
use tidegate_core::{Span, Timestamp};
use tidegate_sim::{Comparison, Row, Setup, verdict};

/// Number of parts in a series.
const SERIES: usize = 60;

pub(super) fn document(setup: &Setup, comparisons: &[Comparison]) -> String {
    let document = Document {
        limit: setup.rate().to_string(),
        burst: setup.burst(),
        seed: setup.seed().0,
        shapes: comparisons.iter().map(shape).collect(),
    };
    let mut text = serde_json::to_string(&document).expect("plain structs of numbers and strings");
    text.push('\n');
    text
}

#[derive(Serialize)]
struct Document {
    limit: String,
    burst: u64,
    seed: u64,
    shapes: Vec<ShapeReport>,
}

#[derive(Serialize)]
struct ShapeReport {
    shape: &'static str,
    description: &'static str,
    /// Requests that clients want to be served.
    demand: u64,
    results: Vec<AlgorithmReport>,
    series: Series,
    verdict: Vec<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum AlgorithmReport {
    Refused { algorithm: &'static str, refused: String },
    Simulated(Box<Simulated>),
}

#[derive(Serialize)]
struct Simulated {
    algorithm: &'static str,
    /// Requests sent, including retries.
    offered: u64,
    admitted: u64,
    denied: u64,
    gave_up: u64,
    max_in_window: u64,
    max_in_2s: u64,
    /// Rounded up.
    max_delay_ms: u64,
    /// Rounded down.
    mean_delay_ms: u64,
    state_bytes: usize,
    /// `null` if nothing was admitted.
    last_start_ms: Option<u64>,
    /// Requests started in each part of the series.
    series: Vec<u64>,
}

#[derive(Serialize)]
struct Series {
    from_ms: u64,
    until_ms: u64,
    /// Requests without a limit, in each part of the series.
    demand: Vec<u64>,
}

fn shape(comparison: &Comparison) -> ShapeReport {
    let view = comparison.view;
    ShapeReport {
        shape: comparison.shape.as_str(),
        description: comparison.shape.description(),
        demand: comparison.demand.len() as u64,
        results: comparison.rows.iter().map(|row| result(row, comparison)).collect(),
        series: Series {
            from_ms: since_start(view.from),
            until_ms: since_start(view.until),
            demand: view.bins(&comparison.demand, SERIES),
        },
        verdict: verdict(comparison),
    }
}

fn result(row: &Row, comparison: &Comparison) -> AlgorithmReport {
    let algorithm = row.algorithm.as_str();
    match &row.outcome {
        Err(why) => AlgorithmReport::Refused { algorithm, refused: why.to_string() },
        Ok(simulated) => {
            let figures = &simulated.figures;
            AlgorithmReport::Simulated(Box::new(Simulated {
                algorithm,
                offered: figures.offered,
                admitted: figures.admitted,
                denied: figures.denied,
                gave_up: figures.gave_up,
                max_in_window: figures.max_in_window,
                max_in_2s: figures.max_in_2s,
                max_delay_ms: ceil_ms(figures.max_delay),
                mean_delay_ms: figures.mean_delay.as_micros() / 1_000,
                state_bytes: figures.state_bytes,
                last_start_ms: figures.last_start.map(since_start),
                series: comparison.view.bins(&simulated.run.starts, SERIES),
            }))
        }
    }
}

fn ceil_ms(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}

fn since_start(time: Timestamp) -> u64 {
    time.as_micros() / 1_000
}
