//! Pipelines in a cluster: commands are sorted by node, sent at the same time, and their answers
//! put back in order.
//!
//! A redirected command is sent again with the other commands of its slot, in their order. Other
//! commands are not touched, and a slow node does not delay redirections at other nodes.

use super::node::NodeClient;
use super::one_node::{AskingRequest, decide_command};
use super::redirect::{RetryBudget, RetryDecision};
use super::router::{ClusterRouter, RetryTarget};
use crate::call::ReplySet;
use crate::command::{Pipe, PipedCommand, pipe};
use crate::config::Address;
use crate::connection::{PendingRequest, Replies, Request, RequestRoute};
use crate::error::CallError;
use crate::resp::Frame;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Commands of a pipeline that go to one node.
pub(crate) struct NodeBatch {
    node: Arc<NodeClient>,
    mode: SendMode,
    /// Indices in the pipeline, ascending.
    indices: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendMode {
    Plain,
    /// At a replica.
    ReadOnly,
    /// Each behind an ASKING.
    Asking,
}

impl NodeBatch {
    /// Adds a command to the batch of its node, or starts that batch.
    pub(crate) fn put(batches: &mut Vec<Self>, node: &Arc<NodeClient>, reading: bool, index: usize) {
        let mode = if reading { SendMode::ReadOnly } else { SendMode::Plain };
        Self::put_as(batches, node, mode, index);
    }

    fn put_as(batches: &mut Vec<Self>, node: &Arc<NodeClient>, mode: SendMode, index: usize) {
        let same = |batch: &&mut Self| batch.mode == mode && Arc::ptr_eq(&batch.node, node);
        match batches.iter_mut().find(same) {
            Some(batch) => batch.indices.push(index),
            None => batches.push(Self { node: node.clone(), mode, indices: vec![index] }),
        }
    }

    /// Adds commands in their places.
    pub(crate) fn also(&mut self, indices: Vec<usize>) {
        if !indices.is_empty() {
            self.indices.extend(indices);
            self.indices.sort_unstable();
        }
    }

    pub(crate) fn reads_from_replica(&self) -> bool {
        self.mode == SendMode::ReadOnly
    }

    /// The connection for it.
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<RequestRoute<'static>, CallError> {
        match self.mode {
            SendMode::ReadOnly => self.node.read_route(request),
            SendMode::Plain | SendMode::Asking => self.node.route(request),
        }
    }

    async fn send(&self, all: &Pipe, budget: &RetryBudget) -> Result<Replies, CallError> {
        let left = budget.time_left(Instant::now()).unwrap_or(Some(Duration::ZERO));
        if self.mode == SendMode::Asking {
            let asking = AskingRequest::of_commands(select(all, &self.indices), all);
            let route = self.route(&asking.request())?;
            return PendingRequest::new(route, asking.request(), left)
                .await
                .map(|replies| asking.strip(replies));
        }
        let mut own = pipe().with_class_of(all);
        select(all, &self.indices).for_each(|command| own.push_wire(command.bytes));
        let request = Request::Many(own.into());
        let route = self.route(&request)?;
        PendingRequest::new(route, request, left).await
    }
}

fn select<'a>(all: &'a Pipe, indices: &'a [usize]) -> impl Iterator<Item = PipedCommand<'a>> {
    let mut at = 0;
    let mut rest = all.commands();
    indices.iter().map(move |&index| {
        let command = rest.nth(index - at).expect("the pipeline holds this command");
        at = index + 1;
        command
    })
}

/// Sends a pipeline whose commands were sorted by node.
pub(crate) async fn begin<'c>(
    router: &'c ClusterRouter,
    request: Request<'c>,
    batches: Vec<NodeBatch>,
    budget: RetryBudget,
) -> Result<ReplySet, CallError> {
    let pipe = request.into_pipe();
    let mut scatter = Scatter::new(router, &pipe);
    scatter.send(batches, &budget);
    scatter.gather().await
}

/// Continues a pipeline that was sent to one node in one request.
pub(crate) async fn resume<'c>(
    router: &'c ClusterRouter,
    request: Request<'c>,
    result: Result<Replies, CallError>,
    at: Option<Address>,
    budget: RetryBudget,
) -> Result<ReplySet, CallError> {
    let pipe = request.into_pipe();
    let mut scatter = Scatter::new(router, &pipe);
    scatter.settle(&(0..pipe.len()).collect::<Vec<_>>(), result, at.as_ref(), &budget);
    scatter.gather().await
}

/// Event that the pipeline waits for.
enum ScatterEvent {
    /// A batch was answered, or failed.
    Answered(NodeBatch, RetryBudget, Result<Replies, CallError>),
    /// The pause before another try is over.
    Due(Vec<usize>, RetryBudget),
}

type Work<'a> = Pin<Box<dyn Future<Output = ScatterEvent> + Send + 'a>>;

/// A pipeline under way.
struct Scatter<'a> {
    router: &'a ClusterRouter,
    pipe: &'a Pipe,
    /// Latest answer to each command; that of a command in flight may be a redirection.
    answers: Vec<Option<Result<Frame, CallError>>>,
    /// At most a few per node.
    work: Vec<Work<'a>>,
}

