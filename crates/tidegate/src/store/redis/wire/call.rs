//! Batches many requests into one command, and splits its reply.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use redis::{Cmd, Value};
use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use crate::store::redis::wire::reply::{Answer, Reader};
use crate::store::redis::wire::script::{Scripts, TimeSource};
use crate::store::redis::wire::script_args::{ScriptArgs, Work};
use crate::store::{Charge, DeniedState, StoreError};

/// The most distinct script arguments in one call.
const MAX_SCRIPT_ARGS: usize = 256;

/// One charge, with everything needed to send it to another node.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Item {
    pub(in crate::store::redis) name: Vec<u8>,
    pub(in crate::store::redis) script_args: ScriptArgs,
}

/// The result of a request.
#[derive(Debug)]
pub(in crate::store::redis) enum Answered {
    Decisions(Decided),
    State(State, Timestamp),
}

/// The decisions of one request.
#[derive(Debug)]
pub(in crate::store::redis) struct Decided {
    pub(in crate::store::redis) decisions: Vec<Decision>,
    /// When they were made, by the server's clock.
    pub(in crate::store::redis) at: Timestamp,
    /// Number of corrupt states that the script replaced, reported with the call's first request.
    pub(in crate::store::redis) corrupt: u64,
    /// For each charge the state that it was denied on; empty if none was.
    denied_on: Vec<Option<State>>,
}

impl Decided {
    /// Reports denied charges and their states to the charges' observers.
    pub(in crate::store::redis) fn report_denials<'a>(
        &mut self,
        charges: impl Iterator<Item = &'a Charge<'a>>,
    ) {
        for (charge, denied_on) in charges.zip(self.denied_on.drain(..)) {
            if let (Some(denied_state), Some(state)) = (charge.denied_state, denied_on) {
                let _ = denied_state.set(DeniedState { state, at: self.at });
            }
        }
    }

    fn push(&mut self, (decision, before): (Decision, &State)) {
        if !decision.is_allowed() {
            self.denied_on.resize(self.decisions.len(), None);
            self.denied_on.push(Some(before.clone()));
        }
        self.decisions.push(decision);
    }

    fn new(at: Timestamp, charges: usize) -> Self {
        Self { decisions: Vec::with_capacity(charges), at, corrupt: 0, denied_on: Vec::new() }
    }
}

/// A command under construction: requests in order of arrival.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Call {
    script_args_list: Vec<ScriptArgs>,
    entries: Vec<KeyEntry>,
    /// The newest entry of each key, by a hash of its name. Only the newest may be repeated, to
    /// keep the order. Empty while there is only one entry.
    newest: HashMap<u64, usize, RandomState>,
    /// Whether a key may have more than one entry.
    meets_again: bool,
    /// For each request, the position of its charges in the reply.
    requests: Vec<ReplySlot>,
}

#[derive(Debug)]
struct KeyEntry {
    name: Vec<u8>,
    script_args: usize,
    times: u64,
    more: bool,
}

impl KeyEntry {
    /// The encoding in batches.
    fn word(&self) -> u64 {
        ((self.times - 1) * 256 + self.script_args as u64) * 2 + u64::from(self.more)
    }
}

/// The kind of script that decides a call.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// One take on one key.
    Single,
    /// Takes on buckets, each key once.
    Buckets,
    Any,
}

/// The position of a request's answer.
#[derive(Clone, Copy, Debug)]
enum ReplySlot {
    /// The nth repetition of this entry.
    Repeated { entry: usize, nth: u64 },
    /// A range of entries.
    Entries { first: usize, count: usize },
}

