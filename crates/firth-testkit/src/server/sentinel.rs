//! One master, its replicas and the sentinels that watch them.
//!
//! Ready when every sentinel knows the master, all replicas and all other sentinels, so that a
//! failover can start at once. Timings are short: a dead master is replaced in about three seconds.

use super::{RedisServer, RedisServerBuilder};
use crate::bins::Flavor;
use crate::resp::Reply;
use crate::wait::{PATIENCE, Poll};
use std::collections::HashMap;
use std::net::SocketAddr;

const MASTER_NAME: &str = "firth-master";
const DOWN_AFTER_MS: u32 = 1000;
const FAILOVER_TIMEOUT_MS: u32 = 3000;
/// A sentinel that was starved for two seconds, or whose clock jumped, trusts nothing that it sees
/// for a while: half a minute by default.
const TILT_MS: &str = "1000";

/// A replicated server under sentinels.
#[derive(Debug)]
pub struct SentinelSet {
    data: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl SentinelSet {
    /// One master with this many replicas and sentinels; a majority of the sentinels decides.
    pub async fn start(flavor: Flavor, replicas: usize, sentinels: usize) -> Self {
        Self::start_with(flavor, replicas, sentinels, None).await
    }

    /// As [`SentinelSet::start`], where the data nodes and the sentinels all ask for a password.
    pub async fn start_with_password(
        flavor: Flavor,
        replicas: usize,
        sentinels: usize,
        password: &str,
    ) -> Self {
        Self::start_with(flavor, replicas, sentinels, Some(password)).await
    }

    async fn start_with(flavor: Flavor, replicas: usize, sentinels: usize, password: Option<&str>) -> Self {
        let node = || {
            let node = RedisServer::builder().flavor(flavor);
            match password {
                Some(password) => node.password(password),
                None => node,
            }
        };
        let mut data = vec![node().start().await];
        for _ in 0..replicas {
            let replica = node().replica_of(&data[0]).start().await;
            data.push(replica);
        }
        for replica in &data[1..] {
            linked(replica).await;
        }
        let mut watchers = Vec::new();
        for _ in 0..sentinels {
            watchers.push(watcher(node(), &data[0], sentinels / 2 + 1, password).start().await);
        }
        for sentinel in &watchers {
            sentinel.order(&["SENTINEL", "DEBUG", "TILT-PERIOD", TILT_MS]).await;
        }
        let set = Self { data, sentinels: watchers };
        set.settle().await;
        set
    }

    /// The name under which the sentinels know the master.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// `redis+sentinel://host:port,…/name` without credentials.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinel_addrs().iter().map(SocketAddr::to_string).collect();
        format!("redis+sentinel://{}/{MASTER_NAME}", hosts.join(","))
    }

