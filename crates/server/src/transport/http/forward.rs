//! `/v1/auth`: forward authentication, where a proxy asks whether a request may proceed.
//!
//! | proxy | sends |
//! |---|---|
//! | Traefik, Caddy, nginx as in the guide | `/v1/auth?domain=api` and `X-Forwarded-Method`, `-Uri`, `-Host` |
//! | nginx as elsewhere | `X-Original-Method`, `X-Original-URI` or `-URL`, `X-Original-Host` |
//! | Envoy (`ext_authz` over HTTP) | `/v1/auth/api` before the path, and the request's own method and host |
//!
//! # Trust
//! The peer is the proxy, and only proxies may reach this listener. A proxy that forwards its
//! clients' headers also forwards client headers with these names. All headers that describe the
//! request must therefore agree; otherwise the answer is 400. Empty ones are skipped.

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::StatusCode;
use hyper::http::request::Parts;
use tidegate::policy::{
    CheckError, HeaderTexts, HttpRequest, Policy, Request, RequestTarget, normal_host,
};

use super::Reply;
use super::reply::{self, Refused, empty};
use crate::service::RateLimitService;
use crate::settings::Answers;

/// Without the target, every rule for a path would be bypassed.
const NO_TARGET: &str = "the policy limits paths, but the request has no X-Forwarded-Uri, \
                         X-Original-URI or X-Original-URL: configure the proxy to set one";

/// Without the method, every rule for POST would be bypassed: the proxy's own request is a GET.
const NO_METHOD: &str = "the policy reads the method, but the request has no X-Forwarded-Method or \
                         X-Original-Method: configure the proxy to set one";

/// Decides by the descriptors that the domain's `requests` yield for the request.
pub(crate) async fn answer(
    service: &RateLimitService,
    answers: &Answers,
    peer: Option<IpAddr>,
    head: &Parts,
) -> Reply {
    match decide(service, answers, peer, head).await {
        Ok(reply) => reply,
        Err(refused) => refused.reply(),
    }
}

async fn decide(
    service: &RateLimitService,
    answers: &Answers,
    peer: Option<IpAddr>,
    head: &Parts,
) -> Result<Reply, Refused> {
    let policy = service.policy();
    let malformed = |why: &str| Refused::Malformed(why.to_owned());
    let (domain, path) = domain_and_path(head, &policy).map_err(malformed)?;
    let rules = policy.domain(&domain).ok_or(CheckError::UnknownDomain)?.requests();
    if rules.is_empty() {
        return Err(CheckError::NoRequestRules.into());
    }
    let texts = HeaderTexts::new(&head.headers);
    let headers = texts.pairs();
    let forwarded = ForwardedHeaders::of(&headers)?;
    let own_method = head.method.as_str();
    // With the path in this server's URL, the proxy also sends the request's own method and host.
    let (method, path, host) = match path {
        Some(path) => (
            agree(forwarded.method, own_method)?,
            Some(agree_on_target(forwarded.target, path)?),
            forwarded.host.map(|host| agree_on_host(forwarded.forwarded_host, host)).transpose()?,
        ),
        None if forwarded.method.is_none() && rules.needs_method() => {
            return Err(malformed(NO_METHOD));
        }
        None => (forwarded.method.unwrap_or(own_method), forwarded.target, None),
    };
    if path.is_none() && rules.needs_target() {
        return Err(malformed(NO_TARGET));
    }
    let request = HttpRequest {
        method,
        path: path.unwrap_or("/"),
        host: host.or(forwarded.forwarded_host).or(forwarded.host),
        headers: &headers,
        peer,
    };
    let described = rules.describe(&request).map_err(|error| malformed(&error.to_string()))?;
    if described.descriptors().len() == 0 {
        return Ok(empty(StatusCode::OK));
    }
    let entries = described.entries();
    let descriptors = described.split(&entries);
    let request = Request { domain: &domain, descriptors: &descriptors, hits: None };
    Ok(reply::for_proxy(&service.check(&request).await?, answers))
}

/// The domain, and the path of the request if it is part of the URL.
fn domain_and_path<'h>(
    head: &'h Parts,
    policy: &'h Policy,
) -> Result<(Cow<'h, str>, Option<&'h str>), &'static str> {
    const NOT_TEXT: &str = "a domain is percent-encoded UTF-8";
    if let Some(rest) = head.uri.path().strip_prefix("/v1/auth/") {
        let domain = rest.split('/').next().unwrap_or_default();
        // Includes the query, which belongs to the request.
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let path = target.get("/v1/auth/".len() + domain.len()..);
        let domain = decoded(domain).ok_or(NOT_TEXT)?;
        return Ok((domain, path.filter(|path| path.starts_with('/'))));
    }
    let mut pairs = head.uri.query().unwrap_or_default().split('&');
    if let Some(name) = pairs.find_map(|pair| pair.strip_prefix("domain=")) {
        return Ok((decoded(name).ok_or(NOT_TEXT)?, None));
    }
    let mut names = policy.domains().map(|domain| domain.name());
    match (names.next(), names.next()) {
        (Some(only), None) => Ok((only.into(), None)),
        _ => Err("the domain is missing: use /v1/auth?domain=NAME"),
    }
}

