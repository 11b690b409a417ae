//! A pipeline in a cluster: its commands are sorted by node, sent at the same time, and their answers put back in order.
//! A command that is redirected is sent on by itself, together with its fellows of the same slot and in their order;
//! the others are not touched, and a slow node holds up nobody else's redirections.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    node::Node,
    redirect::{Budget, Step},
    router::{Router, Target},
    unit::{Asking, step_of_piece},
};
use crate::{
    call::Landed,
    command::{Piece, Pipe, pipe},
    config::Address,
    connection::{Flight, Replies, Request, Route},
    error::CallError,
    resp::Frame,
};

/// Commands of a pipeline that go to one node.
pub(crate) struct Batch {
    node: Arc<Node>,
    how: How,
    /// Their places in the pipeline, ascending.
    pieces: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Plain,
    /// As reads, at a replica.
    Reading,
    /// Each behind an ASKING.
    Asking,
}

impl Batch {
    /// Adds a command to the batch of its node, which is begun if there is none.
    pub(crate) fn put(batches: &mut Vec<Self>, node: &Arc<Node>, reading: bool, piece: usize) {
        let how = if reading { How::Reading } else { How::Plain };
        Self::put_as(batches, node, how, piece);
    }

    fn put_as(batches: &mut Vec<Self>, node: &Arc<Node>, how: How, piece: usize) {
        let same = |batch: &&mut Self| batch.how == how && Arc::ptr_eq(&batch.node, node);
        match batches.iter_mut().find(same) {
            Some(batch) => batch.pieces.push(piece),
            None => batches.push(Self { node: node.clone(), how, pieces: vec![piece] }),
        }
    }

    /// Adds commands in their places.
    pub(crate) fn also(&mut self, pieces: Vec<usize>) {
        if !pieces.is_empty() {
            self.pieces.extend(pieces);
            self.pieces.sort_unstable();
        }
    }

    pub(crate) fn reads_from_replica(&self) -> bool {
        self.how == How::Reading
    }

    /// The connection for it.
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<Route<'static>, CallError> {
        match self.how {
            How::Reading => self.node.read_route(request),
            How::Plain | How::Asking => self.node.route(request),
        }
    }

    async fn send(&self, all: &Pipe, budget: &Budget) -> Result<Replies, CallError> {
        let left = budget.time_left(Instant::now()).unwrap_or(Some(Duration::ZERO));
        if self.how == How::Asking {
            let asking = Asking::pieces(select(all, &self.pieces), all);
            let route = self.route(&asking.request())?;
            return Flight::new(route, asking.request(), left).await.map(|replies| asking.strip(replies));
        }
        let mut own = pipe().with_nature_of(all);
        select(all, &self.pieces).for_each(|piece| own.push_wire(piece.bytes));
        let request = Request::Many(own.into());
        let route = self.route(&request)?;
        Flight::new(route, request, left).await
    }
}

fn select<'a>(all: &'a Pipe, pieces: &'a [usize]) -> impl Iterator<Item = Piece<'a>> {
    let mut at = 0;
    let mut rest = all.pieces();
    pieces.iter().map(move |&index| {
        let piece = rest.nth(index - at).expect("the piece is one of the pipeline");
        at = index + 1;
        piece
    })
}

/// Sends a pipeline whose commands were sorted by node.
pub(crate) async fn begin<'c>(
    router: &'c Router,
    request: Request<'c>,
    batches: Vec<Batch>,
    budget: Budget,
) -> Result<Landed, CallError> {
    let pipe = request.into_pipe();
    let mut scatter = Scatter::new(router, &pipe);
    scatter.send(batches, &budget);
    scatter.gather().await
}

/// Goes on with a pipeline that was sent to one node in one piece.
pub(crate) async fn resume<'c>(
    router: &'c Router,
    request: Request<'c>,
    result: Result<Replies, CallError>,
    at: Option<Address>,
    budget: Budget,
) -> Result<Landed, CallError> {
    let pipe = request.into_pipe();
    let mut scatter = Scatter::new(router, &pipe);
    scatter.settle(&(0..pipe.len()).collect::<Vec<_>>(), result, at.as_ref(), &budget);
    scatter.gather().await
}

/// Something that the pipeline waits for.
enum Event {
    /// A batch was answered, or failed.
    Answered(Batch, Budget, Result<Replies, CallError>),
    /// The pause before another try is over.
    Due(Vec<usize>, Budget),
}

type Work<'a> = Pin<Box<dyn Future<Output = Event> + Send + 'a>>;

/// A pipeline under way.
struct Scatter<'a> {
    router: &'a Router,
    pipe: &'a Pipe,
    /// The latest answer to each command; that of a command under way may be a redirection.
    answers: Vec<Option<Result<Frame, CallError>>>,
    /// At most a few per node.
    work: Vec<Work<'a>>,
}

