//! Sockets to a server: plain, or TLS for `https://`. Certificates of the system are trusted, or
//! those of one file.

use crate::wire::invalid;
use axum::http::Uri;
use firth::Result;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// Makes sockets for hyper.
#[derive(Clone)]
pub(crate) struct Connector {
    plain: HttpConnector,
    tls: Option<TlsConnector>,
}

impl Connector {
    /// For `http://`.
    pub(crate) fn plain() -> Self {
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        Self { plain, tls: None }
    }

    /// For `https://`; with `roots` only the certificates in that PEM file are trusted.
    pub(crate) fn tls(roots: Option<&Path>) -> Result<Self> {
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("TLS cannot be set up").with_source(error))?
            .with_root_certificates(trusted(roots)?)
            .with_no_client_auth();
        Ok(Self { tls: Some(Arc::new(config).into()), ..Self::plain() })
    }
}

fn trusted(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(file) = file else {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // One that cannot be used is passed over, as browsers do.
            let _ = store.add(certificate);
        }
        if store.is_empty() {
            return Err(invalid("this system trusts no certificates: name a file in FIRTH_CA_FILE"));
        }
        return Ok(store);
    };
    let unreadable =
        |why: String| invalid(format!("FIRTH_CA_FILE {} cannot be used", file.display())).with_source(why);
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        store.add(certificate).map_err(|error| unreadable(error.to_string()))?;
    }
    if store.is_empty() { Err(unreadable("it holds no certificate in PEM".to_owned())) } else { Ok(store) }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = Socket;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Socket, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.plain.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let tls = self.tls.clone().filter(|_| to.scheme_str() == Some("https"));
        let host = to.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let connecting = self.plain.call(to);
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            let Some(tls) = tls else { return Ok(Socket(TokioIo::new(ClientStream::Plain(stream)))) };
            let stream = tls.connect(ServerName::try_from(host)?, stream).await.map_err(TlsFailed)?;
            Ok(Socket(TokioIo::new(ClientStream::Tls(Box::new(stream)))))
        })
    }
}

/// The server was reached, but no TLS session came about.
#[derive(Debug)]
pub(crate) struct TlsFailed(io::Error);

impl std::fmt::Display for TlsFailed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the TLS handshake failed")
    }
}

impl std::error::Error for TlsFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// A socket as hyper wants it.
pub(crate) struct Socket(TokioIo<ClientStream>);

enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
