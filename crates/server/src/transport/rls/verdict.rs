//! The content of an answer, independent of its encoding.

use tidegate::policy::{Form, Unit};
use tidegate::verdict::{Part, Standing, whole_seconds};
use tidegate::{Decision, Limit, Span, Verdict};

use super::request::RateLimitRequest;
use crate::settings::{Answers, Body, EnvoyHeaders, ProxyHeaders};
use crate::transport::http::reply::headers;

/// The answer to a request, in the terms of the rate limit service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RlsVerdict<'a> {
    pub(crate) wire_request: &'a RateLimitRequest<'a>,
    pub(crate) verdict: &'a Verdict,
    pub(crate) answers: &'a Answers,
}

/// `DescriptorStatus`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status<'a> {
    pub(crate) is_over: bool,
    pub(crate) limit: Option<CurrentLimit<'a>>,
    pub(crate) remaining: u32,
    /// Whole seconds until a retry can succeed, if it is over its limit, or else until the full
    /// reset.
    pub(crate) until_reset: Option<u64>,
    /// Whether it is a quota, which denies only together with the others.
    is_quota: bool,
}

/// `RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentLimit<'a> {
    pub(crate) name: &'a str,
    pub(crate) requests_per_unit: u32,
    /// `None` if the protocol has no unit for the limit's period: with a wrong unit, the proxy
    /// would report a wrong limit to its clients.
    pub(crate) unit: Option<Unit>,
}

impl<'a> RlsVerdict<'a> {
    /// Whether the request is denied.
    pub(crate) const fn is_over(&self) -> bool {
        self.verdict.is_denied()
    }

    /// The status of each descriptor, in order.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = Status<'a>> + use<'a> {
        let verdict = self.verdict;
        (0..self.wire_request.len()).map(move |descriptor| status(verdict, descriptor))
    }

    /// The header fields that the proxy adds to its answer.
    pub(crate) fn headers(&self) -> Vec<(&'a str, String)> {
        let mut fields = match &self.answers.proxy_headers {
            ProxyHeaders::Standard => headers(self.verdict, self.answers).into_iter().collect(),
            ProxyHeaders::Envoy(names) => self.envoy_headers(names).unwrap_or_default(),
            ProxyHeaders::None => Vec::new(),
        };
        if self.has_body() {
            fields.push(("content-type", "application/problem+json".into()));
        }
        fields
    }

    /// The same with `Retry-After` in every denial, for which envoyproxy/ratelimit has no header.
    /// Over `/json` it is a header of the response itself.
    pub(crate) fn headers_for_proxy(&self) -> Vec<(&'a str, String)> {
        let mut headers = self.headers();
        let is_told = matches!(self.answers.proxy_headers, ProxyHeaders::Standard);
        if let Some(seconds) = self.retry_after().filter(|_| !is_told) {
            headers.push(("retry-after", seconds.to_string()));
        }
        headers
    }

    /// Whole seconds until a retry can succeed; `None` if the request is allowed, or no wait helps.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.verdict.retry_after().map(whole_seconds)
    }

    fn envoy_headers(&self, names: &'a EnvoyHeaders) -> Option<Vec<(&'a str, String)>> {
        let (status, limit) = self.closest()?;
        let mut headers = vec![
            (&*names.limit, limit.requests_per_unit.to_string()),
            (&*names.remaining, status.remaining.to_string()),
        ];
        headers.extend(status.until_reset.map(|seconds| (&*names.reset, seconds.to_string())));
        Some(headers)
    }

    /// The body of the proxy's response to a denied client.
    pub(crate) fn body(&self) -> Option<String> {
        self.has_body().then(|| self.verdict.problem_json())
    }

    /// Only if configured: Envoy has its own body, which operators may have customised.
    fn has_body(&self) -> bool {
        self.is_over() && self.answers.body == Some(Body::Problem)
    }

    /// The status that is closest to its limit, by the rule of envoyproxy/ratelimit: the last one
    /// that is over, or else the first one with the fewest units left.
    fn closest(&self) -> Option<(Status<'a>, CurrentLimit<'a>)> {
        let mut closest: Option<(Status<'a>, CurrentLimit<'a>)> = None;
        let mut least = u32::MAX;
        for status in self.statuses() {
            let Some(limit) = status.limit else { continue };
            if status.is_over && !status.is_quota {
                (closest, least) = (Some((status, limit)), 0);
            } else if status.remaining < least {
                (closest, least) = (Some((status, limit)), status.remaining);
            }
        }
        closest
    }
}

fn status(verdict: &Verdict, descriptor: usize) -> Status<'_> {
    let mut parts = verdict.parts().filter(|part| part.descriptor == descriptor);
    let strictest = verdict.strictest_of(descriptor).and_then(|part| Some((part, part.decision?)));
    let Some((part, decision)) = strictest else {
        let is_unlimited = parts.any(|part| part.standing == Standing::Unlimited);
        let remaining = if is_unlimited { u32::MAX } else { 0 };
        return Status { remaining, ..Status::default() };
    };
    let is_over = parts.any(|part| part.counts() && part.denies());
    Status {
        is_over,
        limit: Some(current_limit(part, decision)),
        remaining: saturated(decision.remaining),
        until_reset: until_reset(is_over, part, decision),
        is_quota: part.standing == Standing::Quota,
    }
}

fn current_limit<'a>(part: Part<'a>, decision: &Decision) -> CurrentLimit<'a> {
    let requests_per_unit = saturated(decision.limit);
    let Some((_, limit)) = part.rule else {
        let unit = part.request_limit().map(|limit| limit.unit);
        return CurrentLimit { name: "", requests_per_unit, unit };
    };
    let unit = match limit.form() {
        Form::Envoy { unit, .. } => Some(unit),
        Form::Native => part.numbers.and_then(window).and_then(unit_of),
    };
    CurrentLimit { name: limit.name().unwrap_or_default(), requests_per_unit, unit }
}

/// The time in which the whole limit can be spent once: for buckets, that of a full refill.
fn window(limit: &Limit) -> Option<Span> {
    match limit {
        Limit::Bucket(bucket) => {
            let fill = bucket.fill_time();
            (fill.part == 0).then_some(Span::from_micros(fill.ticks))
        }
        Limit::FixedWindow(window) => Some(window.length()),
        Limit::SlidingWindow(window) => Some(window.length()),
        Limit::SlidingLog(log) => Some(log.length()),
        _ => None,
    }
}

/// The unit of exactly this length.
fn unit_of(window: Span) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| Span::from_secs(unit.seconds()) == window)
}

/// The reset in seconds, rounded up, so that a retry is not too early. `None` if no wait helps,
/// except for a fixed window, whose end envoyproxy/ratelimit always reports.
fn until_reset(is_over: bool, part: Part<'_>, decision: &Decision) -> Option<u64> {
    let is_window = matches!(part.numbers, Some(Limit::FixedWindow(_)));
    let wait = if is_over && !is_window { decision.retry_after()? } else { decision.reset_after };
    Some(whole_seconds(wait))
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
