//! Messages on a stream: a byte that says whether it is compressed, four for the length, and so many.

use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll};

use h2::RecvStream;
use hyper::body::Bytes;

use super::status::{Code, Status};
use crate::transport::rls::MAX_MESSAGE;

/// What stands before each message.
const PREFIX: usize = 5;

/// The messages that a peer sends on one stream.
#[derive(Debug)]
pub(super) struct Messages {
    body: RecvStream,
    /// What has come and not been read.
    rest: Bytes,
}

impl Messages {
    pub(super) const fn new(body: RecvStream) -> Self {
        Self { body, rest: Bytes::new() }
    }

    /// The only message, if it has come already: in one piece, with nothing behind it, as nearly all do.
    pub(super) fn try_only(&mut self, context: &mut Context<'_>) -> Option<Bytes> {
        let Poll::Ready(Some(Ok(data))) = self.body.poll_data(context) else { return None };
        self.rest = self.taken(data).ok()?;
        let is_all = self.body.is_end_stream() && end(&self.rest).ok()? == Some(self.rest.len());
        is_all.then(|| mem::take(&mut self.rest).slice(PREFIX..))
    }

    /// The only message. A call that brings another one is none of ours.
    pub(super) async fn only(&mut self) -> Result<Bytes, Status> {
        let message = self.next().await?.ok_or("the call brings no message")?;
        if self.rest.is_empty() && (self.body.is_end_stream() || self.more().await?.is_none()) {
            return Ok(message);
        }
        Err("the call brings more than one message".into())
    }

    /// The next message; `None` if there is no more.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        // Nearly always a message comes in one piece, and stays where it is.
        let mut gathered = Vec::new();
        loop {
            let seen = if gathered.is_empty() { &*self.rest } else { &*gathered };
            if let Some(end) = end(seen)?.filter(|end| *end <= seen.len()) {
                if !gathered.is_empty() {
                    self.rest = gathered.into();
                }
                return Ok(Some(self.rest.split_to(end).slice(PREFIX..)));
            }
            let Some(more) = self.more().await? else {
                let is_whole = self.rest.is_empty() && gathered.is_empty();
                return if is_whole { Ok(None) } else { Err("a message breaks off".into()) };
            };
            if self.rest.is_empty() && gathered.is_empty() {
                self.rest = more;
            } else {
                gathered.extend_from_slice(&mem::take(&mut self.rest));
                gathered.extend_from_slice(&more);
            }
        }
    }

    /// The next bytes that come, if any do.
    async fn more(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let Some(data) = poll_fn(|context| self.body.poll_data(context)).await else {
                return Ok(None);
            };
            let data = data.and_then(|data| self.taken(data));
            let data = data.map_err(|_| Status::from("the stream broke off"))?;
            // Empty frames are legal.
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// Lets the peer send as much again.
    fn taken(&mut self, data: Bytes) -> Result<Bytes, h2::Error> {
        self.body.flow_control().release_capacity(data.len())?;
        Ok(data)
    }
}

/// Where the first message ends, if so much of it is known.
fn end(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some([compressed, length @ ..]) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    if *compressed != 0 {
        return Err(Status::new(Code::Unimplemented, "messages are read uncompressed only"));
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        let text = format!("a message has at most {MAX_MESSAGE} bytes, this one has {length}");
        return Err(Status::new(Code::ResourceExhausted, text));
    }
    Ok(Some(PREFIX + length))
}

/// A message as it is sent.
pub(super) fn write(fill: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    // As much as the answer to one descriptor takes, with its headers.
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&[0; PREFIX]);
    fill(&mut bytes);
    // Nothing here writes four gigabytes.
    let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
    bytes[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

/// A frame, from a fuzzer: what is told of its end is what its length says.
#[cfg(feature = "fuzzing")]
pub(super) fn try_frame(bytes: &[u8]) {
    if let Ok(Some(end)) = end(bytes) {
        let length = bytes[1..PREFIX].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        assert_eq!(end, PREFIX + length);
        assert!(length <= MAX_MESSAGE, "{length}");
    }
}
