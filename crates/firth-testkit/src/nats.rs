//! A real `nats-server` with JetStream as a test fixture, ended with its value.

use crate::Certs;
use crate::bins::tool;
use crate::ports::Port;
use crate::server::process::Process;
use crate::wait::{PATIENCE, Poll};
use nix::sys::signal::Signal;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// A running server on a port that it keeps across restarts, with its files in a folder of its own.
#[derive(Debug)]
pub struct NatsServer {
    // dropped before the folder
    process: Mutex<Option<Process>>,
    port: Port,
    dir: TempDir,
    certs: Option<Certs>,
    token: Option<String>,
}

impl NatsServer {
    /// A server without TLS that anyone may use.
    pub async fn start() -> Self {
        Self::launch(None, None, "").await
    }

    /// A server that takes messages of at most this many bytes.
    pub async fn with_max_payload(bytes: usize) -> Self {
        Self::launch(None, None, &format!("max_payload: {bytes}\n")).await
    }

    /// A server without TLS, with more lines of configuration.
    pub async fn with_conf(extra: &str) -> Self {
        Self::launch(None, None, extra).await
    }

    /// A server that speaks TLS only, asks clients for a certificate of the same authority, and for
    /// a token.
    pub async fn with_tls(certs: &Certs, token: &str) -> Self {
        Self::launch(Some(certs.clone()), Some(token.to_owned()), "").await
    }

    async fn launch(certs: Option<Certs>, token: Option<String>, extra: &str) -> Self {
        let dir =
            tempfile::Builder::new().prefix("firth-").tempdir().expect("a temporary folder can be made");
        let server = Self { process: Mutex::new(None), port: Port::reserve(), dir, certs, token };
        fs::write(server.dir.path().join("nats.conf"), server.conf() + extra)
            .expect("the temporary folder is writable");
        server.restart().await;
        server
    }

    fn conf(&self) -> String {
        let store = self.dir.path().join("store");
        let mut conf =
            format!("listen: \"{}\"\njetstream {{ store_dir: \"{}\" }}\n", self.addr(), store.display());
        if let Some(certs) = &self.certs {
            let cert = certs.server_cert_path();
            let key = certs.server_key_path();
            let cert = cert.display();
            let key = key.display();
            let ca = certs.ca_path();
            let ca = ca.display();
            let _ = writeln!(
                conf,
                "tls {{ cert_file: \"{cert}\", key_file: \"{key}\", ca_file: \"{ca}\", verify: true }}"
            );
        }
        if let Some(token) = &self.token {
            let _ = writeln!(conf, "authorization {{ token: \"{token}\" }}");
        }
        conf
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Its URL: `nats://127.0.0.1:port`, or `tls://…`.
    pub fn url(&self) -> String {
        let scheme = if self.certs.is_some() { "tls" } else { "nats" };
        format!("{scheme}://{}", self.addr())
    }

    /// Ends it as `kill -9` does; its files stay.
    pub async fn kill(&self) {
        let gone = self.slot().take();
        drop(gone);
    }

    /// Lets it do nothing until it is thawed: connections stay open without answers.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Ends [`NatsServer::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Starts it (again), on the same port with the same files; returns when it greets.
    pub async fn restart(&self) {
        drop(self.slot().take());
        let log = self.dir.path().join("nats.log");
        let conf = self.dir.path().join("nats.conf");
        let binary = tool("FIRTH_NATS_SERVER", "nats/nats-server", Some("nats-server"));
        let started = Process::spawn(&binary, &["-c".into(), conf.into()], &[], &log);
        *self.slot() = Some(started);
        let mut poll = Poll::new(PATIENCE);
        while !self.greets().await {
            let told = fs::read_to_string(&log).unwrap_or_default();
            poll.again_or_panic(&format!("nats-server answers; its log:\n{told}")).await;
        }
    }

    async fn greets(&self) -> bool {
        let Ok(mut socket) = TcpStream::connect(self.addr()).await else { return false };
        let mut hello = [0; 4];
        socket.read_exact(&mut hello).await.is_ok() && hello == *b"INFO"
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &*self.slot() {
            process.signal(signal);
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
