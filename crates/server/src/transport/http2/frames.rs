//! Counts the frames of a connection, to distinguish a burst from abuse.
//!
//! h2 counts too, but two of its counters end connections of well-behaved peers. It counts streams
//! that it refuses although the peer cannot know the limit yet, and streams that were reset before
//! they were accepted, which happens to all streams of a peer whose deadline passed while this
//! process did not run. Both counters are therefore disabled by high limits, and frames are counted
//! here.
//!
//! | frames | allowed per minute |
//! |---|---|
//! | resets by the peer | twice the number of streams that may be open, and one per call answered in this minute or the one before |
//! | resets by the peer of streams without a message | [`FrameLimits::bare_resets`] |
//! | resets that the peer's errors cause, including streams above the limit, without refusals by `budget.rs` | [`MAX_ERRORS`], after the peer has acknowledged the limit |
//! | frames without a request: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, CONTINUATION | [`MAX_CONTROL`], [`CONTROL_PER_CALL`] per call, and [`FrameLimits::control_per_data`] |

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::transport::http::WriteTimeout;

/// How many frames a peer may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameLimits {
    /// How many streams may be open at a time.
    pub(crate) streams: usize,
    /// How many streams the peer may reset without having sent a message on them.
    pub(crate) bare_resets: usize,
    /// Allowed frames without a request for each DATA frame sent: its receiver updates two windows.
    pub(crate) control_per_data: usize,
}

/// How many streams may be reset because of the peer's errors.
const MAX_ERRORS: usize = 64;

/// Allowed frames without a request, and the additional number per call.
const MAX_CONTROL: usize = 2_048;
const CONTROL_PER_CALL: usize = 8;

/// The most frames of a refused stream that may still be in transit.
const LATE_FRAMES: usize = 8;

/// The most bytes read before other connections get their turn.
const TURN: usize = 32 << 10;

/// How long the peer has to close its side after this side is closed. If bytes of the peer arrived
/// at a closed socket, the system would reset the connection and could discard answers that the
/// peer has not read yet.
const LINGER: Duration = Duration::from_millis(250);

/// The most bytes of the peer that are read and discarded meanwhile.
const MAX_DISCARDED: usize = 64 << 10;

/// Length of the client's connection preface.
const PREFACE: usize = 24;

/// The length of a frame's header, and that of a whole RST_STREAM frame.
const HEADER: usize = 9;
const RESET: usize = 13;

/// Frame state shared by the connection and its task.
#[derive(Debug)]
pub(crate) struct Frames {
    limits: FrameLimits,
    /// Set once the peer has sent too many frames of a kind. Reading stops then.
    is_abuse: AtomicBool,
    /// Whether the peer takes no bytes. Reading pauses meanwhile.
    is_blocked: AtomicBool,
    /// Bytes read in this turn.
    read: AtomicUsize,
    /// Calls answered since the peer's last bytes.
    answered: AtomicUsize,
    /// Set each minute: the counters start anew.
    is_renewed: AtomicBool,
}

impl Frames {
    pub(crate) fn new(limits: FrameLimits) -> Self {
        Self {
            limits,
            is_abuse: AtomicBool::default(),
            is_blocked: AtomicBool::default(),
            read: AtomicUsize::default(),
            answered: AtomicUsize::default(),
            is_renewed: AtomicBool::default(),
        }
    }

    pub(crate) fn is_abuse(&self) -> bool {
        self.is_abuse.load(Relaxed)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Relaxed)
    }

    /// Allows the bytes of one turn to be read.
    pub(crate) fn begin_turn(&self) {
        self.read.store(0, Relaxed);
    }

    pub(crate) fn count_answers(&self, answers: usize) {
        self.answered.fetch_add(answers, Relaxed);
    }

    /// Starts a new minute.
    pub(crate) fn renew(&self) {
        self.is_renewed.store(true, Relaxed);
    }
}

