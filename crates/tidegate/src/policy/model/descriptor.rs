//! What is asked: a domain, and descriptors of the request.

use crate::policy::model::limit::Unit;

/// A question to a policy: may this request go ahead?
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Whose rules.
    pub domain: &'a str,
    /// What the request is, from every side that may be limited.
    pub descriptors: &'a [Descriptor<'a>],
    /// What the request costs, unless a descriptor says; what each limit says if `None`.
    pub hits: Option<u64>,
}

/// One side of a request, as in `api_key=foo, path=/login`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor<'a> {
    /// Keys and values, the most general first.
    pub entries: &'a [Entry<'a>],
    /// What the request costs here.
    pub hits: Option<Hits>,
    /// A limit that comes with the request and goes before those of the policy.
    pub limit: Option<RequestLimit>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor that says nothing but its entries.
    pub const fn new(entries: &'a [Entry<'a>]) -> Self {
        Self { entries, hits: None, limit: None }
    }
}

/// One key and value of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What is told.
    pub key: &'a str,
    /// What it is.
    pub value: &'a str,
}

/// What a request costs under one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// So many units; 0 only asks.
    Take(u64),
    /// So many units are given back, which is never denied.
    Return(u64),
}

/// A limit that comes with a request: a window of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// How many.
    pub requests_per_unit: u32,
    /// In which time.
    pub unit: Unit,
}

/// The most descriptors that one request may have.
pub const MAX_DESCRIPTORS: usize = 64;
