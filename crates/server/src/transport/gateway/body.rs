//! Bodies on their way through the gateway.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::address::Outcome;
use super::framing::MAX_TRAILERS;
use super::head;
use super::http2::{StreamBody, length};
use super::send::Leased;
use crate::settings::HeaderNames;

/// How long a client may pause within a body.
const CLIENT_IDLE: Duration = Duration::from_secs(30);

/// The least average number of bytes per second that a client has to send after [`GRACE`].
const LEAST_RATE: u64 = 240;
const GRACE: Duration = Duration::from_secs(10);

/// A body from the network, by protocol.
#[derive(Debug)]
pub(super) enum WireBody {
    Http1(Incoming),
    Http2(StreamBody),
}

impl Body for WireBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(Cut::Broken))),
            Self::Http2(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

/// The body of a request, with a bound on how slowly it may arrive.
pub(super) struct RequestBody {
    /// `None` for a request that is repeated, which has no body.
    body: Option<WireBody>,
    /// Bytes that `pace` does not count yet.
    bytes: u64,
    /// Bytes that it may still have.
    left: u64,
    own: HeaderNames,
    /// How long the messages of a call may pause; `None` for all other bodies.
    pause: Option<Duration>,
    /// The time at which the client is too slow on average unless it sends more. Set when the
    /// client first keeps the body waiting.
    pace: Option<Pin<Box<Sleep>>>,
    /// Set only while the client keeps the body waiting.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Reports why the client did not send the whole body. Dropped with the body if it was sent.
    unsent: Option<oneshot::Sender<ClientFailure>>,
}

/// Why a request did not arrive completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientFailure {
    /// The client pauses for too long, or sends too little.
    TooSlow,
    /// The client closed its side, or sent a malformed body.
    Cut,
    /// The body is larger than `gateway.max_body`.
    TooLarge,
}

/// The bounds of a request's body.
#[derive(Clone, Debug)]
pub(super) struct BodyLimits {
    pub(super) max_bytes: u64,
    /// How long the messages of a call (gRPC) may pause; all other bodies have a least pace.
    pub(super) pause: Option<Duration>,
    /// Fields of `gateway.drop_headers`, which trailers may not have either.
    pub(super) own: HeaderNames,
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Why a body is incomplete.
#[derive(Debug)]
pub(super) enum Cut {
    /// The peer closed the connection, or sent a malformed body.
    Broken(hyper::Error),
    /// The peer reset the stream.
    Reset(h2::Error),
    /// The trailers are longer than [`MAX_TRAILERS`].
    LongTrailers,
    /// The peer sent too little for too long.
    TooSlow,
    /// The client sent more than may be forwarded.
    TooLarge,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => error.fmt(f),
            Self::Reset(error) => error.fmt(f),
            Self::LongTrailers => f.write_str("the trailers are too long"),
            Self::TooSlow => f.write_str("the body arrives too slowly"),
            Self::TooLarge => f.write_str("the body is too large"),
        }
    }
}

impl std::error::Error for Cut {}

