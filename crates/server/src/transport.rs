//! Doors: each turns bytes of a protocol into questions, and answers into bytes.

pub(crate) mod admin;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;
pub(crate) mod rls;
mod stream;

use crate::tls::Tls;

pub(crate) use self::stream::Stream;

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The Redis protocol.
    Resp,
    /// HTTP/1.1.
    Http,
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1.1, for those who run the daemon.
    Admin,
    /// HTTP/1.1, for those who only read metrics.
    Metrics,
}

impl Protocol {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Resp, Self::Http, Self::Grpc, Self::Admin, Self::Metrics];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resp => "RESP",
            Self::Http => "HTTP",
            Self::Grpc => "gRPC",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }

    /// What TLS calls it.
    pub(crate) const fn in_tls(self) -> &'static [&'static str] {
        match self {
            Self::Resp => &[],
            Self::Http | Self::Admin | Self::Metrics => &["http/1.1"],
            Self::Grpc => &["h2"],
        }
    }
}

/// A door: what is spoken behind it, and how it is locked.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) protocol: Protocol,
    pub(crate) tls: Option<Tls>,
}
