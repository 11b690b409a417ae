//! Turns [`Tls`] settings into a rustls connector. TLS 1.2 and newer; the server's name is always checked.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use crate::{config::Tls, error::ConnectError};

/// Refuses what cannot work with any server, before one is asked.
pub(crate) fn check(tls: &Tls) -> Result<(), ConnectError> {
    if let Some(name) = &tls.server_name {
        server_name(name)?;
    }
    if tls.ca.is_some() || tls.certificate.is_some() || tls.key.is_some() {
        // Without an own authority the system's would be read only to be thrown away.
        client_config(tls, if tls.ca.is_some() { roots(tls)? } else { RootCertStore::empty() })?;
    }
    Ok(())
}

/// The connector for a host, and the name to expect there.
pub(crate) fn connector(tls: &Tls, host: &str) -> Result<(TlsConnector, ServerName<'static>), ConnectError> {
    let name = server_name(tls.server_name.as_deref().unwrap_or(host))?;
    let config = client_config(tls, roots(tls)?)?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn server_name(name: &str) -> Result<ServerName<'static>, ConnectError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| ConnectError::config("tls_name", "is neither a host name nor an IP address"))
}

fn client_config(tls: &Tls, roots: RootCertStore) -> Result<ClientConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| ConnectError::config("tls", e.to_string()))?
        .with_root_certificates(roots);
    match (&tls.certificate, &tls.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(chain), Some(key)) => {
            let chain = certificates("tls_cert", chain)?;
            let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
                .map_err(|_| ConnectError::config("tls_key", "holds no private key in PEM form"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| ConnectError::config("tls_cert", format!("does not fit the key: {e}")))
        }
        (Some(_), None) => Err(ConnectError::config("tls_key", "is missing beside tls_cert")),
        (None, Some(_)) => Err(ConnectError::config("tls_cert", "is missing beside tls_key")),
    }
}

fn roots(tls: &Tls) -> Result<RootCertStore, ConnectError> {
    let mut roots = RootCertStore::empty();
    let Some(ca) = &tls.ca else {
        let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return match added {
            0 => Err(ConnectError::config(
                "tls_ca",
                "is not given, and this system has no trusted certificates",
            )),
            _ => Ok(roots),
        };
    };
    for certificate in certificates("tls_ca", ca)? {
        roots.add(certificate).map_err(|e| ConnectError::config("tls_ca", e.to_string()))?;
    }
    Ok(roots)
}

fn certificates(field: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(ConnectError::config(field, "holds no certificate in PEM form")),
    }
}