impl RequestBody {
    /// The body, and a receiver that closes once the body was sent, or receives why it was given
    /// up.
    pub(super) fn new(
        body: WireBody,
        limits: BodyLimits,
    ) -> (Self, oneshot::Receiver<ClientFailure>) {
        let (unsent, sent) = oneshot::channel();
        let BodyLimits { max_bytes, pause, own } = limits;
        let body = Some(body);
        let unsent = Some(unsent);
        (Self { body, left: max_bytes, own, pause, unsent, ..Self::empty() }, sent)
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    /// No body.
    pub(super) const fn empty() -> Self {
        let (body, own, unsent) = (None, HeaderNames::NONE, None);
        Self { body, bytes: 0, left: 0, own, pause: None, pace: None, waiting: None, unsent }
    }

    fn tell(&mut self, failure: ClientFailure) {
        if let Some(unsent) = self.unsent.take() {
            // Fails if the response has arrived already.
            let _ = unsent.send(failure);
        }
    }

    /// Ready once the client has sent nothing, or too little, for too long.
    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = self.pause {
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(pause)));
            return waiting.as_mut().poll(context);
        }
        let earned = Duration::from_secs(self.bytes / LEAST_RATE);
        self.bytes %= LEAST_RATE;
        match &mut self.pace {
            Some(pace) => {
                let due = pace.deadline() + earned;
                pace.as_mut().reset(due);
            }
            None => self.pace = Some(Box::pin(sleep(GRACE + earned))),
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(CLIENT_IDLE)));
        let timers = [Some(waiting), self.pace.as_mut()];
        let is_over = timers.into_iter().flatten().any(|it| it.as_mut().poll(context).is_ready());
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        match Pin::new(body).poll_frame(context) {
            Poll::Ready(mut frame) => {
                match &mut frame {
                    Some(Ok(frame)) => {
                        if let Some(trailers) = frame.trailers_mut() {
                            head::clean_request_trailers(trailers, &this.own);
                        }
                        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                        this.bytes = this.bytes.saturating_add(length);
                        match this.left.checked_sub(length) {
                            Some(left) => this.left = left,
                            None => {
                                this.tell(ClientFailure::TooLarge);
                                return Poll::Ready(Some(Err(Cut::TooLarge)));
                            }
                        }
                    }
                    Some(Err(_)) => this.tell(ClientFailure::Cut),
                    None => {}
                }
                this.waiting = None;
                Poll::Ready(frame)
            }
            Poll::Pending => this.poll_too_slow(context).map(|()| {
                this.tell(ClientFailure::TooSlow);
                Some(Err(Cut::TooSlow))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The body of a response: that of the upstream, or the gateway's own.
pub(super) enum ForwardBody {
    /// The body of the upstream. Its connection is kept for other requests once the body ends.
    Upstream {
        body: WireBody,
        connection: Option<Leased>,
        /// How long it may pause.
        pause: Duration,
        waiting: Option<Pin<Box<Sleep>>>,
    },
    /// The gateway's own text.
    Text(Option<Bytes>),
}

impl fmt::Debug for ForwardBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Upstream { .. } => "Upstream",
            Self::Text(_) => "Text",
        })
    }
}

impl ForwardBody {
    pub(super) fn upstream(body: WireBody, connection: Leased, pause: Duration) -> Self {
        if body.is_end_stream() {
            connection.put_back();
            return Self::Text(None);
        }
        Self::Upstream { body, connection: Some(connection), pause, waiting: None }
    }
}

impl Body for ForwardBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let (body, connection, pause, waiting) = match self.get_mut() {
            Self::Upstream { body, connection, pause, waiting } => {
                (body, connection, *pause, waiting)
            }
            Self::Text(text) => {
                return Poll::Ready(text.take().map(|text| Ok(Frame::data(text))));
            }
        };
        match Pin::new(&mut *body).poll_frame(context) {
            Poll::Ready(mut frame) => {
                *waiting = None;
                let trailers = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.trailers_ref());
                // Over HTTP/2 they have the same bound already.
                if trailers.is_some_and(|trailers| length(trailers) > MAX_TRAILERS) {
                    frame = Some(Err(Cut::LongTrailers));
                }
                let is_over = match &mut frame {
                    Some(Ok(frame)) => {
                        if let Some(trailers) = frame.trailers_mut() {
                            head::clean_trailers(trailers);
                        }
                        body.is_end_stream()
                    }
                    Some(Err(_)) => {
                        cut(connection);
                        false
                    }
                    None => true,
                };
                if is_over && let Some(connection) = connection.take() {
                    connection.put_back();
                }
                Poll::Ready(frame)
            }
            Poll::Pending => {
                let timer = || Box::pin(sleep(pause));
                match waiting.get_or_insert_with(timer).as_mut().poll(context) {
                    Poll::Ready(()) => {
                        cut(connection);
                        Poll::Ready(Some(Err(Cut::TooSlow)))
                    }
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream { body, .. } => body.is_end_stream(),
            Self::Text(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream { body, .. } => body.size_hint(),
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

/// Closes the connection of an incomplete response.
fn cut(connection: &mut Option<Leased>) {
    if let Some(connection) = connection.take() {
        connection.record(Outcome::Cut);
    }
}
