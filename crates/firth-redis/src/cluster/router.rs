//! Sends each request to the node that owns its slot. Holds the monitor, and with it everything that is known of the
//! cluster; [`Client`](crate::Client) calls it.

use std::{sync::Arc, time::Duration};

use tokio::{sync::broadcast, task::JoinSet};

use super::{
    chart::{Chart, Health},
    info::{NodeInfo, NodeRole},
    monitor::Monitor,
    node::Node,
    parse::Reader,
    redirect::{Announced, Budget, Step, Why},
    scatter::Batch,
    slot::slot,
    unit::unit_slot,
    view::View,
    voyage::Voyage,
};
use crate::{
    command::{Bond, Pipe},
    config::{Address, Config, Server},
    connection::{Connection, ConnectionEvents, Greeting, Request, Route, State},
    error::{CallError, ConnectError, LostCause},
    resp::Frame,
};

/// A session is tried at so many masters, one after the other, while the cluster changes.
const SESSION_TRIES: u32 = 3;

pub(crate) struct Router {
    monitor: Monitor,
}

/// Where a request goes.
pub(crate) enum Plan {
    /// Over this connection, in one piece.
    Whole(Route<'static>),
    /// In several pieces to several nodes.
    Split(Vec<Batch>),
    /// Nobody is known yet.
    Nowhere,
}

/// Where a request goes next.
pub(crate) enum Target {
    /// To the node that its slot belongs to by then.
    Owner,
    /// To this node.
    Node(Arc<Node>),
    /// To this node, which must be told that we were sent.
    Ask(Arc<Node>),
}

impl Router {
    /// Starts to look at the cluster; requests may be given to the router at once.
    pub(crate) fn spawn(config: Config) -> Self {
        Self { monitor: Monitor::spawn(config) }
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    pub(crate) fn chart(&self) -> &Chart {
        self.monitor.chart()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.chart().config
    }

    /// A request on its way; begins when first polled.
    pub(crate) fn voyage<'c>(&'c self, request: Request<'c>, timeout: Option<Duration>) -> Voyage<'c> {
        Voyage::new(self, request, timeout)
    }

    // ---- where to ----------------------------------------------------------------------------------------------

    /// Where a request goes that was not tried yet.
    pub(crate) fn plan(&self, request: &Request<'_>) -> Result<Plan, CallError> {
        match request {
            Request::Many(pipe) if pipe.bond() == Bond::Loose => {
                let mut batches = self.batches(pipe, 0..pipe.len(), true);
                match batches.len() {
                    0 => Ok(Plan::Nowhere),
                    1 => batches.remove(0).route(request).map(Plan::Whole),
                    _ => Ok(Plan::Split(batches)),
                }
            }
            _ => self.route(request, true).map(|route| route.map_or(Plan::Nowhere, Plan::Whole)),
        }
    }

    /// The connection to the owner of a unit's slot, or to a replica if it only reads and was not tried before.
    pub(crate) fn route(
        &self,
        request: &Request<'_>,
        first: bool,
    ) -> Result<Option<Route<'static>>, CallError> {
        let slot = unit_slot(request)?;
        let reads = first && matches!(request, Request::One(command) if command.reads());
        self.chart().look_up(|view| {
            if let Some(replica) = self.replica(view, slot.filter(|_| reads)) {
                return replica.read_route(request).map(Some);
            }
            owner(view, slot).map(|node| node.route(request)).transpose()
        })
    }

    /// Pieces of a pipeline by the node that they go to. Those without a key go along with the first that has one.
    /// Empty if no node is known.
    pub(crate) fn batches(
        &self,
        pipe: &Pipe,
        pieces: impl Iterator<Item = usize>,
        first: bool,
    ) -> Vec<Batch> {
        let mut all = pipe.pieces();
        let mut at = 0;
        let mut wanted = pieces.map(move |index| {
            let piece = all.nth(index - at).expect("the piece is one of the pipeline");
            at = index + 1;
            (index, piece.key.map(slot), first && piece.reads)
        });
        self.chart().look_up(|view| {
            let mut batches: Vec<Batch> = Vec::new();
            let mut keyless: Vec<usize> = Vec::new();
            for (index, slot, reads) in &mut wanted {
                let Some(slot) = slot else {
                    keyless.push(index);
                    continue;
                };
                let replica = self.replica(view, Some(slot).filter(|_| reads));
                let Some(node) = replica.or_else(|| owner(view, Some(slot))) else { return Vec::new() };
                Batch::put(&mut batches, node, replica.is_some(), index);
            }
            let home = batches.iter().position(|batch| !batch.reads_from_replica());
            match (home, view.any_master()) {
                (Some(home), _) => batches[home].also(keyless),
                (None, Some(node)) => {
                    keyless.into_iter().for_each(|index| Batch::put(&mut batches, node, false, index));
                }
                (None, None) => {}
            }
            batches
        })
    }

