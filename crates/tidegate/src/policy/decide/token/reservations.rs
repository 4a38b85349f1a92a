//! The reservations of a request, as a value that can be sent to a client.
//!
//! The text has everything that a settlement needs, so any process with the same store can settle
//! the reservations that another process opened, also after the policy has changed. Only the store
//! knows whether a reservation is open.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_core::{Decision, Limit, Op, Rate, Span, Timestamp};

use crate::key::{Key, Scope};
use crate::policy::decide::settle::RequestOutcome;
use crate::policy::decide::token::{self, Reader};
use crate::policy::matching::matched_limits::MatchedLimits;
use crate::policy::model::settling::{ActualSource, ByStatus, Settling, Statuses};
use crate::store::{Charge, LimitOptions, MAX_TOGETHER, OnStoreFailure, ReservationId, Reserving};
use crate::verdict::Details;

/// The most bytes of keys and names of one request's reservations, so that their text fits every transport.
pub(in crate::policy) const MAX_RESERVED_BYTES: usize = 8 << 10;

/// The reservations of one request, from [`PolicyLimiter::reserve`](crate::policy::PolicyLimiter::reserve).
///
/// `Display` writes them as letters and digits, which `FromStr` reads, in this process or another one. At most
/// [`MAX_TOGETHER`] reservations with 8 KiB of keys and names: 25 KiB of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations(Vec<Reservation>);

/// Units of one limit, and the key they were taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct Reservation {
    id: ReservationId,
    name: Box<str>,
    settling: Arc<Settling>,
    units: u64,
    limit: Limit,
    scope: Scope,
    text: Box<[u8]>,
    tag: Box<[u8]>,
    options: LimitOptions,
    /// The end of the calendar period, after which the key is no longer used.
    ends: Option<Timestamp>,
}

/// How a reservation is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) struct Settle {
    /// The operation on the key.
    pub(in crate::policy) op: Op,
    /// Units that are known not to fit.
    pub(in crate::policy) unbooked: u64,
}

impl Reservations {
    /// The reservations that a store opened for these limits.
    pub(in crate::policy) fn opened(
        matched: &MatchedLimits,
        details: &Details,
        now: Timestamp,
    ) -> Self {
        let reservations = matched.iter().filter_map(|one| {
            let (id, record) = (one.reservation?, &details.records[one.record]);
            let decision = record.decision.as_ref().filter(|decision| decision.is_allowed())?;
            let (rule, limit) = details.rule(record)?;
            let Charge { key, options, op: Op::Take(units), .. } = matched.charge(one) else {
                return None;
            };
            let ends = options.is_calendar.then(|| now + decision.reset_after);
            Some(Reservation {
                id,
                name: limit.name().unwrap_or_else(|| rule.path()).into(),
                settling: Arc::clone(limit.settling.as_ref()?),
                units,
                limit: one.numbers,
                scope: key.scope,
                text: key.text.into(),
                tag: key.tag.into(),
                options,
                ends,
            })
        });
        Self(reservations.collect())
    }

    /// Whether there is nothing to settle.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of limits to settle.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The headers and the trailers that hold actual costs, each with the name of its limit.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &ActualSource)> {
        self.0.iter().filter_map(|it| Some((&*it.name, it.settling.actual.as_ref()?)))
    }

    pub(in crate::policy) fn iter(&self) -> std::slice::Iter<'_, Reservation> {
        self.0.iter()
    }
}

impl Reservation {
    /// The settlement for an outcome; `None` if the outcome does not contain the cost.
    pub(in crate::policy) fn settle(
        &self,
        now: Timestamp,
        outcome: &RequestOutcome<'_>,
    ) -> Option<Settle> {
        let cost = self.cost(outcome)?;
        let is_over = self.ends.is_some_and(|ends| ends <= now);
        Some(match (cost.checked_sub(self.units), self.units.checked_sub(cost)) {
            (Some(more @ 1..), _) if is_over => Settle { op: Op::Return(0), unbooked: more },
            (Some(more @ 1..), _) => Settle { op: Op::Force(more), unbooked: 0 },
            (_, less) => Settle { op: Op::Return(less.unwrap_or(0)), unbooked: 0 },
        })
    }

