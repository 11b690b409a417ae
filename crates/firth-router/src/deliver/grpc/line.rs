//! The batches of one stream that wait for their answers. Pure, but for the ends that are told.
//!
//! Batches are numbered as they come and are sent in that order, no more unanswered at a time than
//! the gateway wants. When the call breaks, everything unanswered is sent again over the next one
//! under the same numbers ([`Line::rewind`]), or given up ([`Line::end`]).

use super::messages::BatchAck;
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Outcome of a batch.
#[derive(Debug)]
pub(super) enum Told {
    Answer(BatchAck),
    /// The gateway wants a pause.
    Busy,
    /// The gateway does not take it this way.
    CallInstead,
    /// It is unknown.
    Lost,
}

#[derive(Debug)]
struct Waiting {
    frame: Bytes,
    is_sent: bool,
    tell: oneshot::Sender<Told>,
}

/// Bounded by the lane, which has no more than its window of batches on their way.
#[derive(Debug)]
pub(super) struct Line {
    waiting: BTreeMap<u64, Waiting>,
    last: u64,
    sent: usize,
    window: usize,
    /// When the gateway answered last.
    answered_at: Option<Instant>,
}

impl Default for Line {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), last: 0, sent: 0, window: usize::MAX, answered_at: None }
    }
}

impl Line {
    /// Takes in the batch that is written under its number; answers the number, and where its end
    /// is told.
    pub(super) fn put(&mut self, write: impl FnOnce(u64) -> Bytes) -> (u64, oneshot::Receiver<Told>) {
        self.last += 1;
        let (tell, told) = oneshot::channel();
        self.waiting.insert(self.last, Waiting { frame: write(self.last), is_sent: false, tell });
        (self.last, told)
    }

    /// The next batch to send, if the gateway wants one more.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        if self.sent >= self.window {
            return None;
        }
        let next = self.waiting.values_mut().find(|one| !one.is_sent)?;
        next.is_sent = true;
        self.sent += 1;
        Some(next.frame.clone())
    }

    pub(super) fn answered(&mut self, answer: BatchAck, now: Instant) {
        self.answered_at = Some(now);
        if answer.window > 0 {
            self.window = answer.window as usize;
        }
        // If the caller took the batch back in the meantime, the answer is dropped.
        if let Some(waiting) = self.take(answer.batch) {
            let _ = waiting.tell.send(Told::Answer(answer));
        }
    }

    /// Forgets a batch whose caller no longer waits for the answer.
    pub(super) fn take_back(&mut self, number: u64) {
        self.take(number);
    }

    /// The call broke: everything unanswered goes out again over the next one.
    pub(super) fn rewind(&mut self) {
        self.waiting.values_mut().for_each(|one| one.is_sent = false);
        (self.sent, self.window) = (0, usize::MAX);
    }

    /// The same end for everything that waits.
    pub(super) fn end(&mut self, told: fn() -> Told) {
        self.rewind();
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            // The caller may have dropped its receiver.
            let _ = waiting.tell.send(told());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn answered_at(&self) -> Option<Instant> {
        self.answered_at
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.sent -= usize::from(waiting.is_sent);
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::{DeliveryAck, EventBatch};
    use super::*;
    use crate::deliver::grpc::frames::{frame, only};

    fn numbered(batch: u64) -> Bytes {
        frame(&EventBatch { batch, ..EventBatch::default() })
    }

    fn number(frame: Option<Bytes>) -> Option<u64> {
        frame.map(|frame| only::<EventBatch>(frame).unwrap().batch)
    }

    fn answer(batch: u64, window: u32) -> BatchAck {
        BatchAck { batch, ack: Some(DeliveryAck::default()), window, ..BatchAck::default() }
    }

    #[test]
    fn batches_go_out_in_order_within_the_window_and_again_after_a_break() {
        let mut line = Line::default();
        let now = Instant::now();
        let mut told: Vec<_> = (0..5).map(|_| line.put(numbered).1).collect();
        assert_eq!([(); 3].map(|()| number(line.next())), [Some(1), Some(2), Some(3)]);
        line.answered(answer(2, 2), now);
        assert!(matches!(told[1].try_recv(), Ok(Told::Answer(answer)) if answer.batch == 2));
        assert_eq!(number(line.next()), None, "1 and 3 are unanswered, and two are wanted");
        line.answered(answer(1, 0), now);
        assert_eq!([(); 2].map(|()| number(line.next())), [Some(4), None]);
        line.rewind();
        assert_eq!(
            [(); 3].map(|()| number(line.next())),
            [Some(3), Some(4), Some(5)],
            "the same numbers again"
        );
        line.take_back(4);
        line.answered(answer(4, 0), now);
        assert!(told[3].try_recv().is_err(), "a late answer finds nobody");
        line.end(|| Told::Lost);
        assert!(line.is_empty() && matches!(told[4].try_recv(), Ok(Told::Lost)));
        line.put(numbered);
        assert_eq!(number(line.next()), Some(6), "numbers are never used twice");
    }
}
