//! Everything that can be configured about a client, with its defaults, and the URLs that choose it
//! (`config/url.rs`).

mod url;

use crate::backoff::Backoff;
use crate::command::Command;
use crate::error::ConnectError;
use crate::resp::ReplyLimits;
use crate::secret::Secret;
use crate::sentinel::SentinelResolver;
use crate::trace::TraceHook;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How to reach a server, who we are there, and what this client may use up.
///
/// Made from a URL ([`Config::from_url`], or simply passing the URL to
/// [`Client::connect`](crate::Client::connect)) and then changed field by field:
///
/// ```
/// use firth_redis::Config;
/// let mut config = Config::from_url("rediss://app:secret@cache.example:6380/2?name=worker")?;
/// config.timeouts.request = Some(std::time::Duration::from_millis(500));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), firth_redis::ConnectError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where the server is.
    pub server: Server,
    /// The ACL user; `None` is the server's default user.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The database; 0 in a cluster.
    pub database: u32,
    /// What `CLIENT LIST` shows.
    pub client_name: Option<String>,
    /// TLS, if the connection is to be encrypted.
    pub tls: Option<TlsOptions>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// What happens when a connection breaks: the schedule of new tries, or `None` to stay closed.
    /// To a node of a cluster no delay is longer than 2 s, and without a schedule the next request
    /// connects anew.
    pub reconnect: Option<Backoff>,
    /// How a silent peer is found out; `None` trusts TCP alone.
    pub liveness: Option<Liveness>,
    /// Bounds on what waits to be sent and answered.
    pub queue: QueueLimits,
    /// Bounds on what the server may send.
    pub reply_limits: ReplyLimits,
    /// Separate connections for big and for blocking requests.
    pub lanes: LaneOptions,
    /// Called in the caller's task after each request, and on request when one starts. In a
    /// cluster it is called for each attempt, and for each node that a pipeline is split over.
    pub trace: Option<TraceHook>,
    /// What a cluster client does; see [`ClusterOptions`].
    pub cluster: ClusterOptions,
    /// Commands that every new connection runs after its handshake (READONLY, CLIENT TRACKING…).
    pub(crate) setup: Arc<[Command]>,
    /// What the connections of a client know together of their sentinels; made when the
    /// configuration is checked.
    pub(crate) sentinel_resolver: Option<Arc<SentinelResolver>>,
    /// What the connections of a client share of TLS; made when the configuration is checked.
    #[cfg(feature = "tls")]
    pub(crate) tls_cache: Arc<crate::connection::TlsCache>,
}

/// Where a server is, or how to find it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Server {
    /// One server over TCP.
    Tcp(Address),
    /// One server over a Unix socket.
    Unix(PathBuf),
    /// The master that the sentinels name; followed when it changes.
    Sentinel(Sentinels),
    /// A cluster, reached first through any of these nodes.
    Cluster(Vec<Address>),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Address {
    /// A host and a port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A set of sentinels and the master that they watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinels {
    /// The sentinels; asked in turn until one answers.
    pub addresses: Vec<Address>,
    /// The name under which they watch the master.
    pub master: String,
    /// The user at the sentinels, if they want one.
    pub username: Option<String>,
    /// The password at the sentinels, if they want one.
    pub password: Option<Secret>,
}

/// TLS settings. The server's name is always checked.
///
/// The connections of a client share what is made of these settings: certificates are parsed once,
/// and sessions are resumed. The system's certificates are read once per client;
/// [`files`](Self::files) are read again when they change.
#[derive(Clone, Default)]
pub struct TlsOptions {
    /// Trusted authorities in PEM form; `None` trusts those of the system.
    pub ca: Option<Vec<u8>>,
    /// Our own certificate chain in PEM form, if the server wants one.
    pub certificate: Option<Vec<u8>>,
    /// The private key of our certificate in PEM form.
    pub key: Option<Secret>,
    /// The name to check the server's certificate against, if it differs from the host.
    pub server_name: Option<String>,
    /// Files to read instead of the fields above. A new connection uses what they hold then, so
    /// that certificates can be renewed under a running client. While new files cannot be used, the
    /// old ones stay in use, and a warning says so.
    pub files: TlsPaths,
}

/// Where the parts of [`TlsOptions`] are kept, each in PEM form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPaths {
    /// Trusted authorities.
    pub ca: Option<PathBuf>,
    /// Our own certificate chain.
    pub certificate: Option<PathBuf>,
    /// The private key of our certificate.
    pub key: Option<PathBuf>,
}

impl TlsOptions {
    /// Takes what the files hold now.
    pub(crate) fn read_files(&mut self) -> Result<(), ConnectError> {
        let read = |field, path: &PathBuf| {
            std::fs::read(path)
                .map_err(|e| ConnectError::config(field, format!("the file cannot be read: {e}")))
        };
        if let Some(path) = &self.files.ca {
            self.ca = Some(read("tls_ca", path)?);
        }
        if let Some(path) = &self.files.certificate {
            self.certificate = Some(read("tls_cert", path)?);
        }
        if let Some(path) = &self.files.key {
            let pem = String::from_utf8(read("tls_key", path)?);
            let pem = pem.map_err(|_| ConnectError::config("tls_key", "is not a PEM file"))?;
            self.key = Some(Secret::new(pem));
        }
        Ok(())
    }
}

