//! Transports: each decodes requests of one protocol and encodes the answers.

pub(crate) mod access;
pub(crate) mod admin;
pub(crate) mod gateway;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod http2;
pub(crate) mod resp;
pub(crate) mod rls;
mod stream;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

use crate::runtime::accept::Accept;
use crate::runtime::tls::Tls;

pub(crate) use self::stream::Stream;

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The Redis protocol.
    Resp,
    /// HTTP/1.1.
    Http,
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1.1, for the admin API.
    Admin,
    /// HTTP/1.1, for metrics only.
    Metrics,
    /// HTTP/1.1 and HTTP/2, forwarded to services.
    Gateway,
}

impl Protocol {
    /// All protocols, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Resp, Self::Http, Self::Grpc, Self::Admin, Self::Metrics, Self::Gateway];

    /// The protocol's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resp => "RESP",
            Self::Http => "HTTP",
            Self::Grpc => "gRPC",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
            Self::Gateway => "gateway",
        }
    }

    /// The protocol's ALPN names.
    pub(crate) const fn in_tls(self) -> &'static [&'static str] {
        match self {
            Self::Resp => &[],
            Self::Http | Self::Admin | Self::Metrics => &["http/1.1"],
            Self::Gateway => &["h2", "http/1.1"],
            Self::Grpc => &["h2"],
        }
    }
}

/// A listener's protocol, TLS configuration and accept limits.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) protocol: Protocol,
    pub(crate) tls: Option<Tls>,
    /// Set for the gateway only.
    pub(crate) accept: Option<Accept>,
}

/// Waits for at most `limit`. A future that is ready at once does not read the clock.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
    match first.await {
        Poll::Ready(value) => Some(value),
        Poll::Pending => timeout(limit, future).await.ok(),
    }
}
