//! One contender under one load. Finished cells are kept, so that a stopped run can continue.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::backend::Setup;
use super::contender::{Contender, Rig};
use super::cpu::{CLIENTS, Priority};
use super::spec::{Phase, Second, Sender, Spec};
use super::work::Kind;
use super::{client, load};
use crate::Failure;

/// The largest lateness of a generator behind its schedule.
pub const MOST_LATENESS_US: u32 = 5_000;

/// Number of attempts to measure a cell whose generator was late.
const ATTEMPTS: usize = 3;

/// The plan of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Names the cell, and its file.
    pub name: String,
    pub contender: Contender,
    pub setup: Setup,
    /// The address is set when the server runs.
    pub load: Spec,
    /// Seconds at the beginning that do not count.
    pub settle: usize,
    /// Whether the peers prefer important requests, each in its own way.
    pub has_classes: bool,
    /// Two backends instead of one.
    pub pair: Option<Pair>,
}

/// Two services behind one gateway: the first two classes go to one, the others to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pair {
    /// A concurrency limiter for each.
    Each,
    /// One for both.
    Both,
}

/// The result of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    pub plan: Plan,
    /// Seconds since 1970 at the start.
    pub date: u64,
    /// Whether servers and load ran at real-time priority.
    pub real_time: bool,
    pub seconds: Vec<Second>,
}

/// The folder of finished cells, and the options of the run.
#[derive(Clone, Debug)]
pub struct Store {
    pub folder: PathBuf,
    pub again: bool,
    pub quick: bool,
}

impl Store {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// The finished cell of this name, if it was measured by the same plan.
    pub fn kept(&self, plan: &Plan) -> Option<Cell> {
        let cell = self.read(&plan.name)?;
        let mut same = cell.plan.clone();
        same.load.address = plan.load.address;
        (same == *plan).then_some(cell)
    }

    /// The finished cell of this name, by any plan.
    pub fn read(&self, name: &str) -> Option<Cell> {
        serde_json::from_slice(&fs::read(self.path(name)).ok()?).ok()
    }

    /// Takes a finished cell, or measures it.
    pub fn measure(&self, plan: &Plan) -> Result<Cell, Failure> {
        if !self.again
            && let Some(cell) = self.kept(plan)
        {
            return Ok(cell);
        }
        // A run of an hour is not repeated.
        let is_long = plan.load.seconds() > 300;
        let attempts = if self.quick || is_long { 1 } else { ATTEMPTS };
        let mut cell = run(plan)?;
        for _ in 1..attempts {
            if cell.is_on_schedule() {
                break;
            }
            eprintln!("{}: the generator was {} us late; again", plan.name, cell.lateness_us());
            cell = run(plan)?;
        }
        if !self.quick && !cell.is_on_schedule() {
            let late = cell.lateness_us();
            return Err(format!("{}: the generator was {late} us late", plan.name).into());
        }
        fs::create_dir_all(&self.folder)?;
        fs::write(self.path(&plan.name), serde_json::to_vec(&cell)?)?;
        eprintln!("{}: {}", plan.name, cell.line());
        Ok(cell)
    }
}

impl Plan {
    pub fn new(name: &str, contender: Contender, setup: &Setup, phases: Vec<Phase>) -> Self {
        let address = ([127, 0, 0, 1], 0).into();
        Self {
            name: name.to_owned(),
            contender,
            setup: setup.clone(),
            load: Spec::new(address, phases),
            settle: 0,
            has_classes: false,
            pair: None,
        }
    }

    pub fn with_classes(self, has_classes: bool) -> Self {
        Self { has_classes, ..self }
    }

    pub fn settle(self, settle: usize) -> Self {
        Self { settle, ..self }
    }

    pub fn load(mut self, change: impl FnOnce(&mut Spec)) -> Self {
        change(&mut self.load);
        self
    }

    fn priority(&self) -> Priority {
        if self.setup.kind == Kind::Cpu { Priority::Normal } else { Priority::RealTime }
    }
}

/// Starts the servers, and plays the load.
fn run(plan: &Plan) -> Result<Cell, Failure> {
    let rig = match plan.pair {
        Some(pair) => Rig::pair(&plan.setup, pair)?,
        None => Rig::start(plan.contender, &plan.setup, plan.priority(), plan.has_classes)?,
    };
    let backend = Some(rig.backend);
    let spec = Spec { address: rig.address, backend, ..plan.load.clone() };
    play(plan, &spec, &rig)
}

