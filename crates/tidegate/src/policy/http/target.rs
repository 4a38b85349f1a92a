//! Request targets: the path that rules are compared with, and the query.
//!
//! # Rule
//! A path is read as nginx reads it into `$uri`: percent-encoding is decoded once, dot segments are
//! resolved, duplicate slashes are merged. A path that common servers read in different ways is
//! refused, because one of the readings would bypass a rule. `docs/reference/request-normalisation.md`
//! has the table; a test compares 10,000 paths with a real nginx.

use std::borrow::Cow;
use std::fmt;

/// The path and the query of a request, normalised.
///
/// ```
/// use tidegate::policy::{RequestTarget, TargetError};
///
/// let target = RequestTarget::parse("/x/../%6cogin?next=/")?;
/// assert_eq!((target.path(), target.query()), ("/login", "next=/"));
/// assert_eq!(RequestTarget::parse("/a%2Fb"), Err(TargetError::EncodedSlash));
/// # Ok::<(), TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    path: Cow<'a, str>,
    query: &'a str,
}

/// Why a request target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TargetError {
    /// Neither a path nor an absolute URL: `*`, `host:443`, or nothing.
    NotAPath,
    /// A byte that must be encoded in a target: a control byte, a space or `#`.
    RawByte,
    /// `\`, encoded or not: some servers read a slash.
    Backslash,
    /// `;`, encoded or not: some servers drop what follows it in a segment.
    Semicolon,
    /// A `%` without two hexadecimal digits.
    InvalidEncoding,
    /// `%2F`: some servers read a slash, others a part of the segment.
    EncodedSlash,
    /// An encoded control byte, such as `%00`.
    EncodedControl,
    /// A `%` and two digits that are left after decoding: some servers decode again.
    DoubleEncoding,
    /// The decoded path is not UTF-8.
    NotUtf8,
    /// More `..` segments than there are segments before them.
    AboveRoot,
    /// `..` in a path with duplicate slashes: servers disagree on what it removes.
    DotsAndSlashes,
}

impl TargetError {
    /// The reason, as a sentence for the client.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotAPath => "the request target is neither a path nor an absolute URL",
            Self::RawByte => {
                "the path or query has a control byte, a space or # that is not encoded"
            }
            Self::Backslash => "the path has a backslash",
            Self::Semicolon => "the path has a semicolon",
            Self::InvalidEncoding => "the path has a % without two hexadecimal digits",
            Self::EncodedSlash => "the path has an encoded slash (%2F)",
            Self::EncodedControl => "the path has an encoded control byte",
            Self::DoubleEncoding => "the path is percent-encoded twice",
            Self::NotUtf8 => "the decoded path is not UTF-8",
            Self::AboveRoot => "the path has a .. segment above the root",
            Self::DotsAndSlashes => "the path has both a .. segment and duplicate slashes",
        }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for TargetError {}

impl<'a> RequestTarget<'a> {
    /// Parses a target in origin form (`/path?query`) or in absolute form
    /// (`http://host/path?query`).
    ///
    /// Allocates only if the path changes.
    ///
    /// # Errors
    /// If common servers would read the path in different ways.
    pub fn parse(text: &'a str) -> Result<Self, TargetError> {
        let text = without_authority(text)?;
        // In the query too: nginx ends it at a #, other servers do not.
        if text.bytes().any(|byte| matches!(byte, 0..=b' ' | b'#' | 0x7f)) {
            return Err(TargetError::RawByte);
        }
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        // `http://host?query` has an empty path.
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { path: normalise(path)?, query })
    }

    /// The normalised path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The query: the text after the first `?` as received; empty if there is none.
    pub const fn query(&self) -> &'a str {
        self.query
    }

    /// The path, borrowed where possible, and the query.
    pub(super) fn into_parts(self) -> (Cow<'a, str>, &'a str) {
        (self.path, self.query)
    }
}

