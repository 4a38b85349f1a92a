//! Templates of requests, and the ends of answers.

use super::Trouble;

/// Stands for the key in a text; every key has the same length, so nothing around it changes.
const PLACE: &str = "{key}";
const DIGITS: usize = 7;

/// A request with a place for the key.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    digits_at: usize,
}

impl Template {
    /// A text with `{key}` in it.
    pub fn of(text: &str) -> Self {
        let at = text.find(PLACE).unwrap_or_default();
        let bytes = text.replace(PLACE, &name(0)).into_bytes();
        Self { bytes, digits_at: at + name(0).len() - DIGITS }
    }

    /// Bytes that contain the name of key 0.
    pub fn around(bytes: Vec<u8>) -> Self {
        let key = name(0).into_bytes();
        let at = bytes.windows(key.len()).position(|window| *window == *key).unwrap_or_default();
        Self { bytes, digits_at: at + key.len() - DIGITS }
    }

    /// Adds the request about this key.
    pub fn write(&self, key: u32, out: &mut Vec<u8>) {
        let start = out.len() + self.digits_at;
        out.extend_from_slice(&self.bytes);
        let mut rest = key;
        for digit in out[start..start + DIGITS].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// A command of the Redis protocol.
pub fn command(words: &[&str]) -> Template {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        let length = word.replace(PLACE, &name(0)).len();
        text.push_str(&format!("${length}\r\n{word}\r\n"));
    }
    Template::of(&text)
}

/// A request of HTTP.
pub fn get(path: &str) -> Template {
    Template::of(&format!("GET {path} HTTP/1.1\r\nhost: bench\r\nx-user: {PLACE}\r\n\r\n"))
}

/// A request of HTTP with JSON.
pub fn post(path: &str, body: &str) -> Template {
    let length = body.replace(PLACE, &name(0)).len();
    Template::of(&format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    ))
}

/// The name of a key.
pub fn name(key: u32) -> String {
    format!("user:{key:0DIGITS$}")
}

/// How answers end.
#[derive(Clone, Copy, Debug)]
pub enum Answers {
    Resp,
    Http,
}

impl Answers {
    /// The length of the first answer, if it is complete.
    pub fn first(self, bytes: &[u8]) -> Result<Option<usize>, Trouble> {
        match self {
            Self::Resp => resp(bytes),
            Self::Http => http(bytes),
        }
    }
}

fn resp(bytes: &[u8]) -> Result<Option<usize>, Trouble> {
    let (mut at, mut left) = (0, 1);
    while left > 0 {
        let Some(end) = line_end(&bytes[at..]) else { return Ok(None) };
        let line = &bytes[at..at + end];
        left -= 1;
        match line[0] {
            b':' | b'+' => {}
            b'*' => left += number(&line[1..end - 2])?,
            _ => return Err(unexpected(line)),
        }
        at += end;
    }
    Ok(Some(at))
}

fn http(bytes: &[u8]) -> Result<Option<usize>, Trouble> {
    let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = &bytes[..head + 4];
    // A denial is a decision, too.
    if !matches!(head.get(9..12), Some(b"200" | b"204" | b"429")) {
        return Err(unexpected(head));
    }
    let mut length = 0;
    for line in head.split(|byte| *byte == b'\n') {
        const NAME: &[u8] = b"content-length: ";
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            length = number(line[NAME.len()..].trim_ascii_end())?;
        }
    }
    let whole = head.len() + length;
    Ok((bytes.len() >= whole).then_some(whole))
}

/// The end of the first line, behind its break.
fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

fn number(digits: &[u8]) -> Result<usize, Trouble> {
    let text = std::str::from_utf8(digits).map_err(Trouble::of)?;
    text.parse().map_err(Trouble::of)
}

fn unexpected(bytes: &[u8]) -> Trouble {
    Trouble(format!("unexpected answer {:?}", String::from_utf8_lossy(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_takes_any_key() {
        let mut out = Vec::new();
        command(&["INCR", "{key}"]).write(42, &mut out);
        assert_eq!(out, b"*2\r\n$4\r\nINCR\r\n$12\r\nuser:0000042\r\n");
    }

    #[test]
    fn answers_end_where_they_end() {
        assert_eq!(resp(b"*2\r\n:1\r\n:2\r\n:3\r\n").unwrap(), Some(12));
        assert_eq!(resp(b"*2\r\n:1\r\n:2").unwrap(), None);
        assert!(resp(b"-ERR no\r\n").is_err());
        let denied = b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\n{}HTTP";
        assert_eq!(http(denied).unwrap(), Some(denied.len() - 4));
        assert_eq!(http(&denied[..denied.len() - 5]).unwrap(), None);
        assert_eq!(http(b"HTTP/1.1 204 No\r\n\r\n").unwrap(), Some(19));
        assert!(http(b"HTTP/1.1 500 No\r\n\r\n").is_err());
    }
}
