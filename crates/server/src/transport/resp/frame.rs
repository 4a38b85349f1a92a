//! Requests of the Redis protocol, parsed in place: arrays of bulk strings, and inline commands.
//!
//! # Bounds
//! A request has at most [`MAX_FRAME`] bytes and [`MAX_WORDS`] words. Nested arrays are refused, so
//! the parser does not recurse.

/// The most bytes of one request, including its framing.
pub(crate) const MAX_FRAME: usize = 64 << 10;

/// The most words of one request, including the command's name.
pub(crate) const MAX_WORDS: usize = 64;

/// The longest line with a length: a sign, digits, and the line end.
const MAX_LENGTH_LINE: usize = 32;

/// The positions of the words of a request. Reused for the next request, to avoid allocations.
#[derive(Debug)]
pub(crate) struct WordRanges {
    ranges: [(u32, u32); MAX_WORDS],
    count: usize,
}

impl Default for WordRanges {
    fn default() -> Self {
        Self { ranges: [(0, 0); MAX_WORDS], count: 0 }
    }
}

impl WordRanges {
    /// Adds a word; false if there are too many.
    fn add(&mut self, start: usize, end: usize) -> bool {
        // A frame is far shorter than 4 GiB.
        let range = (start as u32, end as u32);
        match self.ranges.get_mut(self.count) {
            Some(place) => {
                *place = range;
                self.count += 1;
                true
            }
            None => false,
        }
    }
}

/// The words of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    input: &'a [u8],
    places: &'a [(u32, u32)],
}

impl<'a> Words<'a> {
    /// The words that [`read`] found in this input.
    pub(crate) fn new(input: &'a [u8], places: &'a WordRanges) -> Self {
        Self { input, places: &places.ranges[..places.count] }
    }

    pub(crate) const fn len(&self) -> usize {
        self.places.len()
    }

    /// The word with this index; empty beyond the last.
    pub(crate) fn at(&self, number: usize) -> &'a [u8] {
        let Some(&(start, end)) = self.places.get(number) else { return &[] };
        self.input.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The words from this index on.
    pub(crate) fn from(&self, number: usize) -> impl Iterator<Item = &'a [u8]> {
        let all = *self;
        (number..all.len()).map(move |number| all.at(number))
    }
}

/// The result of parsing the beginning of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A request of this many bytes. It may have no words, and is ignored then.
    Complete(usize),
    /// A part of a request.
    Part,
    /// An invalid request, after which the stream cannot be parsed.
    Broken(Broken),
}

/// Why a request is invalid, in Redis' words if Redis has an error for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The number of words is invalid or too large.
    WordCount,
    /// The length of a word is invalid or too large.
    WordLength,
    /// A word does not begin with `$`.
    NoWord(u8),
    /// A word does not end where its length says.
    WordEnd,
    /// The line with a length is too long.
    LongLine,
    /// An inline command is too long.
    LongInline,
    /// An inline command has an unbalanced quote or an escape.
    Quotes,
    /// The request is too long.
    Long,
}

impl Broken {
    /// The error message.
    pub(crate) fn message(self) -> String {
        match self {
            Self::WordCount => "invalid multibulk length".into(),
            Self::WordLength => "invalid bulk length".into(),
            Self::NoWord(found) => format!("expected '$', got '{}'", found.escape_ascii()),
            Self::WordEnd => "expected CRLF after bulk string".into(),
            Self::LongLine => "too big count string".into(),
            Self::LongInline => "too big inline request".into(),
            Self::Quotes => "unbalanced quotes in request".into(),
            Self::Long => "too big request".into(),
        }
    }
}

/// Finds the first request of `input` and the positions of its words.
pub(crate) fn read(input: &[u8], places: &mut WordRanges) -> Frame {
    places.count = 0;
    let frame = match input.first() {
        None => return Frame::Part,
        Some(b'*') => read_array(input, places),
        Some(_) => read_inline(input, places),
    };
    frame.map_or_else(|stop| stop, Frame::Complete)
}