impl Call {
    /// Number of charges that the script decides.
    pub(in crate::store::redis) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a request; false if there is no room for it.
    pub(in crate::store::redis) fn add(&mut self, items: &[Item]) -> bool {
        if self.script_args_list.len() + items.len() > MAX_SCRIPT_ARGS {
            return false;
        }
        if let [item] = items
            && item.script_args.repeats()
            && let Some(entry) = self.newest(&item.name)
            && !self.entries[entry].more
            && (entry == 0 || !self.entries[entry - 1].more)
            && self.script_args_list[self.entries[entry].script_args] == item.script_args
        {
            let nth = self.entries[entry].times;
            self.entries[entry].times += 1;
            self.requests.push(ReplySlot::Repeated { entry, nth });
            return true;
        }
        let first = self.entries.len();
        for (i, item) in items.iter().enumerate() {
            let script_args = self.script_args(item.script_args);
            let more = i + 1 < items.len();
            self.entries.push(KeyEntry { name: item.name.clone(), script_args, times: 1, more });
        }
        // A single entry cannot repeat a key.
        if self.entries.len() > 1 {
            (if first == 1 { 0 } else { first }..self.entries.len()).for_each(|i| self.index(i));
        }
        self.requests.push(ReplySlot::Entries { first, count: items.len() });
        true
    }

    fn newest(&self, name: &[u8]) -> Option<usize> {
        let entry = match &self.entries[..] {
            [_] => 0,
            _ => *self.newest.get(&self.newest.hasher().hash_one(name))?,
        };
        self.entries.get(entry).is_some_and(|entry| entry.name == name).then_some(entry)
    }

    /// Adds an entry to the index. Two names with the same hash count as a repeated key, which is
    /// slower but correct.
    fn index(&mut self, entry: usize) {
        let hash = self.newest.hasher().hash_one(&self.entries[entry].name[..]);
        self.meets_again |= self.newest.insert(hash, entry).is_some();
    }

    fn script_args(&mut self, script_args: ScriptArgs) -> usize {
        let known = self.script_args_list.iter().position(|known| *known == script_args);
        known.unwrap_or_else(|| {
            self.script_args_list.push(script_args);
            self.script_args_list.len() - 1
        })
    }

    /// The simplest script that can decide the call.
    fn shape(&self) -> Shape {
        let buckets = |script_args: &ScriptArgs| {
            matches!(script_args.limit, Limit::Bucket(_)) && script_args.is_plain_take()
        };
        match &self.entries[..] {
            [entry]
                if entry.times == 1 && self.script_args_list[entry.script_args].is_plain_take() =>
            {
                Shape::Single
            }
            _ if !self.meets_again && self.script_args_list.iter().all(buckets) => Shape::Buckets,
            _ => Shape::Any,
        }
    }

    /// The command, with the hash of its script or with its text.
    pub(in crate::store::redis) fn command(&self, scripts: &Scripts, how: How) -> Cmd {
        let shape = self.shape();
        let script = match shape {
            Shape::Single => self.script_args_list[0].single(scripts),
            Shape::Buckets => &scripts.batch_bucket,
            Shape::Any => &scripts.batch,
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
        match shape {
            Shape::Single => self.script_args_list[0].write_numbers(&mut command, how.repairs),
            Shape::Buckets => {
                let words = self.entries.iter().any(|entry| entry.word() > 0);
                command.arg(self.script_args_list.len()).arg(u8::from(words));
                let script_args_list = self.script_args_list.iter();
                script_args_list
                    .for_each(|script_args| script_args.write_numbers(&mut command, how.repairs));
                let entries = self.entries.iter().filter(|_| words);
                entries.for_each(|entry| {
                    command.arg(entry.word());
                });
            }
            Shape::Any => {
                command.arg(self.script_args_list.len());
                self.script_args_list
                    .iter()
                    .for_each(|script_args| script_args.write(&mut command, how.repairs));
                self.entries.iter().for_each(|entry| {
                    command.arg(entry.word());
                });
            }
        }
        if scripts.time == TimeSource::Caller {
            command.arg(how.now.as_micros());
        }
        command
    }

    /// Splits a reply into one answer per request, in the order they were added. If library and
    /// script disagree about a state, only its own requests fail.
    pub(in crate::store::redis) fn answers(
        &self,
        reply: &Value,
    ) -> Result<Vec<Result<Answered, StoreError>>, StoreError> {
        let mut reader = Reader::new(reply)?;
        let now = reader.time()?;
        let mut answers = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            answers.push(reader.answer(&self.script_args_list[entry.script_args])?);
        }
        let corrupt = reader.finish()?;
        let mut runs = HashMap::new();
        let mut each = Vec::with_capacity(self.requests.len());
        let alone = |run: &Result<Run, StoreError>, nth| match run {
            Ok(run) => Ok(alone(run, nth, now)),
            Err(error) => Err(error.clone()),
        };
        for place in &self.requests {
            each.push(match *place {
                ReplySlot::Repeated { entry, nth } => {
                    let run = runs.entry(entry);
                    let run = run.or_insert_with(|| self.run(entry, &answers[entry], now));
                    alone(run, nth as usize)
                }
                ReplySlot::Entries { first, count: 1 } if self.entries[first].times > 1 => {
                    let run = runs.entry(first);
                    let run = run.or_insert_with(|| self.run(first, &answers[first], now));
                    alone(run, 0)
                }
                ReplySlot::Entries { first, count } => self.group(first, count, &answers, now),
            });
        }
        if let Some(Ok(Answered::Decisions(decided))) = each.first_mut() {
            decided.corrupt = corrupt;
        }
        Ok(each)
    }

