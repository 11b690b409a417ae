//! Chooses what a [`RedisServer`] is like before it starts.

use super::conf::{Settings, Tls};
use super::{RedisServer, conf};
use crate::bins::Flavor;
use crate::certs::Certs;
use crate::clock::ServerClock;
use crate::ports::Port;

/// What the server keeps on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persist {
    /// Nothing: a restarted server is empty.
    #[default]
    None,
    /// An append-only file, synced once a second.
    Aof,
    /// An append-only file, synced before each reply.
    AofAlways,
    /// A snapshot at [`RedisServer::shutdown`] (and on `SAVE`).
    Rdb,
}

impl Persist {
    pub(super) fn lines(self) -> Vec<&'static str> {
        match self {
            Self::None => vec!["save \"\"", "appendonly no"],
            Self::Aof => vec!["save \"\"", "appendonly yes", "appendfsync everysec"],
            Self::AofAlways => vec!["save \"\"", "appendonly yes", "appendfsync always"],
            Self::Rdb => vec!["save 3600 1", "appendonly no"],
        }
    }
}

/// Made by [`RedisServer::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct RedisServerBuilder {
    settings: Settings,
}

impl Default for RedisServerBuilder {
    fn default() -> Self {
        let settings = Settings {
            flavor: Flavor::Redis,
            password: None,
            users: Vec::new(),
            prefer_unix: false,
            tls: None,
            persist: Persist::None,
            sentinel: false,
            lines: Vec::new(),
            environment: Vec::new(),
        };
        Self { settings }
    }
}

impl RedisServerBuilder {
    /// Which server to run; Redis unless told.
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.settings.flavor = flavor;
        self
    }

    /// Password of the default user, also used towards a master.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.password = Some(password.into());
        self
    }

    /// A user with ACL rules, such as `("alice", "on >secret ~* +@read")`.
    pub fn acl_user(mut self, name: impl Into<String>, rules: impl Into<String>) -> Self {
        self.settings.users.push((name.into(), rules.into()));
        self
    }

    /// Lets [`RedisServer::url`] name the Unix socket instead of the port.
    pub fn unix_socket(mut self) -> Self {
        self.settings.prefer_unix = true;
        self
    }

    /// Speaks only TLS on the port, without asking for client certificates. Redis only.
    pub fn tls(self, certs: &Certs) -> Self {
        self.with_tls(certs, false)
    }

    /// Speaks only TLS on the port, and only with clients whose certificate the CA signed. Redis
    /// only.
    pub fn mutual_tls(self, certs: &Certs) -> Self {
        self.with_tls(certs, true)
    }

    /// What to keep on disk; nothing unless told.
    pub fn persist(mut self, persist: Persist) -> Self {
        self.settings.persist = persist;
        self
    }

    /// Follows another server as its replica.
    pub fn replica_of(self, master: &RedisServer) -> Self {
        self.arg("replicaof", format!("127.0.0.1 {}", master.port()))
    }

    /// Lets the server tell the time by a clock that the test sets.
    pub fn clock(mut self, clock: &ServerClock) -> Self {
        self.settings.environment = clock.environment();
        self
    }

    /// Sets a configuration option; values with spaces are written as they are.
    pub fn arg(self, name: &str, value: impl AsRef<str>) -> Self {
        self.config(format!("{name} {}", value.as_ref()))
    }

    /// Adds a line to the configuration file.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.settings.lines.push(line.into());
        self
    }

    /// Adds a line whose last word is quoted, for secrets with odd characters.
    pub(super) fn config_quoted(self, start: &str, value: &str) -> Self {
        self.config(format!("{start} {}", conf::quoted(value)))
    }

    /// Runs as a sentinel.
    pub(super) fn sentinel(mut self) -> Self {
        self.settings.sentinel = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// If the server cannot be started; the message carries the end of its log.
    pub async fn start(self) -> RedisServer {
        self.start_on(Port::reserve()).await
    }

    /// As [`RedisServerBuilder::start`], on a port that was reserved before.
    pub async fn start_on(self, port: Port) -> RedisServer {
        let flavor = self.settings.flavor;
        assert!(self.settings.tls.is_none() || flavor.has_tls(), "the {flavor} binary has no TLS");
        RedisServer::launch(self.settings, port).await
    }

    fn with_tls(mut self, certs: &Certs, client_certs: bool) -> Self {
        self.settings.tls = Some(Tls { certs: certs.clone(), client_certs });
        self
    }
}
