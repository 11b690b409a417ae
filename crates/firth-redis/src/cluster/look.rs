//! One look at the cluster: nodes are asked one after the other, each a little after the one before, until one gives a
//! convincing answer. A node that hangs so costs a moment and no more. Used by the monitor only.
//!
//! **Time limits** are those of the configuration, so that far nodes have their time. But the nodes
//! that are asked when one has answered already are not waited for that long: they could only
//! confirm it.

use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    belief::{Answer, Belief},
    chart::Chart,
    node::Node,
    parse::{self, Reader},
    topology::Topology,
};
use crate::{
    command::{Command, Pipe, cmd, pipe},
    config::{Address, Config, Server, Timeouts},
    connection::{Connection, Replies, Request, State},
    error::{CallError, ConnectError, LostCause},
    resp::{Frame, ServerError},
};

/// Once a node has answered, but not convincingly, the others have this much more time, or as much
/// as that one took.
const PATIENCE: Duration = Duration::from_millis(500);
/// The limit of a question where requests have none.
const LIMIT: Duration = Duration::from_secs(5);
/// The next node is asked when those before have not answered for this long.
const STAGGER: Duration = Duration::from_millis(100);

/// Why a node gave no answer.
enum Problem {
    Connect(ConnectError),
    Said(String),
}

/// Whom to ask, and how.
enum Target {
    /// Over the connection that requests use.
    Node(Arc<Node>),
    /// Over one that is made for the question.
    Probe(Address),
}

type Told = (Address, Result<Answer, Problem>);