/// A connection whose frames are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: WriteTimeout,
    frames: Arc<Frames>,
    incoming: Scanner,
    outgoing: Scanner,
    counts: Counts,
    /// Runs once this side is closed.
    linger: Option<Pin<Box<Sleep>>>,
    discarded: usize,
}

impl Counted {
    pub(crate) fn new(stream: WriteTimeout, frames: Arc<Frames>) -> Self {
        Self {
            stream,
            frames,
            incoming: Scanner { skip: PREFACE, ..Scanner::default() },
            outgoing: Scanner::default(),
            counts: Counts::default(),
            linger: None,
            discarded: 0,
        }
    }

    fn has_read(&mut self, bytes: &[u8]) {
        self.frames.read.fetch_add(bytes.len(), Relaxed);
        if self.frames.is_renewed.swap(false, Relaxed) {
            self.counts.renew();
        }
        self.counts.answered += self.frames.answered.swap(0, Relaxed);
        let (counts, limits) = (&mut self.counts, &self.frames.limits);
        self.incoming.scan(bytes, |frame| counts.receive(frame, limits));
        self.judge();
    }

    fn has_written(&mut self, bytes: &[u8]) {
        let (counts, limits) = (&mut self.counts, &self.frames.limits);
        self.outgoing.scan(bytes, |frame| counts.send(frame, limits));
        self.judge();
    }

    fn judge(&self) {
        if self.counts.is_abuse(&self.frames.limits) {
            self.frames.is_abuse.store(true, Relaxed);
        }
    }

    /// Records whether the peer takes bytes.
    fn watch<T>(&self, context: &Context<'_>, written: Poll<T>) -> Poll<T> {
        let was_blocked = self.frames.is_blocked.swap(written.is_pending(), Relaxed);
        if was_blocked && written.is_ready() {
            // Reading was paused meanwhile.
            context.waker().wake_by_ref();
        }
        written
    }
}

/// Numbers of frames by kind.
#[derive(Debug, Default)]
struct Counts {
    /// The last stream that the peer has opened.
    opened: u32,
    /// The last stream that the peer had opened when it acknowledged the settings. For later
    /// streams it knows the limit.
    opened_early: Option<u32>,
    /// Streams reset by the peer.
    abandoned: usize,
    /// Calls answered in this minute, and in the one before.
    answered: usize,
    answered_before: usize,
    /// Messages received whose streams may still be reset.
    messages: usize,
    bare_resets: usize,
    errors: usize,
    /// Frames that may still come for streams that were refused before the acknowledgement.
    late: usize,
    control: usize,
}

impl Counts {
    const fn is_abuse(&self, limits: &FrameLimits) -> bool {
        // Twice as many as may be open.
        self.abandoned > 2 * limits.streams + self.answered + self.answered_before
            || self.bare_resets > limits.bare_resets
            || self.errors > MAX_ERRORS
            || self.control > MAX_CONTROL
    }

    fn renew(&mut self) {
        let Self { opened, opened_early, answered, messages, late, .. } = *self;
        *self = Self { opened, opened_early, messages, late, ..Self::default() };
        self.answered_before = answered;
    }

    /// Counts a frame of the peer.
    fn receive(&mut self, frame: Frame, limits: &FrameLimits) {
        const END: u8 = 1;
        const ACK: u8 = 1;
        match frame.kind {
            // DATA; with an end flag but no bytes, it only ends a message.
            0 if frame.length > 0 || frame.flags & END != 0 => {
                self.messages += usize::from(frame.flags & END != 0);
            }
            1 => {
                self.opened = self.opened.max(frame.stream);
                self.control = self.control.saturating_sub(CONTROL_PER_CALL);
            }
            3 => {
                self.abandoned += 1;
                match self.messages.checked_sub(1) {
                    Some(messages) => self.messages = messages,
                    None => self.bare_resets += 1,
                }
            }
            4 if frame.flags & ACK != 0 => {
                self.opened_early.get_or_insert(self.opened);
            }
            // The answer to one of our PINGs.
            6 if frame.flags & ACK != 0 => {}
            _ => self.control += 1,
        }
        // Includes answered calls; only the latest can still be reset.
        self.messages = self.messages.min(limits.streams);
    }

