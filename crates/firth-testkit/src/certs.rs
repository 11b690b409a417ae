//! Certificates made at run time, so that no key lies in the repository and none expires there.
//!
//! One [`Certs`] is a private CA with a server and a client certificate, as PEM texts and as files
//! in a folder that lives as long as its last clone.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A certificate with its private key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub cert_pem: String,
    /// Its private key (PKCS#8).
    pub key_pem: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A CA and what it signed.
#[derive(Clone, Debug)]
pub struct Certs {
    ca_pem: String,
    server: Identity,
    client: Identity,
    dir: Arc<TempDir>,
}

impl Certs {
    /// Certificates for a server on this machine (`localhost`, `127.0.0.1`).
    pub fn new() -> Self {
        Self::for_names(&["localhost", "127.0.0.1"])
    }

    /// As [`Certs::new`], with a server certificate for these names instead.
    pub fn for_names(names: &[&str]) -> Self {
        Self::make(server_params(names))
    }

    /// As [`Certs::new`], with a server certificate that expired long ago.
    pub fn expired() -> Self {
        let mut params = server_params(&["localhost", "127.0.0.1"]);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        Self::make(params)
    }

    /// The CA's certificate.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// File with the CA's certificate.
    pub fn ca_path(&self) -> PathBuf {
        self.file("ca.crt")
    }

    /// The server's certificate and key.
    pub fn server(&self) -> &Identity {
        &self.server
    }

    /// File with the server's certificate.
    pub fn server_cert_path(&self) -> PathBuf {
        self.file("server.crt")
    }

    /// File with the server's key.
    pub fn server_key_path(&self) -> PathBuf {
        self.file("server.key")
    }

    /// The client's certificate and key.
    pub fn client(&self) -> &Identity {
        &self.client
    }

    /// The client's certificate.
    pub fn client_cert_pem(&self) -> &str {
        &self.client.cert_pem
    }

    /// The client's key.
    pub fn client_key_pem(&self) -> &str {
        &self.client.key_pem
    }

    /// File with the client's certificate.
    pub fn client_cert_path(&self) -> PathBuf {
        self.file("client.crt")
    }

    /// File with the client's key.
    pub fn client_key_path(&self) -> PathBuf {
        self.file("client.key")
    }

    /// A client certificate that looks right but that this CA did not sign.
    pub fn stranger(&self) -> Identity {
        let key = new_key();
        let cert = client_params().self_signed(&key).expect("a certificate can be self-signed");
        Identity { cert_pem: cert.pem(), key_pem: key.serialize_pem() }
    }

    fn make(server: CertificateParams) -> Self {
        let ca_key = new_key();
        let ca_params = ca_params();
        let ca_pem = ca_params.self_signed(&ca_key).expect("the CA can sign itself").pem();
        let issuer = Issuer::new(ca_params, ca_key);
        let certs = Self {
            ca_pem,
            server: sign(&server, &issuer),
            client: sign(&client_params(), &issuer),
            dir: Arc::new(tempfile::tempdir().expect("a temporary folder can be made")),
        };
        certs.write();
        certs
    }

    fn write(&self) {
        put(&self.ca_path(), &self.ca_pem);
        put(&self.server_cert_path(), &self.server.cert_pem);
        put(&self.server_key_path(), &self.server.key_pem);
        put(&self.client_cert_path(), &self.client.cert_pem);
        put(&self.client_key_path(), &self.client.key_pem);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Default for Certs {
    fn default() -> Self {
        Self::new()
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key can be generated")
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).expect("the temporary folder is writable");
}

fn sign(params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> Identity {
    let key = new_key();
    let cert = params.signed_by(&key, issuer).expect("the CA can sign");
    Identity { cert_pem: cert.pem(), key_pem: key.serialize_pem() }
}

fn ca_params() -> CertificateParams {
    let mut params = named(&[], "firth test CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn server_params(names: &[&str]) -> CertificateParams {
    let mut params = named(names, "firth test server");
    // servers are also clients of each other (replication)
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn client_params() -> CertificateParams {
    let mut params = named(&[], "firth test client");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn named(alt_names: &[&str], common_name: &str) -> CertificateParams {
    let names: Vec<String> = alt_names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("the names are valid");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}
