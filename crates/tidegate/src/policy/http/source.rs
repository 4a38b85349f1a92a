//! Sources of the values of entries.

use std::borrow::Cow;
use std::net::IpAddr;

#[cfg(feature = "http")]
use super::HeaderTexts;
use super::client::{FORWARDED_FOR, client};
use super::host::{MAX_HOST, normal_host};
use super::target::{RequestTarget, hex};
use super::template::Parameter;
use super::{HttpRequest, RequestError};

/// The header that carries API keys.
pub(super) const API_KEY: &str = "x-api-key";

/// The source of an entry's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An API key: `X-API-Key`, the token of `Authorization: Bearer`, or the user of
    /// `Authorization: Basic`.
    ///
    /// A request with both headers yields the descriptor once per key, so an added key cannot
    /// replace the other.
    ApiKey,
    /// The address of the client, without a port.
    ClientIp,
    /// The cookie of this name.
    Cookie(Box<str>),
    /// The header of this name.
    Header(Box<str>),
    /// The host, in lower case and without a port.
    Host,
    /// The method as received.
    Method,
    /// The normalised path, without the query.
    Path,
    /// A part of the normalised path.
    PathParameter(Parameter),
    /// The query field of this name, decoded; otherwise each encoding of a value would have its own
    /// quota.
    Query(Box<str>),
    /// A constant.
    Value(Box<str>),
}

/// The headers of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Headers<'a> {
    /// Names, in any case, and values, in the order received.
    Pairs(&'a [(&'a str, &'a str)]),
    /// By name.
    #[cfg(feature = "http")]
    Map(&'a HeaderTexts<'a>),
}

impl<'a> Headers<'a> {
    /// The trimmed values of all headers of a name, in order.
    fn values(self, name: &str) -> impl DoubleEndedIterator<Item = &'a str> {
        let pairs = match self {
            Self::Pairs(pairs) => pairs,
            #[cfg(feature = "http")]
            Self::Map(_) => &[],
        };
        let named = pairs.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        let named = named.map(|(_, value)| *value);
        #[cfg(feature = "http")]
        let named = {
            let map = if let Self::Map(texts) = self { Some(texts) } else { None };
            named.chain(map.into_iter().flat_map(|texts| texts.values(name)))
        };
        named.map(str::trim)
    }
}

/// A request, parsed as far as any rule needs.
pub(super) struct Facts<'a> {
    pub(super) method: &'a str,
    pub(super) path: Cow<'a, str>,
    pub(super) host: Option<Cow<'a, str>>,
    query: &'a str,
    headers: Headers<'a>,
    peer: Option<IpAddr>,
    trusted_proxies: usize,
}

impl<'a> Facts<'a> {
    pub(super) fn of(
        request: &HttpRequest<'a>,
        headers: Headers<'a>,
        trusted_proxies: usize,
    ) -> Result<Self, RequestError> {
        let HttpRequest { method, path, peer, .. } = *request;
        let (path, query) = RequestTarget::parse(path)?.into_parts();
        let host = match request.host {
            Some(host) => Some(host),
            None => unique(headers.values("host"), || "header host".into())?,
        };
        let host = host.map(normal_host);
        // Without this bound, a host of dots only would cause one lookup per byte.
        if host.as_ref().is_some_and(|host| host.len() > MAX_HOST) {
            return Err(RequestError::Host);
        }
        Ok(Self { method, path, host, query, headers, peer, trusted_proxies })
    }

    /// All API keys of the request.
    pub(super) fn api_keys(&self) -> Result<Vec<Cow<'a, str>>, RequestError> {
        api_keys(self.headers)
    }

    /// A part of the path, borrowed where possible.
    fn of_path(&self, part: impl Fn(&str) -> Option<&str>) -> Option<Cow<'a, str>> {
        match self.path {
            Cow::Borrowed(path) => part(path).map(Cow::Borrowed),
            Cow::Owned(ref path) => part(path).map(|part| Cow::Owned(part.to_owned())),
        }
    }
}

