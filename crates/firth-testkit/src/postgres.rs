//! A real PostgreSQL as a test fixture, ended with its value.
//!
//! Tests command it through its Unix socket, where it trusts them; over TCP it asks for a password
//! (SCRAM). It refuses to run as root, so as root it is started as the user `postgres`.

use crate::Certs;
use crate::bins::on_path;
use crate::ports::Port;
use crate::server::process::Process;
use crate::wait::{PATIENCE, Poll};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// The role that tests give to readers of the change stream, and its password.
const ROLE: &str = "firth";
const PASSWORD: &str = "s3cret";
/// The database that tests use.
const DATABASE: &str = "shop";

/// A running server on a port that it keeps across restarts, with its files in a folder of its own.
#[derive(Debug)]
pub struct PostgresServer {
    // dropped before the folder
    process: Mutex<Option<Process>>,
    port: Port,
    dir: TempDir,
}

impl PostgresServer {
    /// A server with logical replication, the database `shop`, and the role `firth` that may
    /// replicate and create.
    pub async fn start() -> Self {
        Self::launch(None, "").await
    }

    /// As [`PostgresServer::start`], with more lines of `postgresql.conf`.
    pub async fn with_conf(extra: &str) -> Self {
        Self::launch(None, extra).await
    }

    /// As [`PostgresServer::start`], and over TCP it speaks TLS only.
    pub async fn with_tls(certs: &Certs) -> Self {
        Self::launch(Some(certs), "").await
    }

    async fn launch(certs: Option<&Certs>, extra: &str) -> Self {
        let dir =
            tempfile::Builder::new().prefix("firth-").tempdir().expect("a temporary folder can be made");
        give(dir.path());
        let server = Self { process: Mutex::new(None), port: Port::reserve(), dir };
        server.init();
        server.configure(certs, extra);
        server.restart().await;
        let role = format!(
            "CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD '{PASSWORD}'; CREATE DATABASE {DATABASE} OWNER {ROLE};"
        );
        server.run_sql("postgres", &role).await.expect("the role and the database can be made");
        server
    }

    fn init(&self) {
        let args = ["--auth-local=trust", "--auth-host=scram-sha-256", "--username=postgres"];
        let more = ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"];
        let password = self.dir.path().join("password");
        fs::write(&password, PASSWORD).expect("the temporary folder is writable");
        give(&password);
        let (binary, mut words) = as_server_user(&program("initdb"));
        words.extend(args.iter().chain(&more).map(OsString::from));
        words.push(format!("--pwfile={}", password.display()).into());
        words.push(format!("--pgdata={}", self.data().display()).into());
        // Its locale is the test's, and its home is not ours.
        let output = Command::new(binary).args(words).current_dir(self.dir.path()).output();
        let output = output.expect("initdb can be started");
        assert!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn configure(&self, certs: Option<&Certs>, extra: &str) {
        let mut conf = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\n\
             wal_level = logical\nmax_wal_senders = 10\nmax_replication_slots = 10\n\
             fsync = off\nshared_buffers = 16MB\nmax_connections = 30\n\
             dynamic_shared_memory_type = mmap\nlog_min_messages = log\n",
            self.port.number(),
            self.dir.path().display()
        );
        let mut access = "local all all trust\nlocal replication all trust\n".to_owned();
        let kind = if certs.is_some() { "hostssl" } else { "host" };
        access += &format!("{kind} all all 127.0.0.1/32 scram-sha-256\n");
        access += &format!("{kind} replication all 127.0.0.1/32 scram-sha-256\n");
        if let Some(certs) = certs {
            let key = self.data().join("server.key");
            fs::write(&key, &certs.server().key_pem).expect("the data folder is writable");
            fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is our file");
            let cert = self.data().join("server.crt");
            fs::write(&cert, &certs.server().cert_pem).expect("the data folder is writable");
            [&key, &cert].into_iter().for_each(|file| give(file));
            conf += "ssl = on\n";
        }
        conf += extra;
        let write = |name: &str, text: String| {
            let mut file = fs::OpenOptions::new().append(true).open(self.data().join(name));
            let file = file.as_mut().expect("initdb made this file");
            file.write_all(text.as_bytes()).expect("the data folder is writable");
        };
        write("postgresql.conf", conf + "\n");
        fs::write(self.data().join("pg_hba.conf"), access).expect("the data folder is writable");
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of the database for the role that reads, without its password.
    pub fn url(&self) -> String {
        format!("postgres://{ROLE}@{}/{DATABASE}", self.addr())
    }

    /// The password of that role.
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// A program of PostgreSQL that reaches the database as the superuser, such as `psql`.
    pub fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(program(name));
        command.args(["--username=postgres", "--dbname", DATABASE]);
        command.args(["--port", &self.port.number().to_string()]).arg("--host").arg(self.dir.path());
        command
    }

