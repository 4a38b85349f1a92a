//! Why a request has no verdict.

use crate::policy::decide::token::leases::MAX_KEY_BYTES;
use crate::policy::decide::token::reservations::MAX_RESERVED_BYTES;
use crate::policy::http::RequestError;
use crate::policy::model::descriptor::MAX_DESCRIPTORS;
use crate::store::{MAX_TOGETHER, StoreError};

/// Why a request has no verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The request names no domain.
    NoDomain,
    /// The request has no descriptors.
    NoDescriptors,
    /// The request has more than [`MAX_DESCRIPTORS`].
    TooManyDescriptors,
    /// More than [`MAX_TOGETHER`] limits that are charged together apply to the request.
    TooManyTogether,
    /// More than [`MAX_TOGETHER`] in-flight limits apply to the request, or their keys are too
    /// long.
    TooManyLeases,
    /// More than [`MAX_TOGETHER`] limits that are settled after the response apply to the request,
    /// or their keys are too long.
    TooManyReservations,
    /// The policy has no such domain.
    UnknownDomain,
    /// The domain has no `requests` rules, so it describes no HTTP request.
    NoRequestRules,
    /// A rule reads the client's address, and the request has no peer.
    NoPeer,
    /// Servers would read the HTTP request in different ways: a mistake of the client (400).
    Request(RequestError),
    /// The store gave no decision.
    Store(StoreError),
}

impl From<StoreError> for CheckError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDomain => f.write_str("rate limit domain must not be empty"),
            Self::NoDescriptors => f.write_str("rate limit descriptor list must not be empty"),
            Self::TooManyDescriptors => {
                write!(f, "a request has at most {MAX_DESCRIPTORS} descriptors")
            }
            Self::TooManyTogether => {
                write!(
                    f,
                    "more than {MAX_TOGETHER} limits that are charged together apply to the request"
                )
            }
            Self::TooManyLeases => write!(
                f,
                "more than {MAX_TOGETHER} in-flight limits apply to the request, or their keys have more \
                 than {MAX_KEY_BYTES} bytes together"
            ),
            Self::TooManyReservations => write!(
                f,
                "more than {MAX_TOGETHER} limits that are settled after the response apply to the \
                 request, or their keys and names have more than {MAX_RESERVED_BYTES} bytes together"
            ),
            Self::UnknownDomain => f.write_str("the policy has no such domain"),
            Self::NoRequestRules => {
                f.write_str("the domain has no `requests`, so nothing is limited")
            }
            Self::NoPeer => f.write_str(
                "the rules read the client's address, but the request has no peer: insert its \
                 SocketAddr or IpAddr into the extensions",
            ),
            Self::Request(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Request(error) => Some(error),
            _ => None,
        }
    }
}
