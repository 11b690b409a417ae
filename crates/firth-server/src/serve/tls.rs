//! TLS by rustls: the certificate is read from files, and again on SIGHUP; connections that stand
//! keep the old one.

use crate::config::CertificateFiles;
use crate::wire::invalid;
use firth::Result;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::{Arc, RwLock};
use tokio_rustls::TlsAcceptor;

/// The current certificate; clones share it.
#[derive(Clone)]
pub(crate) struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl Tls {
    pub(crate) fn load(files: &CertificateFiles) -> Result<Self> {
        Ok(Self(Arc::new(RwLock::new(Arc::new(read(files)?)))))
    }

    /// Reads the files again; if they are wrong, the old certificate stays.
    pub(crate) fn reload(&self, files: &CertificateFiles) -> Result<()> {
        let fresh = Arc::new(read(files)?);
        *self.0.write().expect("nothing panics under this lock") = fresh;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current().into()
    }

    /// The same for routers, which speak HTTP/2.
    pub(crate) fn for_routers(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.current());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// What the next connection is spoken to with.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.0.read().expect("nothing panics under this lock").clone()
    }
}

fn read(files: &CertificateFiles) -> Result<ServerConfig> {
    let cert = files.cert.display();
    let key = files.key.display();
    let chain: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain = chain
        .map_err(|error| invalid(format!("tls.cert {cert} cannot be read")).with_source(error.to_string()))?;
    if chain.is_empty() {
        return Err(invalid(format!("tls.cert {cert} holds no certificate in PEM")));
    }
    // Says what is wrong with the file, never what is in it.
    let private = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|_| invalid(format!("tls.key {key} cannot be read, or holds no private key in PEM")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("TLS cannot be set up").with_source(error))?
        .with_no_client_auth()
        .with_single_cert(chain, private);
    let mut config = config
        .map_err(|error| invalid(format!("tls.key {key} does not fit tls.cert {cert}")).with_source(error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
