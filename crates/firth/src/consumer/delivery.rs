//! [`Delivery`]: a record that must be settled. Settling takes it by value, so nothing can be
//! settled twice.

use super::leases::HeldLease;
use super::nack::Nack;
use crate::error::{Error, ErrorKind, Result};
use crate::record::Record;
use crate::shared_record::SharedRecord;
use firth_engine::Epoch;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// What a lane hears about its deliveries.
pub(crate) enum DeliveryEvent {
    Judged {
        record: SharedRecord,
        judgement: HandlerVerdict,
        waiter: Option<oneshot::Sender<Result<()>>>,
    },
    /// Verdicts of handlers; no caller waits until they are stored.
    Handled(Vec<(SharedRecord, HandlerVerdict)>),
    /// It comes again before any later one.
    Unstarted(SharedRecord),
    /// It waits for an earlier one of its key that failed.
    HeldBack(SharedRecord),
    ChunkDone,
}

pub(crate) enum HandlerVerdict {
    Ack,
    Nack(Nack),
}

/// The lane's side of its deliveries. A lane that starts over makes a new one, so that old verdicts
/// go nowhere.
pub(crate) struct LaneHandle {
    pub(crate) events: mpsc::UnboundedSender<DeliveryEvent>,
    pub(crate) held: Arc<HeldLease>,
    /// Cancelled when no further record may start, though running ones may finish.
    pub(crate) draining: CancellationToken,
    /// Cancelled when running ones must stop too: another member owns the partition.
    pub(crate) abandoned: CancellationToken,
    /// How many records are on their way back unstarted.
    returning: AtomicUsize,
}

impl LaneHandle {
    /// A handle, and where its lane hears of the deliveries.
    pub(crate) fn new(held: Arc<HeldLease>) -> (Arc<Self>, mpsc::UnboundedReceiver<DeliveryEvent>) {
        let (events, receiver) = mpsc::unbounded_channel();
        let draining = CancellationToken::new();
        let abandoned = CancellationToken::new();
        (Arc::new(Self { events, held, draining, abandoned, returning: AtomicUsize::new(0) }), receiver)
    }

    /// Whether records are on their way back: later ones that were handed out or started now would
    /// overtake them.
    pub(crate) fn is_returning(&self) -> bool {
        self.returning.load(Ordering::SeqCst) > 0
    }

    /// The lane has `count` of them in their places again.
    pub(crate) fn are_back(&self, count: usize) {
        if count > 0 {
            self.returning.fetch_sub(count, Ordering::SeqCst);
        }
    }
}

/// Tells the lane when the last delivery of a chunk is gone.
pub(crate) struct ChunkGuard(pub(crate) Arc<LaneHandle>);

impl Drop for ChunkGuard {
    fn drop(&mut self) {
        // A lane that is gone needs no news.
        let _ = self.0.events.send(DeliveryEvent::ChunkDone);
    }
}

/// Verdicts of one worker that go to the lane together. A worker that adds a verdict hands the
/// batch in before it waits for anything.
pub(crate) struct VerdictBatch {
    list: Vec<(SharedRecord, HandlerVerdict)>,
    /// Dropped after the last verdict was handed in: the lane hears of the end of the chunk last.
    end: Arc<ChunkGuard>,
}

impl VerdictBatch {
    /// An empty batch for the chunk of this delivery, with room for `room` verdicts.
    pub(crate) fn beside(delivery: &Delivery, room: usize) -> Self {
        Self { list: Vec::with_capacity(room), end: delivery.end.clone() }
    }

    /// Whether a delivery's verdict goes to the same lane.
    pub(crate) fn is_of(&self, delivery: &Delivery) -> bool {
        Arc::ptr_eq(&self.end.0, &delivery.end.0)
    }

    pub(crate) fn add(&mut self, mut delivery: Delivery, judgement: HandlerVerdict) {
        let record = delivery.record.take().expect("only settling takes it").into_inner();
        self.list.push((record, judgement));
    }

    pub(crate) fn hand_in(&mut self) {
        if !self.list.is_empty() {
            let list = std::mem::take(&mut self.list);
            // A lane that is gone needs no verdicts.
            let _ = self.end.0.events.send(DeliveryEvent::Handled(list));
        }
    }
}

impl Drop for VerdictBatch {
    fn drop(&mut self) {
        self.hand_in();
    }
}