    /// Repeated takes: all follow from the state that the first was decided on.
    fn run(&self, entry: usize, answer: &Answer, now: Timestamp) -> Result<Run, StoreError> {
        let KeyEntry { script_args, times, .. } = self.entries[entry];
        let ScriptArgs { limit, work: Work::Operate(op), .. } = self.script_args_list[script_args]
        else {
            return Err(StoreError::protocol("a repeated dump"));
        };
        let mut state = answer.state.clone();
        let decisions: Vec<Decision> =
            (0..times).map(|_| limit.decide(&mut state, now, op)).collect();
        let admitted = decisions.iter().filter(|decision| decision.is_allowed()).count() as u64;
        answer.agrees(admitted, op)?;
        Ok(Run { decisions, left: state })
    }

    /// The decisions of one request. If one charge was denied, the charges that fit report their
    /// state.
    fn group(
        &self,
        first: usize,
        count: usize,
        answers: &[Answer],
        now: Timestamp,
    ) -> Result<Answered, StoreError> {
        let answers = &answers[first..first + count];
        let denied = count > 1 && answers.iter().any(|answer| answer.admitted != 1);
        let mut decided = Decided::new(now, count);
        for (entry, answer) in self.entries[first..first + count].iter().zip(answers) {
            let ScriptArgs { limit, work, .. } = self.script_args_list[entry.script_args];
            let op = match work {
                Work::Dump => return Ok(Answered::State(answer.state.clone(), now)),
                Work::Operate(Op::Take(units)) if denied && answer.admitted > 0 => Op::Read(units),
                Work::Operate(op) => op,
                // No caller waits for an undo; it reports the state as a read does.
                Work::Undo { .. } => Op::Return(0),
            };
            decided.push((answer.decide(&limit, now, op)?, &answer.state));
        }
        Ok(Answered::Decisions(decided))
    }
}

/// The results of repeated takes.
struct Run {
    decisions: Vec<Decision>,
    /// The state after all repetitions. If any was denied, the last one was, and it would be denied
    /// again.
    left: State,
}

/// The result of one repetition.
fn alone(run: &Run, nth: usize, now: Timestamp) -> Answered {
    let mut decided = Decided::new(now, 1);
    decided.push((run.decisions[nth], &run.left));
    Answered::Decisions(decided)
}

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) struct How {
    pub(in crate::store::redis) text: Text,
    /// Whether impossible states are repaired.
    pub(in crate::store::redis) repairs: bool,
    /// The time for [`TimeSource::Caller`]; otherwise unused.
    pub(in crate::store::redis) now: Timestamp,
}

/// A script by its hash, or its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Text {
    Hash,
    Whole,
}