impl<'a> Scatter<'a> {
    fn new(router: &'a Router, pipe: &'a Pipe) -> Self {
        Self { router, pipe, answers: vec![None; pipe.len()], work: Vec::new() }
    }

    fn send(&mut self, batches: Vec<Batch>, budget: &Budget) {
        let pipe = self.pipe;
        self.work.extend(batches.into_iter().map(|batch| -> Work<'a> {
            let budget = budget.clone();
            Box::pin(async move {
                let result = batch.send(pipe, &budget).await;
                Event::Answered(batch, budget, result)
            })
        }));
    }

    /// Deals with one event after the other until nothing is under way.
    async fn gather(mut self) -> Result<Landed, CallError> {
        while let Some(event) = self.next().await {
            match event {
                Event::Answered(batch, budget, result) => {
                    self.settle(&batch.pieces, result, Some(batch.node.address()), &budget);
                }
                Event::Due(pieces, budget) => self.send_again(&pieces, budget).await,
            }
        }
        join(self.answers)
    }

    async fn next(&mut self) -> Option<Event> {
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

    async fn send_again(&mut self, pieces: &[usize], budget: Budget) {
        let batches = self.router.batches(self.pipe, pieces.iter().copied(), false);
        if batches.is_empty() {
            let nowhere = Err(self.router.nowhere());
            self.settle(pieces, nowhere, None, &budget);
        } else {
            self.send(batches, &budget);
        }
    }

    /// Takes the answers of some commands, and sends those on that were none.
    fn settle(
        &mut self,
        pieces: &[usize],
        result: Result<Replies, CallError>,
        at: Option<&Address>,
        budget: &Budget,
    ) {
        let replies = match result {
            Ok(replies) => replies,
            Err(error) => {
                let step = self.router.step_of_failure(&error, at);
                let error = self.router.explain(error, budget);
                pieces.iter().for_each(|&piece| self.answers[piece] = Some(Err(error.clone())));
                return self.retry(vec![(step, pieces.to_vec())], at, budget);
            }
        };
        let mut steps: Vec<(Step, Vec<usize>)> = Vec::new();
        for (&piece, frame) in pieces.iter().zip(into_frames(replies)) {
            let step = step_of_piece(&frame, self.pipe, piece);
            self.answers[piece] = Some(Ok(frame));
            match steps.iter_mut().find(|(known, _)| *known == step) {
                _ if step == Step::Done => {}
                Some((_, same)) => same.push(piece),
                None => steps.push((step, vec![piece])),
            }
        }
        self.retry(steps, at, budget);
    }

    /// Sends commands on, each where its step says.
    fn retry(&mut self, steps: Vec<(Step, Vec<usize>)>, at: Option<&Address>, budget: &Budget) {
        let (mut batches, mut later): (Vec<Batch>, Option<(Duration, Vec<usize>)>) = (Vec::new(), None);
        let now = Instant::now();
        let mut spent = budget.clone();
        for (step, pieces) in steps {
            // The budget counts attempts, of which this is one, whatever number of commands it is made for.
            spent = budget.clone();
            let Some(pause) = spent.spend(&step, now) else { continue };
            let (node, how) = match self.router.learn(&step, at) {
                Target::Node(node) if pause.is_zero() => (node, How::Plain),
                Target::Ask(node) if pause.is_zero() => (node, How::Asking),
                _ => {
                    let (longest, waiting) = later.get_or_insert_with(Default::default);
                    *longest = pause.max(*longest);
                    waiting.extend(pieces);
                    continue;
                }
            };
            pieces.into_iter().for_each(|piece| Batch::put_as(&mut batches, &node, how, piece));
        }
        batches.iter_mut().for_each(|batch| batch.pieces.sort_unstable());
        if let Some((pause, mut pieces)) = later {
            pieces.sort_unstable();
            let budget = spent.clone();
            self.work.push(Box::pin(async move {
                sleep(pause).await;
                Event::Due(pieces, budget)
            }));
        }
        self.send(batches, &spent);
    }
}

/// The answers in the order of the commands. If not one command was answered, the pipeline itself failed.
fn join(answers: Vec<Option<Result<Frame, CallError>>>) -> Result<Landed, CallError> {
    let answers: Vec<Result<Frame, CallError>> =
        answers.into_iter().map(|answer| answer.expect("every command was sent")).collect();
    match answers.first() {
        Some(Err(error)) if answers.iter().all(Result::is_err) => Err(error.clone()),
        _ => Ok(Landed::Each(answers)),
    }
}

fn into_frames(replies: Replies) -> Vec<Frame> {
    match replies {
        Replies::One(frame) => vec![frame],
        Replies::Many(frames) => frames,
    }
}
