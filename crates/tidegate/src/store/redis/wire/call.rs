//! Many requests in one command, and its reply taken apart again.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use redis::{Cmd, Value};
use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use crate::store::redis::wire::reply::{Answer, Reader};
use crate::store::redis::wire::script::{Scripts, TimeSource};
use crate::store::redis::wire::script_args::{ScriptArgs, Verb, Work};
use crate::store::{Charge, DeniedState, StoreError};

/// Tariffs that one call can tell apart.
const MAX_SCRIPT_ARGS: usize = 256;

/// One charge, with what is needed to send it again elsewhere.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Item {
    pub(in crate::store::redis) name: Vec<u8>,
    pub(in crate::store::redis) script_args: ScriptArgs,
}

/// What a request gets back.
#[derive(Debug)]
pub(in crate::store::redis) enum Answered {
    Decisions(Decided),
    State(State, Timestamp),
}

/// Decisions on one request.
#[derive(Debug)]
pub(in crate::store::redis) struct Decided {
    pub(in crate::store::redis) decisions: Vec<Decision>,
    /// When they were made, by the server's clock.
    pub(in crate::store::redis) at: Timestamp,
    /// The number of corrupt states that the script replaced, told with the call's first request.
    pub(in crate::store::redis) corrupt: u64,
    /// For each charge the state that it was denied on; empty if none was.
    denied_on: Vec<Option<State>>,
}

impl Decided {
    /// Leaves what was denied, and on what, to those who want to know.
    pub(in crate::store::redis) fn tell<'a>(
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

/// A command under construction: requests in the order they came.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Call {
    script_args_list: Vec<ScriptArgs>,
    entries: Vec<KeyEntry>,
    /// The newest entry of each key, by a hash of its name: only that one may be repeated, or order
    /// would be lost. Empty while there is only one.
    newest: HashMap<u64, usize, RandomState>,
    /// Whether some key may have more than one entry.
    meets_again: bool,
    /// For each request, where its charges are.
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
    /// As batches read it.
    fn word(&self) -> u64 {
        ((self.times - 1) * 256 + self.script_args as u64) * 2 + u64::from(self.more)
    }
}

/// Which kind of script decides a call.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// One take on one key.
    Single,
    /// Takes on buckets, no key twice.
    Buckets,
    Any,
}

/// Where a request's answer is found.
#[derive(Clone, Copy, Debug)]
enum ReplySlot {
    /// The so-manieth repetition of this entry.
    Repeated { entry: usize, nth: u64 },
    /// These entries.
    Entries { first: usize, count: usize },
}

impl Call {
    /// How many charges the script will look at.
    pub(in crate::store::redis) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a request; false if it has no room here.
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
        // What stands alone meets nobody.
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

    /// Two names of one hash count as one that comes again, which is slower and still right.
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

    /// The least that the script has to be able to do.
    fn shape(&self) -> Shape {
        let takes = |script_args: &ScriptArgs| matches!(script_args.verb(), Verb::Take(_));
        let buckets = |script_args: &ScriptArgs| {
            matches!(script_args.limit, Limit::Bucket(_)) && takes(script_args)
        };
        match &self.entries[..] {
            [entry] if entry.times == 1 && takes(&self.script_args_list[entry.script_args]) => {
                Shape::Single
            }
            _ if !self.meets_again && self.script_args_list.iter().all(buckets) => Shape::Buckets,
            _ => Shape::Any,
        }
    }

    /// The command, by the hash of its script or with its whole text.
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
            Shape::Single => self.script_args_list[0].write_single(&mut command, how.repairs),
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

    /// Takes a reply apart: one answer for each request, in the order they were added. A state that
    /// the library reads differently than the script fails its own requests only.
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
        let ScriptArgs { limit, work: Work::Operate(op) } = self.script_args_list[script_args]
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
        let mut decided = Decided::new(now, count);
        for (entry, answer) in self.entries[first..first + count].iter().zip(answers) {
            let ScriptArgs { limit, work } = self.script_args_list[entry.script_args];
            let op = match work {
                Work::Dump => return Ok(Answered::State(answer.state.clone(), now)),
                Work::Operate(Op::Take(units)) if denied && answer.admitted > 0 => Op::Read(units),
                Work::Operate(op) => op,
                // Nobody waits for it; it says how things stood.
                Work::Undo { .. } => Op::Return(0),
            };
            decided.push((answer.decide(&limit, now, op)?, &answer.state));
        }
        Ok(Answered::Decisions(decided))
    }
}

/// Repeated takes.
struct Run {
    decisions: Vec<Decision>,
    /// What they left. Whichever was denied, the last was, and would be again.
    left: State,
}

/// One of them.
fn alone(run: &Run, nth: usize, now: Timestamp) -> Answered {
    let mut decided = Decided::new(now, 1);
    decided.push((run.decisions[nth], &run.left));
    Answered::Decisions(decided)
}

/// How a call is sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) struct How {
    pub(in crate::store::redis) text: Text,
    /// Whether impossible states are repaired by now.
    pub(in crate::store::redis) repairs: bool,
    /// Only for [`TimeSource::Caller`].
    pub(in crate::store::redis) now: Timestamp,
}

/// A script by its hash, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Text {
    Hash,
    Whole,
}
