//! `POST /v1/settle`: limits of a request that are settled after its response.

use std::collections::BTreeMap;
use std::fmt;

use hyper::StatusCode;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tidegate::policy::{InvalidReservations, RequestOutcome, Reservations, Settled};
use tidegate::store::MAX_TOGETHER;

use super::Reply;
use super::descriptor_input::Text;
use super::object::Object;
use super::reply::{Refused, json};
use super::unreadable::unreadable;
use super::whole_number::WholeNumber;
use crate::service::RateLimitService;
use crate::transport::access::Caller;

/// A valid request, for error messages.
const EXAMPLE: &str = r#"{"reservation":"01…","status":401}, with the reservation of /v1/check"#;

const STATUS: &str = "`status` must be from 100 to 599, or the code of a gRPC call, from 0 to 16";

/// The outcome of a request: how it ended, and what it cost.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleRequest<'a> {
    #[serde(borrow)]
    reservation: Text<'a>,
    #[serde(default, deserialize_with = "present")]
    status: Option<WholeNumber>,
    #[serde(default, deserialize_with = "present")]
    actual: Option<Actual>,
    #[serde(default)]
    cancel: bool,
}

/// The actual cost: under all limits, or by the names of limits.
#[derive(Debug)]
enum Actual {
    All(WholeNumber),
    Named(BTreeMap<String, WholeNumber>),
}

impl<'de> Deserialize<'de> for Actual {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Actual;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, or a map of whole numbers by limit")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Actual, E> {
                WholeNumber::from_u64(number).map(Actual::All)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Actual, E> {
                WholeNumber::from_f64(number).map(Actual::All)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Actual, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(Actual::Named)
            }
        }
        from.deserialize_any(Reader)
    }
}

/// Parses a field that must not be `null`, which differs from an absent field.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Answers one request.
pub(crate) async fn answer(service: &RateLimitService, caller: &Caller<'_>, body: &[u8]) -> Reply {
    let read = read(body).and_then(|request| Ok((request, caller.may_return_units()?)));
    let settled = match read {
        Ok((request, ())) => request.settle(service).await,
        Err(refused) => Err(refused),
    };
    settled.map_or_else(|refused| refused.reply(), |it| json(StatusCode::OK, document(&it).into()))
}

fn read(body: &[u8]) -> Result<SettleRequest<'_>, Refused> {
    let Object(request): Object<SettleRequest<'_>> = serde_json::from_slice(body)
        .map_err(|error| Refused::Malformed(unreadable(&error, body, EXAMPLE)))?;
    Ok(request)
}

impl SettleRequest<'_> {
    async fn settle(&self, service: &RateLimitService) -> Result<Settled, Refused> {
        let impossible = |why: &str| Refused::Impossible(why.to_owned());
        let reservations: Reservations = self
            .reservation
            .parse()
            .map_err(|error: InvalidReservations| Refused::Impossible(error.to_string()))?;
        let mut outcome = match (self.cancel, &self.status, &self.actual) {
            (true, None, None) => RequestOutcome::cancelled(),
            (true, ..) => return Err(impossible("`cancel` goes without `status` and `actual`")),
            (false, Some(WholeNumber(status)), _) => match u16::try_from(*status) {
                Ok(status @ (0..=16 | 100..=599)) => RequestOutcome::status(status),
                _ => return Err(impossible(STATUS)),
            },
            (false, None, None) => {
                return Err(impossible("expected `status`, `actual` or `cancel`"));
            }
            (false, None, Some(_)) => RequestOutcome::default(),
        };
        let mut costs = Vec::new();
        match &self.actual {
            Some(Actual::All(WholeNumber(units))) => outcome = outcome.cost(*units),
            Some(Actual::Named(named)) if named.len() > MAX_TOGETHER => {
                return Err(impossible("`actual` names more limits than a request can have"));
            }
            Some(Actual::Named(named)) => {
                costs.extend(named.iter().map(|(name, WholeNumber(units))| (&**name, *units)));
            }
            None => {}
        }
        Ok(service.settle(&reservations, &outcome.costs(&costs)).await?)
    }
}

fn document(settled: &Settled) -> String {
    let Settled { settled, not_open, open, returned, dropped, booked, unbooked, .. } = settled;
    format!(
        "{{\"settled\":{settled},\"not_open\":{not_open},\"open\":{open},\"returned\":{returned},\
         \"dropped\":{dropped},\"booked\":{booked},\"unbooked\":{unbooked}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON has one kind of number, also in a map.
    #[test]
    fn actual_costs_are_whole_numbers_in_any_notation() {
        let actual = |text: &str| {
            let body = format!("{{\"reservation\":\"\",\"actual\":{text}}}");
            read(body.as_bytes()).ok().and_then(|request| request.actual)
        };
        assert!(matches!(actual("5"), Some(Actual::All(WholeNumber(5)))));
        assert!(matches!(actual("5.0"), Some(Actual::All(WholeNumber(5)))));
        for text in ["{\"a\":5}", "{\"a\":5.0}", "{\"\\u0061\":5e0}"] {
            let named = match actual(text) {
                Some(Actual::Named(named)) => named,
                other => panic!("{text}: {other:?}"),
            };
            assert_eq!(named.get("a"), Some(&WholeNumber(5)), "{text}");
        }
        for text in ["null", "-1", "5.5", "\"5\"", "[5]", "{\"a\":null}", "{\"a\":-1}"] {
            assert!(actual(text).is_none(), "{text}");
        }
    }
}
