//! `POST /v1/settle`: limits of a request that are settled after its response.

use std::collections::BTreeMap;

use hyper::StatusCode;
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

/// The outcome of a request: how it ended, and what it cost.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleRequest<'a> {
    #[serde(borrow)]
    reservation: Text<'a>,
    #[serde(default, deserialize_with = "present")]
    status: Option<WholeNumber>,
    #[serde(borrow, default, deserialize_with = "present")]
    actual: Option<Actual<'a>>,
    #[serde(default)]
    cancel: bool,
}

/// The actual cost: under all limits, or by the names of limits.
#[derive(Debug)]
enum Actual<'a> {
    All(WholeNumber),
    Named(BTreeMap<std::borrow::Cow<'a, str>, WholeNumber>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Actual<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a whole number, or a map of whole numbers by limit")]
        enum Either<'a> {
            All(WholeNumber),
            #[serde(borrow)]
            Named(BTreeMap<std::borrow::Cow<'a, str>, WholeNumber>),
        }
        Ok(match Either::deserialize(from)? {
            Either::All(number) => Self::All(number),
            Either::Named(named) => Self::Named(named),
        })
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
                Ok(status @ 100..=599) => RequestOutcome::status(status),
                _ => return Err(impossible("`status` must be from 100 to 599")),
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
