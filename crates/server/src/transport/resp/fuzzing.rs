//! Properties that hold for any bytes of a client.

use std::sync::Arc;

use super::command::{After, Session, Step};
use super::frame::{self, Frame, WordRanges, Words};
use crate::service::RateLimitService;
use crate::settings::Settings;

/// Requests are the same however their bytes arrive, each gets one valid reply, and nothing panics.
pub(crate) fn try_bytes(service: &RateLimitService, bytes: &[u8], split: usize) {
    let whole = requests(&[bytes]);
    let (one, other) = bytes.split_at(split.min(bytes.len()));
    assert_eq!(requests(&[one, other]), whole, "torn at {split}");
    let mut session = Session::new(service.clone(), Arc::new(Settings::default()), 1);
    let mut places = WordRanges::default();
    let (mut at, mut answers) = (0, Vec::new());
    while let Frame::Complete(length) = frame::read(&bytes[at..], &mut places) {
        answers.clear();
        let words = Words::new(&bytes[at..], &places);
        let step = session.execute(service.now(), &words, &mut answers);
        let is_silent = session.is_silent();
        let replies = if is_silent || words.len() == 0 { 0 } else { 1 };
        assert_eq!(sound_replies(&answers), Some(replies), "{}", answers.escape_ascii());
        if step == Step::Done(After::Leave) {
            break;
        }
        at += length;
    }
}

/// The words of each request, read like a connection does: complete requests are taken, the rest
/// waits.
fn requests(pieces: &[&[u8]]) -> Vec<Option<Vec<Vec<u8>>>> {
    let (mut pending, mut requests) = (Vec::new(), Vec::new());
    let mut places = WordRanges::default();
    for piece in pieces {
        pending.extend_from_slice(piece);
        loop {
            match frame::read(&pending, &mut places) {
                Frame::Complete(length) => {
                    let words = Words::new(&pending, &places);
                    requests.push(Some(words.from(0).map(<[u8]>::to_vec).collect()));
                    pending.drain(..length);
                }
                Frame::Part => break,
                Frame::Broken(_) => {
                    requests.push(None);
                    return requests;
                }
            }
        }
    }
    requests
}

/// The number of replies in these bytes; `None` if they are invalid.
fn sound_replies(mut bytes: &[u8]) -> Option<usize> {
    let mut replies = 0;
    while !bytes.is_empty() {
        bytes = after_reply(bytes)?;
        replies += 1;
    }
    Some(replies)
}

/// The bytes after the first reply.
fn after_reply(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, mut rest) = (std::str::from_utf8(&bytes[1..end]).ok(), &bytes[end + 2..]);
    let count = |line: Option<&str>| line?.parse::<i64>().ok();
    let parts = match bytes.first()? {
        b'+' | b'-' | b'_' => 0,
        b':' => count(line).map(|_| 0)?,
        b'$' => {
            let length = usize::try_from(count(line)?).unwrap_or(0);
            if count(line) != Some(-1) {
                rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
            }
            0
        }
        b'*' => count(line)?.max(0),
        b'%' => count(line)?.checked_mul(2)?,
        _ => return None,
    };
    for _ in 0..parts {
        rest = after_reply(rest)?;
    }
    Some(rest)
}
