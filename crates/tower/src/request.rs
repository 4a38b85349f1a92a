//! Values that the layer reads from the extensions of a request, and those that it adds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::request::Parts;
use tidegate::{Permit, ToKey};

/// The cost of this request, set by an outer layer in the extensions. Takes precedence over
/// [`RateLimitLayer::cost`](crate::RateLimitLayer::cost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(pub u64);

/// The key of this request, set by an outer layer in the extensions: takes precedence over the key that
/// [`Unkeyed::identify`](crate::Unkeyed::identify) extracts. Layers of a policy do not read it, because its
/// rules name several keys.
///
/// ```
/// use tidegate_tower::Key;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Key::of("user-17"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub(crate) Box<[u8]>);

impl Key {
    /// This key.
    pub fn of(key: impl ToKey) -> Self {
        Self(key.to_key().as_ref().into())
    }
}

/// The time that the request has left when it reaches the layer, set by an outer layer in the
/// extensions. A gRPC request carries it in `grpc-timeout`. The request is not delayed or queued
/// for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Duration);

/// The places that the request has in the in-flight limits of its key, in the extensions of the request.
///
/// The layer holds them until the response body ends. After an upgrade (101) the body is empty while the
/// tunnel is open: a handler that upgrades moves the lease into the task that serves the tunnel.
#[derive(Clone, Debug)]
pub struct Lease(Arc<Permit>);

impl Lease {
    pub(crate) fn new(permit: Permit) -> Self {
        Self(Arc::new(permit))
    }

    /// True once another request may hold the place, because the shared store was unreachable for too
    /// long.
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }
}

/// The address of the peer.
pub(crate) fn peer(head: &Parts) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    {
        use axum::extract::ConnectInfo;
        use std::net::SocketAddr;

        if let Some(ConnectInfo(socket)) = head.extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(socket.ip());
        }
    }
    #[cfg(feature = "tonic")]
    {
        use tonic::transport::server::TcpConnectInfo;

        if let Some(connection) = head.extensions.get::<TcpConnectInfo>() {
            return connection.remote_addr().map(|socket| socket.ip());
        }
    }
    tidegate::policy::peer(head)
}

/// The time that the request has left.
pub(crate) fn time_left(head: &Parts) -> Option<Duration> {
    let told = head.extensions.get::<Timeout>().map(|timeout| timeout.0);
    let grpc = head.headers.get("grpc-timeout").and_then(|value| grpc_timeout(value.as_bytes()));
    match (told, grpc) {
        (Some(told), Some(grpc)) => Some(told.min(grpc)),
        (told, grpc) => told.or(grpc),
    }
}

/// `grpc-timeout`: at most eight digits and a unit.
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Whether these are the headers of a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_timeout_is_digits_and_a_unit() {
        for (text, expected) in [
            ("1H", Some(Duration::from_secs(3_600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("100m", Some(Duration::from_millis(100))),
            ("7u", Some(Duration::from_micros(7))),
            ("0n", Some(Duration::ZERO)),
            ("100000000S", None),
            ("S", None),
            ("1", None),
            ("+1S", None),
            ("1 S", None),
            ("", None),
        ] {
            assert_eq!(grpc_timeout(text.as_bytes()), expected, "{text}");
        }
    }
}
