//! Heads of requests and responses: which are refused, and which fields are forwarded.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use hyper::body::Bytes;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};

use super::framing::{MAX_FIELDS, MAX_HEAD};
use super::http2::length;
use crate::settings::HeaderNames;

/// The most bytes of a request target.
const MAX_TARGET: usize = 8 << 10;

/// The most bytes of a request id that is kept; a longer one is replaced.
const MAX_REQUEST_ID: usize = 128;

/// The most fields that the gateway adds to a request, including those of an upgrade.
const ADDED: usize = 8;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether a field tells the next server the client's address, its request, or the user that a
/// proxy has authenticated. Only trusted peers may send it. `own` has `gateway.drop_headers`.
fn is_claim(name: &str, own: &HeaderNames) -> bool {
    let is_known = match name.as_bytes().first() {
        Some(b'x') => {
            // Of oauth2-proxy, Grafana, Authentik, Google's Identity-Aware Proxy and AWS.
            const STARTS: [&str; 9] = [
                "x-forwarded",
                "x-original-",
                "x-auth-request-",
                "x-remote-",
                "x-webauth-",
                "x-authentik-",
                "x-goog-authenticated-user-",
                "x-amzn-oidc-",
                "x-ssl-client-",
            ];
            STARTS.iter().any(|start| name.starts_with(start))
                || matches!(
                    name,
                    "x-real-ip"
                        | "x-request-id"
                        | "x-rewrite-url"
                        | "x-client-ip"
                        | "x-cluster-client-ip"
                        | "x-azure-clientip"
                        | "x-azure-socketip"
                        | "x-envoy-external-address"
                        | "x-envoy-internal"
                        | "x-client-cert"
                        | "x-client-dn"
                        | "x-client-verify"
                        | "x-ssl-cert"
                )
        }
        Some(b'c') => {
            name.starts_with("cf-connecting-ip")
                || matches!(name, "cf-pseudo-ipv4" | "cf-access-authenticated-user-email")
                || matches!(name, "client-ip" | "client-cert" | "client-cert-chain")
        }
        Some(b'f') => matches!(name, "forwarded" | "fastly-client-ip" | "fly-client-ip"),
        // Authelia, Apache and Tailscale.
        Some(b'r') => name.starts_with("remote-"),
        Some(b's') => name.starts_with("ssl-client-"),
        Some(b't') => name == "true-client-ip" || name.starts_with("tailscale-user-"),
        _ => false,
    };
    is_known || own.contains(name)
}

/// Whether a field concerns one connection. So do the fields that `Connection` names.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "transfer-encoding"
            | "te"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authorization"
            | "http2-settings"
    )
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) why: &'static str,
}

const fn refused<T>(status: StatusCode, why: &'static str) -> Result<T, Refused> {
    Err(Refused { status, why })
}

/// Refuses requests that servers would read in different ways, that exceed a bound, or whose method
/// the gateway does not forward.
pub(super) fn check(head: &Parts, own: &HeaderNames) -> Result<(), Refused> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "CONNECT and TRACE are not forwarded");
    }
    if length(&head.headers) > MAX_HEAD || head.headers.len() > MAX_FIELDS {
        return refused(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "a request has at most 100 fields and 32 KiB of them",
        );
    }
    if head.headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        return refused(StatusCode::BAD_REQUEST, "a request has at most one Content-Length");
    }
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let authority = head.uri.authority().map(|authority| authority.as_str());
    if target + authority.map_or(0, str::len) > MAX_TARGET {
        return refused(StatusCode::URI_TOO_LONG, "a request target has at most 8 KiB");
    }
    if !head.uri.path().starts_with('/') {
        return refused(StatusCode::BAD_REQUEST, "the request target is not a path");
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let (host, more) = (hosts.next(), hosts.next());
    let host = match (host.map(HeaderValue::to_str), more) {
        (Some(Ok(host)), None) if is_host(host) => host,
        _ => return refused(StatusCode::BAD_REQUEST, "a request has exactly one Host"),
    };
    if authority.is_some_and(|authority| !authority.eq_ignore_ascii_case(host)) {
        return refused(StatusCode::BAD_REQUEST, "the request target and Host disagree");
    }
    for name in named_by_connection(&head.headers) {
        let Some(name) = name else {
            return refused(StatusCode::BAD_REQUEST, "Connection names no field");
        };
        if is_claim(name.as_str(), own) || name == HOST || name == CONTENT_LENGTH {
            return refused(
                StatusCode::BAD_REQUEST,
                "Connection names a field that the next server needs",
            );
        }
    }
    Ok(())
}

