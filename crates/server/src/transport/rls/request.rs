//! `RateLimitRequest`.

use tidegate::policy::{Descriptor, Entry, Hits, MAX_DESCRIPTORS, Request, RequestLimit, Unit};

use super::wire::{Malformed, Reader};
use super::{MAX_ENTRIES, MAX_KEY, Refusal};

/// A request to the rate limit service, borrowed from its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitRequest<'a> {
    pub(crate) domain: &'a str,
    /// The cost of descriptors without their own; 0 means absent.
    pub(crate) hits_addend: u32,
    /// The entries of all descriptors, concatenated.
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) descriptor_inputs: Vec<DescriptorInput>,
}

/// One descriptor without its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescriptorInput {
    /// The end of its entries among all.
    pub(super) end: usize,
    /// The cost; 0 only reads.
    pub(crate) hits_addend: Option<u64>,
    /// Whether the units are returned.
    pub(crate) is_negative_hits: bool,
    /// The limit that it brings.
    pub(crate) limit: Option<Override>,
}

/// `RateLimitOverride`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) requests_per_unit: u32,
    /// The unit's number in the protocol.
    pub(crate) unit: u32,
}

impl<'a> RateLimitRequest<'a> {
    /// Parses a message.
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut wire_request = Self::default();
        let mut fields = Reader::new(message);
        while let Some(field) = fields.field()? {
            match field.number {
                1 => wire_request.domain = field.text()?,
                2 => wire_request.read_descriptor(field.message()?)?,
                3 => wire_request.hits_addend = field.number32()?,
                _ => {}
            }
        }
        Ok(wire_request)
    }

    fn read_descriptor(&mut self, mut fields: Reader<'a>) -> Result<(), Refusal> {
        let mut descriptor_input = DescriptorInput::default();
        while let Some(field) = fields.field()? {
            match field.number {
                1 => {
                    let entry = read_entry(field.message()?)?;
                    self.add_entry(entry)?;
                }
                2 => {
                    let limit = descriptor_input.limit.get_or_insert_default();
                    limit.read(field.message()?)?;
                }
                3 => {
                    let hits = descriptor_input.hits_addend.get_or_insert_default();
                    read_hits(hits, field.message()?)?;
                }
                4 => descriptor_input.is_negative_hits = field.number()? != 0,
                _ => {}
            }
        }
        self.end_descriptor(descriptor_input)
    }

    /// Adds an entry to the current descriptor.
    pub(crate) fn add_entry(&mut self, entry: Entry<'a>) -> Result<(), Refusal> {
        let start =
            self.descriptor_inputs.last().map_or(0, |descriptor_input| descriptor_input.end);
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

    /// Ends a descriptor, which has the entries since the last one.
    pub(crate) fn end_descriptor(
        &mut self,
        descriptor_input: DescriptorInput,
    ) -> Result<(), Refusal> {
        if self.descriptor_inputs.len() == MAX_DESCRIPTORS {
            let most = format!("a request has at most {MAX_DESCRIPTORS} descriptors");
            return Err(Refusal::TooMuch(most));
        }
        if let Some(limit) = descriptor_input.limit {
            limit.as_policy()?;
        }
        self.descriptor_inputs
            .push(DescriptorInput { end: self.entries.len(), ..descriptor_input });
        Ok(())
    }

    /// Number of descriptors.
    pub(crate) const fn len(&self) -> usize {
        self.descriptor_inputs.len()
    }

    /// Each descriptor with its entries.
    pub(crate) fn descriptor_inputs(
        &self,
    ) -> impl Iterator<Item = (&DescriptorInput, &[Entry<'a>])> {
        let mut start = 0;
        self.descriptor_inputs.iter().map(move |descriptor_input| {
            let entries = &self.entries[start..descriptor_input.end];
            start = descriptor_input.end;
            (descriptor_input, entries)
        })
    }

    /// The descriptors for the policy.
    pub(crate) fn descriptors(&self) -> Vec<Descriptor<'_>> {
        let descriptor = |(descriptor_input, entries)| {
            let DescriptorInput { hits_addend, is_negative_hits, limit, .. }: &DescriptorInput =
                descriptor_input;
            let units = hits_addend.unwrap_or_else(|| self.hits_addend.max(1).into());
            let hits = match (hits_addend, is_negative_hits) {
                (_, true) => Some(Hits::Return(units)),
                (Some(_), false) => Some(Hits::Take(units)),
                (None, false) => None,
            };
            let limit = limit.and_then(|limit| limit.as_policy().ok());
            Descriptor { hits, limit, ..Descriptor::new(entries) }
        };
        self.descriptor_inputs().map(descriptor).collect()
    }

    /// The request for the policy with these descriptors.
    pub(crate) fn request<'b>(&'b self, descriptors: &'b [Descriptor<'b>]) -> Request<'b> {
        // Without a cost, each limit's own cost applies, by default 1.
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

/// The unit's number in the protocol, in which the week came last.
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

/// Unit names by number.
const UNITS: [&str; 8] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];

/// The name of the unit with this number.
pub(crate) fn unit_name(number: u32) -> Option<&'static str> {
    UNITS.get(usize::try_from(number).ok()?).copied()
}

/// The number of the unit with this name.
pub(crate) fn unit_by_name(name: &str) -> Option<u32> {
    u32::try_from(UNITS.iter().position(|unit| *unit == name)?).ok()
}
