//! A connection that has switched to another protocol (WebSocket).

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Response;
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tidegate_tower::Lease;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::body::{ForwardBody, WireBody};
use super::forward::Answer;
use super::send::Leased;

/// The tunnel of a connection, if the connection becomes one.
#[derive(Debug)]
pub(super) struct Tunnel {
    is_open: Arc<AtomicBool>,
    /// How long the tunnel may be idle in both directions.
    longest: Duration,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Tunnel {
    pub(super) fn new(longest: Duration) -> Self {
        Self { is_open: Arc::default(), longest, task: Mutex::default() }
    }

    /// Set once the bytes of the connection are no longer messages.
    pub(super) const fn is_open(&self) -> &Arc<AtomicBool> {
        &self.is_open
    }

    /// Returns the response to the upgrade, and copies bytes in both directions once the client has
    /// it. The tunnel holds the request's connection and its in-flight places.
    pub(super) fn open(
        &self,
        mut response: Response<WireBody>,
        client: OnUpgrade,
        held: (Leased, Option<Lease>),
    ) -> Answer {
        let upstream = hyper::upgrade::on(&mut response);
        let longest = self.longest;
        let task = tokio::spawn(async move {
            if let Ok((client, upstream)) = tokio::try_join!(client, upstream) {
                copy(client, upstream, longest).await;
            }
            drop(held);
        });
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        self.is_open.store(true, Ordering::Release);
        let (mut head, _) = response.into_parts();
        head.extensions.clear();
        // A tunnel has no length.
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING] {
            head.headers.remove(name);
        }
        Response::from_parts(head, ForwardBody::Text(None))
    }

    /// Waits until the tunnel has ended, if there is one.
    pub(super) async fn ended(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A panic has been logged already.
            let _ = task.await;
        }
    }
}

/// Copies until both sides have ended, or until no byte has arrived for at least `longest` and at
/// most twice as long.
async fn copy(client: Upgraded, upstream: Upgraded, longest: Duration) {
    let is_used = AtomicBool::new(true);
    let mut client = TokioIo::new(client);
    let mut upstream = Watched { stream: TokioIo::new(upstream), is_used: &is_used };
    let mut copying = pin!(copy_bidirectional(&mut client, &mut upstream));
    while is_used.swap(false, Ordering::Relaxed) {
        if timeout(longest, copying.as_mut()).await.is_ok() {
            return;
        }
    }
}

/// A stream that records whether bytes pass.
struct Watched<'u, S> {
    stream: S,
    is_used: &'u AtomicBool,
}

impl<S> Watched<'_, S> {
    fn note(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<'_, S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let read = ready!(Pin::new(&mut this.stream).poll_read(context, buffer));
        this.note();
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<'_, S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes));
        this.note();
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
