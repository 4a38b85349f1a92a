//! What is known of a request.

use tidegate_core::Op;

use crate::world::evidence::{Question, When};
use crate::world::lease_watch::Spending;
use crate::world::ledger::Fate;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) question: Question,
    pub(super) asked: u64,
    pub(super) parts: Vec<Part>,
}

/// What it asks of one key.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) key: usize,
    pub(super) op: Op,
    pub(super) fate: Fate,
    /// Units were taken, or given back, for it.
    pub(super) is_charged: bool,
    /// The store has denied it.
    pub(super) is_denied: bool,
    /// It may have been denied without asking, since it was asked for.
    pub(super) is_scarce: bool,
    /// The last call for it, if that has charged just what it asks for and its node knows, and it was not
    /// taken ahead.
    pub(super) own: Option<usize>,
    /// What was spent on it, when its node did something for the request for the how manieth time.
    pub(super) spending: Option<(u64, Spending)>,
}

impl Request {
    pub(super) fn new(when: When, question: Question) -> Self {
        let part = |(key, op)| Part {
            key,
            op,
            fate: Fate::Open,
            is_charged: false,
            is_denied: false,
            is_scarce: false,
            own: None,
            spending: None,
        };
        let parts = question.charges().map(part).collect();
        Self { question, asked: when.now, parts }
    }

    pub(super) fn part(&self, key: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.key == key)
    }

    pub(super) fn part_mut(&mut self, key: usize) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.key == key)
    }

    /// Whether it asks for several keys, all or nothing.
    pub(super) fn is_together(&self) -> bool {
        self.parts.len() > 1 && !self.question.is_each
    }

    pub(super) fn is_open(&self) -> bool {
        self.parts.iter().any(|part| part.fate == Fate::Open)
    }
}

/// The parts that may be and make up so many units, if there are any. No two parts are as large.
pub(super) fn worth(
    parts: &[Part],
    units: u64,
    may_be: impl Fn(usize) -> bool,
) -> Option<Vec<usize>> {
    let choice = |choice: usize| -> Vec<usize> {
        (0..parts.len()).filter(|it| choice & (1 << it) != 0 && may_be(*it)).collect()
    };
    let worth = |chosen: &[usize]| chosen.iter().map(|it| parts[*it].units()).sum::<u64>();
    (0..1 << parts.len()).map(choice).find(|chosen| worth(chosen) == units)
}

impl Part {
    /// A call is made for it.
    pub(super) const fn ask_again(&mut self) {
        self.own = None;
    }

    /// Units that it is about.
    pub(super) const fn units(&self) -> u64 {
        match self.op {
            Op::Take(units) | Op::Return(units) => units,
            _ => 0,
        }
    }
}
