//! One descriptor of a request, in JSON.
//!
//! | written | means |
//! |---|---|
//! | `{"api_key": "k1"}` | one entry |
//! | `[["tenant", "t1"], ["user", "u1"]]` | several entries, the most general first |
//! | `{"entries": [["user", "u1"]], "cost": 3}` | with a cost; a negative cost returns units |
//! | `{"entries": […], "limit": {"requests_per_unit": 5, "unit": "minute"}}` | with a limit |

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tidegate::policy::{Entry, Hits, RequestLimit, Unit};

use super::whole_number::WholeNumber;

/// A string, borrowed from the body if it has no escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Reader)
    }
}

/// A descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescriptorInput<'a> {
    pairs: Vec<(Text<'a>, Text<'a>)>,
    pub(crate) hits: Option<Hits>,
    pub(crate) limit: Option<RequestLimit>,
}

impl DescriptorInput<'_> {
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.pairs.iter().map(|(key, value)| Entry { key, value })
    }
}

/// The value of an object's member, whose kind determines what the object is.
enum Member<'a> {
    Text(Text<'a>),
    Pairs(Vec<(Text<'a>, Text<'a>)>),
    Cost(Hits),
    Limit(RequestLimit),
}

impl<'de: 'a, 'a> Deserialize<'de> for DescriptorInput<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = DescriptorInput<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a descriptor such as {\"api_key\": \"k1\"} or [[\"user\", \"u1\"]]")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, sequence: S) -> Result<Self::Value, S::Error> {
                Ok(DescriptorInput { pairs: pairs(sequence)?, ..DescriptorInput::default() })
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::with_capacity(1);
                while let Some(member) = map.next_entry::<Text<'_>, Member<'_>>()? {
                    members.push(member);
                }
                interpret(members).map_err(M::Error::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Interprets the members of an object.
fn interpret<'a>(members: Vec<(Text<'a>, Member<'a>)>) -> Result<DescriptorInput<'a>, String> {
    let mut descriptor = DescriptorInput::default();
    // Only a list may be empty: it stands for a request without known properties.
    if !members.iter().any(|(_, member)| matches!(member, Member::Text(_) | Member::Pairs(_))) {
        return Err("a descriptor has no entries".into());
    }
    let is_entry = members.iter().all(|(_, member)| matches!(member, Member::Text(_)));
    if is_entry && members.len() > 1 {
        let advice = "an object has no order: write a descriptor of several entries as a list of \
                      [key, value] pairs";
        return Err(advice.into());
    }
    for (key, member) in members {
        match (&*key, member) {
            (_, Member::Text(value)) if is_entry => descriptor.pairs.push((key, value)),
            ("entries", Member::Pairs(pairs)) if descriptor.pairs.is_empty() => {
                descriptor.pairs = pairs
            }
            ("cost", Member::Cost(hits)) if descriptor.hits.is_none() => {
                descriptor.hits = Some(hits)
            }
            ("limit", Member::Limit(limit)) if descriptor.limit.is_none() => {
                descriptor.limit = Some(limit)
            }
            (key, _) => {
                return Err(format!("unexpected {key:?}; expected entries, cost or limit"));
            }
        }
    }
    Ok(descriptor)
}

fn pairs<'de, S: SeqAccess<'de>>(mut sequence: S) -> Result<Vec<(Text<'de>, Text<'de>)>, S::Error> {
    let mut pairs = Vec::with_capacity(sequence.size_hint().unwrap_or(2));
    while let Some(pair) = sequence.next_element()? {
        pairs.push(pair);
    }
    Ok(pairs)
}

impl<'de: 'a, 'a> Deserialize<'de> for Member<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Member<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of entries, a whole number or a limit")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Member::Text(Text(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Member::Text(Text(Cow::Owned(text.to_owned()))))
            }

            fn visit_u64<E: Error>(self, units: u64) -> Result<Self::Value, E> {
                WholeNumber::from_u64(units)
                    .map(|WholeNumber(units)| Member::Cost(Hits::Take(units)))
            }

            /// Negative numbers.
            fn visit_i64<E: Error>(self, units: i64) -> Result<Self::Value, E> {
                let units = WholeNumber::from_u64(units.unsigned_abs());
                units.map(|WholeNumber(units)| Member::Cost(Hits::Return(units)))
            }

            fn visit_f64<E: Error>(self, units: f64) -> Result<Self::Value, E> {
                let hits = if units < 0.0 { Hits::Return } else { Hits::Take };
                WholeNumber::from_f64(units.abs())
                    .map(|WholeNumber(units)| Member::Cost(hits(units)))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, sequence: S) -> Result<Self::Value, S::Error> {
                pairs(sequence).map(Member::Pairs)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                Window::deserialize(map)?.limit().map(Member::Limit).map_err(M::Error::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The limit of a descriptor.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    requests_per_unit: WholeNumber,
    unit: String,
}

impl Window {
    fn limit(&self) -> Result<RequestLimit, String> {
        let unit = Unit::ALL.into_iter().find(|unit| unit.as_str() == self.unit);
        let unknown = || {
            let all = Unit::ALL.map(Unit::as_str).join(", ");
            format!("unit must be one of {all}, found {:?}", self.unit)
        };
        let unit = unit.ok_or_else(unknown)?;
        let requests_per_unit = u32::try_from(self.requests_per_unit.0)
            .map_err(|_| "requests_per_unit must be at most 4294967295".to_owned())?;
        Ok(RequestLimit { requests_per_unit, unit })
    }
}
