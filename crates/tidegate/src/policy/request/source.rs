//! Where the values of entries come from.

use std::borrow::Cow;
use std::net::IpAddr;

use super::HttpRequest;
use super::client::client;
use super::host::host;
use super::template::Parameter;

/// What an entry's value is taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `X-API-Key`, else the token of `Authorization: Bearer`, else the user of `Authorization: Basic`.
    ///
    /// A client that is known by its token can add an `X-API-Key` of its own invention to every
    /// request: where only one of the three is checked, name its header instead.
    ApiKey,
    /// The address of the client, without a port.
    ClientIp,
    /// A cookie of this name.
    Cookie(Box<str>),
    /// A header of this name, the first if there are several.
    Header(Box<str>),
    /// Whom the request is for, in small letters and without a port.
    Host,
    /// As it came.
    Method,
    /// Without the query.
    Path,
    /// A part of the path, as it came.
    PathParameter(Parameter),
    /// A field of the query, the first of this name. Decoded: what stands behind does the same, and
    /// each way to encode a value would have a budget of its own.
    Query(Box<str>),
    /// The same for all.
    Value(Box<str>),
}

/// A request, taken apart as far as all rules need it.
pub(super) struct Facts<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) host: Option<Cow<'a, str>>,
    query: &'a str,
    headers: &'a [(&'a str, &'a str)],
    peer: Option<IpAddr>,
    trusted_proxies: usize,
}

impl<'a> Facts<'a> {
    pub(super) fn of(request: &HttpRequest<'a>, trusted_proxies: usize) -> Self {
        let HttpRequest { method, path, headers, peer, .. } = *request;
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let host = request.host.or_else(|| values(headers, "host").next()).map(host);
        Self { method, path, host, query, headers, peer, trusted_proxies }
    }
}

impl Source {
    /// The value, if the request has it.
    pub(super) fn value<'a>(&'a self, facts: &Facts<'a>) -> Option<Cow<'a, str>> {
        match self {
            Self::ApiKey => api_key(facts.headers),
            Self::ClientIp => {
                let client = client(facts.headers, facts.peer, facts.trusted_proxies)?;
                Some(Cow::Owned(client.to_string()))
            }
            Self::Cookie(name) => cookie(facts.headers, name).map(Cow::Borrowed),
            Self::Header(name) => values(facts.headers, name).next().map(Cow::Borrowed),
            Self::Host => facts.host.clone(),
            Self::Method => Some(Cow::Borrowed(facts.method)),
            Self::Path => Some(Cow::Borrowed(facts.path)),
            Self::PathParameter(parameter) => parameter.value(facts.path).map(Cow::Borrowed),
            Self::Query(name) => field(facts.query, name),
            Self::Value(text) => Some(Cow::Borrowed(text)),
        }
    }

    /// Whether it may tell one client from another.
    pub(crate) const fn is_identity(&self) -> bool {
        match self {
            Self::ApiKey
            | Self::ClientIp
            | Self::Cookie(_)
            | Self::Header(_)
            | Self::PathParameter(_)
            | Self::Query(_) => true,
            Self::Host | Self::Method | Self::Path | Self::Value(_) => false,
        }
    }

    /// Whether it says who somebody claims to be, with proof.
    pub(crate) fn is_credential(&self) -> bool {
        match self {
            Self::ApiKey => true,
            Self::Header(name) => {
                ["authorization", "x-api-key"].iter().any(|known| name.eq_ignore_ascii_case(known))
            }
            _ => false,
        }
    }
}

/// The values of all headers of a name, in order, without the space around them.
pub(super) fn values<'a>(
    headers: &[(&'a str, &'a str)],
    name: &str,
) -> impl DoubleEndedIterator<Item = &'a str> {
    let named = headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.trim())
}

fn api_key<'a>(headers: &[(&'a str, &'a str)]) -> Option<Cow<'a, str>> {
    let first = |name| values(headers, name).find(|value| !value.is_empty());
    if let Some(key) = first("x-api-key") {
        return Some(Cow::Borrowed(key));
    }
    let (scheme, credentials) = first("authorization")?.split_once(' ')?;
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Cow::Borrowed(credentials));
    }
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    is_basic.then(|| user(credentials)).flatten().map(Cow::Owned)
}

/// The user of `user:password` in base 64 (RFC 7617).
fn user(credentials: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(credentials.len());
    let (mut bits, mut held) = (0_u32, 0);
    for byte in credentials.trim_end_matches('=').bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(digit)) & 0xFFFF;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    Some(String::from_utf8_lossy(&bytes[..colon]).into_owned())
}

fn cookie<'a>(headers: &[(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    let pairs = values(headers, "cookie").flat_map(|line| line.split(';'));
    let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
    pairs.find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
}

fn field<'a>(query: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(known, _)| decoded(known) == name).map(|(_, value)| decoded(value))
}

/// A text without percent-encoding. What is no encoding stands for itself.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = after.first_chunk().filter(|_| *byte == b'%');
        let encoded = digits.and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?));
        bytes.push(encoded.unwrap_or(if *byte == b'+' { b' ' } else { *byte }));
        rest = if encoded.is_some() { &after[2..] } else { after };
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
