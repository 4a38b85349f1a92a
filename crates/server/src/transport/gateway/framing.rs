//! Finds where the messages of a connection begin and end, and refuses ambiguous ones.
//!
//! hyper accepts requests that servers frame in different ways: with a `Content-Length` beside
//! `Transfer-Encoding`, or with a coding besides `chunked`. Behind a proxy, the second reading
//! smuggles a request past its limits. This module parses the framing of every message itself and
//! refuses such requests.

use httparse::{EMPTY_HEADER, Header, Request, Status};

/// The most bytes of a head.
pub(super) const MAX_HEAD: usize = 32 << 10;

/// The most bytes of the head of a response.
pub(super) const MAX_RESPONSE_HEAD: usize = 2 * MAX_HEAD;

/// A head is followed up to this length, so that one above [`MAX_HEAD`] is answered with 431.
const MAX_FOLLOWED: usize = 2 * MAX_HEAD;

/// The most fields of a head, for hyper as well.
pub(super) const MAX_FIELDS: usize = 100;

/// The most bytes of the extensions of a chunk.
const MAX_EXTENSION: usize = 256;

/// The most bytes of the trailers of a message.
pub(super) const MAX_TRAILERS: usize = 8 << 10;

/// Follows the messages of a connection.
#[derive(Debug, Default)]
pub(super) struct Framing {
    state: State,
    /// The start of a head whose end has not arrived.
    head: Vec<u8>,
}

/// The part of a message that the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    #[default]
    Head,
    /// A body, and how many of its bytes are left.
    Body(u64),
    Chunked(Chunk),
    /// hyper refuses the head, and reads no further.
    Broken,
}

/// The part of a chunked body that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chunk {
    /// The size so far, and its number of digits.
    Size(u64, u8),
    /// The size, and how many bytes of extensions there are.
    Extension(u64, usize),
    SizeEnd(u64),
    Data(u64),
    DataEnd,
    DataLineEnd,
    /// The first byte of a trailer, or the end; with the bytes of trailers before it.
    LineStart(usize),
    Trailer(usize),
    TrailerEnd(usize),
    End,
}

/// An ambiguous message: the bytes after the first `sound` ones must not be passed on.
#[derive(Debug, PartialEq)]
pub(super) struct Ambiguous {
    pub(super) sound: usize,
}

impl Framing {
    /// Follows the next bytes of the connection.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(), Ambiguous> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match &mut self.state {
                State::Head => self.read_head(rest),
                State::Body(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.state = State::Head;
                    }
                    Some(taken)
                }
                State::Chunked(chunk) => chunk.read(rest).map(|(taken, is_over)| {
                    if is_over {
                        self.state = State::Head;
                    }
                    taken
                }),
                State::Broken => Some(rest.len()),
            };
            let Some(taken) = taken else {
                self.state = State::Broken;
                return Err(Ambiguous { sound: bytes.len() - rest.len() });
            };
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// Whether a head has begun and its end has not arrived.
    pub(super) const fn is_in_head(&self) -> bool {
        !self.head.is_empty()
    }

    /// Whether the next byte begins a message.
    pub(super) fn is_between(&self) -> bool {
        self.state == State::Head && self.head.is_empty()
    }

    /// Reads the available part of a head; `None` if its framing is ambiguous.
    fn read_head(&mut self, rest: &[u8]) -> Option<usize> {
        let before = self.head.len();
        if before > 0 {
            self.head.extend_from_slice(rest);
            // Parsed again only after a line end, so that a head that arrives byte by byte is not
            // parsed for every byte.
            if !rest.contains(&b'\n') && self.head.len() < MAX_FOLLOWED {
                return Some(rest.len());
            }
        }
        let text = if before > 0 { &self.head[..] } else { rest };
        let mut fields = [EMPTY_HEADER; MAX_FIELDS];
        let mut request = Request::new(&mut fields);
        match request.parse(text) {
            Ok(Status::Complete(length)) => {
                self.state = next_state(request.headers, request.version)?;
                self.head = Vec::new();
                Some(length - before)
            }
            Ok(Status::Partial) if text.len() < MAX_FOLLOWED => {
                if before == 0 {
                    self.head = rest.to_vec();
                }
                Some(rest.len())
            }
            // hyper might still accept the head, and its body would not be followed here.
            Ok(Status::Partial) => None,
            // hyper has the same parser with the same bound, and refuses the head with the right
            // status.
            Err(_) => {
                (self.state, self.head) = (State::Broken, Vec::new());
                Some(rest.len())
            }
        }
    }
}

/// The state after a head; `None` if servers would disagree about it.
fn next_state(fields: &[Header<'_>], version: Option<u8>) -> Option<State> {
    let (mut length, mut is_chunked) = (None, false);
    for Header { name, value } in fields {
        if name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return None;
            }
            length = Some(digits(value)?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            if is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return None;
            }
            is_chunked = true;
        }
    }
    match (length, is_chunked) {
        (Some(_), true) => None,
        // HTTP/1.0 has no chunks.
        (None, true) if version != Some(1) => None,
        (None, true) => Some(State::Chunked(Chunk::Size(0, 0))),
        (None | Some(0), false) => Some(State::Head),
        (Some(length), false) => Some(State::Body(length)),
    }
}

fn digits(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(value).ok()?.parse().ok())?
}

impl Chunk {
    /// Reads some bytes of a body. Returns their number, and whether the message is over; `None` if
    /// they are malformed.
    fn read(&mut self, rest: &[u8]) -> Option<(usize, bool)> {
        let byte = *rest.first()?;
        let mut taken = 1;
        *self = match *self {
            Self::Size(size, digits @ 0..16) if byte.is_ascii_hexdigit() => {
                let digit = (byte as char).to_digit(16)?;
                Self::Size(size << 4 | u64::from(digit), digits + 1)
            }
            Self::Size(size, 1..) if byte == b';' => Self::Extension(size, 0),
            Self::Size(size, 1..) | Self::Extension(size, _) if byte == b'\r' => {
                Self::SizeEnd(size)
            }
            Self::Extension(size, length @ 0..MAX_EXTENSION) if is_text(byte) => {
                Self::Extension(size, length + 1)
            }
            Self::SizeEnd(0) if byte == b'\n' => Self::LineStart(0),
            Self::SizeEnd(size) if byte == b'\n' => Self::Data(size),
            Self::Data(left) => {
                taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                match left - taken as u64 {
                    0 => Self::DataEnd,
                    left => Self::Data(left),
                }
            }
            Self::DataEnd if byte == b'\r' => Self::DataLineEnd,
            Self::DataLineEnd if byte == b'\n' => Self::Size(0, 0),
            Self::LineStart(_) if byte == b'\r' => Self::End,
            Self::Trailer(length) if byte == b'\r' => Self::TrailerEnd(length),
            Self::LineStart(length @ 0..MAX_TRAILERS) | Self::Trailer(length @ 0..MAX_TRAILERS)
                if is_text(byte) =>
            {
                Self::Trailer(length + 1)
            }
            Self::TrailerEnd(length) if byte == b'\n' => Self::LineStart(length),
            Self::End if byte == b'\n' => return Some((1, true)),
            _ => return None,
        };
        Some((taken, false))
    }
}

/// Whether a line may contain a byte: any but control bytes other than the tab.
const fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
