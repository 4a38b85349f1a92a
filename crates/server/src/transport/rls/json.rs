//! Requests and answers in protojson, as at `/json` of envoyproxy/ratelimit.
//!
//! Field names are accepted in both spellings, numbers as numbers or texts, units by name or
//! number; unknown and duplicate fields are refused. Zero values are not written.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tidegate::policy::Entry;

use super::Refusal;
use super::request::{
    DescriptorInput, Override, RateLimitRequest, unit_by_name, unit_name, unit_number,
};
use super::verdict::{RlsVerdict, Status};

/// `RateLimitRequest`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number<u32>>,
    unit: Option<JsonUnit>,
}

/// A unit, by its name or number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum JsonUnit {
    Name(String),
    Number(u32),
}

/// A number that may be quoted or have a fraction of zero.
#[derive(Clone, Copy, Debug)]
struct Number<T>(T);

impl JsonRequest {
    /// Parses a document.
    pub(crate) fn read(document: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(document).map_err(|error| error.to_string())
    }

    /// The request of the document.
    pub(crate) fn wire_request(&self) -> Result<RateLimitRequest<'_>, Refusal> {
        let mut wire_request = RateLimitRequest {
            domain: self.domain.as_deref().unwrap_or_default(),
            hits_addend: self.hits_addend.map_or(0, |hits| hits.0),
            ..RateLimitRequest::default()
        };
        for descriptor_input in self.descriptors.iter().flatten() {
            for JsonEntry { key, value } in descriptor_input.entries.iter().flatten() {
                let (key, value) = (key.as_deref(), value.as_deref());
                let entry =
                    Entry { key: key.unwrap_or_default(), value: value.unwrap_or_default() };
                wire_request.add_entry(entry)?;
            }
            wire_request.end_descriptor(DescriptorInput {
                hits_addend: descriptor_input.hits_addend.map(|hits| hits.0),
                is_negative_hits: descriptor_input.is_negative_hits.unwrap_or_default(),
                limit: descriptor_input.limit.as_ref().map(JsonLimit::limit).transpose()?,
                ..DescriptorInput::default()
            })?;
        }
        Ok(wire_request)
    }
}

impl JsonLimit {
    fn limit(&self) -> Result<Override, Refusal> {
        let unit = match &self.unit {
            None => 0,
            Some(JsonUnit::Number(number)) => *number,
            Some(JsonUnit::Name(name)) => {
                unit_by_name(name).ok_or("the unit of a descriptor's limit is unknown")?
            }
        };
        let requests_per_unit = self.requests_per_unit.map_or(0, |count| count.0);
        Ok(Override { requests_per_unit, unit })
    }
}

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(document: D) -> Result<Self, D::Error> {
        document.deserialize_any(NumberVisitor(PhantomData))
    }
}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for NumberVisitor<T> {
    type Value = Number<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number that is not negative and not too large")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let found = Unexpected::Unsigned(number);
        T::try_from(number).map(Number).map_err(|_| E::invalid_value(found, &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        // A larger double is not exact.
        const MAX: f64 = (1_u64 << 53) as f64;
        if number.fract() != 0.0 || !(0.0..=MAX).contains(&number) {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        self.visit_u64(number as u64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text.parse() {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

/// `RateLimitResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered<'a> {
    overall_code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<AnsweredStatus<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<AnsweredHeader<'a>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredStatus<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<AnsweredLimit<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredLimit<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct AnsweredHeader<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    value: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Writes the document of an answer.
pub(crate) fn write(status: &RlsVerdict<'_>) -> Result<Vec<u8>, serde_json::Error> {
    let headers = status.headers().into_iter().map(|(key, value)| AnsweredHeader { key, value });
    serde_json::to_vec(&Answered {
        overall_code: code(status.is_over()),
        statuses: status.statuses().map(answered_status).collect(),
        response_headers_to_add: headers.collect(),
        raw_body: status.body().map(|body| base64(body.as_bytes())).unwrap_or_default(),
        dynamic_metadata: status.metadata(),
    })
}

fn answered_status(status: Status<'_>) -> AnsweredStatus<'_> {
    AnsweredStatus {
        code: code(status.is_over),
        current_limit: status.limit.map(|limit| AnsweredLimit {
            name: limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit.and_then(|unit| unit_name(unit_number(unit))),
        }),
        limit_remaining: status.remaining,
        duration_until_reset: status.until_reset.map(|seconds| format!("{seconds}s")),
    }
}

const fn code(is_over: bool) -> &'static str {
    if is_over { "OVER_LIMIT" } else { "OK" }
}

/// Bytes in base64, as protojson encodes them.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > three.len() { '=' } else { letter.into() });
        }
    }
    text
}
