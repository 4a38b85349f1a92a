//! Settles limits with `count`, `refund` or `actual` once the response is known.
//!
//! The head of the response settles by status and headers, and the end of the body by trailers. If
//! a limit lists codes of gRPC calls, the code in the trailers settles it. The response never waits
//! for a settlement. A request that is dropped before its head gets all units back; a body that is
//! dropped before its trailers leaves the reserved units taken.

use std::fmt;
use std::sync::Arc;

use http::header::{HeaderMap, HeaderValue};
use http::{Extensions, Response, StatusCode};
use tidegate::policy::{ActualSource, RequestOutcome, Settlement};
use tokio::task::JoinHandle;

use crate::charge::in_background;
use crate::request::is_grpc;

/// What a request has cost under limits with `actual: {application: true}`, in the extensions of its response.
///
/// ```
/// use tidegate_tower::ActualCost;
///
/// let mut response = http::Response::new("a completion");
/// response.extensions_mut().insert(ActualCost::of("tokens", 1_230).and("money", 61));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActualCost(Vec<(Option<Box<str>>, u64)>);

impl ActualCost {
    /// This many units under every such limit.
    pub fn units(units: u64) -> Self {
        Self(vec![(None, units)])
    }

    /// This many units under the limit of this name.
    pub fn of(limit: &str, units: u64) -> Self {
        Self(vec![(Some(limit.into()), units)])
    }

    /// The same, and this many units under another limit.
    #[must_use]
    pub fn and(mut self, limit: &str, units: u64) -> Self {
        self.0.push((Some(limit.into()), units));
        self
    }

    fn under(&self, limit: &str) -> Option<u64> {
        let of = |name: Option<&str>| self.0.iter().find(|(known, _)| known.as_deref() == name);
        of(Some(limit)).or_else(|| of(None)).map(|(_, units)| *units)
    }
}

/// The reservations of a request in progress.
pub(crate) struct Settling {
    settlement: Arc<Settlement>,
    has_head: bool,
    /// The costs in the head, if nothing is settled before the code of a gRPC call is known.
    awaited: Option<Costs>,
    /// The settlement by the head, while it waits for the store.
    at_head: Option<JoinHandle<()>>,
}

/// Costs by the names of limits.
type Costs = Vec<(Box<str>, u64)>;

impl Settling {
    pub(crate) fn new(settlement: Settlement) -> Self {
        Self { settlement: Arc::new(settlement), has_head: false, awaited: None, at_head: None }
    }

    /// Lets the handler settle the request.
    pub(crate) fn offer(&self, extensions: &mut Extensions) {
        extensions.insert(Arc::clone(&self.settlement));
    }

    /// Settles the limits by the head of the response. True if a trailer may settle more.
    pub(crate) fn at_head<B>(&mut self, response: &Response<B>) -> bool {
        self.has_head = true;
        let told = response.extensions().get::<ActualCost>();
        let costs = self.costs(|name, source| match source {
            ActualSource::Header(header) => units(response.headers(), header),
            ActualSource::Application => told.and_then(|told| told.under(name)),
            ActualSource::Trailer(_) => None,
        });
        let status = Status::of(response);
        if status.code == Code::Follows && self.settlement.reads_grpc_codes() {
            self.awaited = Some(costs);
            return true;
        }
        self.at_head = settle(&self.settlement, Some(status), costs, None);
        self.settlement.sources().any(|(_, source)| matches!(source, ActualSource::Trailer(_)))
    }

    /// Settles the limits by the trailers of the response.
    pub(crate) fn at_end(&mut self, trailers: &HeaderMap) {
        let mut costs = self.costs(|_, source| match source {
            ActualSource::Trailer(trailer) => units(trailers, trailer),
            ActualSource::Header(_) | ActualSource::Application => None,
        });
        let awaited = self.awaited.take();
        if awaited.is_none() && costs.is_empty() {
            return;
        }
        // Without a code, limits that list codes are not settled.
        let status = awaited.and_then(|told| {
            costs.extend(told);
            grpc_code(trailers).map(Status::of_call)
        });
        settle(&self.settlement, status, costs, self.at_head.take());
    }

    fn costs(&self, cost: impl Fn(&str, &ActualSource) -> Option<u64>) -> Costs {
        let costs = self.settlement.sources();
        costs.filter_map(|(name, source)| Some((name.into(), cost(name, source)?))).collect()
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if !self.has_head {
            cancel(Arc::clone(&self.settlement));
        }
    }
}

impl fmt::Debug for Settling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settling").finish_non_exhaustive()
    }
}

/// Returns all units of a request that is not served.
pub(crate) fn cancel(settlement: Arc<Settlement>) {
    in_background(Box::pin(async move {
        // If the store is unavailable, the units stay taken, and the limiter counts them.
        let _ = settlement.settle(RequestOutcome::cancelled()).await;
    }));
}

/// The status of a response, and the code of the gRPC call that it is the response to.
#[derive(Clone, Copy)]
struct Status {
    http: StatusCode,
    code: Code,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    /// The response belongs to no gRPC call.
    None,
    Known(u16),
    Follows,
}

impl Status {
    fn of<B>(response: &Response<B>) -> Self {
        let (http, headers) = (response.status(), response.headers());
        let is_call = http == StatusCode::OK && is_grpc(headers);
        let code = match (is_call, grpc_code(headers)) {
            (false, _) => Code::None,
            (true, Some(code)) => Code::Known(code),
            (true, None) => Code::Follows,
        };
        Self { http, code }
    }

    const fn of_call(code: u16) -> Self {
        Self { http: StatusCode::OK, code: Code::Known(code) }
    }

    fn outcome(self) -> RequestOutcome<'static> {
        let outcome = RequestOutcome::status(self.http.as_u16());
        match self.code {
            Code::Known(code) => outcome.grpc_code(code),
            Code::None | Code::Follows => outcome,
        }
    }
}

/// `grpc-status`. A value that is no number is UNKNOWN, as gRPC clients read it.
fn grpc_code(headers: &HeaderMap) -> Option<u16> {
    const UNKNOWN: u16 = 2;
    let value = headers.get("grpc-status")?.as_bytes();
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    Some(number.filter(|code| *code <= 16).unwrap_or(UNKNOWN))
}

/// Settles in the background, after what was settled before: a limit that both settle keeps what the head told.
fn settle(
    settlement: &Arc<Settlement>,
    status: Option<Status>,
    costs: Costs,
    before: Option<JoinHandle<()>>,
) -> Option<JoinHandle<()>> {
    let settlement = Arc::clone(settlement);
    in_background(Box::pin(async move {
        if let Some(before) = before {
            // It fails only if the runtime is shutting down.
            let _ = before.await;
        }
        let costs: Vec<(&str, u64)> = costs.iter().map(|(name, units)| (&**name, *units)).collect();
        let outcome = status.map_or_else(RequestOutcome::default, Status::outcome);
        let _ = settlement.settle(outcome.costs(&costs)).await;
    }))
}

/// The whole number in a header; `None` without the header, or if it has another value.
fn units(headers: &HeaderMap, name: &str) -> Option<u64> {
    let value = headers.get(name).map(HeaderValue::as_bytes)?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}