/// Percent-decodes a text; `None` if the encoding or the UTF-8 is invalid.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(text.into());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Names and values; `None` if a value is not UTF-8.
#[derive(Debug, Default)]
struct ForwardedHeaders<'h> {
    method: Option<&'h str>,
    target: Option<&'h str>,
    forwarded_host: Option<&'h str>,
    host: Option<&'h str>,
}

impl<'h> ForwardedHeaders<'h> {
    /// Parses all headers; two that describe the same property must agree.
    fn of(headers: &[(&'h str, &'h str)]) -> Result<Self, Refused> {
        let mut forwarded = Self::default();
        for (name, value) in headers {
            match *name {
                _ if value.is_empty() => {}
                "x-forwarded-uri" | "x-original-uri" | "x-original-url" => {
                    forwarded.target = Some(agree_on_target(forwarded.target, value)?);
                }
                "x-forwarded-method" | "x-original-method" => {
                    forwarded.method = Some(agree(forwarded.method, value)?);
                }
                "x-forwarded-host" | "x-original-host" => {
                    forwarded.forwarded_host =
                        Some(agree_on_host(forwarded.forwarded_host, value)?);
                }
                "host" => forwarded.host = Some(agree_on_host(forwarded.host, value)?),
                _ => {}
            }
        }
        Ok(forwarded)
    }
}

const DISAGREE: &str = "two headers describe the request differently: configure the proxy to set \
                        one of them and to remove the other from client requests";

/// The value, if it equals the known one.
fn agree<'h>(known: Option<&'h str>, value: &'h str) -> Result<&'h str, Refused> {
    match known {
        Some(known) if known != value => Err(Refused::Malformed(DISAGREE.into())),
        _ => Ok(value),
    }
}

/// Like [`agree`] for hosts, which may differ in port and case.
fn agree_on_host<'h>(known: Option<&'h str>, value: &'h str) -> Result<&'h str, Refused> {
    match known {
        Some(known) if normal_host(known) != normal_host(value) => {
            Err(Refused::Malformed(DISAGREE.into()))
        }
        _ => Ok(value),
    }
}

/// Like [`agree`] for targets, which may differ in form: one with a host, one without.
fn agree_on_target<'h>(known: Option<&'h str>, value: &'h str) -> Result<&'h str, Refused> {
    let Some(known) = known.filter(|known| *known != value) else { return Ok(value) };
    match (RequestTarget::parse(known), RequestTarget::parse(value)) {
        (Ok(one), Ok(other)) if one == other => Ok(value),
        (Err(error), _) | (_, Err(error)) => Err(Refused::Malformed(error.to_string())),
        _ => Err(Refused::Malformed(DISAGREE.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_domains_are_decoded() {
        for (text, expected) in [
            ("api", Some("api")),
            ("my%20api%2Fv1", Some("my api/v1")),
            ("%c3%A9", Some("é")),
            ("%c3", None),
            ("%", None),
            ("%4", None),
            ("%zz", None),
            ("%+1", None),
        ] {
            assert_eq!(decoded(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn hosts_agree_if_they_are_read_alike() {
        for (one, other, is_agreed) in [
            ("example.org", "example.org", true),
            ("Example.ORG.:443", "example.org", true),
            ("[2001:DB8::1]:80", "[2001:db8::1]", true),
            ("example.org", "example.com", false),
            ("[2001:db8::1]", "[2001:db8::2]", false),
        ] {
            assert_eq!(agree_on_host(Some(one), other).is_ok(), is_agreed, "{one} {other}");
        }
    }

    #[test]
    fn targets_agree_if_they_are_read_alike() {
        for (one, other, is_agreed) in [
            ("/a?b", "/a?b", true),
            ("/a?b", "https://example.org/./%61?b", true),
            ("/a", "/b", false),
            ("/a?b", "/a?c", false),
            ("/a", "/a%2Fb", false),
            ("*", "/a", false),
        ] {
            assert_eq!(agree_on_target(Some(one), other).is_ok(), is_agreed, "{one} {other}");
        }
    }
}
