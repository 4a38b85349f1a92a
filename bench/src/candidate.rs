//! Candidates: the name of an implementation, how to build it, and the call that decides.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine;
use crate::traffic::{Names, Request};

/// Something that decides. Calls arrive in slices, so that dispatch costs nothing per decision.
pub trait Decider: Sync {
    /// Charges one unit to the request's key; true if allowed.
    fn decide(&self, request: &Request) -> bool;

    /// Decides all requests back to back; returns the number of admissions.
    fn tight(&self, requests: &[Request]) -> u64 {
        requests.iter().map(|request| u64::from(self.decide(request))).sum()
    }

    /// Decides all requests, each only after the previous one has finished; returns the number of
    /// admissions.
    fn isolated(&self, requests: &[Request]) -> u64 {
        let mut allowed = 0;
        for request in requests {
            allowed += u64::from(self.decide(request));
            machine::isolate();
        }
        allowed
    }

    /// Called when every key is in the table, before the measurement.
    fn filled(&self) {}

    /// Called before the measurement with the number of threads.
    fn share(&self, _threads: usize) {}
}

/// Requests decided per call where a candidate takes batches.
pub const BATCH: usize = 16;

/// One line of the tables.
pub struct Candidate {
    pub name: &'static str,
    pub path: Path,
    pub names: Names,
    /// The largest number of keys: 1 for candidates without keys, few for candidates that would
    /// take hours or all memory.
    pub most_keys: u32,
    pub build: fn(Setup) -> Box<dyn Decider>,
}

impl Candidate {
    pub const fn new(name: &'static str, build: fn(Setup) -> Box<dyn Decider>) -> Self {
        Self { name, path: Path::Allow, names: Names::Single, most_keys: u32::MAX, build }
    }

    pub const fn denying(mut self) -> Self {
        self.path = Path::Deny;
        self
    }

    pub const fn pairs(mut self) -> Self {
        self.names = Names::Pair;
        self
    }

    pub const fn at_most(mut self, keys: u32) -> Self {
        self.most_keys = keys;
        self
    }

    /// Number of users that fill `keys` entries of a table.
    pub fn users(&self, keys: u32) -> u32 {
        if self.names == Names::Pair { (keys / 2).max(1) } else { keys }
    }

    pub fn setup(&self, keys: u32) -> Setup {
        Setup { keys, terms: LimitNumbers::of(self.path, keys) }
    }
}

/// Whether the requests of a run pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    Allow,
    Deny,
}

/// The limit and the size that a candidate is built for.
#[derive(Clone, Copy)]
pub struct Setup {
    pub keys: u32,
    pub terms: LimitNumbers,
}

/// The limit that all candidates enforce: one unit per `interval`, `burst` units at once.
#[derive(Clone, Copy)]
pub struct LimitNumbers {
    pub interval: Duration,
    pub burst: u32,
}

impl LimitNumbers {
    /// On the allow path every key is live all the time, so that a table that reuses idle entries
    /// gains nothing by it: one unit stays on a key's account for longer than the run, or, where
    /// keys are few, they come so often that their units pile up. The burst is more than the most
    /// popular key gets.
    pub fn of(path: Path, keys: u32) -> Self {
        let (interval_secs, burst) = match path {
            Path::Deny => (3_600, 1),
            Path::Allow if keys <= 10_000 => (1, 1_000_000_000),
            Path::Allow => (120, 10_000_000),
        };
        Self { interval: Duration::from_secs(interval_secs), burst }
    }
}

/// Prints the names that `--only` can choose from.
pub fn list() -> Result<(), crate::Failure> {
    all().iter().for_each(|candidate| println!("{}", candidate.name));
    Ok(())
}

/// All candidates, floors first.
pub fn all() -> Vec<&'static Candidate> {
    let mut all: Vec<&'static Candidate> = Vec::new();
    all.extend(crate::floor::CANDIDATES);
    #[cfg(feature = "peers")]
    all.extend(crate::maps::CANDIDATES);
    all.extend(crate::governed::CANDIDATES);
    #[cfg(feature = "peers")]
    all.extend(crate::peers::CANDIDATES);
    all.extend(crate::tidegate::CANDIDATES);
    all
}

pub fn find(name: &str) -> Option<&'static Candidate> {
    all().into_iter().find(|candidate| candidate.name == name)
}
