//! A script's reply: the time, and for each charge the state it was decided on.
//!
//! The library derives the decision from that state with the same function as in memory; the script
//! only returns whether it admitted, and the two must agree.

use redis::Value;
use tidegate_core::algorithm::blocking::{Block, BlockingState};
use tidegate_core::algorithm::bucket::{BucketState, Moment};
use tidegate_core::algorithm::fixed_window::FixedWindowState;
use tidegate_core::algorithm::inflight::{InFlightState, Lease};
use tidegate_core::algorithm::sliding_log::{Entry, SlidingLogState};
use tidegate_core::algorithm::sliding_window::SlidingWindowState;
use tidegate_core::{Algorithm, Decision, LeaseId, Limit, Op, Outcome, State, Timestamp};

use crate::store::redis::wire::script_args::{ScriptArgs, Verb};
use crate::store::reservation::{not_open, settling};
use crate::store::{Misconfigured, Reserving, StoreError};

/// A script's answer to one charge.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Answer {
    /// How often it was admitted; 1 for operations that are never denied. In a batch, 2 for a
    /// charge that would have fitted if the denial of another one had not been counted.
    pub(in crate::store::redis) admitted: u64,
    pub(in crate::store::redis) state: State,
    after: Option<After>,
    closed: Option<Closed>,
}

/// What a charge that closes a reservation found.
#[derive(Clone, Copy, Debug)]
enum Closed {
    NotOpen,
    /// Its units were owed until then.
    Open(Timestamp),
}

/// The state of a list or set after an operation, and the operation's result.
#[derive(Clone, Copy, Debug)]
struct After {
    /// Units that were debited or returned.
    booked: u64,
    lease: Option<LeaseId>,
}

impl Answer {
    /// The decision of the operation.
    pub(in crate::store::redis) fn decide(
        &self,
        limit: &Limit,
        now: Timestamp,
        op: Op,
    ) -> Result<Decision, StoreError> {
        let mut state = self.state.clone();
        let op = match self.closed {
            None => op,
            Some(Closed::Open(until)) => settling(op, until),
            Some(Closed::NotOpen) => {
                return Ok(not_open(limit.decide(&mut state, now, Op::Read(0))));
            }
        };
        let Some(After { booked, lease }) = self.after else {
            let decision = limit.decide(&mut state, now, op);
            let looked = self.admitted == 2;
            self.agrees(if decision.is_allowed() { 1 } else { u64::from(looked) * 2 }, op)?;
            return Ok(decision);
        };
        let standing = limit.decide(&mut state, now, Op::Read(0));
        let outcome = match (op, lease) {
            (Op::Renew(_), None) => Outcome::Deny { retry_after: None },
            _ => Outcome::Allow,
        };
        let unbooked = match op {
            Op::Force(units) | Op::ReturnOwed { units, .. } => units - booked,
            _ => 0,
        };
        Ok(Decision { outcome, unbooked, lease, ..standing })
    }
}

impl Answer {
    /// Checks that script and library agree.
    pub(in crate::store::redis) fn agrees(&self, admitted: u64, op: Op) -> Result<(), StoreError> {
        if admitted == self.admitted {
            return Ok(());
        }
        let Self { admitted: by_script, state, .. } = self;
        let why = format!(
            "the script admitted {by_script} of {op:?} on {state:?}, the library {admitted}"
        );
        // The state of this key is at fault, not the server.
        Err(StoreError::misconfigured(Misconfigured::WrongType, why))
    }
}

/// Reads integers one by one.
pub(in crate::store::redis) struct Reader<'a> {
    values: std::slice::Iter<'a, Value>,
}

impl<'a> Reader<'a> {
    pub(in crate::store::redis) fn new(reply: &'a Value) -> Result<Self, StoreError> {
        match reply {
            Value::Array(values) => Ok(Self { values: values.iter() }),
            other => Err(StoreError::protocol(format!("expected a list, found {other:?}"))),
        }
    }