    /// Counts a frame that this side sends.
    fn send(&mut self, frame: Frame, limits: &FrameLimits) {
        /// Reset codes that are no fault of the peer's: no error, stream closed, above the limit,
        /// or refused because memory is short.
        const NO_ERROR: u32 = 0;
        const INTERNAL_ERROR: u32 = 2;
        const STREAM_CLOSED: u32 = 5;
        const REFUSED_STREAM: u32 = 7;
        const CANCEL: u32 = 8;
        const ENHANCE_YOUR_CALM: u32 = 11;
        if frame.kind == 0 && frame.length > 0 {
            self.control = self.control.saturating_sub(limits.control_per_data);
        }
        match frame.code {
            Some(NO_ERROR | INTERNAL_ERROR | CANCEL | ENHANCE_YOUR_CALM) | None => {}
            Some(REFUSED_STREAM) if self.opened_early.is_none_or(|last| frame.stream <= last) => {
                self.late += LATE_FRAMES;
            }
            Some(STREAM_CLOSED) if self.late > 0 => self.late -= 1,
            Some(_) => self.errors += 1,
        }
    }
}

/// The relevant parts of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    length: usize,
    /// The error code of an RST_STREAM frame.
    code: Option<u32>,
}

/// Finds frames in bytes that arrive in pieces.
#[derive(Debug, Default)]
struct Scanner {
    /// Bytes before the next header.
    skip: usize,
    header: [u8; RESET],
    /// Bytes of the header that have arrived.
    filled: usize,
}

impl Scanner {
    fn scan(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            (self.skip, bytes) = (self.skip - skipped, &bytes[skipped..]);
            let wanted = if self.is_reset() { RESET } else { HEADER };
            let taken = (wanted - self.filled).min(bytes.len());
            let (header, rest) = bytes.split_at(taken);
            self.header[self.filled..][..taken].copy_from_slice(header);
            (self.filled, bytes) = (self.filled + taken, rest);
            let is_whole = self.filled >= if self.is_reset() { RESET } else { HEADER };
            if is_whole {
                let frame = self.frame();
                self.skip = frame.length - (self.filled - HEADER);
                self.filled = 0;
                found(frame);
            }
        }
    }

    /// Whether the header is that of an RST_STREAM frame, whose four bytes are read with it.
    const fn is_reset(&self) -> bool {
        let [high, middle, low, kind, ..] = self.header;
        self.filled >= HEADER && kind == 3 && high == 0 && middle == 0 && low == 4
    }

    fn frame(&self) -> Frame {
        let [high, middle, low, kind, flags, s0, s1, s2, s3, code @ ..] = self.header;
        // The highest bit is reserved.
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & (u32::MAX >> 1);
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let code = self.is_reset().then(|| u32::from_be_bytes(code));
        Frame { kind, flags, stream, length, code }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.frames.is_abuse() || this.frames.is_blocked() {
            return Poll::Pending;
        }
        if this.frames.read.load(Relaxed) >= TURN {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if let Some(bytes) = buffer.filled().get(before..)
            && !bytes.is_empty()
        {
            this.has_read(bytes);
        }
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            this.has_written(bytes.get(..*count).unwrap_or_default());
        }
        this.watch(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, pieces);
        if let Poll::Ready(Ok(count)) = &written {
            let mut left = *count;
            for piece in pieces {
                let taken = left.min(piece.len());
                this.has_written(&piece[..taken]);
                left -= taken;
            }
        }
        this.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.watch(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        if this.frames.is_abuse() {
            return Poll::Ready(Ok(()));
        }
        let linger = this.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if linger.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut bytes = [0; 1_024];
        while this.discarded < MAX_DISCARDED {
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
            this.discarded += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
    }
}
