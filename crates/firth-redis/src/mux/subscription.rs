//! The handles of subscribers: [`SubscribeCall`], the call in preparation, and [`Subscription`],
//! the stream of events.

use super::callbacks::CallbackSubscription;
use super::config::Buffer;
use super::core::SubscriberNames;
use super::event::{Event, SubscriptionKind};
use super::mailbox::EventMailbox;
use super::registry::Confirmation;
use super::{Mux, OpenMux};
use crate::error::CallError;
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Names in one call at most.
const MAX_NAMES: usize = 1_000_000;
/// The longest name.
const MAX_NAME: usize = 64 << 10;

/// A subscription being prepared: set what you like, then await it. It is there when the *server*
/// has confirmed every name; if one is refused, or the time is up, or the future is dropped, none
/// is kept.
#[must_use = "nothing is subscribed until this is awaited"]
pub struct SubscribeCall<'m> {
    mux: &'m Mux,
    kind: SubscriptionKind,
    names: Vec<Bytes>,
    buffer: Buffer,
    timeout: Duration,
}

impl<'m> SubscribeCall<'m> {
    pub(crate) fn new(mux: &'m Mux, kind: SubscriptionKind, names: Vec<Bytes>) -> Self {
        let config = mux.config();
        Self { mux, kind, names, buffer: config.buffer, timeout: config.subscribe_timeout }
    }

    /// The buffer between the network and this subscriber, and what happens when it is full.
    pub fn buffer(mut self, buffer: Buffer) -> Self {
        self.buffer = buffer;
        self
    }

    /// How long to wait for the server's confirmation.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Subscribes, and runs `callback` for each event on the mux's workers: one at a time and in
    /// order for this subscription, concurrently with others. The token is cancelled when the mux
    /// closes.
    pub async fn for_each<F, Fut>(self, callback: F) -> Result<CallbackSubscription, CallError>
    where
        F: Fn(Event, CancellationToken) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mux = self.mux.clone();
        let subscription = self.run().await?;
        let open_mux = subscription.open_mux.clone();
        open_mux.pool(mux.config()).serve(subscription, callback)
    }

    async fn run(mut self) -> Result<Subscription, CallError> {
        self.check()?;
        let open_mux = self.mux.open_mux();
        let driver = &open_mux.driver;
        if driver.closing.is_cancelled() {
            return Err(CallError::Closed { sent: false });
        }
        let confirm = Confirmation::new(self.names.len());
        let subscription = Subscription {
            mailbox: Arc::new(EventMailbox::new(self.buffer, driver.meter.backlog.clone())),
            mux: self.mux.clone(),
            open_mux: open_mux.clone(),
            kind: self.kind,
            names: self.names.into(),
            ready: VecDeque::new(),
            joined: true,
        };
        driver.subscriptions.fetch_add(1, Ordering::Relaxed);
        driver.with(|core, now| core.join(subscription.names_wanted(), &confirm, now));
        // An error, or a caller that goes away, drops the subscription, which takes back what was
        // joined.
        tokio::select! {
            biased;
            () = driver.closing.cancelled() => Err(CallError::Closed { sent: false }),
            outcome = confirm.wait(self.timeout) => {
                outcome.unwrap_or_else(|| Err(driver.timeout_reason(subscription.names_wanted(), self.timeout)))
            }
        }?;
        Ok(subscription)
    }

    fn check(&mut self) -> Result<(), CallError> {
        self.names.sort_unstable();
        self.names.dedup();
        let problem = match self.names.iter().map(Bytes::len).max() {
            None => Some("a subscription needs at least one name".to_owned()),
            Some(0) => Some("a name must not be empty".to_owned()),
            Some(longest) if longest > MAX_NAME => {
                Some(format!("a name is {longest} bytes long; the limit is {MAX_NAME}"))
            }
            Some(_) if self.names[0].is_empty() => Some("a name must not be empty".to_owned()),
            Some(_) if self.names.len() > MAX_NAMES => {
                Some(format!("{} names in one call; the limit is {MAX_NAMES}", self.names.len()))
            }
            Some(_) => None,
        };
        problem.map_or(Ok(()), |problem| Err(CallError::Invalid(problem)))
    }
}

impl<'m> IntoFuture for SubscribeCall<'m> {
    type Output = Result<Subscription, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'm>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// A subscriber: a stream of events. Dropping it ends its subscriptions, and only its own.
pub struct Subscription {
    mux: Mux,
    open_mux: Arc<OpenMux>,
    kind: SubscriptionKind,
    names: Arc<[Bytes]>,
    mailbox: Arc<EventMailbox>,
    /// Taken from the mailbox and not yet given out.
    ready: VecDeque<Event>,
    joined: bool,
}

impl Subscription {
    /// The next event, or `None` when the mux is closed and everything was read.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Everything that has come, in one go; waits if nothing has. Empty when the mux is closed and
    /// everything was read.
    pub async fn next_batch(&mut self) -> VecDeque<Event> {
        if self.ready.is_empty() {
            poll_fn(|cx| self.mailbox.poll_take(cx, &mut self.ready)).await;
        }
        std::mem::take(&mut self.ready)
    }

    /// The names of this subscription, sorted.
    pub fn names(&self) -> &[Bytes] {
        &self.names
    }

    /// The kind of its names.
    pub fn kind(&self) -> SubscriptionKind {
        self.kind
    }

    /// Events that have come and were not read.
    pub fn pending(&self) -> usize {
        self.ready.len() + self.mailbox.len()
    }

    /// Ends the subscription and waits until the server has confirmed what only this subscriber
    /// wanted.
    pub async fn unsubscribe(mut self) -> Result<(), CallError> {
        let confirm = Confirmation::new(0);
        self.leave(Some(&confirm));
        let limit = self.mux.config().subscribe_timeout;
        tokio::select! {
            () = self.open_mux.driver.closing.cancelled() => Ok(()),
            outcome = confirm.wait(limit) => {
                outcome.unwrap_or(Err(CallError::Timeout { after: limit, sent: true }))
            }
        }
    }

    /// Subscribes anew what lost its node, where the mux was told not to do so by itself.
    pub fn resubscribe(&self) {
        self.open_mux.driver.with(|core, now| core.resubscribe(self.kind, &self.names, now));
    }

    fn names_wanted(&self) -> SubscriberNames<'_> {
        SubscriberNames { kind: self.kind, names: &self.names, mailbox: &self.mailbox }
    }

    pub(crate) fn mailbox(&self) -> &Arc<EventMailbox> {
        &self.mailbox
    }

    pub(crate) fn shared_names(&self) -> &Arc<[Bytes]> {
        &self.names
    }

    fn leave(&mut self, confirm: Option<&Arc<Confirmation>>) {
        if std::mem::take(&mut self.joined) {
            let driver = &self.open_mux.driver;
            driver.subscriptions.fetch_sub(1, Ordering::Relaxed);
            driver.with(|core, _| core.leave(self.names_wanted(), confirm));
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ready.is_empty() && !ready!(self.mailbox.poll_take(cx, &mut self.ready)) {
            return Poll::Ready(None);
        }
        Poll::Ready(self.ready.pop_front())
    }
}

impl futures_core::Stream for Subscription {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.get_mut().poll_event(cx)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave(None);
        self.mailbox.close();
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("kind", &self.kind).field("names", &self.names.len()).finish()
    }
}
