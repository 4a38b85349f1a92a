//! gRPC message framing: a compression flag, a length of four bytes, and the message.

use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll};

use h2::RecvStream;
use hyper::body::Bytes;

use super::status::{Code, Status};
use crate::runtime::turns::SHORT;
use crate::transport::http2::{Account, Charge};
use crate::transport::rls::MAX_MESSAGE;

/// Length of the frame header.
const PREFIX: usize = 5;

/// The messages that a peer sends on one stream.
#[derive(Debug)]
pub(super) struct Messages {
    body: RecvStream,
    /// Bytes that have arrived and not been read.
    rest: Bytes,
    /// Bytes that have arrived since flow-control credit was returned.
    uncredited: usize,
}

impl Messages {
    pub(super) const fn new(body: RecvStream) -> Self {
        Self { body, rest: Bytes::new(), uncredited: 0 }
    }

    /// The only message, if it has arrived already, in one piece and with nothing after it, as
    /// nearly all do.
    pub(super) fn try_only(&mut self, context: &mut Context<'_>) -> Option<Bytes> {
        let Poll::Ready(Some(Ok(data))) = self.body.poll_data(context) else { return None };
        self.uncredited = data.len();
        self.rest = data;
        let is_all = self.body.is_end_stream() && end(&self.rest).ok()? == Some(self.rest.len());
        if !is_all {
            return None;
        }
        let message = mem::take(&mut self.rest).slice(PREFIX..);
        self.credit_short(&message).ok()?;
        Some(message)
    }

    /// The only message of the stream, and its charge. A second message is an error.
    ///
    /// Until the stream ends, the peer decides how long the message is held: it is charged, and the
    /// peer gets no credit for it.
    pub(super) async fn only(&mut self, account: &Account) -> Result<(Bytes, Charge), Status> {
        let next = self.gather(account).await?;
        let (message, mut charge) = next.ok_or("the call has no message")?;
        let mut is_last = self.rest.is_empty();
        if is_last && !self.body.is_end_stream() {
            if !account.message(&mut charge, PREFIX + message.len()) {
                return Err(exhausted());
            }
            is_last = self.more().await?.is_none();
        }
        if !is_last {
            return Err("the call has more than one message".into());
        }
        self.credit_short(&message).map_err(|_| BROKEN)?;
        Ok((message, charge))
    }

    /// The next message; `None` if there is no more.
    pub(super) async fn next(&mut self, account: &Account) -> Result<Option<Bytes>, Status> {
        let Some((message, _)) = self.gather(account).await? else { return Ok(None) };
        self.credit().map_err(|_| BROKEN)?;
        Ok(Some(message))
    }

    /// The next message and its charge, without flow-control credit.
    ///
    /// A partial message is charged to the budget in full, and the peer gets flow-control credit
    /// when it is complete: the window bounds the unfinished messages of one connection, and the
    /// budget those of all.
    async fn gather(&mut self, account: &Account) -> Result<Option<(Bytes, Charge)>, Status> {
        let mut charge = account.call().ok_or_else(exhausted)?;
        // A copy, because a slice would keep everything alive that was read with it.
        let mut gathered = mem::take(&mut self.rest).to_vec();
        loop {
            match end(&gathered)? {
                Some(end) if end <= gathered.len() => {
                    self.rest = gathered.into();
                    let message = self.rest.split_to(end).slice(PREFIX..);
                    return Ok(Some((message, charge)));
                }
                Some(end) => {
                    if !account.message(&mut charge, end) {
                        return Err(exhausted());
                    }
                    gathered.reserve_exact(end - gathered.len());
                }
                None => {}
            }
            let Some(more) = self.more().await? else {
                return match gathered.is_empty() {
                    true => Ok(None),
                    false => Err("a message is incomplete".into()),
                };
            };
            gathered.extend_from_slice(&more);
        }
    }

    /// The next bytes; `None` at the end of the stream.
    async fn more(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let Some(data) = poll_fn(|context| self.body.poll_data(context)).await else {
                return Ok(None);
            };
            let data = data.map_err(|_| BROKEN)?;
            self.uncredited += data.len();
            // Empty frames are legal.
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// Returns credit for a message that is decided next, if it is short. Credit for a long one is
    /// returned after its decision, when this is dropped: the window bounds how many a connection
    /// has in memory.
    fn credit_short(&mut self, message: &Bytes) -> Result<(), h2::Error> {
        if message.len() <= SHORT { self.credit() } else { Ok(()) }
    }

    /// Returns flow-control credit for everything that has arrived.
    fn credit(&mut self) -> Result<(), h2::Error> {
        self.body.flow_control().release_capacity(mem::take(&mut self.uncredited))
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        // Fails if the stream is gone, whose credit h2 has returned.
        let _ = self.credit();
    }
}

fn exhausted() -> Status {
    let text = "too many unfinished messages: complete some before sending others";
    Status::new(Code::ResourceExhausted, text)
}

const BROKEN: &str = "the stream ended early";

/// The end of the first message, if its length has arrived.
fn end(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some([compressed, length @ ..]) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    if *compressed != 0 {
        return Err(Status::new(Code::Unimplemented, "compressed messages are not supported"));
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        let text = format!("a message has at most {MAX_MESSAGE} bytes, this one has {length}");
        return Err(Status::new(Code::ResourceExhausted, text));
    }
    Ok(Some(PREFIX + length))
}

/// Encodes a message with its frame header.
pub(super) fn write(fill: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    // The usual size of the answer to one descriptor with its headers.
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&[0; PREFIX]);
    fill(&mut bytes);
    // No message here reaches four gigabytes.
    let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
    bytes[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

/// Parses a frame from a fuzzer: checks that its end matches its length.
#[cfg(feature = "fuzzing")]
pub(super) fn try_frame(bytes: &[u8]) {
    if let Ok(Some(end)) = end(bytes) {
        let length = bytes[1..PREFIX].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        assert_eq!(end, PREFIX + length);
        assert!(length <= MAX_MESSAGE, "{length}");
    }
}
