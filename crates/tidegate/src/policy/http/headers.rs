//! Header values as text.

use std::sync::OnceLock;

use http::{HeaderMap, HeaderValue};

/// The headers of a request as text.
#[derive(Debug)]
pub struct HeaderTexts<'h> {
    headers: &'h HeaderMap,
    /// Values that are not UTF-8, with replacement characters: a client that sends one must not pass as a
    /// client that sends none. Written when the first of them is read.
    lossy: OnceLock<Vec<(&'h [u8], String)>>,
}

impl<'h> HeaderTexts<'h> {
    /// Reads headers.
    pub const fn new(headers: &'h HeaderMap) -> Self {
        Self { headers, lossy: OnceLock::new() }
    }

    /// Names and values, for [`HttpRequest::headers`](super::HttpRequest::headers).
    pub fn pairs(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), self.text(value))).collect()
    }

    /// The values of a header, in the order they came.
    pub(super) fn values(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        self.headers.get_all(name).into_iter().map(|value| self.text(value))
    }

    fn text(&self, value: &'h HeaderValue) -> &str {
        let bytes = value.as_bytes();
        std::str::from_utf8(bytes).unwrap_or_else(|_| self.lossy(bytes))
    }

    #[cold]
    fn lossy(&self, bytes: &[u8]) -> &str {
        let texts = self.lossy.get_or_init(|| {
            let all = self.headers.values().map(HeaderValue::as_bytes);
            let lossy = all.filter(|bytes| std::str::from_utf8(bytes).is_err());
            lossy.map(|bytes| (bytes, String::from_utf8_lossy(bytes).into_owned())).collect()
        });
        let found = texts.iter().find(|(known, _)| *known == bytes);
        found.map_or("\u{fffd}", |(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_text_is_not_a_missing_one() {
        let mut headers = HeaderMap::new();
        for value in [&b"plain"[..], b"\xff1", b"\xff2"] {
            headers.append("x-user", HeaderValue::from_bytes(value).expect("a header value"));
        }
        let texts = HeaderTexts::new(&headers);
        let expected = ["plain", "\u{fffd}1", "\u{fffd}2"];
        assert_eq!(texts.values("X-User").collect::<Vec<_>>(), expected);
        assert_eq!(texts.values("x-user").next_back(), Some("\u{fffd}2"));
        assert_eq!(texts.values("not a name").count(), 0);
        assert_eq!(texts.pairs(), expected.map(|text| ("x-user", text)));
    }
}
