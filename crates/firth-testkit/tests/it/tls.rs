//! TLS servers and the certificates made for them. The packaged Valkey has no TLS, so Redis only.

use firth_testkit::resp::Conn;
use firth_testkit::{Certs, Flavor, Identity, RedisServer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

async fn ping(
    server: &RedisServer,
    trusted_ca: &str,
    identity: Option<&Identity>,
) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted_ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        Some(identity) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => config.with_no_client_auth(),
    };
    let tcp = TcpStream::connect(server.addr()).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    Ok(Conn::over(tls).call(&["PING"]).await?.text())
}

#[tokio::test]
async fn a_client_that_trusts_the_ca_is_served() {
    let certs = Certs::new();
    let server = RedisServer::builder().flavor(Flavor::Redis).tls(&certs).start().await;
    assert_eq!(ping(&server, certs.ca_pem(), None).await.unwrap(), "PONG");
    assert_eq!(server.url(), format!("rediss://localhost:{}/", server.port()));
    assert!(ping(&server, Certs::new().ca_pem(), None).await.is_err());
}

#[tokio::test]
async fn mutual_tls_serves_only_clients_of_the_ca() {
    let certs = Certs::new();
    let server = RedisServer::builder().mutual_tls(&certs).start().await;
    assert_eq!(ping(&server, certs.ca_pem(), Some(certs.client())).await.unwrap(), "PONG");
    assert!(ping(&server, certs.ca_pem(), None).await.is_err());
    assert!(ping(&server, certs.ca_pem(), Some(&certs.stranger())).await.is_err());
}

#[tokio::test]
async fn wrong_names_and_expired_certificates_are_not_trusted() {
    for certs in [Certs::for_names(&["elsewhere.example"]), Certs::expired()] {
        let server = RedisServer::builder().tls(&certs).start().await;
        assert!(ping(&server, certs.ca_pem(), None).await.is_err());
    }
}

#[test]
fn certificate_files_live_as_long_as_the_last_clone() {
    let certs = Certs::new();
    let clone = certs.clone();
    let path = certs.ca_path();
    drop(certs);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), clone.ca_pem());
    drop(clone);
    assert!(!path.exists());
}
