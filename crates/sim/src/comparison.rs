//! Compares algorithms on the same traffic.

use tidegate_core::{AlgorithmName, InvalidLimit, Timestamp};

use crate::report::{Figures, bins};
use crate::run::{Run, run, unlimited};
use crate::setup::Setup;
use crate::shape::Shape;

/// The results of several algorithms for one shape.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The numbers compared.
    pub setup: Setup,
    /// The traffic.
    pub shape: Shape,
    /// When requests would have started without a limit.
    pub demand: Vec<Timestamp>,
    /// One per algorithm, in the order of the arguments.
    pub rows: Vec<Row>,
    /// The time span to show: the shape's own, longer if requests start later.
    pub view: View,
}

/// The result of one algorithm, or why it rejects the numbers.
#[derive(Clone, Debug)]
pub struct Row {
    /// The algorithm.
    pub algorithm: AlgorithmName,
    /// Its result.
    pub outcome: Result<Simulated, InvalidLimit>,
}

/// A run with its figures.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The algorithm.
    pub algorithm: AlgorithmName,
    /// The run.
    pub run: Run,
    /// The figures of the run.
    pub figures: Figures,
}

/// A span of time, including both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Its first instant.
    pub from: Timestamp,
    /// Its last instant.
    pub until: Timestamp,
}

impl View {
    /// How many of `times` fall into each of `parts` equal parts of this view.
    pub fn bins(&self, times: &[Timestamp], parts: usize) -> Vec<u64> {
        bins(times, self.from, self.until, parts)
    }
}

impl Comparison {
    /// Runs `shape` through each of `algorithms`.
    pub fn of(setup: &Setup, shape: Shape, algorithms: &[AlgorithmName]) -> Self {
        let traffic = setup.traffic(shape);
        let simulate = |algorithm| {
            setup.limit(algorithm).map(|limit| {
                let run = run(&limit, &traffic, setup.seed());
                let figures = Figures::of(&run, setup.rate().per);
                Simulated { algorithm, run, figures }
            })
        };
        let rows: Vec<Row> = algorithms
            .iter()
            .map(|&algorithm| Row { algorithm, outcome: simulate(algorithm) })
            .collect();
        let last = rows.iter().flat_map(|row| &row.outcome).filter_map(|s| s.figures.last_start);
        let until = last.max().map_or(traffic.until, |last| last.max(traffic.until));
        Self {
            setup: *setup,
            shape,
            demand: unlimited(&traffic, setup.seed()),
            rows,
            view: View { from: traffic.from, until },
        }
    }

    /// The results of the algorithms that accept the numbers.
    pub fn simulated(&self) -> impl Iterator<Item = &Simulated> {
        self.rows.iter().filter_map(|row| row.outcome.as_ref().ok())
    }
}
