//! Header values as text.

use http::HeaderMap;

/// The headers of a request as text, for [`HttpRequest::headers`](super::HttpRequest::headers).
#[derive(Debug)]
pub struct HeaderTexts<'h> {
    headers: &'h HeaderMap,
    /// Values that are not UTF-8, with replacement characters: a client that sends one must not pass as a
    /// client that sends none.
    lossy: Vec<String>,
}

impl<'h> HeaderTexts<'h> {
    /// Reads the headers.
    pub fn new(headers: &'h HeaderMap) -> Self {
        let is_lossy = |bytes: &&[u8]| std::str::from_utf8(bytes).is_err();
        let lossy = headers.values().map(|value| value.as_bytes()).filter(is_lossy);
        let lossy = lossy.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        Self { headers, lossy }
    }

    /// Names and values, in the order they came.
    pub fn pairs(&self) -> Vec<(&str, &str)> {
        let mut lossy = self.lossy.iter();
        let mut pairs = Vec::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let text = std::str::from_utf8(value.as_bytes()).ok();
            let text = text.or_else(|| lossy.next().map(String::as_str));
            pairs.push((name.as_str(), text.unwrap_or_default()));
        }
        pairs
    }
}
