//! Host names: lower case, without port and final dot.

use std::borrow::Cow;

/// The longest DNS name; a request for a longer host is refused.
pub(super) const MAX_HOST: usize = 255;

/// The hosts that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// Exactly this host.
    Exact(Box<str>),
    /// All hosts below a name, at any depth, without the name itself. Includes the star.
    Below(Box<str>),
}

impl HostPattern {
    /// Parses `api.example.com` or `*.example.org`.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let expected = "a host such as api.example.com or *.example.org, without a port";
        let (name, is_below) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "*/@?#".contains(c);
        let is_whole = normal_host(name).eq_ignore_ascii_case(name);
        if name.is_empty() || name.len() > MAX_HOST || !is_whole || name.contains(is_odd) {
            return Err(expected);
        }
        let text = text.to_ascii_lowercase().into();
        Ok(if is_below { Self::Below(text) } else { Self::Exact(text) })
    }

    /// A host that matches.
    pub(super) fn example(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Below(text) => text,
        }
    }
}

/// The normalised host of a request: lower case, without its port and final dot.
pub fn normal_host(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    // A colon within brackets belongs to the address.
    let end = match text.starts_with('[') {
        true => text.find(']').map_or(text.len(), |bracket| bracket + 1),
        false => text.find(':').unwrap_or(text.len()),
    };
    let name = &text[..end];
    let name = name.strip_suffix('.').unwrap_or(name);
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}
