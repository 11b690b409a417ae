//! Builds the rustls configuration from [`TlsOptions`], once for all connections of a client.
//!
//! Certificates are parsed once, and sessions can be resumed. TLS 1.2 and newer; the server's name
//! is always checked.
//!
//! **Files.** Each new connection checks the files that the options name. If one of them changed,
//! all are read again. If the new files cannot be used (a certificate whose key is not there yet),
//! the old ones stay in use.

use crate::config::TlsOptions;
use crate::error::ConnectError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

/// Refuses what cannot work with any server, before one is asked.
pub(crate) fn check(tls: &TlsOptions) -> Result<(), ConnectError> {
    if let Some(name) = &tls.server_name {
        server_name(name)?;
    }
    if tls.ca.is_some() || tls.certificate.is_some() || tls.key.is_some() {
        // Without an own authority the system's would be read only to be thrown away.
        client_config(tls, if tls.ca.is_some() { roots(tls)? } else { RootCertStore::empty() })?;
    }
    Ok(())
}

/// What the connections of one client share of TLS.
#[derive(Default)]
pub(crate) struct TlsCache(Mutex<Option<BuiltConfig>>);

struct BuiltConfig {
    config: Arc<ClientConfig>,
    stamps: FileStamps,
}

/// When each of the files was changed, and how long it is.
type FileStamps = [Option<(SystemTime, u64)>; 3];

impl TlsCache {
    /// The connector for a host, and the name to expect there. Files and the system's certificates
    /// are read on a thread that may block.
    pub(crate) async fn connector(
        self: &Arc<Self>,
        tls: &TlsOptions,
        host: &str,
    ) -> Result<(TlsConnector, ServerName<'static>), ConnectError> {
        let name = server_name(tls.server_name.as_deref().unwrap_or(host))?;
        let cache = self.clone();
        let tls = tls.clone();
        let current = tokio::task::spawn_blocking(move || cache.current(&tls));
        let lost = |_| ConnectError::config("tls", "the runtime ended");
        Ok((TlsConnector::from(current.await.map_err(lost)??), name))
    }

    fn current(&self, tls: &TlsOptions) -> Result<Arc<ClientConfig>, ConnectError> {
        // Held while certificates are read: connections that start together read them once.
        let mut built = self.0.blocking_lock();
        let stamps = stamps(tls);
        if let Some(built) = built.as_ref().filter(|built| built.stamps == stamps) {
            return Ok(built.config.clone());
        }
        match (build(tls), &mut *built) {
            (Ok(config), built) => {
                let config = Arc::new(config);
                *built = Some(BuiltConfig { config: config.clone(), stamps });
                Ok(config)
            }
            (Err(problem), Some(old)) => {
                tracing::warn!(%problem, "the changed TLS files cannot be used; the old ones stay in use");
                Ok(old.config.clone())
            }
            (Err(problem), None) => Err(problem),
        }
    }
}

impl std::fmt::Debug for TlsCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsCache")
    }
}

fn stamps(tls: &TlsOptions) -> FileStamps {
    let stamp = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.modified().ok()?, about.len()))
    };
    let files = &tls.files;
    [&files.ca, &files.certificate, &files.key].map(|path| path.as_deref().and_then(stamp))
}

fn build(tls: &TlsOptions) -> Result<ClientConfig, ConnectError> {
    let mut tls = tls.clone();
    tls.read_files()?;
    let roots = roots(&tls)?;
    client_config(&tls, roots)
}

fn server_name(name: &str) -> Result<ServerName<'static>, ConnectError> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| ConnectError::config("tls_name", "is neither a host name nor an IP address"))
}

fn client_config(tls: &TlsOptions, roots: RootCertStore) -> Result<ClientConfig, ConnectError> {
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

fn roots(tls: &TlsOptions) -> Result<RootCertStore, ConnectError> {
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
