//! The byte stream of a connection: TCP, Unix socket or TLS.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Bytes;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Boxed, because it is much larger than the others and rarer.
    Tls(Box<TlsStream<Self>>),
    /// A connection whose first bytes were read already.
    Begun(Box<Begun>),
}

/// A connection, and bytes of it that are read again.
#[derive(Debug)]
pub(crate) struct Begun {
    bytes: Bytes,
    stream: Stream,
}

impl Stream {
    /// Closes a connection without TLS with a reset.
    pub(crate) fn reset(self) {
        if let Self::Tcp(socket) = &self {
            // If this fails, the client has closed it already.
            let _ = set_socket_linger(socket, Some(Duration::ZERO));
        }
    }

    /// The peer's address, if it has one.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().map(|address| address.ip().to_canonical()).ok(),
            Self::Unix(_) => None,
            Self::Tls(tls) => tls.get_ref().0.peer(),
            Self::Begun(begun) => begun.stream.peer(),
        }
    }

    /// Whether this is a Unix socket. The address of a TCP peer may be unknown as well.
    pub(crate) fn is_unix(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Unix(_) => true,
            Self::Tls(tls) => tls.get_ref().0.is_unix(),
            Self::Begun(begun) => begun.stream.is_unix(),
        }
    }

    /// The protocol that the peer agreed on in the TLS handshake, if any.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Tls(tls) => tls.get_ref().1.alpn_protocol(),
            Self::Begun(begun) => begun.stream.alpn(),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_tls(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            Self::Begun(begun) => begun.stream.is_tls(),
            Self::Tcp(_) | Self::Unix(_) => false,
        }
    }

    /// The same connection, whose first bytes are read once more.
    pub(crate) fn begun(self, bytes: &[u8]) -> Self {
        let bytes = Bytes::copy_from_slice(bytes);
        Self::Begun(Box::new(Begun { bytes, stream: self }))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(context, buffer),
            Self::Begun(begun) => {
                let length = begun.bytes.len().min(buffer.remaining());
                if length == 0 {
                    return Pin::new(&mut begun.stream).poll_read(context, buffer);
                }
                buffer.put_slice(&begun.bytes.split_to(length));
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(tls) => Pin::new(tls).poll_write(context, bytes),
            Self::Begun(begun) => Pin::new(&mut begun.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(context, pieces),
            Self::Begun(begun) => Pin::new(&mut begun.stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.is_write_vectored(),
            Self::Unix(socket) => socket.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
            Self::Begun(begun) => begun.stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Self::Unix(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(tls) => Pin::new(tls).poll_flush(context),
            Self::Begun(begun) => Pin::new(&mut begun.stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(context),
            Self::Begun(begun) => Pin::new(&mut begun.stream).poll_shutdown(context),
        }
    }
}