/// Makes a head of HTTP/2 one of HTTP/1.1: `:authority` is the host, and cookies are in one field.
pub(super) fn unify(head: &mut Parts) {
    if let (false, Some(authority)) = (head.headers.contains_key(HOST), head.uri.authority())
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        head.headers.insert(HOST, host);
    }
    let crumbs: Vec<_> = head.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        head.headers.insert(COOKIE, cookie);
    }
}

/// Whether a host has at most a port: no user, no path, and no character that ends a host.
fn is_host(host: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(&byte);
    !host.is_empty() && host.len() <= 255 && host.bytes().all(is_part)
}

/// The fields that `Connection` names; `None` for an invalid name.
fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = Option<HeaderName>> {
    let lines = headers.get_all(CONNECTION).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let names = names.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty());
    names.map(|name| HeaderName::from_bytes(name).ok())
}

/// Whether servers would disagree about where a response ends. hyper ignores the length of a
/// response without a body, and passes it on.
pub(super) fn is_ambiguous(headers: &HeaderMap) -> bool {
    let mut fields =
        headers.get_all(CONTENT_LENGTH).iter().chain(headers.get_all(TRANSFER_ENCODING));
    let (field, more) = (fields.next(), fields.next());
    let is_sound = |field: &HeaderValue| match headers.contains_key(CONTENT_LENGTH) {
        true => field.as_bytes().iter().all(u8::is_ascii_digit) && parsed(field).is_some(),
        false => field.as_bytes().eq_ignore_ascii_case(b"chunked"),
    };
    more.is_some() || !field.is_none_or(is_sound)
}

/// The length that a message announces.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).and_then(parsed)
}

fn parsed(length: &HeaderValue) -> Option<u64> {
    length.to_str().ok()?.parse().ok()
}

/// The protocol that a request asks to switch to, if the gateway forwards it.
pub(super) fn upgrade(head: &Parts) -> Option<HeaderValue> {
    let asks = named_by_connection(&head.headers).flatten().any(|name| name == UPGRADE);
    let mut protocols = head.headers.get_all(UPGRADE).iter();
    let (protocol, more) = (protocols.next()?, protocols.next());
    let is_known = protocol.as_bytes().eq_ignore_ascii_case(b"websocket") && more.is_none();
    (asks && is_known && head.method == Method::GET && head.version == Version::HTTP_11)
        .then(|| protocol.clone())
}

/// Whether a request is a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// Removes the fields that `is_meant` selects. Most heads have none.
fn drop_where(headers: &mut HeaderMap, is_meant: impl Fn(&str) -> bool) {
    if headers.keys().any(|name| is_meant(name.as_str())) {
        let names = headers.keys().filter(|name| is_meant(name.as_str()));
        for name in names.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
    }
}

/// Removes the fields by which a client could pass for a proxy.
pub(super) fn drop_claims(headers: &mut HeaderMap, own: &HeaderNames) {
    drop_where(headers, |name| is_claim(name, own));
}

/// Removes fields whose names contain an underscore. Servers that turn fields into variables (CGI,
/// WSGI) read `X_Forwarded_For` as `X-Forwarded-For`, and the policy does not. gRPC calls keep such
/// fields, except those that resemble a proxy's.
pub(super) fn drop_aliases(headers: &mut HeaderMap, is_call: bool, own: &HeaderNames) {
    drop_where(headers, |name| {
        name.contains('_') && (!is_call || is_claim(&name.replace('_', "-"), own))
    });
}