/// Asks until a node convinces, else goes by the best of what was said.
pub(crate) async fn look(chart: &Arc<Chart>, belief: &mut Belief) -> Result<Topology, ConnectError> {
    let mut targets = targets(chart).into_iter();
    let mut asks: JoinSet<Told> = JoinSet::new();
    let (mut answers, mut problems) = (Vec::new(), Vec::new());
    let started = Instant::now();
    // The end of waiting for others, once a node has answered.
    let patience = sleep(Duration::MAX);
    tokio::pin!(patience);
    loop {
        tokio::select! {
            Some(told) = asks.join_next() => match told {
                Ok((_, Ok(answer))) => {
                    let enough = belief.convinces(&answer);
                    if answers.is_empty() {
                        let now = Instant::now();
                        patience.as_mut().reset(now + PATIENCE.max(now - started));
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
            () = &mut patience, if !asks.is_empty() && !answers.is_empty() => break,
            else => {}
        }
        match targets.next() {
            Some(target) => drop(asks.spawn(ask(chart.clone(), target))),
            None if asks.is_empty() => break,
            None => {}
        }
    }
    let known = answers.len();
    match belief.settle(answers) {
        Some(answer) => Ok(answer.topology),
        None => Err(explain(known, problems)),
    }
}

/// Nodes that we are connected to, then the other masters, then replicas, then the addresses that the user gave; each
/// group in random order, so that clients do not all ask the same node.
fn targets(chart: &Chart) -> Vec<Target> {
    let view = chart.view();
    let (mut connected, mut replicas) = (Vec::new(), Vec::new());
    let mut masters: Vec<Target> = Vec::new();
    for node in view.nodes() {
        let is_master = view.masters().any(|master| Arc::ptr_eq(master, node));
        match node.existing() {
            Some(open) if open.state() == State::Open => connected.push(Target::Node(node.clone())),
            _ if is_master => masters.push(Target::Node(node.clone())),
            _ => replicas.push(Target::Probe(node.address().clone())),
        }
    }
    let Server::Cluster(seeds) = &chart.config.server else { unreachable!("only a cluster has a chart") };
    let known = view.topology();
    let unknown = seeds.iter().filter(|seed| !known.contains(seed));
    let mut seeds: Vec<Target> = unknown.cloned().map(Target::Probe).collect();
    for group in [&mut connected, &mut masters, &mut replicas, &mut seeds] {
        fastrand::shuffle(group);
    }
    connected.into_iter().chain(masters).chain(replicas).chain(seeds).collect()
}

async fn ask(chart: Arc<Chart>, target: Target) -> Told {
    let (address, connection) = match target {
        Target::Node(node) => (node.address().clone(), node.shared()),
        Target::Probe(address) => {
            let connection = Connection::spawn(probe(&chart.config, &address), "topology");
            (address, connection)
        }
    };
    let told = interview(&chart.config, &address, &connection).await;
    (address, told)
}

/// The configuration of a connection that lives for one question.
fn probe(config: &Config, address: &Address) -> Config {
    let mut config = config.at(Server::Tcp(address.clone()));
    config.reconnect = None;
    config.trace = None;
    config.setup = Arc::from([]);
    config
}

async fn interview(config: &Config, asked: &Address, node: &Connection) -> Result<Answer, Problem> {
    let reader = Reader::of(config, asked);
    let questions = pipe().then(cluster("SLOTS")).then(cluster("INFO"));
    let mut replies = put(node, questions).await?;
    let (Some(info), Some(slots)) = (replies.pop(), replies.pop()) else {
        return Err(Problem::Said("answered too little".into()));
    };
    let standing = info.value().as_str().and_then(parse::standing);
    let topology = match ServerError::from_value(slots.value()) {
        None => reader.slots(slots.value()),
        // SLOTS is deprecated, so that a server may come without it; SHARDS is unknown before Redis 7.
        Some(error) => {
            let shards = put(node, pipe().then(cluster("SHARDS"))).await?.remove(0);
            if ServerError::from_value(shards.value()).is_some() {
                return Err(refusal(&error));
            }
            reader.shards(shards.value())
        }
    };
    let topology = topology.ok_or_else(|| Problem::Said("its answer has an unexpected form".into()))?;
    Ok(Answer { topology, standing })
}

fn cluster(what: &str) -> Command {
    cmd("CLUSTER").arg(what)
}

async fn put(node: &Connection, questions: Pipe) -> Result<Vec<Frame>, Problem> {
    let limit = limit(node);
    match node.send(Request::Many(Cow::Owned(questions)), Some(limit)).await {
        Ok(Replies::Many(frames)) => Ok(frames),
        Ok(Replies::One(frame)) => Ok(vec![frame]),
        Err(CallError::Lost { cause: LostCause::Reconnect(error), .. })
        | Err(CallError::Down { cause: LostCause::Reconnect(error) }) => {
            Err(Problem::Connect((*error).clone()))
        }
        Err(error) => Err(Problem::Said(error.to_string())),
    }
}

/// The time for a question, and for connecting where that is still to be done: each step of it has
/// its own limit too.
fn limit(node: &Connection) -> Duration {
    let Timeouts { resolve, connect, handshake, request, .. } = node.config().timeouts;
    let steps = if node.state() == State::Open { [None; 3] } else { [resolve, connect, handshake] };
    let connecting = steps.into_iter().flatten().fold(Duration::ZERO, Duration::saturating_add);
    request.unwrap_or(LIMIT).saturating_add(connecting)
}

fn refusal(error: &ServerError) -> Problem {
    let hint = if error.message.contains("cluster support disabled") {
        " (for a single server use redis://)"
    } else {
        ""
    };
    Problem::Said(format!("refused CLUSTER SLOTS: {error}{hint}"))
}

/// One error for the whole look. What the user must mend (a password) is told as it is.
fn explain(answers: usize, mut problems: Vec<(Address, Problem)>) -> ConnectError {
    let fatal = |problem: &Problem| matches!(problem, Problem::Connect(e) if !e.is_retryable());
    let alone = answers == 0 && problems.len() == 1;
    if let Some(at) =
        problems.iter().position(|(_, p)| fatal(p) || (alone && matches!(p, Problem::Connect(_))))
        && let (_, Problem::Connect(error)) = problems.swap_remove(at)
    {
        return error;
    }
    let mut said: Vec<String> = problems
        .into_iter()
        .map(|(address, problem)| match problem {
            Problem::Connect(error) => error.to_string(),
            Problem::Said(text) => format!("{address}: {text}"),
        })
        .collect();
    if answers > 0 {
        said.push(format!("{answers} nodes know no slots, or only an older state of the cluster"));
    }
    ConnectError::NoTopology { problem: said.join("; ") }
}
