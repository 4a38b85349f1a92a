//! Policies: one file that describes every limit.

#[allow(dead_code, reason = "hooked up next")]
mod calendar;
mod document;
mod finding;
mod level;
mod load;
mod network;
mod pattern;
mod resolve;
mod rule;

use std::collections::HashMap;

use foldhash::quality::RandomState;

use self::document::Document;
use self::finding::Findings;

pub use self::calendar::{Calendar, CalendarUnit, Period, UnknownZone, Weekday};
pub use self::resolve::Entry;
pub use self::rule::{
    Allowance, Charging, Domain, Form, Metadata, MetricDetail, Mode, OnStoreFailure, PolicyLimit,
    Rule, Tier, Unit,
};

/// Every limit of every domain, checked and ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    domains: HashMap<Box<str>, Domain, RandomState>,
}

/// Whether several files may describe one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// No: most likely one of them is a copy.
    #[default]
    Refuse,
    /// Yes: their descriptors are put together.
    Allow,
}

impl Policy {
    /// Reads a policy from files, given by name and text. What is wrong is told all at once, and then
    /// there is no policy.
    pub fn load(files: &[(&str, &str)], merging: Merging) -> Loaded {
        let mut findings = Findings::default();
        let documents: Vec<Document> = files
            .iter()
            .flat_map(|(file, text)| Document::parse(file, text, &mut findings))
            .collect();
        let policy = load::load(&documents, merging, &mut findings);
        let policy = (findings.errors() == 0).then_some(policy);
        let errors = findings.errors();
        Loaded { policy, errors, findings: findings.to_string() }
    }

    /// All domains, in no order.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    /// A domain by its name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }
}

/// A policy, if it could be read, and what is to be said about its files.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// None if there was an error.
    pub policy: Option<Policy>,
    /// How many errors there were.
    pub errors: usize,
    /// What is to be said, errors and warnings: one `file:line:column: message` per line.
    pub findings: String,
}
