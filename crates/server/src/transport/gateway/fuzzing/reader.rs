//! A reader of whole messages by RFC 9112. It shares only the `httparse` crate with the guard, the
//! pool and hyper.

use httparse::{EMPTY_HEADER, Header, Request, Response, Status};

/// A message from its first byte to its last.
#[derive(Debug)]
pub(super) struct Whole {
    /// The status of a response.
    pub(super) status: u16,
    /// Number of bytes of the message.
    pub(super) length: usize,
    pub(super) body: Vec<u8>,
}

/// How the body of a message ends.
enum End {
    Length(usize),
    Chunks,
    Close,
}

impl Whole {
    /// The first request of these bytes; `None` if it is incomplete or ambiguous.
    pub(super) fn of_request(bytes: &[u8]) -> Option<Self> {
        let mut fields = [EMPTY_HEADER; 200];
        let mut request = Request::new(&mut fields);
        let Ok(Status::Complete(head)) = request.parse(bytes) else { return None };
        let end = match end(request.headers)? {
            End::Close => End::Length(0),
            other => other,
        };
        let (length, body) = body(&bytes[head..], &end)?;
        Some(Self { status: 0, length: head + length, body })
    }

    /// The first final response.
    pub(super) fn of_response(bytes: &[u8], is_head: bool, ends: bool) -> Option<Self> {
        let mut rest = bytes;
        loop {
            let mut fields = [EMPTY_HEADER; 200];
            let mut response = Response::new(&mut fields);
            let Ok(Status::Complete(head)) = response.parse(rest) else { return None };
            let status = response.code?;
            if (100..200).contains(&status) && status != 101 {
                rest = &rest[head..];
                continue;
            }
            let end = match is_head || matches!(status, 204 | 304) {
                true => {
                    end(response.headers)?;
                    End::Length(0)
                }
                false => end(response.headers)?,
            };
            if matches!(end, End::Close) && !ends {
                return None;
            }
            let (length, body) = body(&rest[head..], &end)?;
            return Some(Self { status, length: head + length, body });
        }
    }
}

/// The end of a body by the fields; `None` if servers would disagree.
fn end(fields: &[Header<'_>]) -> Option<End> {
    let values = |name: &str| -> Vec<&[u8]> {
        let named = fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value).collect()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    match (&lengths[..], &codings[..]) {
        ([], []) => Some(End::Close),
        ([length], []) => {
            let text = std::str::from_utf8(length).ok()?;
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok().map(End::Length))?
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Some(End::Chunks),
        _ => None,
    }
}

/// The number of bytes of an encoded body, and its content.
fn body(bytes: &[u8], end: &End) -> Option<(usize, Vec<u8>)> {
    match end {
        End::Length(length) => Some((*length, bytes.get(..*length)?.to_vec())),
        End::Close => Some((bytes.len(), bytes.to_vec())),
        End::Chunks => chunks(bytes),
    }
}

fn chunks(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (mut at, mut body) = (0, Vec::new());
    loop {
        // httparse refuses more than 16 digits, also if they are zeros.
        let rest = bytes.get(at..)?;
        let zeros = rest.iter().take_while(|byte| **byte == b'0').count();
        let has_more = rest.get(zeros).is_some_and(u8::is_ascii_hexdigit);
        at += zeros - usize::from(zeros > 0 && !has_more);
        let Ok(Status::Complete((line, size))) = httparse::parse_chunk_size(bytes.get(at..)?)
        else {
            return None;
        };
        at += line;
        if size == 0 {
            return trailers(bytes, at).map(|end| (end, body));
        }
        let size = usize::try_from(size).ok()?;
        let end = at.checked_add(size)?;
        body.extend_from_slice(bytes.get(at..end)?);
        if bytes.get(end..end + 2)? != b"\r\n" {
            return None;
        }
        at = end + 2;
    }
}

/// The end of the trailers, which is an empty line.
fn trailers(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let line = bytes.get(at..)?;
        let end = line.windows(2).position(|two| two == b"\r\n")?;
        at += end + 2;
        if end == 0 {
            return Some(at);
        }
    }
}
