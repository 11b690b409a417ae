//! Opening the engine: connect, look at what the server offers, and fail early with the rule that
//! is missing.

use super::error_mapping::{of_call, of_connect};
use super::keys::KeyNames;
use super::options::RedisOptions;
use super::restart_guard::FreshFile;
use super::scripts::SCRIPTS;
use super::server_watch;
use super::synced;
use crate::durability::Durability;
use crate::error::{Error, ErrorKind, Result};
use firth_redis::resp::{Frame, Ignore};
use firth_redis::{Backoff, CallError, Client, Config, NodeInfo, NodeRole, cmd, pipe};
use std::collections::HashMap;
use std::time::Duration;

/// The longest pause between two tries to reach the server.
const RECONNECT: Duration = Duration::from_millis(500);

pub(super) async fn connect(url: &str) -> Result<Client> {
    let mut config = Config::from_url(url).map_err(of_connect)?;
    if config.client_name.is_none() {
        config.client_name = Some("firth".to_owned());
    }
    // Leases and waiting producers cannot wait half a minute for a server that is back.
    config.reconnect = Some(Backoff { max: RECONNECT, ..Backoff::default() });
    Client::connect(config).await.map_err(of_connect)
}

/// Checks permissions and persistence; answers what an acknowledgement means.
pub(super) async fn examine(
    client: &Client,
    file: &FreshFile,
    keys: &KeyNames,
    options: &RedisOptions,
) -> Result<Durability> {
    check_version(client)?;
    // The first of all writes is the check of the rules.
    file.ensure(options.durability == Some(Durability::Synced)).await?;
    check_rules(client, keys).await?;
    server_watch::check(client, keys).await?;
    let info = match Info::read(client).await {
        // A server that comes and goes is not one that forbids it.
        Err(error) if error.is_retryable() => return Err(error),
        info => info,
    };
    let durability = match (options.durability, &info) {
        (Some(chosen), _) => chosen,
        (None, Ok(info)) if has_replicas(client, info).await? => Durability::Replicated(1),
        (None, Ok(_)) => Durability::Fast,
        (None, Err(_)) => {
            let context = "the user may not call INFO, which chooses the durability: permit +info, or state durability= in the URL";
            return Err(Error::new(ErrorKind::Unauthorized, context));
        }
    };
    if matches!(&info, Ok(info) if !info.has_aof() && durability != Durability::Fast) {
        tracing::warn!(
            "the server has no append-only file: a master that restarts before its failover loses everything"
        );
    }
    if durability == Durability::Synced {
        synced::check(client, keys).await?;
    }
    Ok(durability)
}

/// A key at each master, under which nothing is stored: by it that master is asked.
pub(super) fn probes(client: &Client, probe: &str, prefix: &str) -> Vec<String> {
    let nodes = client.nodes();
    let masters = nodes.iter().filter(|node| node.role == NodeRole::Master);
    let probes: Vec<String> = masters.filter_map(|node| probe_of(node, prefix)).collect();
    if probes.is_empty() { vec![probe.to_owned()] } else { probes }
}

/// Such a key at this node, if it serves any slots.
pub(super) fn probe_of(node: &NodeInfo, prefix: &str) -> Option<String> {
    let slot = *node.slots.first()?.start();
    Some(format!("{prefix}:{{{}}}", super::slot_placement::tag_in(slot)))
}

/// Whether the server is a replicated one, also while its replica is away: right after a failover
/// the new master has none yet, and what is opened then must promise no less than what was opened
/// before.
async fn has_replicas(client: &Client, info: &Info) -> Result<bool> {
    if info.replicas() > 0 || client.nodes().iter().any(|node| node.role == NodeRole::Replica) {
        return Ok(true);
    }
    Ok(client.watched_replicas().await.map_err(of_connect)?.is_some_and(|known| known > 0))
}

/// Whether every master has this many replicas now.
pub(super) async fn can_replicate(client: &Client, wanted: u32) -> Result<()> {
    let nodes = client.nodes();
    let masters = nodes.iter().filter(|node| node.role == NodeRole::Master && !node.slots.is_empty());
    let in_cluster = masters.map(|master| {
        let copies = nodes.iter().filter(|node| node.role == NodeRole::Replica && node.slots == master.slots);
        u32::try_from(copies.count()).unwrap_or(u32::MAX)
    });
    let found = match in_cluster.min() {
        Some(fewest) => fewest,
        None => Info::read(client).await?.replicas(),
    };
    if found >= wanted {
        return Ok(());
    }
    let context = format!(
        "durability replicated:{wanted} needs {wanted} replicas of every master, and {found} are connected: add some, or choose less"
    );
    Err(Error::new(ErrorKind::Unsupported, context))
}