    pub(in crate::store::redis) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.number().map(Timestamp::from_micros)
    }

    /// Number of corrupt states that the script replaced, which the reply contains only if there
    /// were any.
    pub(in crate::store::redis) fn finish(mut self) -> Result<u64, StoreError> {
        let corrupt = if self.values.len() == 0 { 0 } else { self.number()? };
        match self.values.next() {
            None => Ok(corrupt),
            Some(more) => Err(StoreError::protocol(format!("unexpected {more:?} at the end"))),
        }
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        match self.values.next() {
            Some(Value::Int(number)) if *number >= 0 => Ok(number.cast_unsigned()),
            other => Err(StoreError::protocol(format!("expected a number, found {other:?}"))),
        }
    }

    pub(in crate::store::redis) fn answer(
        &mut self,
        script_args: &ScriptArgs,
    ) -> Result<Answer, StoreError> {
        let listed =
            matches!(script_args.limit.without_block(), Limit::SlidingLog(_) | Limit::InFlight(_));
        let closed = match script_args.reserving {
            Some(Reserving::Close(_)) => Some(match self.number()? {
                0 => Closed::NotOpen,
                until => Closed::Open(Timestamp::from_micros(until)),
            }),
            _ => None,
        };
        match script_args.verb() {
            // Only the state is returned.
            verb if matches!(closed, Some(Closed::NotOpen))
                || closed.is_some() && matches!(verb, Verb::Read(_)) =>
            {
                Ok(Answer {
                    admitted: 1,
                    state: self.state(&script_args.limit)?,
                    after: None,
                    closed,
                })
            }
            Verb::Take(_) | Verb::Read(_) => {
                let admitted = self.number()?;
                let admitted = if never_denied(script_args) { 1 } else { admitted };
                Ok(Answer { admitted, state: self.state(&script_args.limit)?, after: None, closed })
            }
            Verb::Dump => {
                let state = match script_args.limit {
                    Limit::InFlight(_) => self.all_leases()?,
                    _ => self.state(&script_args.limit)?,
                };
                Ok(Answer { admitted: 1, state, after: None, closed })
            }
            verb if listed => {
                let (unbooked, lease) = (self.number()?, LeaseId::new(self.number()?));
                let booked = match verb {
                    Verb::Force(units) | Verb::Owed(units) => {
                        units.min(1 << 52).saturating_sub(unbooked)
                    }
                    _ => 0,
                };
                let state = self.state(&script_args.limit)?;
                Ok(Answer { admitted: 1, state, after: Some(After { booked, lease }), closed })
            }
            _ => Ok(Answer {
                admitted: 1,
                state: self.state(&script_args.limit)?,
                after: None,
                closed,
            }),
        }
    }

    fn state(&mut self, limit: &Limit) -> Result<State, StoreError> {
        Ok(match limit {
            Limit::Bucket(_) => {
                let (ticks, part) = (self.number()?, self.number()?);
                State::Bucket(BucketState { full_at: Moment { ticks, part } })
            }
            Limit::FixedWindow(_) => {
                let (end, count) = (self.number()?, self.number()?);
                State::FixedWindow(FixedWindowState { end, count })
            }
            Limit::SlidingWindow(_) => {
                let (end, previous, current) = (self.number()?, self.number()?, self.number()?);
                State::SlidingWindow(SlidingWindowState { end, previous, current })
            }
            Limit::SlidingLog(_) => {
                let mut entries = Vec::new();
                for _ in 0..self.number()? {
                    let (at, weight) = (self.number()?, self.number()?);
                    entries.push(Entry { at, weight });
                }
                State::SlidingLog(SlidingLogState::restore(entries))
            }
            Limit::InFlight(_) => {
                let last_id = self.number()?;
                let mut leases = Vec::new();
                for id in 1..=self.number()? {
                    let (expires, weight) = (self.number()?, self.number()?);
                    leases.push(Lease { id, expires, weight });
                }
                State::InFlight(InFlightState::restore(leases, last_id))
            }
            Limit::Blocking(blocking) => {
                let block = Block { from: self.number()?, until: self.number()? };
                let rate = Box::new(self.state(&blocking.rate())?);
                State::Blocking(BlockingState { block, rate })
            }
            _ => return Err(StoreError::protocol("a family that has no script")),
        })
    }

    fn all_leases(&mut self) -> Result<State, StoreError> {
        let last_id = self.number()?;
        let mut leases = Vec::new();
        for _ in 0..self.number()? {
            let (id, expires, weight) = (self.number()?, self.number()?, self.number()?);
            leases.push(Lease { id, expires, weight });
        }
        Ok(State::InFlight(InFlightState::restore(leases, last_id)))
    }
}

/// Operations that a script runs as reads and that the library never denies.
fn never_denied(script_args: &ScriptArgs) -> bool {
    use crate::store::redis::wire::script_args::Work;
    match script_args.work {
        Work::Operate(Op::Take(_) | Op::Read(_)) | Work::Dump => false,
        Work::Operate(_) | Work::Undo { .. } => true,
    }
}
