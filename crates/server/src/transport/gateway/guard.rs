//! Guards hyper against ambiguous requests and slow heads.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::framing::{Ambiguous, Framing};
use super::interim::Current;

/// How long a head may take from its first byte to its last.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// How long the client may take to read the last response while it still sends. If bytes arrived at
/// a closed socket, the system would reset the connection, and the client could lose a response
/// that it has not read, such as the denial of a large upload.
const LINGER: Duration = Duration::from_secs(2);

/// The most reads that are discarded before other connections get their turn.
const READS: usize = 16;

/// The bytes that hyper reads instead of the rest of a refused request: a NUL byte, which makes any
/// request invalid, and the end of a head, without which hyper would wait for more.
const REFUSAL: &[u8] = b"\0\n\n";

/// The response to a head that takes too long.
const TOO_SLOW: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Passes the bytes of a client to hyper until a request is framed ambiguously. Instead of that
/// request, hyper reads [`REFUSAL`], and answers 400 after the responses to earlier requests.
///
/// The guard also writes responses that hyper cannot write, between those of hyper: hyper flushes
/// only once its own buffer is empty.
#[derive(Debug)]
pub(super) struct Guard<S> {
    stream: S,
    framing: Framing,
    /// Whether the connection was upgraded, so that its bytes are no longer messages.
    is_tunnel: Arc<AtomicBool>,
    /// The unread part of the refusal, once a request was refused. The connection ends after it.
    refusal: Option<&'static [u8]>,
    /// Set while a head has begun and its end has not arrived.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Runs once this side is closed within a message of the client.
    linger: Option<Pin<Box<Sleep>>>,
    /// The request whose response hyper waits for.
    current: Arc<Current>,
    /// The guard's own response, which is completed before hyper writes.
    own: Vec<u8>,
    /// Number of its bytes that were written.
    written: usize,
    /// Whether hyper has written nothing since it last flushed.
    is_flushed: bool,
}

impl<S> Guard<S> {
    pub(super) fn new(stream: S, is_tunnel: Arc<AtomicBool>, current: Arc<Current>) -> Self {
        Self {
            stream,
            framing: Framing::default(),
            is_tunnel,
            refusal: None,
            waiting: None,
            linger: None,
            current,
            own: Vec::new(),
            written: 0,
            is_flushed: true,
        }
    }
}

impl<S: AsyncRead + Unpin> Guard<S> {
    /// Reads and discards the client's bytes until it closes its side too.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut bytes = [0; 4_096];
        for _ in 0..READS {
            if linger.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
        // Let other connections have their turn.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> Guard<S> {
    /// Fails once a head takes too long. The client gets 408 if hyper has written all earlier
    /// responses.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(waiting) = &mut self.waiting else { return Poll::Pending };
        ready!(waiting.as_mut().poll(context));
        if self.is_flushed && self.own.is_empty() {
            (self.own, self.written) = (TOO_SLOW.to_vec(), 0);
            if let Poll::Ready(Ok(())) = self.poll_own(context) {
                // The connection is closed, whether this succeeds or not.
                let _ = Pin::new(&mut self.stream).poll_flush(context);
            }
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Completes the guard's own response.
    fn poll_own(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.own.len() {
            let rest = &self.own[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => self.written += length,
            }
        }
        (self.own, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Writes the interim responses to the current request.
    fn poll_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_own(context))?;
            match self.current.poll_next(context) {
                Poll::Ready(bytes) => self.own = bytes,
                Poll::Pending => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(refusal) = &mut this.refusal {
            let (next, rest) = refusal.split_at(refusal.len().min(buffer.remaining()));
            buffer.put_slice(next);
            *refusal = rest;
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending => return this.poll_waiting(context),
        }
        if this.is_tunnel.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        if let Err(Ambiguous { sound }) = this.framing.read(&buffer.filled()[before..]) {
            // At least one byte was refused, so there is room for another.
            buffer.set_filled(before + sound);
            let (next, rest) = REFUSAL.split_at(REFUSAL.len().min(buffer.remaining()));
            buffer.put_slice(next);
            this.refusal = Some(rest);
        }
        if !this.framing.is_in_head() {
            this.waiting = None;
        } else if this.waiting.is_none() {
            this.waiting = Some(Box::pin(sleep(HEAD_TIME)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_flushed = false;
        ready!(this.poll_own(context))?;
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.is_flushed = false;
        ready!(this.poll_own(context))?;
        Pin::new(&mut this.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_interim(context))?;
        ready!(Pin::new(&mut this.stream).poll_flush(context))?;
        this.is_flushed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        if this.framing.is_between() || this.is_tunnel.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        this.poll_linger(context).map(Ok)
    }
}
