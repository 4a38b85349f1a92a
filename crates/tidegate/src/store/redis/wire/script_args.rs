//! The arguments of scripts: a limit and an operation as numbers.
//!
//! Scripts only add, subtract, compare and divide integers below 2^53; every other product and
//! quotient is computed here and passed as an argument.

use redis::Cmd;
use tidegate_core::algorithm::blocking::Blocking;
use tidegate_core::algorithm::bucket::{Bucket, Moment};
use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Limit, MAX_COST, Op, Timestamp};

use crate::store::Reserving;
use crate::store::redis::wire::script::{Script, Scripts};

/// The largest number of units; counts are kept up to 2^52, so more has the same effect.
const MOST_UNITS: u64 = 1 << 52;

/// A limit and an operation on its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct ScriptArgs {
    pub(in crate::store::redis) limit: Limit,
    pub(in crate::store::redis) work: Work,
    pub(in crate::store::redis) reserving: Option<Reserving>,
}

/// An operation, or a read of everything stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Work {
    Operate(Op),
    /// Returns the units taken at that time by the store's clock, as far as they are still owed.
    Undo {
        units: u64,
        taken_at: Timestamp,
    },
    Dump,
}

/// The name of an operation in scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Verb {
    Take(u64),
    /// Operations that change nothing.
    Read(u64),
    Give(u64),
    Owed(u64),
    Force(u64),
    Reset,
    Release(u64),
    Renew(u64),
    Undo(u64),
    Block(u64),
    Dump,
}

impl Verb {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Take(_) => "take",
            Self::Read(_) => "read",
            Self::Give(_) => "give",
            Self::Owed(_) => "owed",
            Self::Force(_) => "force",
            Self::Reset => "reset",
            Self::Release(_) => "release",
            Self::Renew(_) => "renew",
            Self::Undo(_) => "undo",
            Self::Block(_) => "block",
            Self::Dump => "dump",
        }
    }

    /// The units, or the lease id.
    const fn number(self) -> u64 {
        match self {
            Self::Take(number)
            | Self::Read(number)
            | Self::Give(number)
            | Self::Owed(number)
            | Self::Force(number)
            | Self::Release(number)
            | Self::Renew(number)
            | Self::Undo(number) => number,
            // The rate takes nothing.
            Self::Block(_) | Self::Reset | Self::Dump => 0,
        }
    }

    /// Only operations that may be denied are compared with the limit.
    const fn is_deniable(self) -> bool {
        matches!(self, Self::Take(_) | Self::Read(_))
    }
}

impl ScriptArgs {
    pub(in crate::store::redis) fn verb(&self) -> Verb {
        let op = match self.work {
            Work::Operate(op) => op,
            Work::Undo { units, .. } => return Verb::Undo(units),
            Work::Dump => return Verb::Dump,
        };
        let in_flight = matches!(self.limit, Limit::InFlight(_));
        match op {
            Op::Take(units @ 1..) => Verb::Take(units),
            Op::Take(0) | Op::Return(0) | Op::Force(0) => Verb::Read(0),
            Op::Read(units) => Verb::Read(units),
            Op::ReturnOwed { units: 0, .. } => Verb::Read(0),
            Op::Return(_) | Op::ReturnOwed { .. } if in_flight => Verb::Read(0),
            Op::ReturnOwed { units, .. } => Verb::Owed(units),
            // The reservation records which units are still owed.
            Op::Return(units) if Reserving::closes(self.reserving) => Verb::Owed(units),
            Op::Return(units) => Verb::Give(units),
            Op::Force(units) => Verb::Force(units),
            Op::Reset => Verb::Reset,
            Op::Release(lease) if in_flight => Verb::Release(lease.number()),
            Op::Renew(lease) if in_flight => Verb::Renew(lease.number()),
            Op::Block(span) if matches!(self.limit, Limit::Blocking(_)) => {
                Verb::Block(span.min(Blocking::MAX_BLOCK).as_micros())
            }
            Op::Release(_) | Op::Renew(_) | Op::Block(_) => Verb::Read(0),
        }
    }

    /// Whether repeated operations on one key can be sent as one: the state is small enough to be
    /// returned whole, so that each can be decided from the first answer.
    pub(in crate::store::redis) fn repeats(&self) -> bool {
        let small = matches!(
            self.limit,
            Limit::Bucket(_) | Limit::FixedWindow(_) | Limit::SlidingWindow(_)
        );
        small && self.is_plain_take()
    }

    /// Whether it is a take that opens no reservation.
    pub(in crate::store::redis) fn is_plain_take(&self) -> bool {
        self.reserving.is_none() && matches!(self.verb(), Verb::Take(_))
    }

