//! The key that a request is charged to.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use http::HeaderName;
use http::request::Parts;
use tidegate::ToKey;
use tidegate::policy::{api_key, client_ip, header_value};

use crate::request::peer;

/// Extracts the key that a request is charged to.
///
/// Requests without a key share one budget, and so do requests whose key can be read in several ways: a
/// client must not get a new budget by sending a second header.
///
/// Closures implement it:
///
/// ```
/// use http::request::Parts;
/// use tidegate::{Limit, Limiter, Rate};
/// use tidegate_tower::RateLimitLayer;
///
/// let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(100)).build()?);
/// let layer = RateLimitLayer::limit(limiter)
///     .identify(|head: &Parts| head.uri.host().map(ToOwned::to_owned));
/// # let _ = layer;
/// # Ok::<(), tidegate::InvalidLimit>(())
/// ```
pub trait Identify: Send + Sync + 'static {
    /// The key; `None` if the request has none.
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>>;
}

impl<F, K> Identify for F
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: ToKey,
{
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        self(head).map(|key| Cow::Owned(key.to_key().to_vec()))
    }
}

/// One key for all requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneKey;

impl Identify for OneKey {
    #[inline]
    fn key<'r>(&self, _: &'r Parts) -> Option<Cow<'r, [u8]>> {
        None
    }
}

/// The address of the client.
///
/// The peer's address is read from the extensions of the request: axum's `ConnectInfo<SocketAddr>`
/// (feature `axum`), tonic's `TcpConnectInfo` (feature `tonic`), a `SocketAddr` or an `IpAddr`.
#[derive(Clone, Copy, Debug)]
pub struct ClientIp {
    trusted_proxies: usize,
}

impl ClientIp {
    /// The peer that opened the connection.
    pub const fn peer() -> Self {
        Self::behind(0)
    }

    /// The client in front of this many of your own proxies, which each appended their peer to
    /// `X-Forwarded-For`. Addresses further left come from the client and are not used.
    pub const fn behind(trusted_proxies: usize) -> Self {
        Self { trusted_proxies }
    }
}

impl Identify for ClientIp {
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        let address = client_ip(&head.headers, peer(head), self.trusted_proxies)?;
        Some(Cow::Owned(address.to_key().to_vec()))
    }
}

/// The value of a header. Use one that clients cannot choose freely: a random value would be a new key.
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// The header of this name.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// The header of this name, in lower case.
    ///
    /// # Panics
    /// If the name is not one that a header can have.
    pub const fn named(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl Identify for Header {
    #[inline]
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        match header_value(&head.headers, &self.0).ok()?? {
            Cow::Borrowed(text) => Some(Cow::Borrowed(text.as_bytes())),
            Cow::Owned(text) => Some(Cow::Owned(text.into_bytes())),
        }
    }
}

/// The API key: `X-API-Key`, the token of `Authorization: Bearer`, or the user of `Authorization: Basic`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApiKey;

impl Identify for ApiKey {
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        let key = api_key(&head.headers).ok()??;
        Some(Cow::Owned(key.into_bytes()))
    }
}

/// A value that an outer layer put into the extensions of the request, such as a verified user.
pub struct FromExtension<T>(PhantomData<fn() -> T>);

impl<T> FromExtension<T> {
    /// The extension of type `T`.
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T> Default for FromExtension<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for FromExtension<T> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for FromExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromExtension<{}>", std::any::type_name::<T>())
    }
}

impl<T: ToKey + Send + Sync + 'static> Identify for FromExtension<T> {
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        Some(head.extensions.get::<T>()?.to_key().into())
    }
}

/// The route that axum matched, such as `/users/{id}`; `unmatched` if there is none, because raw paths
/// are without number.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchedRoute;

#[cfg(feature = "axum")]
impl Identify for MatchedRoute {
    fn key<'r>(&self, head: &'r Parts) -> Option<Cow<'r, [u8]>> {
        let route = head.extensions.get::<axum::extract::MatchedPath>();
        let route = route.map_or("unmatched", axum::extract::MatchedPath::as_str);
        Some(Cow::Borrowed(route.as_bytes()))
    }
}
