//! One refresh of the topology. Nodes are asked one after the other, each a little after the one
//! before, until one answer is conclusive. A node that hangs costs only that moment. Used by the
//! monitor only.
//!
//! **Time limits** are those of the configuration, so that far nodes have their time. Once a node
//! has answered, the others get less time: they could only confirm its answer.

use super::arbiter::{Arbiter, TopologyAnswer};
use super::node::NodeClient;
use super::parse::{self, TopologyReader};
use super::topology::Topology;
use super::topology_cache::TopologyCache;
use crate::command::{Command, Pipe, cmd, pipe};
use crate::config::{Address, Config, Server, Timeouts};
use crate::connection::{Connection, ConnectionState, Replies, Request};
use crate::error::{CallError, ConnectError, LostCause};
use crate::resp::{Frame, ServerError};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Once a node has answered inconclusively, the others have this much more time, or as much as that
/// node took.
const LATER_ANSWERS: Duration = Duration::from_millis(500);
/// The limit of a question where requests have none.
const LIMIT: Duration = Duration::from_secs(5);
/// If the nodes before have not answered for this long, the next node is asked.
const STAGGER: Duration = Duration::from_millis(100);

/// Why a node gave no answer.
enum RefreshError {
    Connect(ConnectError),
    Reply(String),
}

/// Whom to ask, and how.
enum RefreshTarget {
    /// Over the connection that requests use.
    Node(Arc<NodeClient>),
    /// Over one that is made for the question.
    Probe(Address),
}

type NodeReply = (Address, Result<TopologyAnswer, RefreshError>);

/// Asks nodes until an answer is conclusive; else uses the best answer.
pub(crate) async fn refresh(
    cache: &Arc<TopologyCache>,
    arbiter: &mut Arbiter,
) -> Result<Topology, ConnectError> {
    let mut targets = targets(cache).into_iter();
    let mut asks: JoinSet<NodeReply> = JoinSet::new();
    let mut answers = Vec::new();
    let mut problems = Vec::new();
    let started = Instant::now();
    // Ends the wait for other nodes, once one has answered.
    let later_answers = sleep(Duration::MAX);
    tokio::pin!(later_answers);
    loop {
        tokio::select! {
            Some(reply) = asks.join_next() => match reply {
                Ok((_, Ok(answer))) => {
                    let enough = arbiter.is_conclusive(&answer);
                    if answers.is_empty() {
                        let now = Instant::now();
                        later_answers.as_mut().reset(now + LATER_ANSWERS.max(now - started));
                    }
                    answers.push(answer);
                    if enough {
                        break;
                    }
                }
                Ok((address, Err(problem))) => problems.push((address, problem)),
                Err(error) => tracing::error!(%error, "asking a node ended in a panic"),
            },
            () = sleep(STAGGER), if !asks.is_empty() && targets.len() > 0 => {}
            () = &mut later_answers, if !asks.is_empty() && !answers.is_empty() => break,
            else => {}
        }
        match targets.next() {
            Some(target) => drop(asks.spawn(ask(cache.clone(), target))),
            None if asks.is_empty() => break,
            None => {}
        }
    }
    let known = answers.len();
    match arbiter.choose(answers) {
        Some(answer) => Ok(answer.topology),
        None => Err(explain(known, problems)),
    }
}

/// Connected nodes, then other masters, then replicas, then the addresses of the configuration.
/// Each group is in random order, so that clients do not all ask the same node.
fn targets(cache: &TopologyCache) -> Vec<RefreshTarget> {
    let table = cache.table();
    let mut connected = Vec::new();
    let mut replicas = Vec::new();
    let mut masters: Vec<RefreshTarget> = Vec::new();
    for node in table.nodes() {
        let is_master = table.masters().any(|master| Arc::ptr_eq(master, node));
        match node.existing() {
            Some(open) if open.state() == ConnectionState::Open => {
                connected.push(RefreshTarget::Node(node.clone()));
            }
            _ if is_master => masters.push(RefreshTarget::Node(node.clone())),
            _ => replicas.push(RefreshTarget::Probe(node.address().clone())),
        }
    }
    let Server::Cluster(seeds) = &cache.config.server else {
        unreachable!("only a cluster has a topology cache")
    };
    let known = table.topology();
    let unknown = seeds.iter().filter(|seed| !known.contains(seed));
    let mut seeds: Vec<RefreshTarget> = unknown.cloned().map(RefreshTarget::Probe).collect();
    for group in [&mut connected, &mut masters, &mut replicas, &mut seeds] {
        fastrand::shuffle(group);
    }
    connected.into_iter().chain(masters).chain(replicas).chain(seeds).collect()
}