/// A record in your hands: [`ack`](Self::ack), [`nack`](Self::nack) or [`reject`](Self::reject) it.
///
/// Dropping it unsettled counts as a failed attempt. Reads like a [`Record`].
#[must_use = "a delivery must be settled; dropping it counts as a failed attempt"]
pub struct Delivery {
    record: Option<Record>,
    end: Arc<ChunkGuard>,
    started: bool,
}

impl Delivery {
    pub(crate) fn new(record: Record, end: Arc<ChunkGuard>) -> Self {
        Self { record: Some(record), end, started: false }
    }

    /// Done. The verdict is noted at once; await the answer to know that it is stored.
    pub fn ack(self) -> Settled {
        self.settle(HandlerVerdict::Ack)
    }

    /// Not done: try again, or give up, as the nack and the retry policy say.
    pub fn nack(self, nack: impl Into<Nack>) -> Settled {
        self.settle(HandlerVerdict::Nack(nack.into()))
    }

    /// Gives the record up: it becomes a dead letter.
    pub fn reject(self, why: impl fmt::Display) -> Settled {
        self.settle(HandlerVerdict::Nack(Nack::reject(why)))
    }

    /// The record.
    pub fn record(&self) -> &Record {
        self.record.as_ref().expect("only settling takes it")
    }

    /// Under which ownership of the partition it was handed out. Grows with each change of owner.
    pub fn epoch(&self) -> Epoch {
        self.end.0.held.hold.epoch
    }

    /// Resolves when the partition was lost to another consumer: work that goes on from then on is
    /// done twice.
    pub async fn lost(&self) {
        self.end.0.abandoned.cancelled().await;
    }

    /// Marks it as handed to user code; false if it must not start any more, and neither may any
    /// behind it.
    pub(crate) fn start(&mut self) -> bool {
        let lane = &self.end.0;
        self.started = lane.held.is_valid() && !lane.draining.is_cancelled() && !lane.is_returning();
        self.started
    }

    pub(crate) fn chunk_end(&self) -> &Arc<ChunkGuard> {
        &self.end
    }

    pub(crate) fn lane(&self) -> &Arc<LaneHandle> {
        &self.end.0
    }

    /// Gives it back as if it had never started: it comes again, here or to the next owner, and no
    /// attempt is counted. Here it comes before any later one that [`next`](super::Consumer::next)
    /// has not answered yet.
    pub fn give_back(mut self) {
        self.started = false;
    }

    /// Lets it wait for an earlier one of its key that failed; others need not wait.
    pub(crate) fn hold_back(mut self) {
        let record = self.record.take().expect("only settling takes it").into_inner();
        // A lane that is gone needs no news.
        let _ = self.end.0.events.send(DeliveryEvent::HeldBack(record));
    }

    fn settle(mut self, judgement: HandlerVerdict) -> Settled {
        let (waiter, answer) = oneshot::channel();
        let record = self.record.take().expect("only settling takes it").into_inner();
        let _ = self.end.0.events.send(DeliveryEvent::Judged { record, judgement, waiter: Some(waiter) });
        Settled(answer)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(record) = self.record.take() else { return };
        let record = record.into_inner();
        let event = match self.started {
            true => DeliveryEvent::Judged {
                record,
                judgement: HandlerVerdict::Nack(Nack::retry("dropped without a verdict")),
                waiter: None,
            },
            false => {
                self.end.0.returning.fetch_add(1, Ordering::SeqCst);
                DeliveryEvent::Unstarted(record)
            }
        };
        let _ = self.end.0.events.send(event);
    }
}

impl Deref for Delivery {
    type Target = Record;

    fn deref(&self) -> &Record {
        self.record()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({:?})", self.record)
    }
}

/// The answer to a verdict: `Ok` once it is stored, `Fenced` if the partition had another owner by
/// then.
///
/// An error whose [`may_have_happened`](Error::may_have_happened) is false means that the verdict
/// certainly changed nothing and never will.
///
/// A lost reply of the engine is no error here: the lane starts over, sees in its group's progress
/// what became of the verdict, and answers then. Only if the lease has run out by then is the
/// outcome reported as unknown.
///
/// The verdict counts whether or not this is awaited; drop it to go on at full speed.
#[must_use = "await it to know that the verdict is stored, or drop it explicitly"]
pub struct Settled(oneshot::Receiver<Result<()>>);

impl Future for Settled {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(gone())))
    }
}

fn gone() -> Error {
    let context =
        "the partition was given up before the verdict was stored: the record comes again elsewhere";
    // Certain: a lane answers every verdict that it has heard before it ends.
    Error::new(ErrorKind::Fenced, context)
}