impl std::fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsOptions")
            .field("own_ca", &self.ca.is_some())
            .field("client_certificate", &self.certificate.is_some())
            .field("server_name", &self.server_name)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// Time limits; `None` means no limit.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Timeouts {
    /// Looking up a host name.
    pub resolve: Option<Duration>,
    /// Opening the socket, TLS included.
    pub connect: Option<Duration>,
    /// HELLO, AUTH, SELECT.
    pub handshake: Option<Duration>,
    /// One request, from the call to its answer, unless the call says otherwise. Blocking commands
    /// have no limit by default.
    pub request: Option<Duration>,
    /// How long `close` waits for requests under way.
    pub close: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let five = Duration::from_secs(5);
        Self {
            resolve: Some(five),
            connect: Some(five),
            handshake: Some(five),
            request: Some(five),
            close: five,
        }
    }
}

/// When a connection counts as dead although TCP reports nothing. While a long request is sent,
/// progress of the network counts as a sign of life. While a blocking command waits, silence is
/// ignored.
///
/// **Long commands.** A server that works on one command (KEYS, FLUSHALL, a long script) is silent
/// to all its clients. So a silent connection is kept while a request waits without a time limit,
/// or with a longer one than [`Timeouts::request`]. The client then opens a second connection and
/// pings.
///
/// If the second connection is answered or refused, the client gives up the first one. If not, the
/// client takes the server for busy, and probes again later. TCP finds a host that vanished after
/// half a minute.
///
/// A command that the server parks while it serves others (a module's threads, CLIENT PAUSE) must
/// be marked [`blocking`](crate::Command::blocking).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// After this long without a byte from the server, a PING is sent.
    pub ping_after: Duration,
    /// If then still no byte comes for this long, the connection is given up.
    pub dead_after: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { ping_after: Duration::from_secs(1), dead_after: Duration::from_secs(5) }
    }
}

/// Bounds of one connection's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests under way.
    pub requests: usize,
    /// Bytes not yet given to the network.
    pub bytes: usize,
    /// What a request does when a bound is reached.
    pub when_full: FullQueuePolicy,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { requests: 16_384, bytes: 64 << 20, when_full: FullQueuePolicy::Wait }
    }
}

/// What a request does when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullQueuePolicy {
    /// Waits for room until its deadline.
    Wait,
    /// Fails at once with [`CallError::Full`](crate::CallError::Full).
    Fail,
}

/// Connections beside the shared one, opened when first needed, so that nothing waits behind a big
/// or blocking request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneOptions {
    /// A request of at least this many bytes goes over the bulk connection.
    pub bulk_from: usize,
    /// At most this many blocking commands at once, each on its own connection; one more fails with
    /// [`CallError::Full`](crate::CallError::Full).
    pub blocking: usize,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self { bulk_from: 128 << 10, blocking: 64 }
    }
}

/// Options of a cluster client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// How often the topology is asked for when nothing hints at a change; at least 100 ms.
    pub poll: Duration,
    /// Which nodes answer commands that only read: those marked with
    /// [`read_only`](crate::Command::read_only).
    pub reads: ReadFrom,
    /// Redirections and passing errors of one request before it gives up.
    pub max_redirects: u32,
    /// Translates the addresses that nodes announce into those that this client can reach (NAT,
    /// proxies).
    pub address_map: Option<AddressMap>,
    /// Connections per node for ordinary requests; requests are spread over them.
    pub connections_per_node: usize,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            reads: ReadFrom::Master,
            max_redirects: 16,
            address_map: None,
            connections_per_node: 1,
        }
    }
}

/// Which nodes of a cluster answer commands marked as reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// Masters only: what you wrote is what you read.
    Master,
    /// Replicas where there are any; what is read may be a little old.
    PreferReplica,
    /// Masters and replicas in turn.
    Any,
}

/// A translation of announced addresses.
#[derive(Clone)]
pub struct AddressMap(Arc<dyn Fn(&Address) -> Address + Send + Sync>);

impl AddressMap {
    /// Wraps a translation. It is called for every announced address and must be quick. If a node
    /// announces no host, the translation gets the host by which the client reached the node. If
    /// that host was translated already, only the port of the result is used.
    pub fn new(map: impl Fn(&Address) -> Address + Send + Sync + 'static) -> Self {
        Self(Arc::new(map))
    }

    pub(crate) fn apply(&self, address: &Address) -> Address {
        (self.0)(address)
    }
}

impl std::fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AddressMap")
    }
}

