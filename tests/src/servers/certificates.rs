//! Certificates of one server: an authority, the server's, a client's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use tidegate_server::{Listen, TlsFiles};

use super::folder::Folder;

/// PEM files, made for one server and removed with it.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The certificate of the authority that signed the two others.
    pub authority: PathBuf,
    /// For `127.0.0.1` and `localhost`.
    pub server: Identity,
    /// The certificate that the server requires of clients.
    pub client: Identity,
    /// The folder, which is removed with this value.
    _folder: Option<Arc<Folder>>,
}

/// A certificate and its private key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The file of the certificate.
    pub certificate: PathBuf,
    /// The file of the key.
    pub key: PathBuf,
}

impl Certificates {
    /// Certificates for a server that is started in another way.
    pub fn fresh() -> Self {
        let folder = Folder::create();
        let certificates = Self::create(&folder);
        Self { _folder: Some(Arc::new(folder)), ..certificates }
    }

    /// A listener with the server's certificate, which requires no client certificate.
    pub fn transport(&self) -> Listen {
        let tls = TlsFiles {
            certificate: self.server.certificate.clone(),
            key: self.server.key.clone(),
            client_authority: None,
            client_names: Vec::new(),
        };
        Listen { tls: Some(tls), ..Listen::from(([127, 0, 0, 1], 0)) }
    }

    /// A listener that requires client certificates signed by this authority, with one of these
    /// names if there are any.
    pub fn transport_for(&self, authority: &Path, names: &[&str]) -> Listen {
        let mut transport = self.transport();
        if let Some(tls) = &mut transport.tls {
            tls.client_authority = Some(authority.to_owned());
            tls.client_names = names.iter().map(|&name| name.to_owned()).collect();
        }
        transport
    }

    pub(crate) fn create(folder: &Folder) -> Self {
        let key = key();
        let mut params = params(&[], "Tidegate test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("rcgen signs what rcgen made");
        let authority = folder.write("authority.pem", &certificate.pem());
        let issuer = Issuer::new(params, key);
        Self {
            authority,
            server: identity(folder, &issuer, "server", ExtendedKeyUsagePurpose::ServerAuth),
            client: identity(folder, &issuer, "client", ExtendedKeyUsagePurpose::ClientAuth),
            _folder: None,
        }
    }
}

fn identity(
    folder: &Folder,
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
) -> Identity {
    let key = key();
    let mut params = params(&["127.0.0.1", "localhost"], name);
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer).expect("rcgen signs what rcgen made");
    Identity {
        certificate: folder.write(&format!("{name}.pem"), &certificate.pem()),
        key: folder.write(&format!("{name}.key"), &key.serialize_pem()),
    }
}

fn params(hosts: &[&str], name: &str) -> CertificateParams {
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>();
    let mut params = CertificateParams::new(hosts).expect("the hosts are written above");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the system has random numbers")
}
