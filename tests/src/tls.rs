//! A TLS client, for listeners with certificates and client certificates.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::servers::Identity;

/// Longer than any step takes on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The CA that the client trusts, and the client's certificate.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

impl TlsClient {
    /// A client that trusts this CA, with this certificate and this protocol.
    pub fn new(authority: &Path, shows: Option<&Identity>, protocol: &str) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(authority)).expect("an authority");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("what ring can do")
            .with_root_certificates(roots);
        let mut config = match shows {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_file(&identity.key).expect("a key");
                let chain = vec![certificate(&identity.certificate)];
                config.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// Connects. A server that refuses the client may say so only when the client sends.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::from(address.ip());
        timeout(TIMEOUT, self.0.connect(name, socket)).await?
    }

    /// Sends these bytes, and reads until the connection ends.
    ///
    /// # Errors
    /// If the handshake fails on either side.
    pub fn exchange(&self, address: SocketAddr, sent: &[u8]) -> io::Result<Vec<u8>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut stream = self.connect(address).await?;
            stream.write_all(sent).await?;
            stream.flush().await?;
            let mut answer = Vec::new();
            timeout(TIMEOUT, stream.read_to_end(&mut answer)).await??;
            Ok(answer)
        })
    }
}

fn certificate(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).expect("a certificate")
}