impl<'a> Scatter<'a> {
    fn new(router: &'a ClusterRouter, pipe: &'a Pipe) -> Self {
        Self { router, pipe, answers: vec![None; pipe.len()], work: Vec::new() }
    }

    fn send(&mut self, batches: Vec<NodeBatch>, budget: &RetryBudget) {
        let pipe = self.pipe;
        self.work.extend(batches.into_iter().map(|batch| -> Work<'a> {
            let budget = budget.clone();
            Box::pin(async move {
                let result = batch.send(pipe, &budget).await;
                ScatterEvent::Answered(batch, budget, result)
            })
        }));
    }

    /// Handles one event after the other until nothing is in flight.
    async fn gather(mut self) -> Result<ReplySet, CallError> {
        while let Some(event) = self.next().await {
            match event {
                ScatterEvent::Answered(batch, budget, result) => {
                    self.settle(&batch.indices, result, Some(batch.node.address()), &budget);
                }
                ScatterEvent::Due(indices, budget) => self.send_again(&indices, budget).await,
            }
        }
        join(self.answers)
    }

    async fn next(&mut self) -> Option<ScatterEvent> {
        poll_fn(|cx| {
            if self.work.is_empty() {
                return Poll::Ready(None);
            }
            for index in 0..self.work.len() {
                if let Poll::Ready(event) = self.work[index].as_mut().poll(cx) {
                    drop(self.work.swap_remove(index));
                    return Poll::Ready(Some(event));
                }
            }
            Poll::Pending
        })
        .await
    }

    async fn send_again(&mut self, indices: &[usize], budget: RetryBudget) {
        let batches = self.router.batches(self.pipe, indices.iter().copied(), false);
        if batches.is_empty() {
            let no_node = Err(self.router.no_node());
            self.settle(indices, no_node, None, &budget);
        } else {
            self.send(batches, &budget);
        }
    }

    /// Stores the answers of some commands, and retries those that were redirected.
    fn settle(
        &mut self,
        indices: &[usize],
        result: Result<Replies, CallError>,
        at: Option<&Address>,
        budget: &RetryBudget,
    ) {
        let replies = match result {
            Ok(replies) => replies,
            Err(error) => {
                let decision = self.router.decide_failure(&error, at);
                let error = self.router.explain(error, budget);
                indices.iter().for_each(|&index| self.answers[index] = Some(Err(error.clone())));
                return self.retry(vec![(decision, indices.to_vec())], at, budget);
            }
        };
        let mut decisions: Vec<(RetryDecision, Vec<usize>)> = Vec::new();
        for (&index, frame) in indices.iter().zip(into_frames(replies)) {
            let decision = decide_command(&frame, self.pipe, index);
            self.answers[index] = Some(Ok(frame));
            match decisions.iter_mut().find(|(known, _)| *known == decision) {
                _ if decision == RetryDecision::Finish => {}
                Some((_, same)) => same.push(index),
                None => decisions.push((decision, vec![index])),
            }
        }
        self.retry(decisions, at, budget);
    }

    /// Sends commands again, as their decisions say.
    fn retry(
        &mut self,
        decisions: Vec<(RetryDecision, Vec<usize>)>,
        at: Option<&Address>,
        budget: &RetryBudget,
    ) {
        let mut batches: Vec<NodeBatch> = Vec::new();
        let mut later: Option<(Duration, Vec<usize>)> = None;
        let now = Instant::now();
        let mut spent = budget.clone();
        for (decision, indices) in decisions {
            // The budget counts this as one attempt, for any number of commands.
            spent = budget.clone();
            let Some(pause) = spent.spend(&decision, now) else { continue };
            let (node, mode) = match self.router.learn(&decision, at) {
                RetryTarget::Node(node) if pause.is_zero() => (node, SendMode::Plain),
                RetryTarget::Ask(node) if pause.is_zero() => (node, SendMode::Asking),
                _ => {
                    let (longest, waiting) = later.get_or_insert_with(Default::default);
                    *longest = pause.max(*longest);
                    waiting.extend(indices);
                    continue;
                }
            };
            indices.into_iter().for_each(|index| NodeBatch::put_as(&mut batches, &node, mode, index));
        }
        batches.iter_mut().for_each(|batch| batch.indices.sort_unstable());
        if let Some((pause, mut indices)) = later {
            indices.sort_unstable();
            let budget = spent.clone();
            self.work.push(Box::pin(async move {
                sleep(pause).await;
                ScatterEvent::Due(indices, budget)
            }));
        }
        self.send(batches, &spent);
    }
}

/// Answers in the order of the commands. If no command was answered, the pipeline itself failed.
fn join(answers: Vec<Option<Result<Frame, CallError>>>) -> Result<ReplySet, CallError> {
    let answers: Vec<Result<Frame, CallError>> =
        answers.into_iter().map(|answer| answer.expect("every command was sent")).collect();
    match answers.first() {
        Some(Err(error)) if answers.iter().all(Result::is_err) => Err(error.clone()),
        _ => Ok(ReplySet::PerCommand(answers)),
    }
}

fn into_frames(replies: Replies) -> Vec<Frame> {
    match replies {
        Replies::One(frame) => vec![frame],
        Replies::Many(frames) => frames,
    }
}
