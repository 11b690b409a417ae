//! Futures that the driver waits for.

use super::Lane;
use super::state::{LaneEvent, Wants};
use firth_engine::{Hint, HintKey};
use futures_util::future::BoxFuture;
use std::future::{pending, poll_fn};
use std::task::Poll;
use tokio::time::Instant;

/// A request on its way; its answer is an event.
pub(super) type Request = Option<BoxFuture<'static, LaneEvent>>;

/// The answer to a request; never comes if there is none. Cancel-safe.
pub(super) async fn answer(request: &mut Request) -> LaneEvent {
    let Some(running) = request else { return pending().await };
    let event = running.await;
    *request = None;
    event
}

/// Hints of the log, and of the stream that the topic follows.
pub(super) struct LaneHints {
    log: Hint,
    stream: Option<Hint>,
}

impl LaneHints {
    pub(super) fn new(lane: &Lane) -> Self {
        let engine = &lane.common.engine;
        let stream = lane.common.follows.clone().map(|stream| engine.hint(HintKey::Stream(stream)));
        Self { log: engine.hint(HintKey::Log(lane.at.clone())), stream }
    }

    /// Resolves when a wanted hint came. Cancel-safe.
    pub(super) async fn wait(&mut self, wants: Wants) -> LaneEvent {
        let stream = async {
            match &mut self.stream {
                Some(stream) => stream.wait().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.log.wait(), if wants.hint => LaneEvent::Hint,
            () = stream, if wants.stream => LaneEvent::Hint,
            else => pending().await,
        }
    }
}

pub(super) async fn sleep_until(timer: Option<Instant>) -> LaneEvent {
    match timer {
        Some(timer) => tokio::time::sleep_until(timer).await,
        None => pending().await,
    }
    LaneEvent::Timer
}

/// Lets the tasks run that are ready now. Unlike `yield_now` it does not wait for a poll of the
/// runtime's I/O.
pub(super) async fn let_others_run() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
