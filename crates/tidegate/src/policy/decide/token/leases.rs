//! The places that a request holds in in-flight limits, as a value that can be sent to a client.
//!
//! The text has everything that a release needs, so any process with the same store can release the
//! places that another process granted, also after the policy has changed.

use std::fmt;
use std::str::FromStr;

use tidegate_core::algorithm::inflight::InFlight;
use tidegate_core::{LeaseId, Limit, Op, Span};

use crate::key::{Key, Scope};
use crate::policy::decide::token::{self, Reader};
use crate::policy::matching::matched_limits::MatchedLimits;
use crate::store::{Charge, LimitOptions, MAX_TOGETHER, OnStoreFailure, Tier};
use crate::verdict::Details;

/// The most bytes of the keys of one request's in-flight limits, so that the text of its leases fits
/// every transport.
pub(in crate::policy) const MAX_KEY_BYTES: usize = 8 << 10;

/// The places of one request in in-flight limits, from
/// [`PolicyLimiter::acquire_leases`](crate::policy::PolicyLimiter::acquire_leases).
///
/// `Display` writes them as letters and digits, which `FromStr` reads, in this process or another
/// one. At most [`MAX_TOGETHER`] leases of 8 KiB of keys: 17 KiB of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases(Vec<Lease>);

/// One place, and the limit that granted it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    id: LeaseId,
    limit: Limit,
    scope: Scope,
    text: Box<[u8]>,
    tag: Box<[u8]>,
    options: LimitOptions,
}

impl Leases {
    /// The leases that a store granted for these limits.
    pub(in crate::policy) fn granted(matched: &MatchedLimits, details: &Details) -> Self {
        let leases = matched.iter().filter_map(|one| {
            let id = details.records[one.record].decision?.lease?;
            let Charge { key, limit: Limit::InFlight(_), options, .. } = matched.charge(one) else {
                return None;
            };
            let (text, tag) = (key.text.into(), key.tag.into());
            Some(Lease { id, limit: one.numbers, scope: key.scope, text, tag, options })
        });
        Self(leases.collect())
    }

    /// Whether the request holds no place, because no in-flight limit applies to it.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of places.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The shortest time to live of the leases; `None` if there are none.
    pub fn ttl(&self) -> Option<Span> {
        let ttl = |lease: &Lease| match lease.limit {
            Limit::InFlight(in_flight) => Some(in_flight.ttl()),
            _ => None,
        };
        self.0.iter().filter_map(ttl).min()
    }

    /// The same operation on every lease.
    pub(in crate::policy) fn charges(&self, op: impl Fn(LeaseId) -> Op) -> Vec<Charge<'_>> {
        let mut charges = Vec::with_capacity(self.0.len());
        for lease in &self.0 {
            let key = Key::new(lease.scope, &lease.text).tagged(&lease.tag);
            charges.push(Charge::new(key, &lease.limit, op(lease.id)).on(lease.options));
        }
        charges
    }
}

/// The version of the format, its first byte.
const VERSION: u8 = 1;

impl fmt::Display for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        for lease in &self.0 {
            let Limit::InFlight(in_flight) = lease.limit else { continue };
            let numbers = [
                lease.id.number(),
                lease.scope.number(),
                in_flight.limit(),
                in_flight.ttl().as_micros(),
            ];
            token::push_numbers(&mut bytes, &numbers);
            let mode = lease.options.on_store_failure.unwrap_or_default();
            let is_local = lease.options.tier == Tier::Local;
            let mode = OnStoreFailure::ALL.iter().position(|it| *it == mode).unwrap_or(0);
            bytes.push(mode as u8 | u8::from(is_local) << 7);
            for field in [&lease.text, &lease.tag] {
                token::push_field(&mut bytes, field);
            }
        }
        token::write(f, &bytes)
    }
}

/// The text is not one of [`Leases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLeases;

impl fmt::Display for InvalidLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a lease: send the text that acquire returned")
    }
}

impl std::error::Error for InvalidLeases {}

impl FromStr for Leases {
    type Err = InvalidLeases;

    fn from_str(text: &str) -> Result<Self, InvalidLeases> {
        let bytes = token::read(text).ok_or(InvalidLeases)?;
        let mut reader = Reader(&bytes);
        if reader.take(1) != Some(&[VERSION]) {
            return Err(InvalidLeases);
        }
        let mut leases = Vec::new();
        while !reader.0.is_empty() {
            if leases.len() == MAX_TOGETHER {
                return Err(InvalidLeases);
            }
            leases.push(reader.lease().ok_or(InvalidLeases)?);
        }
        if leases.is_empty() { Err(InvalidLeases) } else { Ok(Self(leases)) }
    }
}

impl Reader<'_> {
    fn lease(&mut self) -> Option<Lease> {
        let (id, scope) = (LeaseId::new(self.number()?)?, Scope::from_number(self.number()?));
        let (places, ttl) = (self.number()?, Span::from_micros(self.number()?));
        // A forged text must not hold a place for longer than a policy allows.
        let ttl = Some(ttl).filter(|ttl| *ttl <= InFlight::MAX_SHARED_TTL)?;
        let limit = Limit::in_flight(places, ttl).ok()?;
        let flags = self.byte()?;
        let mode = *OnStoreFailure::ALL.get(usize::from(flags & 0x7f))?;
        let tier = if flags >> 7 == 1 { Tier::Local } else { Tier::Exact };
        let options = LimitOptions::default().on_store_failure(mode).tier(tier);
        let (text, tag) = (self.field()?, self.field()?);
        Some(Lease { id, limit, scope, text, tag, options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases() -> Leases {
        let limit = Limit::in_flight(20, Span::from_secs(60)).unwrap();
        let lease = |number, tier, text: &[u8]| Lease {
            id: LeaseId::new(number).unwrap(),
            limit,
            scope: Scope::new("a", &limit),
            text: text.into(),
            tag: (*b"tenant").into(),
            options: LimitOptions::default().on_store_failure(OnStoreFailure::Deny).tier(tier),
        };
        let odd = [0, 255, b'"'];
        Leases(vec![lease(1, Tier::Exact, b"bob"), lease(u64::MAX, Tier::Local, &odd)])
    }

    #[test]
    fn a_text_reads_back_as_it_was_written() {
        let text = leases().to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
        assert_eq!(text.parse(), Ok(leases()));
        assert_eq!(leases().ttl(), Some(Span::from_secs(60)));
    }

    #[test]
    fn other_texts_are_refused() {
        let text = leases().to_string();
        for end in 0..text.len() {
            // The first lease alone is a text of its own.
            let cut = text[..end].parse::<Leases>();
            assert!(cut.is_err() || cut.is_ok_and(|it| it.len() == 1), "{end}");
        }
        let long = Lease {
            limit: Limit::in_flight(20, Span::from_secs(86_401)).unwrap(),
            ..leases().0[0].clone()
        };
        for text in
            ["", "01", "zz", "é", &text.replace("01", "02"), &Leases(vec![long]).to_string()]
        {
            assert_eq!(text.parse::<Leases>(), Err(InvalidLeases), "{text}");
        }
        let many = Leases(vec![leases().0[0].clone(); MAX_TOGETHER + 1]);
        assert_eq!(many.to_string().parse::<Leases>(), Err(InvalidLeases));
    }
}