/// The target from its path on.
fn without_authority(text: &str) -> Result<&str, TargetError> {
    if text.starts_with('/') {
        return Ok(text);
    }
    let (scheme, rest) = text.split_once("://").ok_or(TargetError::NotAPath)?;
    let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if !is_http || authority.is_empty() || !authority.bytes().all(is_plain) {
        return Err(TargetError::NotAPath);
    }
    Ok(path)
}

/// The path with its encoding decoded, dot segments resolved and duplicate slashes merged.
fn normalise(path: &str) -> Result<Cow<'_, str>, TargetError> {
    if path.contains('\\') {
        return Err(TargetError::Backslash);
    }
    if path.contains(';') {
        return Err(TargetError::Semicolon);
    }
    let decoded = if path.contains('%') { Cow::Owned(decode(path)?) } else { Cow::Borrowed(path) };
    if !decoded.contains("//") && !decoded.contains("/.") {
        return Ok(decoded);
    }
    resolve(&decoded).map(Cow::Owned)
}

fn decode(path: &str) -> Result<String, TargetError> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let [high, low, after @ ..] = rest else { return Err(TargetError::InvalidEncoding) };
        let (Some(high), Some(low)) = (hex(*high), hex(*low)) else {
            return Err(TargetError::InvalidEncoding);
        };
        rest = after;
        bytes.push(match high << 4 | low {
            b'/' => return Err(TargetError::EncodedSlash),
            b'\\' => return Err(TargetError::Backslash),
            b';' => return Err(TargetError::Semicolon),
            0..=0x1f | 0x7f => return Err(TargetError::EncodedControl),
            other => other,
        });
    }
    if has_encoding(&bytes) {
        return Err(TargetError::DoubleEncoding);
    }
    String::from_utf8(bytes).map_err(|_| TargetError::NotUtf8)
}

/// Resolves dot segments and merges slashes.
fn resolve(path: &str) -> Result<String, TargetError> {
    let (mut has_dots, mut has_duplicates) = (false, false);
    // Start of each kept segment, including its slash.
    let (mut resolved, mut starts) = (String::with_capacity(path.len()), Vec::new());
    let mut segments = path.split('/').skip(1).peekable();
    let mut ends_with_slash = false;
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        ends_with_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" => has_duplicates |= !is_last,
            "." => {}
            ".." => {
                has_dots = true;
                let start = starts.pop().ok_or(TargetError::AboveRoot)?;
                resolved.truncate(start);
            }
            other => {
                starts.push(resolved.len());
                resolved.push('/');
                resolved.push_str(other);
            }
        }
    }
    if has_dots && has_duplicates {
        return Err(TargetError::DotsAndSlashes);
    }
    if ends_with_slash {
        resolved.push('/');
    }
    Ok(resolved)
}

/// Why no normalised request can have this path; `None` if one can.
pub(super) fn never_matches(path: &str) -> Option<&'static str> {
    if path.bytes().any(|byte| matches!(byte, 0..=0x1f | b'\\' | b';' | 0x7f)) {
        return Some("a path with a backslash, a semicolon or a control byte is refused with 400");
    }
    if has_encoding(path.as_bytes()) {
        return Some("a path is decoded before it is compared: write `/a b`, not `/a%20b`");
    }
    let is_normal = resolve(path).is_ok_and(|resolved| resolved == path);
    (!is_normal).then_some(
        "a path is compared without dot segments and duplicate slashes: write `/a/b`, not `/a//b` \
         or `/a/./b`",
    )
}

fn has_encoding(bytes: &[u8]) -> bool {
    let is_encoded = |three: &[u8]| {
        three[0] == b'%' && three[1].is_ascii_hexdigit() && three[2].is_ascii_hexdigit()
    };
    bytes.windows(3).any(is_encoded)
}

