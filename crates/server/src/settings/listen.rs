//! The address and TLS files of a listener.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The address and TLS files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: Address,
    /// TLS files; unencrypted if `None`.
    pub tls: Option<TlsFiles>,
}

impl<A: Into<SocketAddr>> From<A> for Listen {
    fn from(address: A) -> Self {
        Self { address: Address::Tcp(address.into()), tls: None }
    }
}

impl Listen {
    /// Whether only programs on this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        match &self.address {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }

    /// Whether clients need a certificate.
    pub(super) fn requires_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|files| files.client_authority.is_some())
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 selects a free port.
    Tcp(SocketAddr),
    /// A Unix socket. A socket file that was left behind is replaced, and the file is removed at
    /// the end.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// TLS files in PEM. They are reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The certificate authority of clients. If given, clients must present a certificate.
    pub client_authority: Option<PathBuf>,
    /// Accepted client certificate names. Empty: any name signed by `client_authority`.
    pub client_names: Vec<String>,
}
