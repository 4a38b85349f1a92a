//! Request bodies that can be sent again.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::lock;

/// The most bytes that are kept of a body; a request whose body is longer is not retried.
pub const MAX_REPLAYED: usize = 64 << 10;

/// A request body that keeps what was sent, so that it can be sent again.
pub struct ReplayBody<B> {
    tape: Arc<Mutex<Tape<B>>>,
    /// Number of the next frame.
    at: usize,
}

/// The body, and the frames that were read from it.
struct Tape<B> {
    body: Pin<Box<B>>,
    frames: Vec<Bytes>,
    bytes: usize,
    /// False once a frame was read that is not kept.
    is_whole: bool,
}

impl<B> ReplayBody<B> {
    pub(super) fn new(body: B) -> Self {
        let tape = Tape { body: Box::pin(body), frames: Vec::new(), bytes: 0, is_whole: true };
        Self { tape: Arc::new(Mutex::new(tape)), at: 0 }
    }

    /// The same body from its start.
    pub(super) fn again(&self) -> Self {
        Self { tape: Arc::clone(&self.tape), at: 0 }
    }

    /// Whether the whole body so far can be sent again.
    pub(super) fn is_replayable(&self) -> bool {
        lock(&self.tape).is_whole
    }
}

impl<B: Body<Data = Bytes>> Body for ReplayBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let tape = Arc::clone(&self.tape);
        let mut tape = lock(&tape);
        if let Some(frame) = tape.frames.get(self.at) {
            let frame = frame.clone();
            self.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        let frame = ready!(tape.body.as_mut().poll_frame(context));
        match &frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) if tape.is_whole && tape.bytes + data.len() <= MAX_REPLAYED => {
                    tape.bytes += data.len();
                    tape.frames.push(data.clone());
                    self.at += 1;
                }
                _ => tape.forget(),
            },
            Some(Err(_)) => tape.forget(),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let tape = lock(&self.tape);
        self.at >= tape.frames.len() && tape.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let tape = lock(&self.tape);
        let kept: usize = tape.frames.iter().skip(self.at).map(Bytes::len).sum();
        let (kept, rest) = (kept as u64, tape.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint.set_lower(rest.lower().saturating_add(kept));
        hint
    }
}

impl<B> Tape<B> {
    /// Keeps nothing: the body is sent once.
    fn forget(&mut self) {
        self.is_whole = false;
        self.frames = Vec::new();
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody").field("at", &self.at).finish_non_exhaustive()
    }
}
