//! `/v1/auth`: a proxy asks whether the request that it holds may go on.
//!
//! | asked by | with |
//! |---|---|
//! | Traefik, Caddy, nginx as in the guide | `/v1/auth?domain=api` and `X-Forwarded-Method`, `-Uri`, `-Host` |
//! | nginx as elsewhere | `X-Original-Method`, `X-Original-URI` or `-URL`, `X-Original-Host` |
//! | Envoy (`ext_authz` over HTTP) | `/v1/auth/api` before the path, and the request's own method and host |
//!
//! # Whom to believe
//! These are believed because the peer is the proxy, and nobody else may reach this door. A proxy that
//! hands on what clients send hands on theirs too. So where two of the ways disagree, one of them is not
//! the proxy's, and the question is refused.

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use tidegate::policy::{Described, Descriptor, Entry, HttpRequest, Policy, Report, Request};

use super::Reply;
use super::answer::{self, Refused, empty};
use crate::gate::Gate;
use crate::settings::Answers;

/// Decides by the descriptors that the domain's `requests` make of the request.
pub(crate) async fn answer(
    gate: &Gate,
    answers: &Answers,
    peer: Option<IpAddr>,
    head: &Parts,
) -> Reply {
    match ask(gate, answers, peer, head).await {
        Ok(reply) => reply,
        Err(refused) => refused.reply(),
    }
}

async fn ask(
    gate: &Gate,
    answers: &Answers,
    peer: Option<IpAddr>,
    head: &Parts,
) -> Result<Reply, Refused> {
    let policy = gate.policy();
    let malformed = |why: &str| Refused::Malformed(why.to_owned());
    let (domain, path) = place(head, &policy).map_err(malformed)?;
    // Whoever writes the name into a proxy's configuration should notice a slip at once.
    let rules = policy.domain(&domain).map(|domain| domain.requests());
    let rules = rules.ok_or(Refused::Missing("the policy has no such domain"))?;
    if rules.is_empty() {
        return Err(Refused::Missing("the domain has no `requests`, so nothing is limited"));
    }
    let odd;
    let headers = match plain_texts(&head.headers) {
        Some(texts) => texts,
        None => {
            odd = odd_values(&head.headers);
            texts(&head.headers, &odd)
        }
    };
    let claims = Claims::of(&headers)?;
    let path = agree([path, claims.forwarded_uri, claims.original_uri.or(claims.original_url)])?;
    let request = HttpRequest {
        method: claims.method.unwrap_or(head.method.as_str()),
        path: path.unwrap_or("/"),
        host: claims.forwarded_host.or(claims.host),
        headers: &headers,
        peer,
    };
    let described = rules.describe(&request);
    if described.descriptors().len() == 0 {
        return Ok(empty(StatusCode::OK));
    }
    let entries = entries(&described);
    let mut rest = &entries[..];
    let descriptors: Vec<Descriptor<'_>> = described
        .descriptors()
        .map(|side| {
            let (entries, others) = rest.split_at(side.len());
            rest = others;
            Descriptor::new(entries)
        })
        .collect();
    let request = Request { domain: &domain, descriptors: &descriptors, hits: None };
    let answer = gate.check(&request).await?;
    Ok(answer::for_proxy(&Report::of(&answer), answers))
}

fn entries<'d>(described: &'d Described<'_>) -> Vec<Entry<'d>> {
    let pairs = described.descriptors().flatten();
    pairs.map(|(key, value)| Entry { key, value }).collect()
}

/// Which domain decides, and the path of the request if it stands in our own.
fn place<'h>(
    head: &'h Parts,
    policy: &'h Policy,
) -> Result<(Cow<'h, str>, Option<&'h str>), &'static str> {
    const NOT_TEXT: &str = "a domain is percent-encoded UTF-8";
    if let Some(rest) = head.uri.path().strip_prefix("/v1/auth/") {
        let domain = rest.split('/').next().unwrap_or_default();
        // With the query, for that is the request's.
        let whole = head.uri.path_and_query().map_or("/", |whole| whole.as_str());
        let path = whole.get("/v1/auth/".len() + domain.len()..);
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
        _ => Err("say which domain decides: /v1/auth?domain=NAME"),
    }
}

/// Without percent-encoding; `None` if that is none, or is not UTF-8.
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
fn plain_texts(headers: &HeaderMap) -> Option<Vec<(&str, &str)>> {
    let mut texts = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        texts.push((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?));
    }
    Some(texts)
}

/// Values that are not UTF-8, as near as can be: who sends one must not pass as one who sends none.
fn odd_values(headers: &HeaderMap) -> Vec<String> {
    let odd = headers.values().filter(|value| std::str::from_utf8(value.as_bytes()).is_err());
    odd.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

fn texts<'h>(headers: &'h HeaderMap, odd: &'h [String]) -> Vec<(&'h str, &'h str)> {
    let mut odd = odd.iter();
    let text = |value: &'h [u8], odd: &mut std::slice::Iter<'h, String>| {
        std::str::from_utf8(value).ok().or_else(|| odd.next().map(|text| &**text))
    };
    let mut texts = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        texts.push((name.as_str(), text(value.as_bytes(), &mut odd).unwrap_or_default()));
    }
    texts
}

/// What headers say of the request.
#[derive(Debug, Default)]
struct Claims<'h> {
    method: Option<&'h str>,
    forwarded_uri: Option<&'h str>,
    original_uri: Option<&'h str>,
    original_url: Option<&'h str>,
    forwarded_host: Option<&'h str>,
    host: Option<&'h str>,
}

impl<'h> Claims<'h> {
    /// No two that say the same thing may differ.
    fn of(headers: &[(&'h str, &'h str)]) -> Result<Self, Refused> {
        let mut claims = Self::default();
        for (name, value) in headers {
            let (claim, value) = match *name {
                "x-forwarded-method" | "x-original-method" => (&mut claims.method, *value),
                "x-forwarded-uri" => (&mut claims.forwarded_uri, *value),
                "x-original-uri" => (&mut claims.original_uri, *value),
                "x-original-url" => (&mut claims.original_url, path_of(value)),
                "x-forwarded-host" | "x-original-host" => (&mut claims.forwarded_host, *value),
                "host" => (&mut claims.host, *value),
                _ => continue,
            };
            *claim = agree([*claim, Some(value)])?;
        }
        Ok(claims)
    }
}

/// What all of them say that say anything.
fn agree<'h>(told: impl IntoIterator<Item = Option<&'h str>>) -> Result<Option<&'h str>, Refused> {
    let mut agreed = None;
    for told in told.into_iter().flatten() {
        if agreed.is_some_and(|agreed| agreed != told) {
            let why = "two headers tell different stories of the request: have the proxy set \
                       the one that it means, and drop what clients send under the other";
            return Err(Refused::Malformed(why.into()));
        }
        agreed = Some(told);
    }
    Ok(agreed)
}

/// From the first slash after the host on.
fn path_of(url: &str) -> &str {
    let Some((_, rest)) = url.split_once("://") else { return url };
    rest.find('/').map_or("/", |slash| &rest[slash..])
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
    fn a_url_has_a_path() {
        assert_eq!(path_of("https://example.org/a?b=//c"), "/a?b=//c");
        assert_eq!(path_of("https://example.org"), "/");
        assert_eq!(path_of("/a"), "/a");
    }
}
