//! A consumer's stream: deliveries as they come, until the client hangs up or the server stops.
//!
//! At most `max` of its deliveries are unsettled at a time; then it waits for verdicts. It ends
//! when one of its group runs out: its client sleeps, or is gone without a word. Dropping it gives
//! everything unsettled back, without costing an attempt.

use super::DeliveryLeases;
use super::group::{GroupLeases, StreamLoad, UseGuard};
use firth::{Delivery, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct DeliveryStream {
    leases: DeliveryLeases,
    group: Arc<GroupLeases>,
    using: UseGuard,
    load: Arc<StreamLoad>,
    /// Everything it was given, oldest first; settled ones are forgotten when it grows.
    given: VecDeque<u64>,
    max: usize,
    lease: Duration,
}

impl DeliveryStream {
    pub(super) fn new(
        leases: DeliveryLeases,
        group: Arc<GroupLeases>,
        using: UseGuard,
        max: usize,
        lease: Duration,
    ) -> Self {
        let load = Arc::default();
        let given = VecDeque::new();
        Self { leases, group, using, load, given, max, lease }
    }

    /// The next delivery as `show` sees it with its handle; `None` when the server stops, the group
    /// was left, or a lease ran out. Cancel-safe: what was taken has a lease.
    pub(crate) async fn next<T>(&mut self, show: impl FnOnce(String, &Delivery) -> T) -> Result<Option<T>> {
        let taken = async {
            loop {
                let changed = self.load.changed.notified();
                if self.load.unsettled() < self.max {
                    break;
                }
                changed.await;
            }
            let mut slot = self.group.consumer.lock().await;
            let Some(consumer) = slot.as_mut() else { return Ok(None) };
            let Some(delivery) = consumer.next().await.transpose()? else { return Ok(None) };
            let number = self.group.number();
            let shown = show(self.leases.handle(number), &delivery);
            let holder = (&self.using.client, Some(&self.load));
            self.group.hold(number, Instant::now() + self.lease, delivery, holder);
            Ok(Some((number, shown)))
        };
        let taken: Result<Option<(u64, T)>> = tokio::select! {
            biased;
            () = self.group.closing.cancelled() => Ok(None),
            () = self.load.asleep.cancelled() => Ok(None),
            taken = taken => taken,
        };
        match taken {
            Ok(Some((number, shown))) => {
                self.remember(number);
                Ok(Some(shown))
            }
            Ok(None) => Ok(None),
            // A partition cannot be read; the group goes on with the others.
            Err(error) if error.kind() == ErrorKind::Corrupt => Err(error),
            Err(error) => {
                self.leases.discard(&self.group);
                Err(error)
            }
        }
    }

    /// Waits until nothing of it is unsettled, or the server stops.
    pub(crate) async fn drained(&self) {
        let drained = async {
            loop {
                let changed = self.load.changed.notified();
                if self.load.unsettled() == 0 {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = drained => {}
            () = self.group.closing.cancelled() => {}
            () = self.load.asleep.cancelled() => {}
        }
    }

    fn remember(&mut self, number: u64) {
        if self.given.len() > 4 * self.max {
            let group = &self.group;
            self.given.retain(|number| group.holds(*number));
        }
        self.given.push_back(number);
    }
}

impl Drop for DeliveryStream {
    fn drop(&mut self) {
        self.group.give_back(self.given.drain(..));
    }
}