    /// Where the sentinels listen.
    pub fn sentinel_addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(RedisServer::addr).collect()
    }

    /// The sentinels themselves.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Master and replicas; the first one was the master at the start.
    pub fn data_nodes(&self) -> &[RedisServer] {
        &self.data
    }

    /// The node that the sentinels now call master (it may be dead, if they have not noticed).
    pub async fn master(&self) -> &RedisServer {
        let port = self.agreed_master().await.expect("the sentinels name one master");
        self.data.iter().find(|node| node.port() == port).expect("the master is one of our nodes")
    }

    /// `kill -9` of the current master; returns it at once, before the sentinels notice.
    pub async fn kill_master(&self) -> &RedisServer {
        let master = self.master().await;
        master.kill().await;
        master
    }

    /// Asks for a failover while all is well, and waits until it is done; returns the new master.
    pub async fn failover(&self) -> &RedisServer {
        let old = self.master().await;
        let mut poll = Poll::new(PATIENCE);
        while self.live_sentinel().command(&["SENTINEL", "FAILOVER", MASTER_NAME]).await.is_error() {
            poll.again_or_panic("a sentinel takes the order to fail over").await;
        }
        self.wait_new_master(old).await
    }

    /// Waits until all live sentinels agree on a master other than `old` and it acts as one.
    pub async fn wait_new_master(&self, old: &RedisServer) -> &RedisServer {
        // Several elections may come to nothing before one succeeds.
        let mut poll = Poll::new(2 * PATIENCE);
        loop {
            let agreed = self.agreed_master().await.filter(|port| *port != old.port());
            let node = self.data.iter().find(|node| Some(node.port()) == agreed);
            if let Some(node) = node
                && role(node).await.as_deref() == Some("master")
            {
                return node;
            }
            poll.again_or_panic("another node is master").await;
        }
    }

    /// Waits until every sentinel sees all replicas and all other sentinels.
    pub async fn settle(&self) {
        for sentinel in &self.sentinels {
            let mut poll = Poll::new(PATIENCE);
            while !self.is_complete(&sentinel.command(&["SENTINEL", "MASTER", MASTER_NAME]).await) {
                poll.again_or_panic("all sentinels know each other and all replicas").await;
            }
        }
    }

    /// Waits until every node but the master follows it and has all of its data.
    pub async fn wait_in_step(&self) {
        let mut poll = Poll::new(PATIENCE);
        while !self.is_in_step().await {
            poll.again_or_panic("all replicas are in step with the master").await;
        }
    }

    async fn is_in_step(&self) -> bool {
        let Some(port) = self.agreed_master().await else { return false };
        for node in &self.data {
            let Ok(replication) = node.try_info("replication").await else { return false };
            let field = |name: &str| replication.get(name).map(String::as_str);
            let port = port.to_string();
            let follows = field("master_port") == Some(&port) && field("master_link_status") == Some("up");
            if node.port().to_string() != port && !follows {
                return false;
            }
        }
        true
    }

    /// Whether a sentinel knows all replicas and sentinels of the master.
    fn is_complete(&self, view: &Reply) -> bool {
        let known = |field: &str| view.field(field).map_or(0, Reply::int);
        known("num-slaves") + 1 >= self.data.len() as i64
            && known("num-other-sentinels") + 1 >= self.sentinels.len() as i64
    }

    fn live_sentinel(&self) -> &RedisServer {
        self.sentinels.iter().find(|sentinel| sentinel.is_running()).expect("a sentinel is alive")
    }

    /// The master's port, if all live sentinels say the same.
    async fn agreed_master(&self) -> Option<u16> {
        let mut ports = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_running()) {
            let query = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
            let reply = sentinel.try_command(&query).await.ok()?;
            let Reply::Array(addr) = reply else { return None };
            ports.push(u16::try_from(addr.get(1)?.int()).ok()?);
        }
        let first = *ports.first()?;
        ports.iter().all(|port| *port == first).then_some(first)
    }
}

/// Adds what a sentinel must know about the master.
fn watcher(
    node: RedisServerBuilder,
    master: &RedisServer,
    quorum: usize,
    password: Option<&str>,
) -> RedisServerBuilder {
    let node = node
        .sentinel()
        .config(format!("sentinel monitor {MASTER_NAME} 127.0.0.1 {} {quorum}", master.port()))
        .config(format!("sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}"))
        .config(format!("sentinel failover-timeout {MASTER_NAME} {FAILOVER_TIMEOUT_MS}"))
        .config(format!("sentinel parallel-syncs {MASTER_NAME} 1"));
    match password {
        Some(password) => node
            .config_quoted(&format!("sentinel auth-pass {MASTER_NAME}"), password)
            .config_quoted("sentinel sentinel-pass", password),
        None => node,
    }
}

async fn linked(replica: &RedisServer) {
    let mut poll = Poll::new(PATIENCE);
    let up = |info: &HashMap<String, String>| info.get("master_link_status").is_some_and(|s| s == "up");
    while !replica.try_info("replication").await.is_ok_and(|info| up(&info)) {
        poll.again_or_panic("the replica is linked to its master").await;
    }
}

async fn role(node: &RedisServer) -> Option<String> {
    let reply = node.try_command(&["ROLE"]).await.ok()?;
    let Reply::Array(fields) = reply else { return None };
    fields.first().map(Reply::text)
}
