//! A nats-server with JetStream of our own on a free port, ended with this value.

use super::place::{cpu_of, folder_bytes, resident};
use anyhow::{Context, Result, bail};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Nats {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    on_disk: bool,
}

/// The binary: `FIRTH_NATS_SERVER`, the private folder of the workspace, or on `PATH`.
pub(crate) fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("FIRTH_NATS_SERVER").map(PathBuf::from);
    let private = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/nats/nats-server");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("nats-server"));
    named.into_iter().chain([private]).chain(on_path).find(|file| file.is_file())
}

impl Nats {
    pub(crate) fn start(on_disk: bool) -> Result<Self> {
        let binary = binary().context("no nats-server; `cargo xtask bench` fetches one")?;
        let dir = tempfile::Builder::new().prefix("firth-bench-").tempdir().context("make a folder")?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        // Ends with us, also when we are killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(binary)
            .args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start nats-server")?;
        let nats = Self { child, port, dir, on_disk };
        nats.wait_until_ready()?;
        Ok(nats)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", self.port)) {
                // The server greets each connection.
                let mut hello = [0; 4];
                if socket.read_exact(&mut hello).is_ok() && hello == *b"INFO" {
                    return Ok(());
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("nats-server does not answer on port {}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu_of(self.child.id())
    }

    pub(crate) fn bytes(&self) -> Result<f64> {
        if self.on_disk { folder_bytes(self.dir.path()) } else { resident(self.child.id()) }
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        self.on_disk
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        // Nothing can be done about a server that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