async fn ask(cache: Arc<TopologyCache>, target: RefreshTarget) -> NodeReply {
    let (address, connection) = match target {
        RefreshTarget::Node(node) => (node.address().clone(), node.shared()),
        RefreshTarget::Probe(address) => {
            let connection = Connection::spawn(probe(&cache.config, &address), "topology");
            (address, connection)
        }
    };
    let reply = ask_topology(&cache.config, &address, &connection).await;
    (address, reply)
}

/// The configuration of a connection that lives for one question.
fn probe(config: &Config, address: &Address) -> Config {
    let mut config = config.at(Server::Tcp(address.clone()));
    config.reconnect = None;
    config.trace = None;
    config.setup = Arc::from([]);
    config
}

async fn ask_topology(
    config: &Config,
    asked: &Address,
    node: &Connection,
) -> Result<TopologyAnswer, RefreshError> {
    let reader = TopologyReader::of(config, asked);
    let questions = pipe().then(cluster("SLOTS")).then(cluster("INFO"));
    let mut replies = send(node, questions).await?;
    let (Some(info), Some(slots)) = (replies.pop(), replies.pop()) else {
        return Err(RefreshError::Reply("answered too little".into()));
    };
    let view = info.value().as_str().and_then(parse::node_view);
    let topology = match ServerError::from_value(slots.value()) {
        None => reader.slots(slots.value()),
        // SLOTS is deprecated, so a server may lack it; Redis knows SHARDS since version 7.
        Some(error) => {
            let shards = send(node, pipe().then(cluster("SHARDS"))).await?.remove(0);
            if ServerError::from_value(shards.value()).is_some() {
                return Err(refusal(&error));
            }
            reader.shards(shards.value())
        }
    };
    let topology = topology.ok_or_else(|| RefreshError::Reply("its answer has an unexpected form".into()))?;
    Ok(TopologyAnswer { topology, view })
}

fn cluster(what: &str) -> Command {
    cmd("CLUSTER").arg(what)
}

async fn send(node: &Connection, questions: Pipe) -> Result<Vec<Frame>, RefreshError> {
    let limit = limit(node);
    match node.send(Request::Many(Cow::Owned(questions)), Some(limit)).await {
        Ok(Replies::Many(frames)) => Ok(frames),
        Ok(Replies::One(frame)) => Ok(vec![frame]),
        Err(CallError::Lost { cause: LostCause::Reconnect(error), .. })
        | Err(CallError::Down { cause: LostCause::Reconnect(error) }) => {
            Err(RefreshError::Connect((*error).clone()))
        }
        Err(error) => Err(RefreshError::Reply(error.to_string())),
    }
}

/// The time for a question, and for connecting where that is still to be done: each step of it has
/// its own limit too.
fn limit(node: &Connection) -> Duration {
    let Timeouts { resolve, connect, handshake, request, .. } = node.config().timeouts;
    let steps = if node.state() == ConnectionState::Open { [None; 3] } else { [resolve, connect, handshake] };
    let connecting = steps.into_iter().flatten().fold(Duration::ZERO, Duration::saturating_add);
    request.unwrap_or(LIMIT).saturating_add(connecting)
}

fn refusal(error: &ServerError) -> RefreshError {
    let hint = if error.message.contains("cluster support disabled") {
        " (for a single server use redis://)"
    } else {
        ""
    };
    RefreshError::Reply(format!("refused CLUSTER SLOTS: {error}{hint}"))
}

/// One error for the whole refresh. An error that the user must fix (a password) is returned as it
/// is.
fn explain(answers: usize, mut problems: Vec<(Address, RefreshError)>) -> ConnectError {
    let fatal = |problem: &RefreshError| matches!(problem, RefreshError::Connect(e) if !e.is_retryable());
    let alone = answers == 0 && problems.len() == 1;
    if let Some(at) =
        problems.iter().position(|(_, p)| fatal(p) || (alone && matches!(p, RefreshError::Connect(_))))
        && let (_, RefreshError::Connect(error)) = problems.swap_remove(at)
    {
        return error;
    }
    let mut said: Vec<String> = problems
        .into_iter()
        .map(|(address, problem)| match problem {
            RefreshError::Connect(error) => error.to_string(),
            RefreshError::Reply(text) => format!("{address}: {text}"),
        })
        .collect();
    if answers > 0 {
        said.push(format!("{answers} nodes know no slots, or only an older state of the cluster"));
    }
    ConnectError::NoTopology { problem: said.join("; ") }
}