/// All API keys in these headers, from `X-API-Key` and `Authorization`, without duplicates. At most two.
pub(super) fn api_keys<'a>(headers: Headers<'a>) -> Result<Vec<Cow<'a, str>>, RequestError> {
    let mut keys = Vec::new();
    let key = header(headers, API_KEY)?;
    keys.extend(key.map(Cow::Borrowed));
    let lines = headers.values("authorization");
    let key = match unique(lines, || "header authorization".into())? {
        Some(line) => credentials(line)?,
        None => None,
    };
    keys.extend(key.filter(|key| !key.is_empty() && keys.first() != Some(key)));
    Ok(keys)
}

impl Source {
    /// The value, if the request has it; `key` is the API key of the descriptor.
    pub(super) fn value<'a>(
        &'a self,
        facts: &Facts<'a>,
        key: Option<&Cow<'a, str>>,
    ) -> Result<Option<Cow<'a, str>>, RequestError> {
        let value = match self {
            Self::ApiKey => key.cloned(),
            Self::ClientIp => {
                let lines = facts.headers.values(FORWARDED_FOR).map(str::as_bytes);
                let client = client(lines, facts.peer, facts.trusted_proxies);
                client.map(|client| Cow::Owned(client.to_string()))
            }
            Self::Cookie(name) => cookie(facts.headers, name)?,
            Self::Header(name) => header(facts.headers, name)?.map(Cow::Borrowed),
            Self::Host => facts.host.clone(),
            Self::Method => Some(Cow::Borrowed(facts.method)),
            Self::Path => Some(facts.path.clone()),
            Self::PathParameter(parameter) => facts.of_path(|path| parameter.value(path)),
            Self::Query(name) => field(facts.query, name)?,
            Self::Value(text) => Some(Cow::Borrowed(&**text)),
        };
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// Whether the source is the method.
    pub(super) const fn is_method(&self) -> bool {
        matches!(self, Self::Method)
    }

    /// Whether the source is a part of the path or the query.
    pub(super) const fn is_of_target(&self) -> bool {
        matches!(self, Self::Path | Self::PathParameter(_) | Self::Query(_))
    }

    /// Whether the value tells users apart, rather than their requests.
    pub(super) const fn is_of_user(&self) -> bool {
        matches!(self, Self::ApiKey | Self::ClientIp | Self::Cookie(_) | Self::Header(_))
    }

    /// Whether the value may identify a client.
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

    /// Whether the value is a credential, which proves an identity.
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

/// The only value that is not empty. Two different values are refused, because the backend may use
/// either.
fn unique<T: PartialEq + AsRef<str>>(
    values: impl Iterator<Item = T>,
    what: impl FnOnce() -> String,
) -> Result<Option<T>, RequestError> {
    let mut values = values.filter(|value| !value.as_ref().is_empty());
    let first = values.next();
    match values.any(|value| first.as_ref() != Some(&value)) {
        true => Err(RequestError::Conflict(what())),
        false => Ok(first),
    }
}

/// The value of a header. Only `X-API-Key` is split at commas: keys have none, and proxies that
/// join header lines insert them. Other headers, such as `User-Agent`, may contain commas; lint
/// warns of rules that identify clients by such a header only.
pub(super) fn header<'a>(
    headers: Headers<'a>,
    name: &str,
) -> Result<Option<&'a str>, RequestError> {
    let what = || format!("header {}", name.to_ascii_lowercase());
    let lines = headers.values(name);
    match name.eq_ignore_ascii_case(API_KEY) {
        true => unique(lines.flat_map(|line| line.split(',')).map(str::trim), what),
        false => unique(lines, what),
    }
}