fn read_array(input: &[u8], places: &mut WordRanges) -> Result<usize, Frame> {
    let (count, mut at) = read_length(input, 1, Broken::WordCount)?;
    // An empty array is ignored, as in Redis.
    let count = usize::try_from(count).unwrap_or(0);
    if count > MAX_WORDS {
        return Err(Frame::Broken(Broken::WordCount));
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Err(Frame::Part),
            Some(b'$') => {}
            Some(other) => return Err(Frame::Broken(Broken::NoWord(*other))),
        }
        let (length, start) = read_length(input, at + 1, Broken::WordLength)?;
        let length = usize::try_from(length).map_err(|_| Frame::Broken(Broken::WordLength))?;
        if length > MAX_FRAME {
            return Err(Frame::Broken(Broken::WordLength));
        }
        let end = start + length;
        at = end + 2;
        if at > MAX_FRAME {
            return Err(Frame::Broken(Broken::Long));
        }
        match input.get(end..at) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Frame::Broken(Broken::WordEnd)),
            None => return Err(Frame::Part),
        }
        places.add(start, end);
    }
    Ok(at)
}

/// Parses the number at `start` and its line end; returns the start of the next line.
fn read_length(input: &[u8], start: usize, wrong: Broken) -> Result<(i64, usize), Frame> {
    let rest = input.get(start..).unwrap_or_default();
    // Nearly every length has one or two digits, and a request has six of them.
    match rest {
        [one @ b'0'..=b'9', b'\r', b'\n', ..] => return Ok((i64::from(one - b'0'), start + 3)),
        [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Ok((i64::from((ten - b'0') * 10 + (one - b'0')), start + 4));
        }
        _ => {}
    }
    let line = &rest[..rest.len().min(MAX_LENGTH_LINE)];
    let Some(end) = line.iter().position(|byte| *byte == b'\r') else {
        // A line that cannot become a number fails at once.
        return Err(match line.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-') {
            false => Frame::Broken(wrong),
            true if line.len() == MAX_LENGTH_LINE => Frame::Broken(Broken::LongLine),
            true => Frame::Part,
        });
    };
    let number = integer(&line[..end]).ok_or(Frame::Broken(wrong))?;
    match rest.get(end + 1) {
        Some(b'\n') => Ok((number, start + end + 2)),
        Some(_) => Err(Frame::Broken(wrong)),
        None => Err(Frame::Part),
    }
}

/// The words of one line, separated by blanks. A word may be quoted; escapes are refused, because
/// words are parsed in place.
fn read_inline(input: &[u8], places: &mut WordRanges) -> Result<usize, Frame> {
    let longest = &input[..input.len().min(MAX_FRAME)];
    let Some(end) = longest.iter().position(|byte| *byte == b'\n') else {
        let is_part = input.len() < MAX_FRAME;
        return Err(if is_part { Frame::Part } else { Frame::Broken(Broken::LongInline) });
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let mut at = 0;
    while let Some(blanks) = line[at..].iter().position(|byte| !is_blank(*byte)) {
        let start = at + blanks;
        let quote = line[start];
        let (start, end) = match quote {
            b'"' | b'\'' => {
                let rest = &line[start + 1..];
                let length = rest.iter().position(|byte| *byte == quote);
                let end = start + 1 + length.ok_or(Frame::Broken(Broken::Quotes))?;
                at = end + 1;
                let escapes = line[start..end].contains(&b'\\');
                if escapes || line.get(at).is_some_and(|byte| !is_blank(*byte)) {
                    return Err(Frame::Broken(Broken::Quotes));
                }
                (start + 1, end)
            }
            _ => {
                let length = line[start..].iter().position(|byte| is_blank(*byte));
                at = start + length.unwrap_or(line.len() - start);
                if line[start..at].iter().any(|byte| matches!(byte, b'"' | b'\'')) {
                    return Err(Frame::Broken(Broken::Quotes));
                }
                (start, at)
            }
        };
        if !places.add(start, end) {
            return Err(Frame::Broken(Broken::WordCount));
        }
    }
    Ok(end + 1)
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0)
}

/// Parses an integer without a plus sign or blanks.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (digits, is_negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    // Nineteen digits fit into an unsigned 64-bit number, so it cannot wrap before the check.
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut number = 0_u64;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(byte - b'0');
    }
    if is_negative { 0_i64.checked_sub_unsigned(number) } else { i64::try_from(number).ok() }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
