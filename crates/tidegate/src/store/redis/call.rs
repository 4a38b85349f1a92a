//! Many requests in one command, and its reply taken apart again.

use std::collections::HashMap;

use redis::{Cmd, Value};
use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use super::reply::{Answer, Reader};
use super::script::{Scripts, TimeSource};
use super::tariff::{Tariff, Verb, Work};
use crate::store::StoreError;

/// Tariffs that one call can tell apart.
const MOST_TARIFFS: usize = 256;

/// One charge, with what is needed to send it again elsewhere.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: Vec<u8>,
    pub(super) tariff: Tariff,
}

/// What a request gets back.
#[derive(Debug)]
pub(super) enum Answered {
    Decisions(Vec<Decision>),
    State(State, Timestamp),
}

/// A command under construction: requests in the order they came.
#[derive(Debug, Default)]
pub(super) struct Call {
    tariffs: Vec<Tariff>,
    entries: Vec<Entry>,
    /// The newest entry of each key: only that one may be repeated, or order would be lost.
    newest: HashMap<Vec<u8>, usize>,
    /// For each request, where its charges are.
    requests: Vec<Place>,
}

#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    tariff: usize,
    times: u64,
    more: bool,
}

/// Where a request's answer is found.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The so-manieth repetition of this entry.
    Repeated { entry: usize, nth: u64 },
    /// These entries.
    Entries { first: usize, count: usize },
}

impl Call {
    /// How many charges the script will look at.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a request; false if it has no room here.
    pub(super) fn add(&mut self, items: &[Item]) -> bool {
        if self.tariffs.len() + items.len() > MOST_TARIFFS {
            return false;
        }
        if let [item] = items
            && item.tariff.repeats()
            && let Some(entry) = self.newest.get(&item.name).copied()
            && !self.entries[entry].more
            && (entry == 0 || !self.entries[entry - 1].more)
            && self.tariffs[self.entries[entry].tariff] == item.tariff
        {
            let nth = self.entries[entry].times;
            self.entries[entry].times += 1;
            self.requests.push(Place::Repeated { entry, nth });
            return true;
        }
        let first = self.entries.len();
        for (i, item) in items.iter().enumerate() {
            let tariff = self.tariff(item.tariff);
            let entry = self.entries.len();
            let more = i + 1 < items.len();
            self.entries.push(Entry { name: item.name.clone(), tariff, times: 1, more });
            self.newest.insert(item.name.clone(), entry);
        }
        self.requests.push(Place::Entries { first, count: items.len() });
        true
    }

    fn tariff(&mut self, tariff: Tariff) -> usize {
        let known = self.tariffs.iter().position(|known| *known == tariff);
        known.unwrap_or_else(|| {
            self.tariffs.push(tariff);
            self.tariffs.len() - 1
        })
    }

    fn is_single(&self) -> bool {
        let single = |entry: &Entry| {
            entry.times == 1 && matches!(self.tariffs[entry.tariff].verb(), Verb::Take(_))
        };
        self.entries.len() == 1 && single(&self.entries[0])
    }

    /// The command, by the hash of its script or with its whole text.
    pub(super) fn command(&self, scripts: &Scripts, how: How) -> Cmd {
        let script = match (&self.entries[..], self.is_single()) {
            ([entry], true) => match self.tariffs[entry.tariff].limit {
                Limit::Bucket(_) => &scripts.bucket,
                Limit::FixedWindow(_) => &scripts.fixed_window,
                Limit::SlidingWindow(_) => &scripts.sliding_window,
                Limit::SlidingLog(_) => &scripts.sliding_log,
                Limit::InFlight(_) => &scripts.inflight,
                _ => &scripts.batch,
            },
            _ => &scripts.batch,
        };
        let mut command = Cmd::with_capacity(16, 256);
        match how.text {
            Text::Hash => command.arg("EVALSHA").arg(&script.hash),
            Text::Whole => command.arg("EVAL").arg(&script.text),
        };
        command.arg(self.entries.len());
        self.entries.iter().for_each(|entry| {
            command.arg(&entry.name);
        });
        if self.is_single() {
            self.tariffs[0].write_numbers(&mut command, how.repairs);
        } else {
            command.arg(self.tariffs.len());
            self.tariffs.iter().for_each(|tariff| tariff.write(&mut command, how.repairs));
            for entry in &self.entries {
                let word = (entry.times - 1) * 256 + entry.tariff as u64;
                command.arg(word * 2 + u64::from(entry.more));
            }
        }
        if scripts.time == TimeSource::Caller {
            command.arg(how.now.as_micros());
        }
        command
    }

