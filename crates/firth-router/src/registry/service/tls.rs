//! The registry's side of TLS.

use crate::error::{Error, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// A certificate and its key, for callers of the registry. TLS 1.2 and newer.
#[derive(Clone)]
pub struct ServerTls(pub(super) TlsAcceptor);

impl ServerTls {
    /// Reads the chain of certificates and the private key, both in PEM form.
    pub fn from_files(cert_file: &Path, key_file: &Path) -> Result<Self> {
        let wrong = |option: &str, file: &Path, what: &str| {
            Error::invalid(format!("routing.tls.{option}: {} {what}", file.display()))
        };
        let read = |option: &str, file: &Path| {
            std::fs::read(file).map_err(|error| wrong(option, file, "cannot be read").with_source(error))
        };
        let chain = read("cert_file", cert_file)?;
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(&chain).filter_map(std::result::Result::ok).collect();
        if chain.is_empty() {
            return Err(wrong("cert_file", cert_file, "holds no certificate in PEM form"));
        }
        let key = PrivateKeyDer::from_pem_slice(&read("key_file", key_file)?)
            .map_err(|_| wrong("key_file", key_file, "holds no private key in PEM form"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("TLS cannot be set up").with_source(error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| wrong("cert_file", cert_file, "does not fit key_file").with_source(error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}