/// The token of `Bearer`, or the user of `Basic`. The scheme ends at a space or a tab and is
/// followed by one word; servers disagree on which of two words they use.
fn credentials(line: &str) -> Result<Option<Cow<'_, str>>, RequestError> {
    if !line.bytes().all(|byte| byte.is_ascii_graphic() || b" \t".contains(&byte)) {
        return Err(RequestError::Credentials);
    }
    // A proxy that joins header lines leaves commas, also beside empty ones.
    let parts = line.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut found = None;
    for (number, part) in parts.enumerate() {
        let (scheme, rest) = part.split_once([' ', '\t']).unwrap_or((part, ""));
        let is = |known: &str| scheme.eq_ignore_ascii_case(known);
        let is_key = is("bearer") || is("basic");
        let rest = rest.trim();
        if (is_key && rest.contains([' ', '\t'])) || (number > 0 && (is_key || found.is_some())) {
            return Err(RequestError::Credentials);
        }
        if is("bearer") {
            found = Some(Cow::Borrowed(rest));
        } else if is("basic") {
            found = Some(Cow::Owned(user(rest).ok_or(RequestError::Credentials)?));
        }
    }
    Ok(found)
}

/// The user of `user:password` in base64 (RFC 7617). `None` unless the encoding is canonical:
/// servers differ on other alphabets, missing padding and stray bits.
fn user(credentials: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(credentials.len());
    let (mut bits, mut held) = (0_u32, 0);
    let unpadded = credentials.strip_suffix("==").or_else(|| credentials.strip_suffix('='));
    for byte in unpadded.unwrap_or(credentials).bytes() {
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
    if !credentials.len().is_multiple_of(4) || bits & ((1 << held) - 1) != 0 {
        return None;
    }
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    Some(String::from_utf8_lossy(&bytes[..colon]).into_owned())
}

/// The value of a cookie without quotes and percent-encoding, which many servers remove.
fn cookie<'a>(headers: Headers<'a>, name: &str) -> Result<Option<Cow<'a, str>>, RequestError> {
    let plain = |pair: &'a str| {
        let (known, value) = pair.split_once('=')?;
        let value = value.trim();
        let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        (known.trim() == name).then(|| decoded(inner.unwrap_or(value), false))
    };
    let what = || format!("cookie {name}");
    let lines = || headers.values("cookie");
    let value = unique(lines().flat_map(|line| line.split(';')).filter_map(plain), what)?;
    // A proxy that joins header lines puts a comma between them.
    let other = lines().flat_map(|line| line.split([';', ','])).filter_map(plain);
    match unique(other, what)? == value {
        true => Ok(value),
        false => Err(RequestError::Conflict(what())),
    }
}

/// The value of a query field. Some servers also separate fields by `;`: a field that reads
/// differently then is refused.
fn field<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, RequestError> {
    let what = || format!("query field {name}");
    let matched = |pair: &'a str| {
        let (known, value) = pair.split_once('=')?;
        (decoded(known, true) == name).then_some(value)
    };
    let is_invalid = |value: &str| {
        let mut parts = value.split('%').skip(1);
        parts.any(|part| part.len() < 2 || !part.bytes().take(2).all(|it| it.is_ascii_hexdigit()))
    };
    if query.split('&').filter_map(matched).any(is_invalid) {
        return Err(RequestError::Conflict(what()));
    }
    let value = unique(query.split('&').filter_map(matched).map(|it| decoded(it, true)), what)?;
    let other = query.split(['&', ';']).filter_map(matched).map(|it| decoded(it, true));
    match !query.contains(';') || unique(other, what)? == value {
        true => Ok(value),
        false => Err(RequestError::Conflict(what())),
    }
}

/// A text without percent-encoding. Invalid encodings stay as they are.
fn decoded(text: &str, plus_is_space: bool) -> Cow<'_, str> {
    let is_plus = |byte: u8| plus_is_space && byte == b'+';
    if !text.bytes().any(|byte| byte == b'%' || is_plus(byte)) {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = after.first_chunk().filter(|_| *byte == b'%');
        let encoded = digits.and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?));
        bytes.push(encoded.unwrap_or(if is_plus(*byte) { b' ' } else { *byte }));
        rest = if encoded.is_some() { &after[2..] } else { after };
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}