/// Removes trailers that a request must not have: fields of a response and fields of proxies.
pub(super) fn clean_request_trailers(trailers: &mut HeaderMap, own: &HeaderNames) {
    clean_trailers(trailers);
    drop_claims(trailers, own);
    drop_aliases(trailers, true, own);
}

/// Removes trailers that no message may have: fields of the connection and of the framing.
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    drop_hop_by_hop(trailers);
    for name in [TE, HOST, CONTENT_LENGTH] {
        trailers.remove(name);
    }
}

/// Removes the fields of this connection.
pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    let wants_trailers = headers
        .get_all(TE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = named_by_connection(headers).flatten().collect();
        for name in named {
            headers.remove(name);
        }
    }
    drop_where(headers, is_hop_by_hop);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Adds the fields that describe a client to the next server.
#[derive(Debug)]
pub(super) struct Description {
    scheme: HeaderValue,
    peer: Option<HeaderValue>,
    /// The start of `Forwarded`.
    for_peer: String,
    /// The last host, and `Forwarded` for it.
    last: Mutex<Option<(HeaderValue, HeaderValue)>>,
}

impl Description {
    pub(super) fn new(peer: Option<IpAddr>, scheme: &'static str) -> Self {
        let for_peer = match peer {
            Some(IpAddr::V6(peer)) => format!("for=\"[{peer}]\""),
            Some(IpAddr::V4(peer)) => format!("for={peer}"),
            None => "for=unknown".into(),
        };
        Self {
            scheme: HeaderValue::from_static(scheme),
            peer: peer.and_then(|peer| HeaderValue::from_str(&peer.to_string()).ok()),
            for_peer,
            last: Mutex::default(),
        }
    }

    /// Adds the fields to a request, after those of trusted proxies.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        // Reserved at once, because the map would otherwise grow twice.
        headers.reserve(ADDED);
        if let Some(peer) = &self.peer {
            append(headers, X_FORWARDED_FOR, peer.clone());
        }
        let host = headers.get(HOST).cloned();
        if let Some(forwarded) = self.forwarded(host.as_ref()) {
            append(headers, FORWARDED, forwarded);
        }
        if let (false, Some(host)) = (headers.contains_key(&X_FORWARDED_HOST), host) {
            headers.insert(X_FORWARDED_HOST, host);
        }
        if !headers.contains_key(&X_FORWARDED_PROTO) {
            headers.insert(X_FORWARDED_PROTO, self.scheme.clone());
        }
        let known = headers.get(&X_REQUEST_ID);
        if !known.is_some_and(|id| (1..=MAX_REQUEST_ID).contains(&id.len())) {
            let id = format!("{:032x}", fastrand::u128(..));
            if let Ok(id) = HeaderValue::from_maybe_shared(Bytes::from(id)) {
                headers.insert(X_REQUEST_ID, id);
            }
        }
    }

    /// `Forwarded` for this host. Most requests of a connection have the same one.
    fn forwarded(&self, host: Option<&HeaderValue>) -> Option<HeaderValue> {
        let scheme = self.scheme.to_str().unwrap_or_default();
        let Some(host) = host else {
            return HeaderValue::from_str(&format!("{};proto={scheme}", self.for_peer)).ok();
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, forwarded)) = &*last
            && known == host
        {
            return Some(forwarded.clone());
        }
        let name = host.to_str().ok()?;
        let text = format!("{};host=\"{name}\";proto={scheme}", self.for_peer);
        let forwarded = HeaderValue::from_maybe_shared(Bytes::from(text)).ok()?;
        *last = Some((host.clone(), forwarded.clone()));
        Some(forwarded)
    }
}

/// Adds a member to a list; several lines become one.
fn append(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    let mut list = Vec::new();
    for line in headers.get_all(&name) {
        list.extend_from_slice(line.as_bytes());
        list.extend_from_slice(b", ");
    }
    let member = match list.is_empty() {
        true => Ok(member),
        false => HeaderValue::from_bytes(&[&list, member.as_bytes()].concat()),
    };
    if let Ok(member) = member {
        headers.insert(name, member);
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
