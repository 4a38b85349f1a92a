//! `/v1/release` and `/v1/renew`: the places of a request in in-flight limits.

use hyper::StatusCode;
use serde::Deserialize;
use tidegate::policy::{InvalidLeases, Leases};
use tidegate::verdict::whole_millis;

use super::Reply;
use super::descriptor_input::Text;
use super::object::Object;
use super::reply::{Refused, json};
use super::unreadable::unreadable;
use crate::service::RateLimitService;
use crate::transport::access::Caller;

/// A valid request, for error messages.
const EXAMPLE: &str = r#"{"lease":"01…"}, with the lease of /v1/acquire"#;

/// The action on the places of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Free them.
    Release,
    /// Keep them for another time to live.
    Renew,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseRequest<'a> {
    #[serde(borrow)]
    lease: Text<'a>,
}

/// Answers one request.
pub(crate) async fn answer(
    service: &RateLimitService,
    caller: &Caller<'_>,
    action: LeaseAction,
    body: &[u8],
) -> Reply {
    let done = match read(body).and_then(|leases| Ok((leases, caller.may_return_units()?))) {
        Ok((leases, ())) => carry_out(service, action, &leases).await,
        Err(refused) => Err(refused),
    };
    done.map_or_else(|refused| refused.reply(), |text| json(StatusCode::OK, text.into()))
}

fn read(body: &[u8]) -> Result<Leases, Refused> {
    let Object(request): Object<LeaseRequest<'_>> = serde_json::from_slice(body)
        .map_err(|error| Refused::Malformed(unreadable(&error, body, EXAMPLE)))?;
    let leases = request.lease.parse();
    leases.map_err(|error: InvalidLeases| Refused::Impossible(error.to_string()))
}

async fn carry_out(
    service: &RateLimitService,
    action: LeaseAction,
    leases: &Leases,
) -> Result<String, Refused> {
    match action {
        LeaseAction::Release => {
            service.release(leases).await?;
            Ok("{\"released\":true}".into())
        }
        LeaseAction::Renew => {
            let renewed = service.renew(leases).await?;
            let ttl = leases.ttl().map_or(0, whole_millis);
            Ok(format!("{{\"renewed\":{renewed},\"lease_ttl_ms\":{ttl}}}"))
        }
    }
}