    /// Runs statements as the superuser; answers what they print, one row per line and `|` between
    /// values.
    ///
    /// # Panics
    /// If the server refuses one.
    pub async fn sql(&self, statements: impl AsRef<str>) -> String {
        match self.try_sql(statements.as_ref()).await {
            Ok(text) => text,
            Err(error) => panic!("PostgreSQL refused `{}`: {error}", statements.as_ref()),
        }
    }

    /// As [`PostgresServer::sql`] for statements that may fail.
    ///
    /// # Errors
    /// What the server says.
    pub async fn try_sql(&self, statements: &str) -> Result<String, String> {
        self.run_sql(DATABASE, statements).await
    }

    /// As [`PostgresServer::sql`], as the role that owns the database.
    pub async fn sql_as_owner(&self, statements: impl AsRef<str>) -> String {
        self.sql(format!("SET ROLE {ROLE}; {}", statements.as_ref())).await
    }

    async fn run_sql(&self, database: &str, statements: &str) -> Result<String, String> {
        let mut command = Command::new(program("psql"));
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]);
        command.args([
            "--username=postgres",
            "--dbname",
            database,
            "--port",
            &self.port.number().to_string(),
        ]);
        command.arg("--host").arg(self.dir.path()).args(["--file", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let text = statements.to_owned();
        let ran = tokio::task::spawn_blocking(move || feed(command, &text));
        let output = ran.await.expect("psql does not panic").map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
    }

    /// Ends it as `kill -9` does; its files stay.
    pub async fn kill(&self) {
        self.end(Signal::SIGKILL).await;
    }

    /// Ends it as an operator does: open sessions are ended, replication is finished.
    pub async fn shutdown(&self) {
        self.end(Signal::SIGINT).await;
    }

    /// Ends it without a checkpoint: the next start recovers from its log.
    pub async fn stop_immediately(&self) {
        self.end(Signal::SIGQUIT).await;
    }

    /// Starts it (again), on the same port with the same files; returns when it takes queries.
    pub async fn restart(&self) {
        self.kill().await;
        let (binary, mut words) = as_server_user(&program("postgres"));
        words.extend([OsString::from("-D"), self.data().into()]);
        let log = self.dir.path().join("postgres.log");
        let spawn = || Process::spawn(&binary, &words, &[], &log);
        *self.slot() = Some(spawn());
        let mut poll = Poll::new(PATIENCE);
        while let Err(error) = self.run_sql("postgres", "SELECT 1").await {
            // It refuses to start while backends of a killed one still hold their shared memory.
            let has_ended = self.slot().as_mut().is_some_and(|process| process.exit_status().is_some());
            if has_ended {
                *self.slot() = Some(spawn());
            }
            let told = fs::read_to_string(&log).unwrap_or_default();
            poll.again_or_panic(&format!("PostgreSQL takes queries ({error}); its log:\n{told}")).await;
        }
    }

    /// Restarts it as a copy that takes over: the next timeline begins, and nothing is lost.
    pub async fn promote(&self) {
        self.shutdown().await;
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "").expect("the data folder is writable");
        give(&signal);
        self.restart().await;
        self.sql("SELECT pg_promote()").await;
    }

    /// A copy of this server that follows it, until it is [promoted](Self::take_over).
    pub async fn standby(&self) -> Self {
        let dir =
            tempfile::Builder::new().prefix("firth-").tempdir().expect("a temporary folder can be made");
        give(dir.path());
        let standby = Self { process: Mutex::new(None), port: Port::reserve(), dir };
        let (binary, mut words) = as_server_user(&program("pg_basebackup"));
        let fixed = ["--username=postgres", "--checkpoint=fast", "--wal-method=stream", "--no-sync"];
        words.extend(fixed.map(OsString::from));
        words.push("--write-recovery-conf".into());
        words.push(format!("--host={}", self.dir.path().display()).into());
        words.push(format!("--port={}", self.port.number()).into());
        words.push(format!("--pgdata={}", standby.data().display()).into());
        let home = standby.dir.path().to_owned();
        let copy = move || Command::new(binary).args(words).current_dir(home).output();
        let output = tokio::task::spawn_blocking(copy).await.expect("it does not panic");
        let output = output.expect("pg_basebackup can be started");
        assert!(output.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&output.stderr));
        let own = format!(
            "port = {}\nunix_socket_directories = '{}'\n",
            standby.port.number(),
            standby.dir.path().display()
        );
        let mut conf = fs::OpenOptions::new().append(true).open(standby.data().join("postgresql.conf"));
        let conf = conf.as_mut().expect("the copy has this file");
        conf.write_all(own.as_bytes()).expect("the data folder is writable");
        standby.restart().await;
        standby
    }

    /// Waits until a standby has everything that is committed here.
    pub async fn is_followed_by(&self, standby: &Self) {
        let place = self.sql("SELECT pg_current_wal_lsn()").await;
        let mut poll = Poll::new(PATIENCE);
        let behind = format!("SELECT coalesce(pg_last_wal_replay_lsn(), '0/0') >= '{place}'");
        while standby.sql(&behind).await != "t" {
            poll.again_or_panic("the standby follows").await;
        }
    }

    /// Gives a standby, which must be stopped, a slot of this server as it is now: what tools for
    /// failover do before version 17.
    pub async fn copy_slot_to(&self, standby: &Self, slot: &str) {
        self.sql("CHECKPOINT").await;
        let place = Path::new("pg_replslot").join(slot);
        let target = standby.data().join(&place);
        fs::create_dir(&target).expect("the data folder is writable");
        give(&target);
        fs::copy(self.data().join(&place).join("state"), target.join("state")).expect("the slot is on disk");
        give(&target.join("state"));
    }

    /// Makes a standby the primary; the next timeline begins.
    pub async fn take_over(&self) {
        self.sql("SELECT pg_promote()").await;
    }

    async fn end(&self, signal: Signal) {
        let Some(mut process) = self.slot().take() else { return };
        process.signal(signal);
        let mut poll = Poll::new(PATIENCE);
        // Its backends end when they miss it; the next start is tried until they have.
        while process.exit_status().is_none() {
            poll.again_or_panic("PostgreSQL ends").await;
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the server give its shared memory back, which a killed one cannot.
impl Drop for PostgresServer {
    fn drop(&mut self) {
        let Some(mut process) = self.slot().take() else { return };
        process.signal(Signal::SIGQUIT);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while process.exit_status().is_none() && std::time::Instant::now() < deadline {
            // own thread: a destructor cannot await
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn feed(mut command: Command, text: &str) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    let mut input = child.stdin.take().expect("its input is ours");
    // A statement that is refused ends the reading.
    let _ = input.write_all(text.as_bytes());
    drop(input);
    child.wait_with_output()
}

/// A program of PostgreSQL: in the folder that `FIRTH_POSTGRES_BIN` names, of the newest packaged
/// version, or on `PATH`.
///
/// # Panics
/// If there is none; the message says what to run.
fn program(name: &str) -> PathBuf {
    let named = std::env::var_os("FIRTH_POSTGRES_BIN").map(|dir| Path::new(&dir).join(name));
    named.or_else(|| packaged(name)).or_else(|| on_path(name)).unwrap_or_else(|| {
        panic!(
            "no {name} of PostgreSQL found (looked at FIRTH_POSTGRES_BIN, /usr/lib/postgresql, PATH); \
             run `cargo xtask setup` to install it"
        )
    })
}

/// Debian keeps the server's programs away from `PATH`, in one folder per version.
fn packaged(name: &str) -> Option<PathBuf> {
    let version = |dir: &PathBuf| dir.file_name()?.to_str()?.parse::<u32>().ok();
    let all = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let has_it = all.filter(|dir| dir.join("bin").join(name).is_file());
    has_it.max_by_key(version).map(|dir| dir.join("bin").join(name))
}

/// A program and its first arguments, so that it runs as a user that PostgreSQL accepts, and ends
/// when this process does: a change of the user resets what our own start has set.
fn as_server_user(binary: &Path) -> (PathBuf, Vec<OsString>) {
    let Some((user, group)) = server_user() else { return (binary.to_owned(), Vec::new()) };
    let setpriv = on_path("setpriv").expect("setpriv is part of util-linux");
    let words = ["--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups"]
        .map(OsString::from)
        .into_iter()
        .chain(["--pdeathsig", "KILL", "--"].map(OsString::from))
        .chain([binary.into()]);
    (setpriv, words.collect())
}

/// The user `postgres` with its group, if we are root.
fn server_user() -> Option<(u32, u32)> {
    let ours = fs::metadata("/proc/self").expect("every Linux tells of its processes");
    if ours.uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("every Linux has users");
    let line = users.lines().find_map(|line| line.strip_prefix("postgres:"));
    let mut fields = line.expect("the package of PostgreSQL makes its user").split(':').skip(1);
    let mut number = || fields.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Gives a file to the user of the server.
fn give(path: &Path) {
    if let Some((user, group)) = server_user() {
        chown(path, Some(user), Some(group)).expect("root may give files away");
    }
}
