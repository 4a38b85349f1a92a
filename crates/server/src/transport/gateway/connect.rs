//! Connects to addresses of an upstream.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use h2::client as http2;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsConnector, TlsStream};

use super::address::Address;
use super::body::RequestBody;
use super::framing::{MAX_FIELDS, MAX_RESPONSE_HEAD};
use crate::settings::{Scheme, Upstream};
use crate::transport::Stream;
use crate::transport::http::WriteTimeout;
use crate::transport::http2::{KEEP_ALIVE, Pings};

/// The most requests in progress on one HTTP/2 connection, even if the upstream allows more.
pub(super) const MAX_STREAMS: u16 = 100;

/// The most addresses of a name that a connection attempt tries.
const MAX_TRIES: usize = 3;

/// The flow-control window of a stream. Every stream has its own part of the window of the
/// connection, so that a client that does not read does not delay other clients.
const WINDOW: u32 = 64 << 10;

/// Opens connections to an upstream.
pub(crate) struct Connector {
    scheme: Scheme,
    tls: Option<TlsConnector>,
    /// Whether the upstream may choose HTTP/2.
    may_be_http2: bool,
    /// The name in the certificates, if it is not the host.
    server_name: Option<ServerName<'static>>,
    connect_timeout: Duration,
    idle_timeout: Duration,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// A new connection, and the future that runs it.
pub(super) enum Connected {
    Http1(http1::SendRequest<RequestBody>, Box<Http1Connection>),
    Http2(http2::SendRequest<Bytes>, Box<Http2Connection>),
}

pub(super) type Http1Connection = http1::Connection<TokioIo<WriteTimeout>, RequestBody>;
pub(super) type Http2Connection = http2::Connection<WriteTimeout, Bytes>;

impl Connector {
    /// Reads the certificates that the upstream's certificate is verified with.
    pub(super) fn new(upstream: &Upstream) -> Result<Self, String> {
        let tls = &upstream.tls;
        let server_name = match &tls.server_name {
            Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| {
                format!("{name:?} is no host name or IP address; set tls.server_name to one")
            })?),
            None => None,
        };
        let config = match upstream.scheme {
            Scheme::Https => Some(config(tls.authority.as_deref(), tls.http2)?),
            Scheme::Http | Scheme::H2c => None,
        };
        Ok(Self {
            scheme: upstream.scheme,
            tls: config.map(|config| TlsConnector::from(Arc::new(config))),
            may_be_http2: match upstream.scheme {
                Scheme::Http => false,
                Scheme::H2c => true,
                Scheme::Https => tls.http2,
            },
            server_name,
            connect_timeout: upstream.connect_timeout,
            idle_timeout: upstream.idle_timeout,
        })
    }

    /// Whether the upstream may choose HTTP/2.
    pub(super) const fn may_be_http2(&self) -> bool {
        self.may_be_http2
    }

    /// The scheme of requests.
    pub(super) const fn scheme(&self) -> &'static str {
        match self.scheme {
            Scheme::Https => "https",
            Scheme::Http | Scheme::H2c => "http",
        }
    }

    /// A new connection.
    pub(super) async fn connect(&self, address: &Address) -> io::Result<Connected> {
        let connected = timeout(self.connect_timeout, self.connect_slowly(address)).await;
        connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// A connection to one of these sockets. Each socket gets its part of the time, so that a
    /// silent one does not use up the time of the next.
    async fn open(&self, sockets: &[SocketAddr]) -> io::Result<TcpStream> {
        let tries = sockets.len().clamp(1, MAX_TRIES);
        let part = self.connect_timeout / u32::try_from(tries).unwrap_or(1);
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for socket in order(sockets).into_iter().take(tries) {
            match timeout(part, TcpStream::connect(socket)).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(error)) => failed = error,
                Err(_) => failed = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failed)
    }

    async fn connect_slowly(&self, address: &Address) -> io::Result<Connected> {
        let socket = self.open(&address.resolved().await?).await?;
        socket.set_nodelay(true)?;
        let mut stream = Stream::Tcp(socket);
        if let Some(tls) = &self.tls {
            let name = match &self.server_name {
                Some(name) => name.clone(),
                None => {
                    ServerName::try_from(address.settings.host.clone()).map_err(io::Error::other)?
                }
            };
            let encrypted = tls.connect(name, stream).await?;
            stream = Stream::Tls(Box::new(TlsStream::Client(encrypted)));
        }
        let is_http2 = match self.scheme {
            Scheme::Http => false,
            Scheme::H2c => true,
            Scheme::Https => stream.alpn() == Some(b"h2"),
        };
        let stream = WriteTimeout::new(stream, self.idle_timeout);
        if is_http2 {
            let handshake = http2_builder().handshake(stream);
            let (sender, connection) = handshake.await.map_err(io::Error::other)?;
            return Ok(Connected::Http2(sender, Box::new(connection)));
        }
        let handshake = http1::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_buf_size(MAX_RESPONSE_HEAD)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        Ok(Connected::Http1(sender, Box::new(connection)))
    }
}

/// The order in which to try the sockets of a name: first those of the first socket's family (IPv4
/// or IPv6), starting at a random one to spread connections, then the others.
fn order(sockets: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first =
        |socket: &&SocketAddr| sockets.first().map(SocketAddr::is_ipv4) == Some(socket.is_ipv4());
    let mut order: Vec<_> = sockets.iter().filter(is_first).copied().collect();
    if let 2.. = order.len() {
        let start = fastrand::usize(..order.len());
        order.rotate_left(start);
    }
    order.extend(sockets.iter().filter(|socket| !is_first(socket)));
    order
}

/// Runs a connection until it ends or the upstream leaves a PING unanswered.
pub(super) async fn run(mut connection: Box<Http2Connection>) {
    let Some(pings) = connection.ping_pong() else { return };
    let (mut pings, mut connection) = (Pings::new(pings), pin!(connection));
    let mut silent = pin!(sleep(KEEP_ALIVE.0));
    loop {
        tokio::select! {
            biased;
            // The requests on the connection get its errors.
            _ = connection.as_mut() => return,
            () = std::future::poll_fn(|context| pings.poll_pong(context)) => {
                silent.set(sleep(KEEP_ALIVE.0));
            }
            () = silent.as_mut() => match pings.send(0) {
                Some(wait) => silent.set(sleep(wait)),
                None => return,
            },
        }
    }
}

fn http2_builder() -> http2::Builder {
    let mut builder = http2::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * u32::from(MAX_STREAMS))
        .initial_max_send_streams(MAX_STREAMS.into())
        .max_header_list_size(MAX_RESPONSE_HEAD as u32)
        .max_send_buffer_size(WINDOW as usize);
    builder
}

fn config(authority: Option<&Path>, with_http2: bool) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(file) => {
            let wrong = |why: &dyn fmt::Display| format!("{}: {why}", file.display());
            let all = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
            for certificate in all {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"there is no certificate in it"));
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err("the system has no CA certificates; set tls.authority".into());
            }
        }
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    if with_http2 {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(config)
}