impl Config {
    /// The defaults for a server.
    pub fn new(server: Server) -> Self {
        Self {
            server,
            username: None,
            password: None,
            database: 0,
            client_name: None,
            tls: None,
            timeouts: Timeouts::default(),
            reconnect: Some(Backoff::default()),
            liveness: Some(Liveness::default()),
            queue: QueueLimits::default(),
            reply_limits: ReplyLimits::default(),
            lanes: LaneOptions::default(),
            trace: None,
            cluster: ClusterOptions::default(),
            setup: Arc::from([]),
            sentinel_resolver: None,
            #[cfg(feature = "tls")]
            tls_cache: Arc::default(),
        }
    }

    /// Reads a URL.
    ///
    /// | form | meaning |
    /// |---|---|
    /// | `redis://[user[:password]@]host[:port][/db]` | one server; `rediss://` for TLS |
    /// | `redis+unix:///path/to/socket` | one server over a Unix socket |
    /// | `redis+sentinel://host:port,host:port/master[/db]` | the master that the sentinels name; `rediss+sentinel://` for TLS |
    /// | `redis+cluster://host:port,host:port` | a cluster; `rediss+cluster://` for TLS |
    ///
    /// Options follow as `?name=value&…`: `db`, `name` (client name), `connect_timeout`,
    /// `request_timeout` (`500ms`, `5s`, `none`), `tls_ca`, `tls_cert`, `tls_key` (paths of PEM
    /// files, read again when they change), `tls_name`, `sentinel_user`, `sentinel_password`.
    /// Special characters in user, password and master are percent-encoded.
    pub fn from_url(url: &str) -> Result<Self, ConnectError> {
        url::parse(url)
    }

    /// Commands that every new connection for requests runs after its handshake, also after a
    /// reconnection: CLIENT TRACKING, CLIENT NO-EVICT and the like. If one is refused, the
    /// connection does not stand. A master behind sentinels gets them too, connections for
    /// subscriptions do not.
    #[must_use]
    pub fn on_connect(mut self, commands: impl IntoIterator<Item = Command>) -> Self {
        self.setup = commands.into_iter().collect();
        self
    }

    /// The same client at another server: a cluster's node, a sentinel's master.
    pub(crate) fn at(&self, server: Server) -> Self {
        Self { server, ..self.clone() }
    }

    /// Brings what can be out of range into range, and refuses what cannot work.
    pub(crate) fn checked(mut self) -> Result<Self, ConnectError> {
        self.sentinel_resolver = match &self.server {
            Server::Sentinel(sentinels) => Some(Arc::new(SentinelResolver::new(sentinels))),
            _ => None,
        };
        self.reconnect = self.reconnect.map(Backoff::sanitised);
        self.queue.requests = self.queue.requests.clamp(1, 1 << 24);
        self.queue.bytes = self.queue.bytes.max(1);
        self.cluster.poll = self.cluster.poll.max(Duration::from_millis(100));
        self.cluster.connections_per_node = self.cluster.connections_per_node.max(1);
        if matches!(&self.server, Server::Cluster(nodes) if nodes.is_empty()) {
            return Err(ConnectError::config("server", "a cluster needs the address of one node at least"));
        }
        if matches!(self.server, Server::Cluster(_)) && self.database != 0 {
            return Err(ConnectError::config("db", "a cluster has only database 0"));
        }
        if self.tls.is_some() && matches!(self.server, Server::Unix(_)) {
            return Err(ConnectError::config(
                "tls",
                "a Unix socket cannot be encrypted; use redis+unix:// without TLS options",
            ));
        }
        if self.tls.is_some() && cfg!(not(feature = "tls")) {
            return Err(ConnectError::config(
                "tls",
                "this build has no TLS; enable the feature `tls` of firth-redis",
            ));
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            tls.read_files()?;
            crate::connection::check_tls(tls)?;
            self.tls_cache = Arc::default();
        }
        if self.username.is_some() && self.password.is_none() {
            return Err(ConnectError::config(
                "password",
                "a user name needs a password: redis://user:password@host",
            ));
        }
        Ok(self)
    }
}

/// What a client can be made from: a URL or a [`Config`].
pub trait IntoConfig {
    /// The configuration, or what is wrong with it.
    fn into_config(self) -> Result<Config, ConnectError>;
}

impl IntoConfig for Config {
    fn into_config(self) -> Result<Config, ConnectError> {
        self.checked()
    }
}

impl IntoConfig for &Config {
    fn into_config(self) -> Result<Config, ConnectError> {
        self.clone().checked()
    }
}

impl IntoConfig for &str {
    fn into_config(self) -> Result<Config, ConnectError> {
        Config::from_url(self)?.checked()
    }
}

impl IntoConfig for String {
    fn into_config(self) -> Result<Config, ConnectError> {
        self.as_str().into_config()
    }
}

impl IntoConfig for &String {
    fn into_config(self) -> Result<Config, ConnectError> {
        self.as_str().into_config()
    }
}