    /// The script for one take.
    pub(in crate::store::redis) fn single<'a>(&self, scripts: &'a Scripts) -> &'a Script {
        match &self.limit {
            Limit::Bucket(_) => &scripts.bucket,
            Limit::FixedWindow(_) => &scripts.fixed_window,
            Limit::SlidingWindow(_) => &scripts.sliding_window,
            Limit::SlidingLog(_) => &scripts.sliding_log,
            Limit::InFlight(_) => &scripts.inflight,
            Limit::Blocking(_) => &scripts.blocking,
            // `Limit` is non-exhaustive; the store must not guess an unknown family.
            _ => unreachable!("every family has a script"),
        }
    }

    /// Appends family, operation and numbers, as `batch.lua` reads them.
    pub(in crate::store::redis) fn write(&self, command: &mut Cmd, repairs: bool) {
        let family = match &self.limit {
            Limit::Blocking(blocking) => match blocking.rate() {
                Limit::SlidingLog(_) => "blocking_list",
                _ => "blocking",
            },
            limit => limit.family(),
        };
        let verb = self.verb();
        command.arg(family).arg(match (self.reserving, verb) {
            (Some(Reserving::Open(_)), Verb::Take(_)) => "reserve",
            (Some(Reserving::Close(_)), _) => "close",
            _ => verb.as_str(),
        });
        self.write_numbers(command, repairs);
        match (self.reserving, self.work) {
            (Some(Reserving::Close(id)), _) => {
                command.arg(id.number()).arg(verb.as_str());
            }
            (Some(Reserving::Open(id)), _) if matches!(verb, Verb::Take(_)) => {
                command.arg(id.number());
            }
            (_, Work::Undo { taken_at, .. }) => {
                command.arg(taken_at.as_micros());
            }
            (_, Work::Operate(Op::ReturnOwed { until, .. })) if matches!(verb, Verb::Owed(_)) => {
                command.arg(until.as_micros());
            }
            _ => {}
        }
    }

    /// Appends the numbers only.
    pub(in crate::store::redis) fn write_numbers(&self, command: &mut Cmd, repairs: bool) {
        let verb = self.verb();
        let units = verb.number().min(MOST_UNITS);
        let within = |limit: u64| match verb.is_deniable() && verb.number() > limit.min(MAX_COST) {
            true => -1,
            false => limit.cast_signed(),
        };
        match &self.limit {
            Limit::Bucket(bucket) => {
                let (Moment { ticks, part }, fill) = (cost(bucket, verb), bucket.fill_time());
                let numbers = [ticks, part, fill.ticks, fill.part, bucket.denominator()];
                command.arg(&numbers).arg(u8::from(repairs));
            }
            Limit::FixedWindow(window) => {
                let length = window.length().as_micros();
                let shift = (length - window.offset().as_micros()) % length;
                let counts = u8::from(window.denied() == Denied::Counted);
                command.arg(units).arg(within(window.limit())).arg(length).arg(shift).arg(counts);
            }
            Limit::SlidingWindow(window) => {
                command.arg(units).arg(within(window.limit())).arg(window.length().as_micros());
                command.arg(window.step()).arg(window.steps());
            }
            Limit::SlidingLog(log) => {
                command.arg(units).arg(within(log.limit())).arg(log.length().as_micros());
            }
            Limit::InFlight(in_flight) => {
                let number = if matches!(verb, Verb::Release(_) | Verb::Renew(_)) {
                    verb.number()
                } else {
                    units
                };
                command.arg(number).arg(within(in_flight.limit()));
                command.arg(in_flight.ttl().as_micros()).arg(u8::from(repairs));
            }
            Limit::Blocking(blocking) => {
                let limit = blocking.rate();
                let block_for = match verb {
                    Verb::Block(span) => span.cast_signed(),
                    Verb::Read(0) => -1,
                    // A cost that never fits starts no block.
                    _ if never_fits(&limit, verb) => 0,
                    _ => blocking.block_for().as_micros().cast_signed(),
                };
                command.arg(block_for).arg(limit.family());
                Self { limit, ..*self }.write_numbers(command, repairs);
            }
            // `Limit` is non-exhaustive; the store must not guess an unknown family.
            _ => unreachable!("every family has a script"),
        }
    }
}

/// Whether no wait makes these units fit.
fn never_fits(limit: &Limit, verb: Verb) -> bool {
    let capacity = match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        Limit::SlidingLog(log) => log.limit(),
        _ => u64::MAX,
    };
    verb.number() > capacity.min(MAX_COST)
}

/// The time that the units take to refill; units beyond the capacity take longer than a full
/// refill.
fn cost(bucket: &Bucket, verb: Verb) -> Moment {
    let never = verb.is_deniable() && verb.number() > MAX_COST;
    let exact = if never { None } else { bucket.time_of(verb.number()) };
    exact.unwrap_or(Moment { ticks: bucket.fill_time().ticks + 1, part: 0 })
}
