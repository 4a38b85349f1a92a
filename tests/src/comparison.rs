//! The engine and the oracle, side by side on the same trace.

use std::fmt;

use tidegate_core::{Algorithm, Decision, Limit, State};

use crate::oracle::Oracle;
use crate::subject::Subject;
use crate::trace::{Step, Trace};

/// Decisions in one trace.
const TRACE_LENGTH: u64 = 256;

/// A run of traces: the same subject and seed make the same decisions.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The subject of the comparison.
    pub subject: Subject,
    /// The seed of all random numbers.
    pub seed: u64,
}

impl Comparison {
    /// Compares at least `decisions` decisions, in as many traces as needed; returns their number.
    /// `progress` gets the count after each trace.
    pub fn run(
        &self,
        decisions: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Coverage, Box<Mismatch>> {
        let mut coverage = Coverage::default();
        for trace in 0.. {
            if coverage.decisions >= decisions {
                break;
            }
            self.run_trace(trace, &mut coverage)?;
            progress(coverage.decisions);
        }
        Ok(coverage)
    }

    /// Compares one trace.
    pub fn run_trace(&self, number: u64, coverage: &mut Coverage) -> Result<(), Box<Mismatch>> {
        let _replay = ReplayOnPanic { comparison: *self, trace: number };
        let mut trace = Trace::new(self.subject, self.trace_seed(number));
        let mut pair = None;
        let mut steps = Vec::new();
        let mut decided = 0;
        while decided < TRACE_LENGTH {
            let step = trace.step();
            steps.push(step);
            let Some((engine, oracle)) = Pair::step(&mut pair, step) else { continue };
            decided += 1;
            if engine != oracle {
                return Err(Box::new(Mismatch::new(*self, number, steps)));
            }
            coverage.count(&oracle);
            trace.learn(&oracle);
        }
        Ok(())
    }

    /// Traces with neighbouring numbers and seeds must not be related (splitmix64).
    fn trace_seed(&self, trace: u64) -> u64 {
        let mixed = self.seed ^ trace.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn replay(&self, trace: u64) -> String {
        format!(
            "cargo run -p tidegate-tests --bin campaign -- --algorithm {} --seed {} --trace {trace}",
            self.subject, self.seed,
        )
    }
}

/// Coverage of the comparisons, which distinguishes a trivial run from a thorough one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Decisions compared, field by field.
    pub decisions: u64,
    /// Denials with a wait.
    pub waits: u64,
    /// Denials without a wait, because the cost never fits.
    pub nevers: u64,
    /// Delayed admissions.
    pub delays: u64,
}

impl Coverage {
    fn count(&mut self, decision: &Decision) {
        self.decisions += 1;
        self.waits += u64::from(decision.retry_after().is_some());
        self.nevers += u64::from(decision.is_never());
        self.delays += u64::from(!decision.delay().is_zero());
    }
}

/// The first decision on which the two differ, with the shortest history found that leads to it.
#[derive(Debug)]
pub struct Mismatch {
    comparison: Comparison,
    trace: u64,
    step: usize,
    steps: Vec<Step>,
    engine: Decision,
    oracle: Decision,
}

impl Mismatch {
    /// `steps` ends with the differing decision.
    fn new(comparison: Comparison, trace: u64, steps: Vec<Step>) -> Self {
        let step = steps.len();
        let steps = shortest(steps);
        let (engine, oracle) = difference(&steps).expect("every shortened history still differs").1;
        Self { comparison, trace, step, steps, engine, oracle }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { subject, seed } = self.comparison;
        writeln!(f, "{subject}: seed {seed}, trace {}, step {}", self.trace, self.step)?;
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        writeln!(f, "  engine {:?}\n  oracle {:?}", self.engine, self.oracle)?;
        write!(f, "replay: {}", self.comparison.replay(self.trace))
    }
}

impl std::error::Error for Mismatch {}

/// The engine's limit with its state, and the oracle.
#[derive(Debug)]
struct Pair {
    limit: Limit,
    state: State,
    oracle: Oracle,
}

impl Pair {
    /// Both answers to a step; `None` if the step only changed the numbers.
    fn step(pair: &mut Option<Self>, step: Step) -> Option<(Decision, Decision)> {
        match (step, pair) {
            (Step::Renumber(numbers), pair) => {
                let limit = numbers.limit().unwrap_or_else(|invalid| {
                    panic!("numbers of a trace are legal, but {numbers}: {invalid}")
                });
                match pair {
                    Some(pair) => {
                        pair.limit = limit;
                        pair.oracle.renumber(numbers);
                    }
                    None => {
                        let oracle = Oracle::new(numbers);
                        *pair = Some(Self { limit, state: State::default(), oracle });
                    }
                }
                None
            }
            (Step::Decide(now, op), Some(pair)) => {
                let engine = pair.limit.decide(&mut pair.state, now, op);
                Some((engine, pair.oracle.decide(now.as_micros(), op)))
            }
            (Step::Decide(..), None) => None,
        }
    }
}

/// The first difference on these steps.
fn difference(steps: &[Step]) -> Option<(usize, (Decision, Decision))> {
    let mut pair = None;
    steps.iter().enumerate().find_map(|(index, &step)| {
        let (engine, oracle) = Pair::step(&mut pair, step)?;
        (engine != oracle).then_some((index, (engine, oracle)))
    })
}

/// Removes steps that the difference does not need: large pieces first, then single steps.
fn shortest(mut steps: Vec<Step>) -> Vec<Step> {
    let mut piece = steps.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(start..steps.len().min(start + piece));
            match difference(&fewer) {
                Some((index, _)) => {
                    fewer.truncate(index + 1);
                    steps = fewer;
                }
                None => start += piece,
            }
        }
        piece /= 2;
    }
    steps
}

/// An arithmetic panic must name its seed as well.
struct ReplayOnPanic {
    comparison: Comparison,
    trace: u64,
}

impl Drop for ReplayOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: {}", self.comparison.replay(self.trace));
        }
    }
}