    fn replica<'v>(&self, view: &'v View, slot: Option<u16>) -> Option<&'v Arc<Node>> {
        view.replica(slot?, self.config().cluster.reads)
    }

    // ---- learning from answers ---------------------------------------------------------------------------------

    /// What a failed attempt asks for. `at` is the node that it went to.
    pub(crate) fn step_of_failure(&self, error: &CallError, at: Option<&Address>) -> Step {
        if self.chart().is_closed() {
            return Step::Done;
        }
        if Step::hints_at_change(error) {
            self.chart().refresh();
        }
        let step = Step::of_failure(error);
        if let (Step::Again(_), Some(at)) = (&step, at) {
            self.chart().unreachable(at);
            if matches!(error, CallError::Closed { .. })
                && let Some(node) = self.chart().look_up(|view| view.node(at).cloned())
            {
                node.revive();
            }
        }
        step
    }

    /// Takes note of what an answer says of the cluster, and tells where to go.
    pub(crate) fn learn(&self, step: &Step, at: Option<&Address>) -> Target {
        self.chart().meter.redirected(step);
        match step {
            Step::Done => Target::Owner,
            Step::Ask { to } => Target::Ask(self.chart().node(&self.reachable(to, at))),
            Step::Moved { slot, to } => {
                let to = self.reachable(to, at);
                let known =
                    self.chart().look_up(|view| view.master(*slot).is_some_and(|n| *n.address() == to));
                if !known {
                    self.chart().moved(*slot, &to);
                    self.chart().refresh();
                }
                Target::Node(self.chart().node(&to))
            }
            Step::Again(Why::TryAgain) => Target::Owner,
            Step::Again(_) => {
                self.chart().refresh();
                Target::Owner
            }
        }
    }

    /// An announced address as this client can reach it.
    fn reachable(&self, announced: &Announced, at: Option<&Address>) -> Address {
        let nobody = Address::new("localhost", 0);
        let reader = Reader::of(self.config(), at.unwrap_or(&nobody));
        reader.address(&announced.host, announced.port)
    }

    /// An attempt's error as the caller is to see it: in terms of the whole request, and of a client that is open.
    pub(crate) fn explain(&self, error: CallError, budget: &Budget) -> CallError {
        let cause = LostCause::Demoted;
        match budget.whole(error) {
            CallError::Closed { sent: true } if !self.chart().is_closed() => {
                CallError::Lost { sent: true, cause }
            }
            CallError::Closed { sent: false } if !self.chart().is_closed() => CallError::Down { cause },
            error => error,
        }
    }

    /// Why there is no node to send to.
    pub(crate) fn nowhere(&self) -> CallError {
        let health = self.chart().health();
        match health.problem {
            _ if health.closed => CallError::Closed { sent: false },
            Some(problem) => CallError::Down { cause: LostCause::Reconnect(problem) },
            None => CallError::Down { cause: LostCause::Closed },
        }
    }

    /// Waits for the first look to end, within the request's time.
    pub(crate) async fn looked(&self, budget: &Budget) {
        let mut health = self.chart().watch_health();
        let ended = health.wait_for(|h| h.looks > 0 || h.closed);
        // Whether the look ended or the time is up shows at the next try.
        match budget.time_left(tokio::time::Instant::now()) {
            Some(Some(left)) => drop(tokio::time::timeout(left, ended).await),
            Some(None) => drop(ended.await),
            None => {}
        }
    }

    // ---- the client's other wishes -----------------------------------------------------------------------------

    /// Waits until every slot has an owner. With `fail_fast`, the first look's failure is the answer.
    pub(crate) async fn known(&self, fail_fast: bool) -> Result<(), ConnectError> {
        let chart = self.chart();
        let complete = || chart.look_up(|view| view.topology().is_complete());
        let mut health = chart.watch_health();
        let reached = |h: &Health| h.closed || (h.looks > 0 && (fail_fast || complete()));
        let health = health.wait_for(reached).await.map_or_else(|_| Health::default(), |h| h.clone());
        match health.problem {
            _ if health.closed => Err(ConnectError::Closed),
            _ if complete() => Ok(()),
            Some(problem) => Err((*problem).clone()),
            None => {
                let missing = chart.look_up(|view| view.topology().orphaned_slots());
                Err(ConnectError::NoTopology { problem: format!("{missing} slots have no owner") })
            }
        }
    }

    /// A connection of its own to the master of a slot.
    pub(crate) async fn session(&self, slot: u16) -> Result<Connection, ConnectError> {
        let mut health = self.chart().watch_health();
        let (mut looks, mut tries) = (0, 0);
        loop {
            tries += 1;
            // A look later than the last try; a closed client has no node.
            let seen = health.wait_for(|h| h.looks > looks || h.closed).await;
            let problem = seen.ok().and_then(|h| {
                looks = h.looks;
                h.problem.clone()
            });
            let Some(node) = self.chart().look_up(|view| owner(view, Some(slot)).cloned()) else {
                return Err(problem.map_or(ConnectError::Closed, |problem| (*problem).clone()));
            };
            let config = Config { reconnect: None, ..node.config().clone() };
            let connection = Connection::spawn(config, "session");
            match connection.opened(true).await {
                Ok(()) => return Ok(connection),
                Err(error) if tries >= SESSION_TRIES || !error.is_retryable() => return Err(error),
                Err(_) => self.chart().refresh(),
            }
        }
    }

    pub(crate) fn nodes(&self) -> Vec<NodeInfo> {
        let view = self.chart().view();
        let mut nodes = Vec::new();
        for (index, shard) in view.topology().shards().iter().enumerate() {
            let slots = view.topology().ranges_of(index);
            for address in shard.nodes() {
                let is_master = *address == shard.master;
                let role = if is_master { NodeRole::Master } else { NodeRole::Replica };
                nodes.push(NodeInfo { address: address.clone(), role, slots: slots.clone() });
            }
        }
        nodes
    }

    pub(crate) fn state(&self) -> State {
        let (health, known) = (self.chart().health(), !self.chart().look_up(|v| v.topology().is_empty()));
        match (known, health.problem.is_some()) {
            _ if health.closed => State::Closed,
            (true, false) => State::Open,
            (true, true) => State::Reconnecting,
            (false, false) => State::Connecting,
            (false, true) => State::Failed,
        }
    }

    pub(crate) fn pushes(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.chart().pushes.subscribe()
    }

    pub(crate) fn events(&self) -> ConnectionEvents {
        self.chart().events()
    }

    pub(crate) fn last_error(&self) -> Option<LostCause> {
        self.chart().health().problem.map(LostCause::Reconnect)
    }

    /// Requests under way at all nodes of the topology.
    pub(crate) fn in_flight(&self) -> usize {
        self.chart().view().nodes().map(|node| node.in_flight()).sum()
    }

    /// What some node said of itself.
    pub(crate) fn greeting(&self) -> Option<Greeting> {
        self.chart().view().nodes().find_map(|node| node.existing()?.greeting())
    }

    /// Opens a closed router again. False if it is not closed.
    pub(crate) fn reopen(&self) -> bool {
        self.monitor.start()
    }

    /// Finishes what is under way at all nodes, and ends every task.
    pub(crate) async fn close(&self) {
        self.monitor.close().await;
        let mut closing = JoinSet::new();
        for node in self.chart().clear() {
            closing.spawn(async move { node.close().await });
        }
        closing.join_all().await;
    }
}

/// The master of a slot. A slot without one, and a request without a slot, go to any master; it knows what to answer.
fn owner(view: &View, slot: Option<u16>) -> Option<&Arc<Node>> {
    slot.and_then(|slot| view.master(slot)).or_else(|| view.any_master())
}

/// The address of a connection's node.
pub(crate) fn address_of(server: &Server) -> Option<&Address> {
    match server {
        Server::Tcp(address) => Some(address),
        _ => None,
    }
}