    /// Whether the code of a gRPC call decides.
    pub(in crate::policy::decide) fn reads_grpc_codes(&self) -> bool {
        self.settling.reads_grpc_codes()
    }

    /// The final cost of the request in units.
    fn cost(&self, outcome: &RequestOutcome<'_>) -> Option<u64> {
        if outcome.is_cancelled {
            return Some(0);
        }
        let counts = self.settling.by_status.as_ref().and_then(|by| outcome.counts(by));
        if counts == Some(false) {
            return Some(0);
        }
        if self.settling.actual.is_some() {
            return outcome.cost_of(&self.name);
        }
        counts.map(|_| self.units)
    }

    /// The charge that settles the reservation.
    pub(in crate::policy) fn charge<'s>(&'s self, settle: &Settle) -> Charge<'s> {
        let key = Key::new(self.scope, &self.text).tagged(&self.tag);
        let charge = Charge::new(key, &self.limit, settle.op).on(self.options);
        charge.reserving(Reserving::Close(self.id))
    }
}

/// The version of the format, its first byte.
const VERSION: u8 = 1;
/// Flags of the family: its rate has a block.
const BLOCKS: u8 = 0x80;
/// Flags of the options: the windows are calendar periods.
const CALENDAR: u8 = 0x80;

impl fmt::Display for Reservations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        self.0.iter().for_each(|it| it.push(&mut bytes));
        token::write(f, &bytes)
    }
}

impl Reservation {
    fn push(&self, bytes: &mut Vec<u8>) {
        let ends = self.ends.map_or(0, Timestamp::as_micros);
        token::push_numbers(bytes, &[self.id.number(), self.scope.number(), self.units, ends]);
        push_limit(bytes, &self.limit);
        let mode = self.options.on_store_failure.unwrap_or_default();
        let mode = OnStoreFailure::ALL.iter().position(|it| *it == mode).unwrap_or(0);
        bytes.push(mode as u8 | if self.options.is_calendar { CALENDAR } else { 0 });
        let (kind, statuses) = match &self.settling.by_status {
            None => (0, &[][..]),
            Some(ByStatus::Count(statuses)) => (1, &*statuses.0),
            Some(ByStatus::Refund(statuses)) => (2, &*statuses.0),
        };
        bytes.extend([kind, statuses.len() as u8]);
        for status in statuses.iter().flat_map(|(first, last)| [first, last]) {
            bytes.extend(status.to_be_bytes());
        }
        let (kind, name) = match &self.settling.actual {
            None => (0, ""),
            Some(ActualSource::Header(name)) => (1, &**name),
            Some(ActualSource::Trailer(name)) => (2, &**name),
            Some(ActualSource::Application) => (3, ""),
        };
        bytes.push(kind);
        for field in [name.as_bytes(), self.name.as_bytes(), &self.text, &self.tag] {
            token::push_field(bytes, field);
        }
    }
}

fn push_limit(bytes: &mut Vec<u8>, limit: &Limit) {
    let mut push = |family, numbers: &[u64]| {
        bytes.push(family);
        token::push_numbers(bytes, numbers);
    };
    match limit {
        Limit::Bucket(bucket) => {
            let Rate { count, per } = bucket.rate();
            push(0, &[count, per.as_micros(), bucket.capacity()]);
        }
        Limit::FixedWindow(window) => {
            let (length, offset) = (window.length().as_micros(), window.offset().as_micros());
            push(1, &[window.limit(), length, offset]);
        }
        Limit::SlidingWindow(window) => push(2, &[window.limit(), window.length().as_micros()]),
        Limit::SlidingLog(log) => push(3, &[log.limit(), log.length().as_micros()]),
        Limit::Blocking(blocking) => {
            push(BLOCKS, &[blocking.block_for().as_micros()]);
            push_limit(bytes, &blocking.rate());
        }
        // Limits of other kinds are not settled.
        _ => push(u8::MAX, &[]),
    }
}

/// The text is not one of [`Reservations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidReservations;

impl fmt::Display for InvalidReservations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a reservation: send the text that came with the decision")
    }
}

impl std::error::Error for InvalidReservations {}

