//! A real `redis-server` or `valkey-server` as a test fixture.
//!
//! Each server has its own port (kept across restarts, see [`crate::ports`]), its own temporary
//! folder and its own Unix socket, through which the fixture itself talks to it as a user of its
//! own: so [`RedisServer::command`] works with any password, ACL or TLS that the test sets. The
//! process ends with the value, with the test process, and on panic, whichever comes first.

mod builder;
pub(crate) mod conf;
pub(crate) mod process;
pub(crate) mod sentinel;

use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::UnixStream;

pub use self::builder::{Persist, RedisServerBuilder};
use self::conf::{CONTROL_PASSWORD, CONTROL_USER, Settings};
use self::process::Process;
use crate::bins::Flavor;
use crate::ports::Port;
use crate::resp::{Conn, Reply};
use crate::wait::{PATIENCE, Poll};

/// How long one control command may take; longer means that the server hangs.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// A running server, ended with this value. Commands of the fixture itself bypass passwords and
/// TLS.
#[derive(Debug)]
pub struct RedisServer {
    settings: Settings,
    // dropped before the folder, so that no server writes into a folder that is being removed
    process: Mutex<Option<Process>>,
    frozen: AtomicBool,
    port: Port,
    dir: TempDir,
}

impl RedisServer {
    /// A server with no password, no TLS and no persistence.
    pub async fn start(flavor: Flavor) -> Self {
        Self::builder().flavor(flavor).start().await
    }