/// The value of a hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, &str), TargetError> {
        RequestTarget::parse(text).map(|target| (target.path().to_owned(), target.query()))
    }

    #[test]
    fn a_path_is_read_as_nginx_reads_it() {
        for (text, path) in [
            ("/", "/"),
            ("/login", "/login"),
            ("//login", "/login"),
            ("/a//b///", "/a/b/"),
            ("/./login", "/login"),
            ("/x/../login", "/login"),
            ("/x/%2e%2E/login", "/login"),
            ("/%6cogin", "/login"),
            ("/a/.", "/a/"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/...", "/a/..."),
            ("/.a/..b", "/.a/..b"),
            ("/login.", "/login."),
            ("/Login", "/Login"),
            ("/a+b%2B", "/a+b+"),
            ("/%c3%A9/é", "/é/é"),
            ("/a%20b", "/a b"),
            ("/100%25", "/100%"),
            ("/100%25zz", "/100%zz"),
            ("/what%3F%23", "/what?#"),
            ("http://example.org/a", "/a"),
            ("HTTPS://[::1]:80//a", "/a"),
            ("http://example.org", "/"),
        ] {
            assert_eq!(read(text), Ok((path.to_owned(), "")), "{text}");
        }
        assert_eq!(read("/a?b=/../%zz;?c"), Ok(("/a".into(), "b=/../%zz;?c")));
        assert_eq!(read("http://h?x"), Ok(("/".into(), "x")));
        assert!(matches!(RequestTarget::parse("/a/b").unwrap().path, Cow::Borrowed(_)));
    }

    #[test]
    fn an_ambiguous_path_is_refused() {
        for (text, error) in [
            ("", TargetError::NotAPath),
            ("*", TargetError::NotAPath),
            ("login", TargetError::NotAPath),
            ("?a", TargetError::NotAPath),
            ("example.org:443", TargetError::NotAPath),
            ("http:///a", TargetError::NotAPath),
            ("http://user@host/a", TargetError::NotAPath),
            ("ftp://host/a", TargetError::NotAPath),
            ("http://host#a/b", TargetError::NotAPath),
            ("/a#b", TargetError::RawByte),
            ("/a?b#c", TargetError::RawByte),
            ("/a?b\tc", TargetError::RawByte),
            ("/a b", TargetError::RawByte),
            ("/a\tb", TargetError::RawByte),
            ("/a\0", TargetError::RawByte),
            ("/a\x7f", TargetError::RawByte),
            ("/a\\b", TargetError::Backslash),
            ("/a%5cb", TargetError::Backslash),
            ("/a;b", TargetError::Semicolon),
            ("/a/..;/b", TargetError::Semicolon),
            ("/a%3Bb", TargetError::Semicolon),
            ("/%", TargetError::InvalidEncoding),
            ("/%4", TargetError::InvalidEncoding),
            ("/%+1", TargetError::InvalidEncoding),
            ("/%u0041", TargetError::InvalidEncoding),
            ("/a%2fb", TargetError::EncodedSlash),
            ("/%00", TargetError::EncodedControl),
            ("/%0a", TargetError::EncodedControl),
            ("/%7F", TargetError::EncodedControl),
            ("/%252e", TargetError::DoubleEncoding),
            ("/%25%32e", TargetError::DoubleEncoding),
            ("/%c0%ae", TargetError::NotUtf8),
            ("/%ff", TargetError::NotUtf8),
            ("/..", TargetError::AboveRoot),
            ("/a/../../b", TargetError::AboveRoot),
            ("/a//../b", TargetError::DotsAndSlashes),
            ("//a/../b", TargetError::DotsAndSlashes),
        ] {
            assert_eq!(read(text), Err(error), "{text}");
        }
    }

    /// Otherwise a rule could have a path that no request matches, or only an unusual one.
    #[test]
    fn a_normalised_path_without_percent_signs_stays_as_it_is() {
        let mut rng = fastrand::Rng::with_seed(11);
        let pieces =
            ["/", "/", ".", "..", "a", "%2e", "%2E", "%41", "é", "%c3%a9", "+", "%25", "~"];
        for _ in 0..20_000 {
            let count = rng.usize(0..10);
            let text: String = (0..count)
                .map(|_| *rng.choice(&pieces).unwrap())
                .fold("/".into(), |all, it| all + it);
            let Ok(once) = read(&text) else { continue };
            if !once.0.contains('%') {
                assert_eq!(read(&once.0), Ok(once.clone()), "{text}");
            }
        }
    }
}
