//! Rules that choose the upstream of a request.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use tidegate::policy::{RequestTarget, normal_host};

/// Requests by host and path.
///
/// An exact host wins over a pattern, and a longer pattern over a shorter one and over none; among
/// routes of the same host, the longest path wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    host: HostPattern,
    /// The first segments of a normalised path, without a slash at the end; empty for all paths.
    path: String,
    /// Index of the upstream in [`Gateway::upstreams`](super::Gateway::upstreams).
    pub upstream: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    /// All names that end with this text, which begins with a dot.
    Below(String),
    Exact(String),
}

impl Route {
    /// A route for all requests.
    pub const fn all(upstream: usize) -> Self {
        Self { host: HostPattern::Any, path: String::new(), upstream }
    }

    /// Reads a host, a path, or both: `api.example.com`, `/v1`, `*.example.com/v1`.
    pub fn parse(text: &str, upstream: usize) -> Result<Self, InvalidRoute> {
        let Self { host, path, .. } = text.parse()?;
        Ok(Self { host, path, upstream })
    }

    /// Whether both routes match the same requests.
    pub fn is_same(&self, other: &Self) -> bool {
        self.host == other.host && self.path == other.path
    }

    /// Whether the route depends on the path.
    pub(crate) const fn needs_path(&self) -> bool {
        !self.path.is_empty()
    }

    /// Whether a request with this normalised host and path matches the route.
    pub(crate) fn matches(&self, host: &str, path: &str) -> bool {
        let is_host = match &self.host {
            HostPattern::Any => true,
            HostPattern::Below(end) => host.len() > end.len() && host.ends_with(end.as_str()),
            HostPattern::Exact(name) => host == name,
        };
        let rest = path.strip_prefix(self.path.as_str());
        is_host && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The order of routes: the first route that matches a request is used.
    pub(crate) fn order(&self) -> impl Ord {
        let host = match &self.host {
            HostPattern::Exact(_) => (0, 0),
            HostPattern::Below(end) => (1, usize::MAX - end.len()),
            HostPattern::Any => (2, 0),
        };
        (host, Reverse(self.path.len()))
    }
}

impl FromStr for Route {
    type Err = InvalidRoute;

    fn from_str(text: &str) -> Result<Self, InvalidRoute> {
        let start = text.find('/').unwrap_or(text.len());
        let (host, path) = text.split_at(start);
        let is_name = |name: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            let is_address = name.starts_with('[') && name.ends_with(']');
            !name.is_empty()
                && (is_address || name.bytes().all(is_part))
                && *normal_host(name) == *name
        };
        let host = match host.strip_prefix('*') {
            _ if text.is_empty() => return Err(InvalidRoute),
            None if host.is_empty() => HostPattern::Any,
            None if is_name(host) => HostPattern::Exact(host.into()),
            Some(end) if end.len() > 1 && end.starts_with('.') && is_name(&end[1..]) => {
                HostPattern::Below(end.into())
            }
            _ => return Err(InvalidRoute),
        };
        let is_normal = path.is_empty()
            || RequestTarget::parse(path)
                .is_ok_and(|target| target.path() == path && !path.contains('?'));
        if !is_normal {
            return Err(InvalidRoute);
        }
        Ok(Self { host, path: path.strip_suffix('/').unwrap_or(path).into(), upstream: 0 })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Any if self.path.is_empty() => return f.write_str("/"),
            HostPattern::Any => {}
            HostPattern::Below(end) => write!(f, "*{end}")?,
            HostPattern::Exact(name) => f.write_str(name)?,
        }
        f.write_str(&self.path)
    }
}

/// The error for a text that is not a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRoute;

impl fmt::Display for InvalidRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a host in small letters without a port, a normalised path, or both, such as \
             api.example.com, /v1 or *.example.com/v1",
        )
    }
}

impl std::error::Error for InvalidRoute {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_host_and_the_start_of_a_path() {
        let matches = |route: &str, host: &str, path: &str| {
            route.parse::<Route>().expect("a route").matches(host, path)
        };
        assert!(matches("/", "a", "/") && matches("/", "b", "/x"));
        assert!(matches("/v1", "a", "/v1") && matches("/v1", "a", "/v1/x"));
        assert!(matches("/v1/", "a", "/v1/x"));
        assert!(!matches("/v1", "a", "/v10") && !matches("/v1", "a", "/"));
        assert!(matches("a.b", "a.b", "/x") && !matches("a.b", "c.a.b", "/x"));
        assert!(matches("*.b", "a.b", "/") && matches("*.b", "c.a.b", "/"));
        assert!(!matches("*.b", "b", "/") && !matches("*.b", ".b", "/"));
        assert!(matches("*.b/v1", "a.b", "/v1") && !matches("*.b/v1", "a.b", "/v2"));
        for text in [
            "", "*", "*.", "*b", "a*", "A", "a:80", "a b", "/a/../b", "/a//b", "/a?b", "/a%62",
            "a.",
        ] {
            assert_eq!(text.parse::<Route>(), Err(InvalidRoute), "{text}");
        }
        for text in ["/", "/v1", "a", "*.b", "*.b/v1", "a/v1"] {
            assert_eq!(text.parse::<Route>().expect("a route").to_string(), text);
        }
    }

    #[test]
    fn the_longest_path_of_the_closest_host_wins() {
        let texts = ["/", "/v1", "/v1/x", "*.b", "*.a.b", "a.b", "a.b/v1"];
        let mut routes: Vec<Route> = texts.map(|text| text.parse().expect("a route")).into();
        routes.sort_by_key(|route| Reverse(route.path.len()));
        routes.sort_by(|one, other| one.order().cmp(&other.order()));
        let found = |host: &str, path: &str| {
            routes.iter().find(|route| route.matches(host, path)).map(ToString::to_string)
        };
        for (host, path, expected) in [
            ("z", "/", "/"),
            ("z", "/v1/y", "/v1"),
            ("z", "/v1/x/y", "/v1/x"),
            ("z.b", "/v1", "*.b"),
            ("z.a.b", "/v1", "*.a.b"),
            ("a.b", "/", "a.b"),
            ("a.b", "/v1", "a.b/v1"),
        ] {
            assert_eq!(found(host, path).as_deref(), Some(expected), "{host}{path}");
        }
    }
}
