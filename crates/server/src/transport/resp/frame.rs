//! Requests of the Redis protocol, found in place: arrays of bulk strings, and inline commands.
//!
//! # Bounds
//! A request has at most [`MAX_FRAME`] bytes and [`MAX_WORDS`] words. Arrays in arrays are refused,
//! so nothing here recurses.

/// The most bytes of one request, its framing included.
pub(crate) const MAX_FRAME: usize = 64 << 10;

/// The most words of one request, the command's name included.
pub(crate) const MAX_WORDS: usize = 64;

/// The longest line that can hold a length: a sign, digits, and what ends it.
const MAX_LENGTH_LINE: usize = 32;

/// Where the words of a request are. Kept from one request to the next, so that none allocates.
#[derive(Debug)]
pub(crate) struct Places {
    ranges: [(u32, u32); MAX_WORDS],
    count: usize,
}

impl Default for Places {
    fn default() -> Self {
        Self { ranges: [(0, 0); MAX_WORDS], count: 0 }
    }
}

impl Places {
    /// False if there are too many.
    fn add(&mut self, start: usize, end: usize) -> bool {
        // A frame is shorter than 4 GiB by far.
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
    pub(crate) fn new(input: &'a [u8], places: &'a Places) -> Self {
        Self { input, places: &places.ranges[..places.count] }
    }

    pub(crate) const fn len(&self) -> usize {
        self.places.len()
    }

    /// The word of this number; empty beyond the last.
    pub(crate) fn at(&self, number: usize) -> &'a [u8] {
        let Some(&(start, end)) = self.places.get(number) else { return &[] };
        self.input.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The words from this number on.
    pub(crate) fn from(&self, number: usize) -> impl Iterator<Item = &'a [u8]> {
        let all = *self;
        (number..all.len()).map(move |number| all.at(number))
    }
}

/// What the beginning of some bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A request of this many bytes. It may have no words, and then asks nothing.
    WholeNumber(usize),
    /// The beginning of one.
    Part,
    /// No request, and nothing after it can be one either.
    Broken(Broken),
}

/// What is wrong with a request, in Redis' words where it has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The number of words is none, or too large.
    WordCount,
    /// The length of a word is none, or too large.
    WordLength,
    /// Something else stands where a word should begin.
    NoWord(u8),
    /// A word is longer than its length says.
    WordEnd,
    /// The line of a length does not end.
    LongLine,
    /// There is no end of line within the longest request.
    LongInline,
    /// An inline command has a quote without its counterpart, or an escape.
    Quotes,
    /// The request as a whole is too long.
    Long,
}

impl Broken {
    /// What the client is told.
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

/// Finds the first request of `input` and the places of its words.
pub(crate) fn read(input: &[u8], places: &mut Places) -> Frame {
    places.count = 0;
    let frame = match input.first() {
        None => return Frame::Part,
        Some(b'*') => read_array(input, places),
        Some(_) => read_inline(input, places),
    };
    frame.map_or_else(|stop| stop, Frame::WholeNumber)
}

fn read_array(input: &[u8], places: &mut Places) -> Result<usize, Frame> {
    let (count, mut at) = read_length(input, 1, Broken::WordCount)?;
    // As Redis: an array of nothing asks nothing.
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

/// Reads the number at `start` and the end of its line; tells where the next line begins.
fn read_length(input: &[u8], start: usize, wrong: Broken) -> Result<(i64, usize), Frame> {
    let rest = input.get(start..).unwrap_or_default();
    // Nearly every length has one digit or two, and there are six in a question.
    match rest {
        [one @ b'0'..=b'9', b'\r', b'\n', ..] => return Ok((i64::from(one - b'0'), start + 3)),
        [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Ok((i64::from((ten - b'0') * 10 + (one - b'0')), start + 4));
        }
        _ => {}
    }
    let line = &rest[..rest.len().min(MAX_LENGTH_LINE)];
    let Some(end) = line.iter().position(|byte| *byte == b'\r') else {
        // What cannot become a number need not be waited for.
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

/// The words of one line, separated by blanks. A word may stand in quotes; escapes are refused, for
/// a word is found where it stands.
fn read_inline(input: &[u8], places: &mut Places) -> Result<usize, Frame> {
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

/// The number that these bytes are, and nothing else: no plus, no blanks.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (digits, is_negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    // Nineteen digits fit into 64 bits without a sign, so nothing wraps before it is judged.
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
