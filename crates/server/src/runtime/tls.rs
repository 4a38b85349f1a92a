//! Certificates, read from files that may change while the server runs.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{Acceptor, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::runtime::turns::in_turn;
use crate::settings::TlsFiles;
use crate::transport::Stream;

/// Maximum duration of a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The TLS configuration of a listener.
pub(crate) struct Tls {
    files: TlsFiles,
    /// The protocols inside TLS, in order of preference.
    protocols: Vec<Vec<u8>>,
    config: ArcSwap<ServerConfig>,
    /// The contents of the files from which the configuration was built.
    texts: Mutex<Texts>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

/// The contents of the files.
#[derive(PartialEq, Eq)]
struct Texts {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_authority: Option<Vec<u8>>,
}

impl Tls {
    /// Reads the files for the first time.
    pub(crate) fn load(files: TlsFiles, protocols: &[&str]) -> Result<Self, TlsError> {
        let texts = Texts::read(&files)?;
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| name.as_bytes().into()).collect();
        let config = texts.config(&files, &protocols)?;
        let (config, texts) = (ArcSwap::from_pointee(config), Mutex::new(texts));
        Ok(Self { files, protocols, config, texts })
    }

    /// Reads the files again; true if they have changed. Files that cannot be used are ignored.
    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        let texts = Texts::read(&self.files)?;
        let mut known = self.texts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *known == texts {
            return Ok(false);
        }
        self.config.store(Arc::new(texts.config(&self.files, &self.protocols)?));
        *known = texts;
        Ok(true)
    }

    /// Completes the handshake with a client, or returns the reason for its failure.
    pub(crate) async fn accept(&self, stream: Stream) -> Result<Stream, String> {
        let tls = match timeout(HANDSHAKE_TIME, self.agree(stream)).await {
            Ok(agreed) => agreed.map_err(|error| format!("TLS handshake failed: {error}"))?,
            Err(_) => {
                return Err(format!(
                    "TLS handshake not completed within {} s",
                    HANDSHAKE_TIME.as_secs()
                ));
            }
        };
        let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
        if !self.files.client_names.is_empty() && !shown.is_some_and(|shown| self.knows(shown)) {
            let names = self.files.client_names.join(", ");
            return Err(format!("the client's certificate has none of the names {names}"));
        }
        Ok(Stream::Tls(Box::new(tls.into())))
    }

    /// The server signs once the client's first message has arrived, which takes up to a
    /// millisecond.
    async fn agree(&self, stream: Stream) -> io::Result<TlsStream<Stream>> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        in_turn(hello.into_stream(self.config.load_full())).await
    }

    /// Whether a client's certificate has one of the accepted names.
    fn knows(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return false };
        let names = self.files.client_names.iter();
        let mut names = names.filter_map(|name| ServerName::try_from(name.as_str()).ok());
        names.any(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

impl Texts {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &PathBuf| fs::read(path).map_err(|error| TlsError::read(path, &error));
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            client_authority: files.client_authority.as_ref().map(read).transpose()?,
        })
    }

    fn config(&self, files: &TlsFiles, protocols: &[Vec<u8>]) -> Result<ServerConfig, TlsError> {
        let chain = certificates(&files.certificate, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| TlsError::wrong(&files.key, error))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::wrong(&files.certificate, error))?;
        let builder = match (&files.client_authority, &self.client_authority) {
            (Some(path), Some(text)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path, text)? {
                    roots.add(certificate).map_err(|error| TlsError::wrong(path, error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| TlsError::wrong(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| TlsError::wrong(&files.certificate, error))?;
        config.alpn_protocols = protocols.to_vec();
        Ok(config)
    }
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if all.is_empty() => Err(TlsError::wrong(path, "the file contains no certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(TlsError::wrong(path, error)),
    }
}

/// The file with the error, and the reason.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    why: String,
}

impl TlsError {
    fn read(path: &Path, error: &io::Error) -> Self {
        Self { path: path.into(), why: format!("cannot be read: {error}") }
    }

    fn wrong(path: &Path, why: impl fmt::Display) -> Self {
        Self { path: path.into(), why: format!("cannot be used: {why}") }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.why)
    }
}

impl std::error::Error for TlsError {}
