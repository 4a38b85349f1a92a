//! The messages of Envoy's rate limit service, by their numbers, read and written by `prost`.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};
use tidegate::policy::Unit as PolicyUnit;

use crate::conformance::{CaseRequest, Limiting, Reply, Status, Wait};

/// A request.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The domain.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The cost.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// One descriptor of a request.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// Keys and values.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that comes with the request.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The cost under this descriptor: `UInt64Value`, which `prost` writes as the number itself.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the units are returned.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and a value.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A limit that comes with a request.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    /// The requests per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// An answer.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// The verdict.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The body of a denial.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Metadata for the proxy's log.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// The status of one descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// Whether the descriptor is over its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The binding limit.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// The remaining units.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until more units are available.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimit {
    /// The requests per unit.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The number of the unit of time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The name of the limit.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// A span of time.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds beyond the whole seconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A header field.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Values by name.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    /// Values by their names.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// A value of any type.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// The value.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// The types of values.
#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    /// Null.
    #[prost(int32, tag = "1")]
    Null(i32),
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "3")]
    Text(String),
    /// True or false.
    #[prost(bool, tag = "4")]
    Flag(bool),
    /// Values by name.
    #[prost(message, tag = "5")]
    Fields(Struct),
    /// Values in order.
    #[prost(message, tag = "6")]
    Values(ListValue),
}

/// Values in order.
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    /// The values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// Codes of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Never used in an answer.
    Unknown = 0,
    /// Within all limits.
    Ok = 1,
    /// Over a limit.
    OverLimit = 2,
}

/// Units of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// No unit.
    Unknown = 0,
    /// One second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// Thirty days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// Seven days.
    Week = 7,
}

const UNITS: [(Unit, PolicyUnit); 7] = [
    (Unit::Second, PolicyUnit::Second),
    (Unit::Minute, PolicyUnit::Minute),
    (Unit::Hour, PolicyUnit::Hour),
    (Unit::Day, PolicyUnit::Day),
    (Unit::Month, PolicyUnit::Month),
    (Unit::Year, PolicyUnit::Year),
    (Unit::Week, PolicyUnit::Week),
];

impl RateLimitRequest {
    /// One descriptor of one entry.
    pub fn one(domain: &str, key: &str, value: &str) -> Self {
        let entries = vec![Entry { key: key.into(), value: value.into() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
        Self { domain: domain.into(), descriptors, hits_addend: 0 }
    }

    /// A request of the conformance suite.
    pub fn of(question: &CaseRequest) -> Self {
        let descriptors = question.descriptors.iter().map(|side| {
            let entry =
                |(key, value): &(String, String)| Entry { key: key.clone(), value: value.clone() };
            let limit = |(requests_per_unit, unit): (u32, PolicyUnit)| {
                let known = UNITS.iter().find(|(_, policy)| *policy == unit);
                let unit = known.map_or(0, |(unit, _)| *unit as i32);
                RateLimitOverride { requests_per_unit, unit }
            };
            RateLimitDescriptor {
                entries: side.entries.iter().map(entry).collect(),
                limit: side.limit.map(limit),
                hits_addend: side.hits.map(i64::unsigned_abs),
                is_negative_hits: side.hits.is_some_and(i64::is_negative),
            }
        });
        Self {
            domain: question.domain.clone(),
            descriptors: descriptors.collect(),
            hits_addend: u32::try_from(question.hits).expect("the protocol has no larger one"),
        }
    }
}

impl RateLimitResponse {
    /// Whether the request may go ahead.
    pub fn is_ok(&self) -> bool {
        self.overall_code() == Code::Ok
    }

    /// The header field of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let headers = self.response_headers_to_add.iter();
        headers.filter(|header| header.key == name).map(|header| &*header.value).next()
    }

    /// The reply as the conformance suite compares it.
    pub fn reply(&self) -> Reply {
        Reply::Decided {
            allowed: self.is_ok(),
            statuses: Some(self.statuses.iter().map(DescriptorStatus::status).collect()),
            retry_after: None,
        }
    }
}

impl DescriptorStatus {
    fn status(&self) -> Status {
        let over = self.code() == Code::OverLimit;
        let remaining = Some(self.limit_remaining.into());
        let Some(limit) = &self.current_limit else {
            let is_unlimited = self.limit_remaining == u32::MAX;
            let limit = if is_unlimited { Limiting::Unlimited } else { Limiting::Nothing };
            return Status { over, limit: Some(limit), remaining, ..Status::default() };
        };
        let unit = UNITS.iter().find(|(unit, _)| *unit == limit.unit());
        let seconds = self.duration_until_reset.map(|span| span.seconds.unsigned_abs());
        let limit = Limiting::Numbers {
            name: limit.name.clone(),
            capacity: limit.requests_per_unit.into(),
            unit: unit.map(|(_, unit)| *unit),
        };
        Status {
            over,
            limit: Some(limit),
            remaining,
            // The protocol has one duration: the wait of a denial, and otherwise the reset.
            reset: if over { None } else { seconds },
            retry_after: over.then(|| seconds.map_or(Wait::Never, Wait::Seconds)),
            delay: None,
        }
    }
}