impl FromStr for Reservations {
    type Err = InvalidReservations;

    fn from_str(text: &str) -> Result<Self, InvalidReservations> {
        let bytes = token::read(text).ok_or(InvalidReservations)?;
        let mut reader = Reader(&bytes);
        if reader.byte() != Some(VERSION) {
            return Err(InvalidReservations);
        }
        let mut reservations = Vec::new();
        while !reader.0.is_empty() {
            if reservations.len() == MAX_TOGETHER {
                return Err(InvalidReservations);
            }
            reservations.push(reader.reservation().ok_or(InvalidReservations)?);
        }
        if reservations.is_empty() { Err(InvalidReservations) } else { Ok(Self(reservations)) }
    }
}

impl Reader<'_> {
    fn reservation(&mut self) -> Option<Reservation> {
        let (id, scope) = (ReservationId::new(self.number()?)?, Scope::from_number(self.number()?));
        let (units, ends) = (self.number()?, self.number()?);
        let limit = self.limit()?;
        let flags = self.byte()?;
        let mode = *OnStoreFailure::ALL.get(usize::from(flags & !CALENDAR))?;
        let is_calendar = flags & CALENDAR > 0;
        let options = LimitOptions::default()
            .on_store_failure(mode)
            .refund_staleness(Span::ZERO)
            .calendar(is_calendar);
        let settling = Arc::new(Settling { by_status: self.by_status()?, actual: self.actual()? });
        let (name, text, tag) = (self.text()?, self.field()?, self.field()?);
        let ends = match (is_calendar, ends) {
            (false, 0) => None,
            (true, ends) => Some(Timestamp::from_micros(ends)),
            (false, _) => return None,
        };
        Some(Reservation { id, name, settling, units, limit, scope, text, tag, options, ends })
    }

    fn limit(&mut self) -> Option<Limit> {
        let family = self.byte()?;
        if family == BLOCKS {
            let block_for = Span::from_micros(self.number()?);
            // The rate of a block has none of its own.
            return self.rate_limit()?.blocking(block_for).ok();
        }
        self.limit_of(family)
    }

    fn rate_limit(&mut self) -> Option<Limit> {
        let family = self.byte()?;
        self.limit_of(family)
    }

    fn limit_of(&mut self, family: u8) -> Option<Limit> {
        let rate = Rate::new(self.number()?, Span::from_micros(self.number()?));
        let builder = match family {
            0 => Limit::token_bucket(rate).burst(self.number()?),
            1 => Limit::fixed_window(rate).offset(Span::from_micros(self.number()?)),
            2 => Limit::sliding_window(rate),
            3 => Limit::sliding_log(rate).large_log(),
            _ => return None,
        };
        builder.build().ok()
    }

    fn by_status(&mut self) -> Option<Option<ByStatus>> {
        let (kind, count) = (self.byte()?, usize::from(self.byte()?));
        let bytes = self.take(4 * count.min(Statuses::MOST + 1))?;
        let (fours, _) = bytes.as_chunks::<4>();
        let ranges = fours
            .iter()
            .map(|[a, b, c, d]| (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])));
        let statuses = Statuses(ranges.collect());
        match kind {
            _ if count > Statuses::MOST => None,
            0 => Some(None),
            1 => Some(Some(ByStatus::Count(statuses))),
            2 => Some(Some(ByStatus::Refund(statuses))),
            _ => None,
        }
    }

    fn actual(&mut self) -> Option<Option<ActualSource>> {
        let (kind, name) = (self.byte()?, self.text()?);
        Some(match kind {
            0 => None,
            1 => Some(ActualSource::Header(name)),
            2 => Some(ActualSource::Trailer(name)),
            3 => Some(ActualSource::Application),
            _ => return None,
        })
    }

    fn text(&mut self) -> Option<Box<str>> {
        String::from_utf8(self.field()?.into()).ok().map(Into::into)
    }
}

/// Whether the decision of a settlement found the reservation open.
pub(in crate::policy) const fn was_open(decision: &Decision) -> bool {
    decision.is_allowed()
}

#[cfg(test)]
#[path = "reservations_tests.rs"]
mod tests;
