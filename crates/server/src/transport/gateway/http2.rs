//! Bodies over HTTP/2, from clients and from upstreams.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Reason, RecvStream, SendStream};
use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::timeout;

use super::body::Cut;
use super::framing::MAX_TRAILERS;

/// Reset codes of this side: the body that it sends is incomplete, or the peer has no room for it.
pub(super) const BODY_CUT: Reason = Reason::INTERNAL_ERROR;
pub(super) const NO_ROOM: Reason = Reason::CANCEL;

/// A body that arrives on a stream. The peer gets flow-control credit once earlier bytes are taken.
#[derive(Debug)]
pub(super) struct StreamBody {
    stream: RecvStream,
    is_data_over: bool,
}

impl StreamBody {
    pub(super) const fn new(stream: RecvStream) -> Self {
        Self { stream, is_data_over: false }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        while !this.is_data_over {
            match ready!(this.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    // Fails only if more is released than has arrived.
                    let _ = this.stream.flow_control().release_capacity(data.len());
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(Cut::Reset(error)))),
                None => this.is_data_over = true,
            }
        }
        Poll::Ready(match ready!(this.stream.poll_trailers(context)) {
            Ok(Some(trailers)) if length(&trailers) > MAX_TRAILERS => Some(Err(Cut::LongTrailers)),
            Ok(Some(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(None) => None,
            Err(error) => Some(Err(Cut::Reset(error))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}

/// Number of bytes of some fields.
pub(super) fn length(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Sends a body as fast as the peer has room for it. h2 gets only bytes that the peer has room for,
/// so it buffers none. Resets the stream if the body is incomplete, or if the peer has had no room
/// for `longest`. Returns whether the whole body was sent.
pub(super) async fn send(
    body: impl Body<Data = Bytes>,
    mut stream: SendStream<Bytes>,
    longest: Duration,
) -> bool {
    let mut body = pin!(body);
    loop {
        let frame = tokio::select! {
            biased;
            frame = poll_fn(|context| body.as_mut().poll_frame(context)) => frame,
            _ = poll_fn(|context| stream.poll_reset(context)) => return false,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => {
                stream.send_reset(BODY_CUT);
                return false;
            }
            None => return stream.send_data(Bytes::new(), true).is_ok(),
        };
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => return stream.send_trailers(trailers).is_ok(),
                Err(_) => continue,
            },
        };
        while !data.is_empty() {
            let Some(room) = room(&mut stream, data.len(), longest).await else {
                stream.send_reset(NO_ROOM);
                return false;
            };
            let piece = data.split_to(room.min(data.len()));
            let is_last = data.is_empty() && body.is_end_stream();
            if stream.send_data(piece, is_last).is_err() {
                return false;
            }
            if is_last {
                return true;
            }
        }
    }
}

/// How many bytes the peer has room for, at least one; `None` if it has had none for too long or is gone.
async fn room(stream: &mut SendStream<Bytes>, wanted: usize, longest: Duration) -> Option<usize> {
    stream.reserve_capacity(wanted);
    let available = stream.capacity();
    if available > 0 {
        return Some(available);
    }
    let waited = timeout(longest, async {
        loop {
            match poll_fn(|context| stream.poll_capacity(context)).await {
                Some(Ok(0)) => {}
                Some(Ok(room)) => return Some(room),
                Some(Err(_)) | None => return None,
            }
        }
    });
    waited.await.ok()?
}
