//! The identity of a client: address, header or API key, read as the rules of a policy read it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{HeaderMap, HeaderName};

use super::client::{FORWARDED_FOR, client};
use super::source::{API_KEY, Headers, api_keys, header};
use super::{HeaderTexts, RequestError};

/// The address of the peer that opened the connection: the `IpAddr` or `SocketAddr` in the extensions of
/// the request.
#[doc(hidden)]
pub fn peer(head: &Parts) -> Option<IpAddr> {
    let address = head.extensions.get::<IpAddr>().copied();
    address.or_else(|| head.extensions.get().map(SocketAddr::ip))
}

/// The address of the client behind this many trusted proxies, which each appended their peer to
/// `X-Forwarded-For`; the peer, if there are no proxies or the header is too short.
///
/// ```
/// use http::HeaderMap;
/// use tidegate::policy::client_ip;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "evil, 192.0.2.7".parse()?);
/// assert_eq!(client_ip(&headers, None, 1), Some([192, 0, 2, 7].into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(hidden)]
pub fn client_ip(
    headers: &HeaderMap,
    peer: Option<IpAddr>,
    trusted_proxies: usize,
) -> Option<IpAddr> {
    let lines = headers.get_all(FORWARDED_FOR).into_iter().map(|value| value.as_bytes());
    client(lines, peer, trusted_proxies)
}

/// The value of a header; `None` if it is absent or empty.
///
/// # Errors
/// If the request has several different values: the application may read either.
#[doc(hidden)]
pub fn header_value<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<Cow<'h, str>>, RequestError> {
    let mut lines = headers.get_all(name).into_iter();
    let (first, second) = (lines.next(), lines.next());
    let Some(first) = first else { return Ok(None) };
    if second.is_none()
        && name.as_str() != API_KEY
        && let Ok(text) = std::str::from_utf8(first.as_bytes())
    {
        let text = text.trim();
        return Ok((!text.is_empty()).then_some(Cow::Borrowed(text)));
    }
    let texts = HeaderTexts::new(headers);
    let value = header(Headers::Map(&texts), name.as_str())?;
    Ok(value.map(|value| Cow::Owned(value.to_owned())))
}

/// The API key: `X-API-Key`, the token of `Authorization: Bearer`, or the user of `Authorization: Basic`;
/// `None` if there is none.
///
/// # Errors
/// If the request has several different keys, or credentials that can be read in several ways.
#[doc(hidden)]
pub fn api_key(headers: &HeaderMap) -> Result<Option<String>, RequestError> {
    let texts = HeaderTexts::new(headers);
    let keys = api_keys(Headers::Map(&texts))?;
    match <[Cow<'_, str>; 1]>::try_from(keys) {
        Ok([only]) => Ok(Some(only.into_owned())),
        Err(keys) if keys.is_empty() => Ok(None),
        Err(_) => Err(RequestError::Conflict("API key".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), value.to_vec().try_into().expect("a header value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_header_has_one_value() {
        let name = HeaderName::from_static("x-user");
        let value = |pairs: &[(&'static str, &[u8])]| {
            header_value(&headers(pairs), &name).map(|value| value.map(Cow::into_owned))
        };
        assert_eq!(value(&[]), Ok(None));
        assert_eq!(value(&[("x-user", b" ")]), Ok(None));
        assert_eq!(value(&[("x-user", b" ann ")]), Ok(Some("ann".into())));
        assert_eq!(value(&[("x-user", b"\xff")]), Ok(Some("\u{fffd}".into())));
        assert_eq!(value(&[("x-user", b"ann"), ("x-user", b"ann")]), Ok(Some("ann".into())));
        assert!(value(&[("x-user", b"ann"), ("x-user", b"bob")]).is_err());
    }

    #[test]
    fn an_api_key_is_the_only_one() {
        let key = |pairs: &[(&'static str, &[u8])]| api_key(&headers(pairs));
        assert_eq!(key(&[]), Ok(None));
        assert_eq!(key(&[("x-api-key", b"one")]), Ok(Some("one".into())));
        assert_eq!(key(&[("authorization", b"Bearer one")]), Ok(Some("one".into())));
        assert_eq!(key(&[("authorization", b"Basic YW5uOnB3")]), Ok(Some("ann".into())));
        let same: [(&str, &[u8]); 2] = [("x-api-key", b"one"), ("authorization", b"Bearer one")];
        assert_eq!(key(&same), Ok(Some("one".into())));
        assert!(key(&[("x-api-key", b"one"), ("authorization", b"Bearer two")]).is_err());
        assert!(key(&[("x-api-key", b"one, two")]).is_err());
    }
}