/// Scripts with flags and sharded channels need version 7.
fn check_version(client: &Client) -> Result<()> {
    let Some(greeting) = client.server() else { return Ok(()) };
    if major_minor(&greeting.version) >= (7, 0) {
        return Ok(());
    }
    let context =
        format!("the server is {} {}; Redis 7.0 or Valkey is needed", greeting.server, greeting.version);
    Err(Error::new(ErrorKind::Unsupported, context))
}

fn major_minor(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Tries everything that the engine does, without leaving a trace, and names the rules that are
/// missing.
async fn check_rules(client: &Client, keys: &KeyNames) -> Result<()> {
    let probe = keys.probe();
    let prefix = keys.prefix();
    let scripts = client.eval::<Vec<String>>(&SCRIPTS.probe.key(&probe)).await;
    let mut missing: Vec<String> = match scripts {
        Ok(names) => names.into_iter().map(|name| format!("+{name}")).collect(),
        Err(CallError::Server(error)) if &*error.code == "NOPERM" => {
            vec![rule(&error.message, &format!("~{prefix}:*"))]
        }
        Err(error) => return Err(of_call(error).during("checking the permissions")),
    };
    let load = cmd("SCRIPT").arg("LOAD").arg(SCRIPTS.probe.source());
    let tries = pipe()
        .then(cmd("GET").key(&probe))
        .then(cmd("HGET").key(&probe).arg("x"))
        .then(cmd("HMGET").key(&probe).arg("x"))
        .then(cmd("HGETALL").key(&probe))
        .then(cmd("EXISTS").key(&probe))
        .then(cmd("XRANGE").key(&probe).arg("-").arg("+").arg("COUNT").arg(1))
        .then(cmd("XTRIM").key(&probe).arg("MAXLEN").arg(0))
        .then(cmd("TIME"))
        .then(load)
        .together();
    let answers = client.pipeline::<Vec<Ignore>>(tries).await.map_err(of_call)?;
    let publish = cmd("SPUBLISH").key(format!("{prefix}:bus:probe")).arg("");
    let answers = answers.into_iter().chain([client.call::<Ignore>(publish).await]);
    for answer in answers {
        match answer {
            Err(CallError::Server(error)) if &*error.code == "NOPERM" => {
                missing.push(rule(&error.message, &format!("~{prefix}:* &{prefix}:bus:*")));
            }
            Err(CallError::Server(_)) | Ok(_) => {}
            Err(error) => return Err(of_call(error).during("checking the permissions")),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.dedup();
    let context = format!("the server's user lacks these rules: {} (see docs/acl.md)", missing.join(" "));
    Err(Error::new(ErrorKind::Unauthorized, context))
}

/// The rule that a refusal asks for: both servers quote the command, and name nothing where keys or
/// channels are meant.
fn rule(message: &str, otherwise: &str) -> String {
    match message.split('\'').nth(1) {
        Some(command) => format!("+{command}"),
        None => otherwise.to_owned(),
    }
}

/// What INFO says of replication and persistence, of a cluster's node any one.
#[derive(Default)]
pub(super) struct Info(HashMap<String, String>);

impl Info {
    async fn read(client: &Client) -> Result<Self> {
        let mut found = HashMap::new();
        for section in ["replication", "persistence"] {
            let text: Frame = client.call(cmd("INFO").arg(section)).await.map_err(of_call)?;
            found.extend(Self::parse(&text).0);
        }
        Ok(Self(found))
    }

    /// What an answer to INFO says.
    pub(super) fn parse(text: &Frame) -> Self {
        Self::of_text(text.value().as_str().unwrap_or_default())
    }

    pub(super) fn of_text(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    fn replicas(&self) -> u32 {
        self.number("connected_slaves").and_then(|count| count.try_into().ok()).unwrap_or(0)
    }

    pub(super) fn has_aof(&self) -> bool {
        self.0.get("aof_enabled").is_some_and(|enabled| enabled == "1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_first_two_numbers() {
        assert!(major_minor("7.0.15") >= (7, 0) && major_minor("9.1.2") >= (7, 2));
        assert!(major_minor("6.2.14") < (7, 0) && major_minor("7.0.15") < (7, 2));
    }

    #[test]
    fn a_refusal_names_its_rule() {
        let denied = "this user has no permissions to run the 'client|tracking' command";
        assert_eq!(rule(denied, "~a:*"), "+client|tracking");
        assert_eq!(rule("User u has no permissions to run the 'xtrim' command", ""), "+xtrim");
        assert_eq!(
            rule("this user has no permissions to access one of the keys used as arguments", "~a:*"),
            "~a:*"
        );
    }
}
