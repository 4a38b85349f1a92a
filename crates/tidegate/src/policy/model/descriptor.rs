//! Requests to a policy: a domain and descriptors.

use tidegate_core::shed::Class;

use crate::policy::model::limit::Unit;

/// A request to be decided by a policy.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The domain whose rules apply.
    pub domain: &'a str,
    /// The descriptors of the request.
    pub descriptors: &'a [Descriptor<'a>],
    /// The cost of the request, unless a descriptor has its own; `None` means the cost that each
    /// limit sets.
    pub hits: Option<u64>,
}

/// A list of entries that describes the request, as in `api_key=foo, path=/login`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor<'a> {
    /// The entries, the most general first.
    pub entries: &'a [Entry<'a>],
    /// The cost under this descriptor.
    pub hits: Option<Hits>,
    /// A limit that comes with the request and replaces those of the policy.
    pub limit: Option<RequestLimit>,
    /// How important the request is to limits with a `reserve`; `None` for the class of its plan.
    pub class: Option<Class>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor with the default cost and without a limit.
    pub const fn new(entries: &'a [Entry<'a>]) -> Self {
        Self { entries, hits: None, limit: None, class: None }
    }
}

/// A key and a value of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a str,
    /// The value.
    pub value: &'a str,
}

/// The cost of a request under one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Takes units; 0 only reads.
    Take(u64),
    /// Returns units, which is never denied.
    Return(u64),
}

impl Hits {
    /// Whether they only read or return.
    pub(in crate::policy) const fn takes_nothing(&self) -> bool {
        matches!(self, Self::Take(0) | Self::Return(_))
    }
}

/// A limit that comes with a request, in the form of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// Requests per window.
    pub requests_per_unit: u32,
    /// The length of the window.
    pub unit: Unit,
}

/// The most descriptors of one request.
#[doc(hidden)]
pub const MAX_DESCRIPTORS: usize = 64;