    /// Takes a reply apart: one answer for each request, in the order they were added.
    pub(super) fn answers(&self, reply: &Value) -> Result<Vec<Answered>, StoreError> {
        let mut reader = Reader::new(reply)?;
        let now = reader.time()?;
        let mut answers = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            answers.push(reader.answer(&self.tariffs[entry.tariff])?);
        }
        reader.finish()?;
        let mut runs = HashMap::new();
        let mut each = Vec::with_capacity(self.requests.len());
        for place in &self.requests {
            each.push(match *place {
                Place::Repeated { entry, nth } => {
                    let run = runs.entry(entry);
                    let run = run.or_insert_with(|| self.run(entry, &answers[entry], now));
                    let decision = run.as_ref().map_err(Clone::clone)?[nth as usize];
                    Answered::Decisions(vec![decision])
                }
                Place::Entries { first, count: 1 } if self.entries[first].times > 1 => {
                    let run = runs.entry(first);
                    let run = run.or_insert_with(|| self.run(first, &answers[first], now));
                    Answered::Decisions(vec![run.as_ref().map_err(Clone::clone)?[0]])
                }
                Place::Entries { first, count } => self.group(first, count, &answers, now)?,
            });
        }
        Ok(each)
    }

    /// Repeated takes: all follow from the state that the first was decided on.
    fn run(
        &self,
        entry: usize,
        answer: &Answer,
        now: Timestamp,
    ) -> Result<Vec<Decision>, StoreError> {
        let Entry { tariff, times, .. } = self.entries[entry];
        let Tariff { limit, work: Work::Operate(op) } = self.tariffs[tariff] else {
            return Err(StoreError::protocol("a repeated dump"));
        };
        let mut state = answer.state.clone();
        let run: Vec<Decision> = (0..times).map(|_| limit.decide(&mut state, now, op)).collect();
        let admitted = run.iter().filter(|decision| decision.is_allowed()).count() as u64;
        answer.agrees(admitted, op)?;
        Ok(run)
    }

    /// The charges of one request. If one was denied, those that fit say how they stand.
    fn group(
        &self,
        first: usize,
        count: usize,
        answers: &[Answer],
        now: Timestamp,
    ) -> Result<Answered, StoreError> {
        let answers = &answers[first..first + count];
        let denied = count > 1 && answers.iter().any(|answer| answer.admitted != 1);
        let mut decisions = Vec::with_capacity(count);
        for (entry, answer) in self.entries[first..first + count].iter().zip(answers) {
            let Tariff { limit, work } = self.tariffs[entry.tariff];
            let op = match work {
                Work::Dump => return Ok(Answered::State(answer.state.clone(), now)),
                Work::Operate(Op::Take(units)) if denied && answer.admitted > 0 => Op::Read(units),
                Work::Operate(op) => op,
            };
            decisions.push(answer.decide(&limit, now, op)?);
        }
        Ok(Answered::Decisions(decisions))
    }
}

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) text: Text,
    /// Whether impossible states are repaired by now.
    pub(super) repairs: bool,
    /// Only for [`TimeSource::Caller`].
    pub(super) now: Timestamp,
}

/// A script by its hash, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Hash,
    Whole,
}
