//! Outcome of a batch, and the futures of its messages: one shared place per batch instead of a
//! channel per message.

use super::Receipt;
use crate::error::{Error, Result, closed, same};
use firth_engine::facet::Appended;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Wakers that are kept; more than messages in the largest batch.
const MAX_WAITING: usize = 2048;

/// Outcome of a batch. Settled exactly once: by the sender, or when its [`CompletionGuard`] is
/// dropped.
#[derive(Default)]
pub(super) struct Completion(Mutex<State>);

enum State {
    /// Not known yet; wakers of the waiting tasks, at most [`MAX_WAITING`].
    Open(Vec<Waker>),
    Stored {
        partition: u32,
        appended: Appended,
    },
    Failed(Error),
}

impl Default for State {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl Completion {
    fn settle(&self, state: State) {
        let mut now = self.0.lock().expect("nothing panics under this lock");
        if let State::Open(waiting) = &mut *now {
            let waiting = std::mem::take(waiting);
            *now = state;
            drop(now);
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    fn receipt(&self, index: usize, context: &Context<'_>) -> Poll<Result<Receipt>> {
        match &mut *self.0.lock().expect("nothing panics under this lock") {
            State::Open(waiting) => {
                // A task that awaits one future after another registers once and is woken once.
                if !waiting.last().is_some_and(|last| last.will_wake(context.waker())) {
                    if waiting.len() >= MAX_WAITING {
                        // A task that still waits registers again; a waker that was replaced does
                        // not come back.
                        waiting.drain(..).for_each(Waker::wake);
                    }
                    waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
            State::Stored { partition, appended } => Poll::Ready(Ok(Receipt {
                partition: *partition,
                id: appended.first.map(|first| first.plus(index as u64)),
                duplicate: appended.duplicate,
            })),
            State::Failed(error) => Poll::Ready(Err(same(error))),
        }
    }
}

/// The sender's side. If the sender drops it unsettled, the futures fail with an unknown outcome.
pub(super) struct CompletionGuard(Arc<Completion>);

impl CompletionGuard {
    pub(super) fn new(completion: Arc<Completion>) -> Self {
        Self(completion)
    }

    pub(super) fn settle(self, partition: u32, result: Result<Appended>) {
        self.0.settle(match result {
            Ok(appended) => State::Stored { partition, appended },
            Err(error) => State::Failed(error),
        });
    }
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        self.0.settle(State::Failed(closed("the producer's task ended").with_unknown_outcome()));
    }
}

/// The answer to an enqueued message, when it comes. Dropping it does not take the message back.
#[must_use = "the message is sent anyway; drop the future explicitly if you do not care whether it arrived"]
pub struct SendFuture {
    completion: Arc<Completion>,
    index: usize,
}

impl SendFuture {
    pub(super) fn new(completion: Arc<Completion>, index: usize) -> Self {
        Self { completion, index }
    }
}

impl Future for SendFuture {
    type Output = Result<Receipt>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.completion.receipt(self.index, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use firth_engine::RecordId;
    use futures_util::FutureExt;

    fn appended() -> Appended {
        Appended { first: Some(RecordId::new(7, 10)), count: 3, duplicate: false }
    }

    #[tokio::test]
    async fn futures_held_by_several_tasks_are_all_answered_even_after_they_changed_hands() {
        let completion = Arc::new(Completion::default());
        let [mut first, mut second] = [0, 2].map(|index| SendFuture::new(completion.clone(), index));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        let elsewhere = tokio::spawn(first);
        let here = tokio::spawn(second);
        tokio::task::yield_now().await;
        CompletionGuard::new(completion).settle(4, Ok(appended()));
        let receipt = elsewhere.await.unwrap().unwrap();
        assert_eq!((receipt.partition, receipt.id), (4, Some(RecordId::new(7, 10))));
        assert_eq!(here.await.unwrap().unwrap().id, Some(RecordId::new(7, 12)));
    }

    #[tokio::test]
    async fn a_sender_that_vanishes_leaves_the_outcome_open() {
        let completion = Arc::new(Completion::default());
        drop(CompletionGuard::new(completion.clone()));
        let error = SendFuture::new(completion, 0).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Closed && error.may_have_happened());
    }
}
