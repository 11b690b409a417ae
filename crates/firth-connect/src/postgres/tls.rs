//! TLS to the database: the server's certificate and its name are always checked.

use super::target::TlsFiles;
use crate::error::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Speaks TLS on a connection that the server has agreed to encrypt.
pub(super) async fn encrypt(files: &TlsFiles, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Error::invalid(format!("url: {host} is no name that a certificate can have")))?;
    let connector = TlsConnector::from(Arc::new(config(files)?));
    connector.connect(name, stream).await.map_err(|error| {
        let is_ours = error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>);
        let text = format!("TLS with {host} failed: {error}");
        if is_ours { Error::new(crate::ErrorKind::Unauthorized, text) } else { Error::unavailable(text) }
    })
}

fn config(files: &TlsFiles) -> Result<ClientConfig> {
    let roots = match &files.ca_file {
        Some(file) => own(file)?,
        None => system()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS cannot be set up").with_source(error))?
        .with_root_certificates(roots);
    match (&files.cert_file, &files.key_file) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => {
            let chain = certificates("cert_file", cert)?;
            let key = PrivateKeyDer::from_pem_slice(&read("key_file", key)?)
                .map_err(|_| Error::invalid("key_file holds no private key in PEM form"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| Error::invalid("cert_file does not fit key_file").with_source(error))
        }
        (Some(_), None) => Err(Error::invalid("key_file is missing beside cert_file")),
        (None, Some(_)) => Err(Error::invalid("cert_file is missing beside key_file")),
    }
}

fn system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs) {
        (0, _) => Err(Error::invalid("this system trusts no certificates: give ca_file")),
        _ => Ok(roots),
    }
}

fn own(file: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca_file", file)? {
        roots
            .add(certificate)
            .map_err(|error| Error::invalid("ca_file holds no authority's certificate").with_source(error))?;
    }
    Ok(roots)
}

fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(option, file)?;
    match CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>() {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(Error::invalid(format!("{option} holds no certificate in PEM form"))),
    }
}

fn read(option: &str, file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        Error::invalid(format!("{option}: {} cannot be read", file.display())).with_source(error)
    })
}
