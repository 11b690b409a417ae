//! TLS to gateways: whom to trust, and who we are. TLS 1.2 and newer; the gateway's name is always
//! checked.

use crate::config::TlsFiles;
use crate::error::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A client's side of TLS, with a certificate of its own (mutual TLS) if one was given.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the files. Without a `ca_file`, the authorities that this system trusts are trusted.
    pub fn from_files(files: &TlsFiles) -> Result<Self> {
        let read = |option: &'static str, file: &Path| {
            std::fs::read(file).map_err(|error| {
                Error::invalid(format!("routing.delivery.tls.{option}: {} cannot be read", file.display()))
                    .with_source(error)
            })
        };
        let ca = files.ca_file.as_deref().map(|file| read("ca_file", file)).transpose()?;
        let identity = match (&files.cert_file, &files.key_file) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((read("cert_file", cert)?, read("key_file", key)?)),
            (Some(_), None) => {
                return Err(Error::invalid("routing.delivery.tls.key_file is missing beside cert_file"));
            }
            (None, Some(_)) => {
                return Err(Error::invalid("routing.delivery.tls.cert_file is missing beside key_file"));
            }
        };
        Self::from_pem(ca.as_deref(), identity.as_ref().map(|(cert, key)| (&cert[..], &key[..])))
    }

    /// From texts in PEM form: whom to trust (`None`: as the system does), and our own certificate
    /// chain with its key.
    pub fn from_pem(ca: Option<&[u8]>, identity: Option<(&[u8], &[u8])>) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("TLS cannot be set up").with_source(error))?
            .with_root_certificates(ca.map_or_else(system, own)?);
        let Some((chain, key)) = identity else { return Ok(Self(Arc::new(builder.with_no_client_auth()))) };
        let chain = certificates("cert_file", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| Error::invalid("routing.delivery.tls.key_file holds no private key in PEM form"))?;
        let config = builder.with_client_auth_cert(chain, key).map_err(|error| {
            Error::invalid("routing.delivery.tls.cert_file does not fit key_file").with_source(error)
        })?;
        Ok(Self(Arc::new(config)))
    }

    /// For HTTP/2, which is agreed upon during the handshake.
    pub(super) fn for_http2(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }

    #[cfg(feature = "nats")]
    pub(super) fn plain(&self) -> ClientConfig {
        ClientConfig::clone(&self.0)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match added {
        0 => Err(Error::invalid("this system trusts no certificates: give routing.delivery.tls.ca_file")),
        _ => Ok(roots),
    }
}

fn own(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca_file", pem)? {
        roots.add(certificate).map_err(|error| {
            Error::invalid("routing.delivery.tls.ca_file holds no authority's certificate").with_source(error)
        })?;
    }
    Ok(roots)
}

fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    match CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>() {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(Error::invalid(format!("routing.delivery.tls.{option} holds no certificate in PEM form"))),
    }
}
