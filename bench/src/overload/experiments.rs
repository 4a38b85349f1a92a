//! The experiments of a run, by number.

mod overload;
mod shapes;
mod steps;

use super::backend::Setup;
use super::cell::{Cell, Plan, Store};
use super::contender::Contender;
use super::spec::Phase;
use super::work::Kind;
use crate::Failure;
use crate::options::Options;

/// The lengths of the parts of a cell, in seconds.
#[derive(Clone, Copy, Debug)]
struct Effort {
    settle: u32,
    count: u32,
    /// The length of E3.
    hour: u32,
    /// The scale of the other experiments in per cent; a smoke run shortens them.
    percent: u32,
}

impl Effort {
    fn of(quick: bool, options: &Options) -> Self {
        let count = options.millis.map_or(15, |millis| (millis / 1_000).max(1) as u32);
        let hour = options.rounds.map_or(3_600, |minutes| 60 * minutes as u32);
        match quick {
            true => Self { settle: 1, count: 1, hour: 3, percent: 3 },
            false => Self { settle: 5, count, hour, percent: 100 },
        }
    }

    fn seconds(self, seconds: u32) -> u32 {
        (seconds * self.percent / 100).max(1)
    }
}

type Experiment = fn(&mut Runs);

/// In the order of a whole run. A letter stands for one backend of E1.
const EXPERIMENTS: [(&str, Experiment); 15] = [
    ("E3", Runs::e3),
    ("E1P", |runs| runs.e1(Kind::Pool)),
    ("E1C", |runs| runs.e1(Kind::Cpu)),
    ("E1D", |runs| runs.e1(Kind::Connections)),
    ("E1T", |runs| runs.e1(Kind::Thrashing)),
    ("E4", Runs::e4),
    ("E7", Runs::e7),
    ("E8", Runs::e8),
    ("E2", Runs::e2),
    ("E5", Runs::e5),
    ("E6", Runs::e6),
    ("E9", Runs::e9),
    ("E10", Runs::e10),
    ("E11", Runs::e11),
    ("E12", Runs::e12),
];

/// A smoke run has both kinds of clients.
const QUICK: [&str; 2] = ["E1P", "E8"];

/// Runs the selected experiments, and returns the cells that were left out.
pub fn run(store: &Store, options: &Options) -> Result<Vec<String>, Failure> {
    let asked: Vec<&str> = options.only.iter().flat_map(|only| only.split(',')).collect();
    let is_known = |name: &&str| EXPERIMENTS.iter().any(|(known, _)| is_asked(name, known));
    if let Some(unknown) = asked.iter().find(|name| !is_known(name)) {
        return Err(format!("no experiment is called {unknown}; there are E1 to E12").into());
    }
    let effort = Effort::of(store.quick, options);
    let mut runs = Runs { store: store.clone(), effort, left_out: Vec::new() };
    for (name, experiment) in EXPERIMENTS {
        let is_wanted = match asked.is_empty() {
            true => !store.quick || QUICK.contains(&name),
            false => asked.iter().any(|asked| is_asked(asked, name)),
        };
        if is_wanted {
            experiment(&mut runs);
        }
    }
    Ok(runs.left_out)
}

/// `E1` asks for all backends.
fn is_asked(asked: &str, name: &str) -> bool {
    asked.eq_ignore_ascii_case(name)
        || asked.eq_ignore_ascii_case("E1") && name.strip_prefix("E1").is_some_and(is_letter)
}

fn is_letter(rest: &str) -> bool {
    rest.bytes().all(|byte| byte.is_ascii_uppercase())
}

struct Runs {
    store: Store,
    effort: Effort,
    left_out: Vec<String>,
}

impl Runs {
    /// Measures a cell. A cell that cannot be measured is left out, and the run continues.
    fn cell(&mut self, plan: &Plan) -> Option<Cell> {
        match self.store.measure(plan) {
            Ok(cell) => Some(cell),
            Err(failure) => {
                self.leave_out(&plan.name, &failure.to_string());
                None
            }
        }
    }

    fn leave_out(&mut self, name: &str, why: &str) {
        eprintln!("LEFT OUT: {name}: {why}");
        self.left_out.push(format!("{name}: {why}"));
    }

    /// Cells at the same time; those that need little of the processor.
    fn together(&mut self, plans: &[Plan]) {
        let store = &self.store;
        let measured: Vec<_> = std::thread::scope(|scope| {
            let start = |plan| {
                scope.spawn(move || store.measure(plan).err().map(|failure| failure.to_string()))
            };
            let running: Vec<_> = plans.iter().map(start).collect();
            running.into_iter().map(|thread| thread.join()).collect()
        });
        for (plan, failure) in plans.iter().zip(measured) {
            let panicked = || Some("its thread panicked".to_owned());
            if let Some(why) = failure.unwrap_or_else(|_| panicked()) {
                self.leave_out(&plan.name, &why);
            }
        }
    }

    /// Requests per second that the backend can serve: a closed loop, without a limiter. Backends in other
    /// languages have as many workers that take as long.
    fn peak(&mut self, setup: &Setup) -> Option<f64> {
        let mean = setup.mean_us as f64 / 1e6;
        let Effort { settle, count, .. } = self.effort;
        if mean >= 1.0 {
            // A closed loop would take minutes.
            return Some(setup.workers as f64 / mean);
        }
        let clients = setup.kind.clients_at_peak();
        let phases = vec![Phase::new(0.0, settle + count)];
        let plan = Plan::new(&setup.peak_name(), Contender::None, setup, phases);
        let plan = plan.settle(settle as usize).load(|load| {
            load.closed = Some(clients);
            load.connections = clients;
        });
        self.cell(&plan).map(|cell| cell.rate())
    }

    /// A contender at a multiple of the peak.
    fn loaded(&mut self, name: &str, one: Contender, setup: &Setup, times: f64) -> Option<Cell> {
        let peak = self.peak(setup)?;
        let Effort { settle, count, .. } = self.effort;
        let plan = Plan::new(
            &format!("{name}-{}-{times}x-{}", setup.kind.letter(), one.name()),
            one,
            setup,
            vec![Phase::new(rounded(peak * times), settle + count)],
        );
        self.cell(&plan.settle(settle as usize).with_classes(name == "E4"))
    }
}

/// Rounds a rate, so that a cell has the same load in every run on a machine.
fn rounded(rate: f64) -> f64 {
    rate.round()
}
