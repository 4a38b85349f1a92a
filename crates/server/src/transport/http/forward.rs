//! `/v1/auth`: a proxy asks whether the request that it holds may go on.

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::HOST;
use hyper::http::request::Parts;
use tidegate::policy::{Descriptor, Entry, HttpRequest, Request};

use super::{Reply, answer, plain, refusal};
use crate::gate::Gate;

/// Decides by the descriptors that the domain's `requests` make of the request.
pub(crate) async fn check(gate: &Gate, peer: Option<IpAddr>, head: &Parts) -> Reply {
    let policy = gate.policy();
    let domain = match domain(head).map(Ok).unwrap_or_else(|| only_domain(&policy)) {
        Ok(domain) => domain,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, why),
    };
    // Whoever writes the name into a proxy's configuration should notice a slip at once.
    let Some(rules) = policy.domain(&domain).map(|domain| domain.requests()) else {
        return refusal(StatusCode::BAD_REQUEST, "the policy has no such domain");
    };
    if rules.is_empty() {
        return refusal(
            StatusCode::BAD_REQUEST,
            "the domain has no `requests`, so nothing is limited",
        );
    }
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let method = text("x-forwarded-method").or_else(|| text("x-original-method"));
    let path = text("x-forwarded-uri")
        .or_else(|| text("x-original-uri"))
        .or_else(|| text("x-original-url").map(path_of));
    let host = text("x-forwarded-host").or_else(|| text("x-original-host"));
    let headers: Vec<(&str, &str)> = head
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect();
    let request = HttpRequest {
        method: method.unwrap_or(head.method.as_str()),
        path: path.unwrap_or("/"),
        host: host.or_else(|| text(HOST.as_str())),
        headers: &headers,
        peer,
    };
    let described = rules.describe(&request);
    let entries: Vec<Vec<Entry<'_>>> = described
        .descriptors()
        .map(|side| side.iter().map(|(key, value)| Entry { key, value }).collect())
        .collect();
    if entries.is_empty() {
        return plain(StatusCode::OK, "");
    }
    let descriptors: Vec<Descriptor<'_>> =
        entries.iter().map(|entries| Descriptor::new(entries)).collect();
    let request = Request { domain: &domain, descriptors: &descriptors, hits: None };
    match gate.check(&request).await {
        Ok(answer) => answer::for_proxy(&answer),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// What the query says.
fn domain(head: &Parts) -> Option<Cow<'_, str>> {
    let pairs = head.uri.query()?.split('&');
    pairs.filter_map(|pair| pair.strip_prefix("domain=")).map(Cow::Borrowed).next()
}

fn only_domain(policy: &tidegate::policy::Policy) -> Result<Cow<'_, str>, &'static str> {
    let mut names = policy.domains().map(|domain| domain.name());
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only.into()),
        _ => Err("say which domain decides: /v1/auth?domain=NAME"),
    }
}

/// From the first slash after the host on.
fn path_of(url: &str) -> &str {
    let Some((_, rest)) = url.split_once("://") else { return url };
    rest.find('/').map_or("/", |slash| &rest[slash..])
}