/// Plays a load on running servers.
fn play(plan: &Plan, spec: &Spec, rig: &Rig) -> Result<Cell, Failure> {
    let date = std::time::UNIX_EPOCH.elapsed()?.as_secs();
    let mut child = CLIENTS
        .command(&std::env::current_exe()?)
        .arg(match spec.sender {
            Sender::Naive => load::COMMAND,
            Sender::Client => client::COMMAND,
        })
        .arg(serde_json::to_string(spec)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut told = BufReader::new(child.stdout.take().ok_or("the load has no output")?);
    // The first line says that the load begins.
    told.read_line(&mut String::new())?;
    let (stop, stopped) = channel::<()>();
    let mut limit = rig.limit();
    // Ends when `stop` is dropped.
    let watcher = thread::spawn(move || {
        let (mut next, mut limits) = (Instant::now(), Vec::new());
        loop {
            next += Duration::from_secs(1);
            match stopped.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => limits.push(limit()),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return limits,
            }
        }
    });
    let mut text = String::new();
    told.read_to_string(&mut text)?;
    let status = child.wait()?;
    drop(stop);
    let limits = watcher.join().map_err(|_| "the limit could not be read")?;
    if !status.success() {
        return Err(format!("{}: the load generator failed: {status}", plan.name).into());
    }
    let mut seconds: Vec<Second> = serde_json::from_str(&text)?;
    for (second, limit) in seconds.iter_mut().zip(limits) {
        second.limit = limit;
    }
    let real_time = *super::cpu::HAS_PRIORITIES;
    Ok(Cell { plan: plan.clone(), date, real_time, seconds })
}

impl Cell {
    /// Seconds that count: without those at the beginning, and those in which the generator was late.
    pub fn counted(&self) -> Vec<Second> {
        self.settled().iter().filter(|second| !self.is_late(second)).cloned().collect()
    }

    fn settled(&self) -> &[Second] {
        &self.seconds[self.plan.settle.min(self.seconds.len())..]
    }

    /// A closed loop has no schedule.
    fn is_late(&self, second: &Second) -> bool {
        self.plan.load.closed.is_none() && second.lateness_us > MOST_LATENESS_US
    }

    /// The worst lateness in a second that should count.
    pub fn lateness_us(&self) -> u32 {
        self.settled().iter().map(|second| second.lateness_us).max().unwrap_or_default()
    }

    /// Seconds that do not count because the generator was late.
    pub fn late_seconds(&self) -> usize {
        self.settled().iter().filter(|second| self.is_late(second)).count()
    }

    /// False if the generator was late in more than a fifth of the seconds.
    pub fn is_on_schedule(&self) -> bool {
        self.late_seconds() <= self.settled().len() / 5
    }

    /// Requests served per second.
    pub fn rate(&self) -> f64 {
        rate(&self.counted())
    }

    fn line(&self) -> String {
        let seconds = self.counted();
        let shed: u32 = seconds.iter().flat_map(|second| second.shed).sum();
        let attempts: u32 = seconds.iter().map(|second| second.attempts).sum();
        format!(
            "{:.0}/s served, {:.1} % shed, p99 {:.1} ms, limit {:?}, generator {} us late, {} s left out",
            self.rate(),
            100.0 * f64::from(shed) / f64::from(attempts.max(1)),
            f64::from(p99_us(&seconds)) / 1e3,
            seconds.last().and_then(|second| second.limit),
            self.lateness_us(),
            self.late_seconds()
        )
    }
}

/// Requests served per second.
pub fn rate(seconds: &[Second]) -> f64 {
    let served: u32 = seconds.iter().map(Second::served).sum();
    f64::from(served) / seconds.len().max(1) as f64
}

/// The median of the seconds' 99th percentiles of latency.
pub fn p99_us(seconds: &[Second]) -> u32 {
    let mut all: Vec<u32> = seconds.iter().map(|second| second.p99_us).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// The part of the requests of a class that was served.
pub fn success(seconds: &[Second], class: usize) -> f64 {
    let served: u32 = seconds.iter().map(|second| second.served[class]).sum();
    let requests: u32 = seconds.iter().map(|second| second.requests[class]).sum();
    if requests == 0 { 1.0 } else { f64::from(served) / f64::from(requests) }
}
