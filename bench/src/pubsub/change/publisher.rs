//! The publisher: numbered messages on every channel at an even pace, and a book of those that the
//! owner of the slot accepted. What no server accepted was not published and cannot be lost.

use super::CHANNELS;
use super::owners::{Owners, Taken};
use crate::pubsub::publisher::now;
use crate::pubsub::workload::PAYLOAD;
use firth_testkit::Reply;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Three messages every millisecond: 3 000 per second, 50 on each of 60 channels.
const PACE: Duration = Duration::from_millis(1);
const AT_ONCE: usize = 3;
/// So on each channel one comes this long after the other.
pub(crate) const PER_CHANNEL: Duration = Duration::from_millis((CHANNELS / AT_ONCE) as u64);

/// A message that the owner of its slot accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Its number on its channel, from 1 upwards; numbers of refused messages are left out.
    pub(crate) number: u64,
    /// When it was sent to that node.
    pub(crate) at: Duration,
    /// When that node had answered.
    pub(crate) taken: Duration,
    /// The port of the node that took it.
    pub(crate) by: u16,
}

/// What was accepted so far, by channel. As long as the measurement lasts, which is bounded.
pub(crate) type Book = Vec<Vec<Sent>>;

/// A publisher at work on the current runtime.
pub(crate) struct Publisher {
    book: Arc<Mutex<Book>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Starts publishing on all channels; `owners` says who has them now.
    pub(crate) fn start(owners: Owners, channels: Vec<(String, u16)>) -> Self {
        let book = Arc::new(Mutex::new(vec![vec![]; channels.len()]));
        let stop = Arc::new(AtomicBool::new(false));
        let lanes = channels.into_iter().map(|(channel, owner)| Lane { channel, owner, number: 0 }).collect();
        let task = tokio::spawn(publish(owners, lanes, book.clone(), stop.clone()));
        Self { book, stop, task }
    }

    /// What was accepted so far.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes no more; gives the whole book.
    pub(crate) async fn end(self) -> Book {
        self.stop.store(true, Relaxed);
        self.task.await.expect("the publisher does not panic");
        std::mem::take(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One channel.
struct Lane {
    channel: String,
    owner: u16,
    number: u64,
}

async fn publish(mut owners: Owners, mut lanes: Vec<Lane>, book: Arc<Mutex<Book>>, stop: Arc<AtomicBool>) {
    let mut pace = interval(PACE);
    // What a busy machine did not let it send stays unsent: a burst would be another workload.
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next = 0;
    while !stop.load(Relaxed) {
        pace.tick().await;
        for _ in 0..AT_ONCE {
            if let Some(sent) = lanes[next].publish(&mut owners).await {
                book.lock().unwrap_or_else(PoisonError::into_inner)[next].push(sent);
            }
            next = (next + 1) % lanes.len();
        }
    }
}

impl Lane {
    /// Publishes the next message; `None` if it was not accepted, or if that is not known.
    async fn publish(&mut self, owners: &mut Owners) -> Option<Sent> {
        self.number += 1;
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(&self.number.to_be_bytes());
        let Taken { reply, at, by } =
            owners.call(self.owner, &[b"SPUBLISH", self.channel.as_bytes(), &payload]).await?;
        self.owner = by;
        matches!(reply, Reply::Int(_)).then_some(Sent { number: self.number, at, taken: now(), by })
    }
}