    /// Chooses what the server is like.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    async fn launch(settings: Settings, port: Port) -> Self {
        let dir =
            tempfile::Builder::new().prefix("firth-").tempdir().expect("a temporary folder can be made");
        let server = Self { settings, process: Mutex::new(None), frozen: AtomicBool::new(false), port, dir };
        fs::write(server.conf_path(), server.settings.render(server.dir.path(), server.port.number()))
            .expect("the temporary folder is writable");
        server.spawn();
        server.ready().await;
        server
    }

    /// Which server this is.
    pub fn flavor(&self) -> Flavor {
        self.settings.flavor
    }

    /// The TCP port; the same across restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The TCP address, always on `127.0.0.1`.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Where clients connect: over the Unix socket if the builder asked for it, else over TLS or
    /// TCP. Carries the default user's password.
    pub fn url(&self) -> String {
        if self.settings.prefer_unix { self.unix_url() } else { self.tcp_url() }
    }

    /// `redis://…` or, with TLS, `rediss://localhost…`.
    pub fn tcp_url(&self) -> String {
        let (scheme, host) = match self.settings.tls {
            Some(_) => ("rediss", "localhost"),
            None => ("redis", "127.0.0.1"),
        };
        format!("{scheme}://{}{host}:{}/", self.settings.userinfo(), self.port())
    }

    /// `redis+unix://…`; every server also listens on its Unix socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}{}", self.settings.userinfo(), self.socket_path().display())
    }

    /// The Unix socket.
    pub fn socket_path(&self) -> PathBuf {
        self.dir.path().join(conf::SOCKET_FILE)
    }

    /// The server's folder, with its data files.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// The process id.
    ///
    /// # Panics
    /// If the server is not running.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server is running").pid()
    }

    /// Whether the process exists (a frozen one does).
    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(|process| process.exit_status().is_none())
    }

    /// Whether the process runs and is not frozen.
    pub fn is_live(&self) -> bool {
        !self.frozen.load(Ordering::Relaxed) && self.is_running()
    }

    /// `kill -9`, and waits until the process is gone. Does nothing if it is not running.
    pub async fn kill(&self) {
        self.end(Signal::SIGKILL).await;
    }

    /// Asks the server to end in good order (it saves if [`Persist`] says so) and waits for it.
    pub async fn shutdown(&self) {
        self.end(Signal::SIGTERM).await;
    }

    /// Stops the process without ending it (SIGSTOP): connections stay open, nothing answers.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Starts the server again on the same port and data, after `kill -9` if it still runs, and
    /// waits until it has loaded its data.
    pub async fn restart(&self) {
        self.relaunch().await;
        self.ready().await;
    }

    /// As [`RedisServer::restart`], but returns as soon as the server accepts connections: it may
    /// still answer `LOADING`.
    pub async fn relaunch(&self) {
        self.kill().await;
        self.spawn();
        let mut poll = Poll::new(PATIENCE);
        while UnixStream::connect(self.socket_path()).await.is_err() {
            self.still_waiting(&mut poll, "it accepts connections").await;
        }
    }

    /// As [`RedisServer::restart`], as a replica of this server: a master that comes back without
    /// its data must never be followed.
    pub async fn restart_as_replica_of(&self, master: &Self) {
        self.kill().await;
        let mut conf = fs::read_to_string(self.conf_path()).expect("the configuration file is readable");
        conf.push_str(&format!("\nreplicaof 127.0.0.1 {}\n", master.port()));
        fs::write(self.conf_path(), conf).expect("the temporary folder is writable");
        self.restart().await;
    }

    /// One command, on a connection of its own, as a user who may do everything.
    ///
    /// # Panics
    /// If no reply comes; an error reply is a reply.
    pub async fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        match self.try_command(args).await {
            Ok(reply) => reply,
            Err(error) => panic!("{} server did not answer: {error}\n{}", self.flavor(), self.log_tail(20)),
        }
    }

    /// As [`RedisServer::command`] for tests that expect the server to be out of reach.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer.
    pub async fn try_command<A: AsRef<[u8]>>(&self, args: &[A]) -> io::Result<Reply> {
        let exchange = async { self.connect().await?.call(args).await };
        tokio::time::timeout(COMMAND_LIMIT, exchange).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no reply in {COMMAND_LIMIT:?}")))
        })
    }

    /// A command that must not be refused.
    ///
    /// # Panics
    /// If no reply comes, or an error.
    pub async fn order<A: AsRef<[u8]>>(&self, args: &[A]) -> Reply {
        let reply = self.command(args).await;
        if let Reply::Error(text) = &reply {
            let words: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg.as_ref())).collect();
            panic!("{} server refused `{}`: {text}", self.flavor(), words.join(" "));
        }
        reply
    }

    /// A control connection that keeps its state between commands.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn connect(&self) -> io::Result<Conn<UnixStream>> {
        let mut conn = Conn::over(UnixStream::connect(self.socket_path()).await?);
        match conn.call(&["AUTH", CONTROL_USER, CONTROL_PASSWORD]).await? {
            Reply::Error(text) if !text.starts_with("LOADING") => Err(io::Error::other(text)),
            _ => Ok(conn),
        }
    }

    /// The fields of one section of `INFO`.
    ///
    /// # Panics
    /// If no reply comes.
    pub async fn info(&self, section: &str) -> HashMap<String, String> {
        fields(&self.command(&["INFO", section]).await.text())
    }

    /// As [`RedisServer::info`] for servers that change their role, and drop their clients when
    /// they do.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer.
    pub async fn try_info(&self, section: &str) -> io::Result<HashMap<String, String>> {
        Ok(fields(&self.try_command(&["INFO", section]).await?.text()))
    }

    /// Everything that the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn signal(&self, signal: Signal) {
        self.process().as_ref().expect("the server is running").signal(signal);
    }

    async fn end(&self, signal: Signal) {
        let Some(mut process) = self.process().take() else { return };
        process.signal(signal);
        let mut poll = Poll::new(PATIENCE);
        while process.exit_status().is_none() {
            poll.again_or_panic("the server process ends").await;
        }
    }

    fn spawn(&self) {
        let process = Process::spawn(
            &self.settings.flavor.server_binary(),
            &self.settings.arguments(&self.conf_path()),
            &self.settings.environment,
            &self.log_path(),
        );
        self.frozen.store(false, Ordering::Relaxed);
        *self.process() = Some(process);
    }

    async fn ready(&self) {
        let mut poll = Poll::new(PATIENCE);
        while !matches!(self.try_command(&["PING"]).await, Ok(Reply::Simple(text)) if text == "PONG") {
            self.still_waiting(&mut poll, "it answers PING").await;
        }
    }

    /// One more turn of a loop that waits for the server; fails at once if the process has ended.
    /// One that died while it rewrote its append-only file may refuse a start, and a later one is
    /// right: if the file has a torn end, which it mends then, and while the rewriting child still
    /// has the port. A supervisor starts such servers again, and so does this.
    async fn still_waiting(&self, poll: &mut Poll, what: &str) {
        let comes_again = |tail: &str| {
            tail.contains("the truncated file is not the last file")
                || tail.contains("Address already in use")
        };
        if !self.is_running() {
            let tail = self.log_tail(20);
            assert!(comes_again(&self.log_tail(6)), "{} server ended before {what}\n{tail}", self.flavor());
            self.spawn();
        }
        assert!(poll.again().await, "{} server: gave up before {what}\n{}", self.flavor(), self.log_tail(20));
    }

    fn log_tail(&self, count: usize) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("last lines of its log:\n{}", lines[lines.len().saturating_sub(count)..].join("\n"))
    }

    fn conf_path(&self) -> PathBuf {
        self.dir.path().join("server.conf")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }
}

/// A test that failed shows how its servers ended.
impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = if self.is_running() { "runs" } else { "is gone" };
            eprintln!("{} server at {} {state}; {}", self.flavor(), self.port(), self.log_tail(8));
        }
    }
}

/// `name:value` lines.
fn fields(info: &str) -> HashMap<String, String> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}
