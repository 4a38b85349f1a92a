//! `RateLimitRequest`: what is asked.

use tidegate::policy::{Descriptor, Entry, Hits, MAX_DESCRIPTORS, Request, RequestLimit, Unit};

use super::wire::{Malformed, Reader};
use super::{MAX_ENTRIES, MAX_KEY, Refusal};

/// A request to the rate limit service, borrowed from the message that brought it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitRequest<'a> {
    pub(crate) domain: &'a str,
    /// What every descriptor costs that does not say; 0 is as if it were not there.
    pub(crate) hits_addend: u32,
    /// Of all descriptors, behind one another.
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) sides: Vec<DescriptorInput>,
}

/// One descriptor, but for its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescriptorInput {
    /// Where its entries end among all.
    pub(super) end: usize,
    /// What it costs; 0 only asks.
    pub(crate) hits_addend: Option<u64>,
    /// Whether that is given back.
    pub(crate) is_negative_hits: bool,
    /// A limit that it brings along.
    pub(crate) limit: Option<Override>,
}

/// `RateLimitOverride`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) requests_per_unit: u32,
    /// By its number in the protocol.
    pub(crate) unit: u32,
}

impl<'a> RateLimitRequest<'a> {
    /// Reads a message.
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut question = Self::default();
        let mut fields = Reader::new(message);
        while let Some(field) = fields.field()? {
            match field.number {
                1 => question.domain = field.text()?,
                2 => question.read_descriptor(field.message()?)?,
                3 => question.hits_addend = field.number32()?,
                _ => {}
            }
        }
        Ok(question)
    }

    fn read_descriptor(&mut self, mut fields: Reader<'a>) -> Result<(), Refusal> {
        let mut side = DescriptorInput::default();
        while let Some(field) = fields.field()? {
            match field.number {
                1 => {
                    let entry = read_entry(field.message()?)?;
                    self.add_entry(entry)?;
                }
                2 => {
                    let limit = side.limit.get_or_insert_default();
                    limit.read(field.message()?)?;
                }
                3 => {
                    let hits = side.hits_addend.get_or_insert_default();
                    read_hits(hits, field.message()?)?;
                }
                4 => side.is_negative_hits = field.number()? != 0,
                _ => {}
            }
        }
        self.end_descriptor(side)
    }

    /// Takes an entry of the descriptor that ends next.
    pub(crate) fn add_entry(&mut self, entry: Entry<'a>) -> Result<(), Refusal> {
        let start = self.sides.last().map_or(0, |side| side.end);
        if self.entries.len() - start == MAX_ENTRIES {
            return Err(Refusal::TooMuch(format!(
                "a descriptor has at most {MAX_ENTRIES} entries"
            )));
        }
        if entry.key.len() > MAX_KEY {
            return Err(Refusal::TooMuch(format!("a key has at most {MAX_KEY} bytes")));
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Ends a descriptor: the entries since the last one are its own.
    pub(crate) fn end_descriptor(&mut self, side: DescriptorInput) -> Result<(), Refusal> {
        if self.sides.len() == MAX_DESCRIPTORS {
            let most = format!("a request has at most {MAX_DESCRIPTORS} descriptors");
            return Err(Refusal::TooMuch(most));
        }
        if let Some(limit) = side.limit {
            limit.as_policy()?;
        }
        self.sides.push(DescriptorInput { end: self.entries.len(), ..side });
        Ok(())
    }

    /// How many descriptors there are.
    pub(crate) const fn len(&self) -> usize {
        self.sides.len()
    }

    /// Each descriptor with its entries.
    pub(crate) fn sides(&self) -> impl Iterator<Item = (&DescriptorInput, &[Entry<'a>])> {
        let mut start = 0;
        self.sides.iter().map(move |side| {
            let entries = &self.entries[start..side.end];
            start = side.end;
            (side, entries)
        })
    }

    /// The descriptors, as a policy is asked about them.
    pub(crate) fn descriptors(&self) -> Vec<Descriptor<'_>> {
        let descriptor = |(side, entries)| {
            let DescriptorInput { hits_addend, is_negative_hits, limit, .. }: &DescriptorInput =
                side;
            let units = hits_addend.unwrap_or_else(|| self.hits_addend.max(1).into());
            let hits = match (hits_addend, is_negative_hits) {
                (_, true) => Some(Hits::Return(units)),
                (Some(_), false) => Some(Hits::Take(units)),
                (None, false) => None,
            };
            let limit = limit.and_then(|limit| limit.as_policy().ok());
            Descriptor { entries, hits, limit }
        };
        self.sides().map(descriptor).collect()
    }

    /// The question, as a policy is asked it about these descriptors.
    pub(crate) fn request<'b>(&'b self, descriptors: &'b [Descriptor<'b>]) -> Request<'b> {
        // Where nobody says, each limit does, and it says 1 unless its policy says otherwise.
        let hits = (self.hits_addend > 0).then_some(self.hits_addend.into());
        Request { domain: self.domain, descriptors, hits }
    }
}

impl Override {
    fn read(&mut self, mut fields: Reader<'_>) -> Result<(), Malformed> {
        while let Some(field) = fields.field()? {
            match field.number {
                1 => self.requests_per_unit = field.number32()?,
                2 => self.unit = field.number32()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn as_policy(self) -> Result<RequestLimit, Refusal> {
        let unit = Unit::ALL.into_iter().find(|unit| unit_number(*unit) == self.unit);
        let unit = unit.ok_or(Refusal::Malformed("the unit of a descriptor's limit is unknown"))?;
        Ok(RequestLimit { requests_per_unit: self.requests_per_unit, unit })
    }
}

fn read_entry<'a>(mut fields: Reader<'a>) -> Result<Entry<'a>, Malformed> {
    let mut entry = Entry { key: "", value: "" };
    while let Some(field) = fields.field()? {
        match field.number {
            1 => entry.key = field.text()?,
            2 => entry.value = field.text()?,
            _ => {}
        }
    }
    Ok(entry)
}

/// `google.protobuf.UInt64Value`.
fn read_hits(hits: &mut u64, mut fields: Reader<'_>) -> Result<(), Malformed> {
    while let Some(field) = fields.field()? {
        if field.number == 1 {
            *hits = field.number()?;
        }
    }
    Ok(())
}

/// What the protocol calls a unit by. The week came late.
pub(crate) const fn unit_number(unit: Unit) -> u32 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 2,
        Unit::Hour => 3,
        Unit::Day => 4,
        Unit::Month => 5,
        Unit::Year => 6,
        Unit::Week => 7,
    }
}

/// Names, by their numbers.
const UNITS: [&str; 8] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];

/// What the protocol calls the unit of this number.
pub(crate) fn unit_name(number: u32) -> Option<&'static str> {
    UNITS.get(usize::try_from(number).ok()?).copied()
}

/// The number of the unit that the protocol calls so.
pub(crate) fn unit_by_name(name: &str) -> Option<u32> {
    u32::try_from(UNITS.iter().position(|unit| *unit == name)?).ok()
}
