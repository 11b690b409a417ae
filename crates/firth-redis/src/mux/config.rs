//! The settings of a mux and of one subscription, with their defaults and minimums.

use std::time::Duration;

/// Settings of a [`Mux`](super::Mux).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MuxConfig {
    /// Which nodes of a cluster serve subscriptions.
    pub nodes: NodePreference,
    /// Whether channels that lost their node are subscribed again by themselves.
    ///
    /// **Why it is on.** A subscriber that must ask loses messages for longer, and one that forgets
    /// to ask loses them for good. The signals tell of the gap either way. Turn it off to decide by
    /// the signals, and call [`Subscription::resubscribe`](super::Subscription::resubscribe) or
    /// [`CallbackSubscription::resubscribe`](super::CallbackSubscription::resubscribe).
    pub auto_resubscribe: bool,
    /// After this long without a node, `Stalled` is signalled. At least 100 ms.
    pub stalled_after: Duration,
    /// After this long without a node, `TimedOut` is signalled. At least 1 s.
    pub timed_out_after: Duration,
    /// How long a call to subscribe waits for the server's confirmation. Then its error names the
    /// cause, if one is known. A server that refuses the password, or speaks only RESP2, ends the
    /// wait at once.
    pub subscribe_timeout: Duration,
    /// Bytes that may be read ahead from each node. At least 4 KiB.
    pub read_ahead: usize,
    /// The buffer of each subscription, unless the call says otherwise.
    pub buffer: Buffer,
    /// Tasks that run callbacks. At least 1.
    pub callback_workers: usize,
    /// Callback subscriptions that may be served at once; each has its own buffer. At least 1.
    pub max_callbacks: usize,
    /// How long `close` lets callbacks work on what they have received.
    pub close_timeout: Duration,
}

impl Default for MuxConfig {
    fn default() -> Self {
        Self {
            nodes: NodePreference::Masters,
            auto_resubscribe: true,
            stalled_after: Duration::from_secs(2),
            timed_out_after: Duration::from_secs(30),
            subscribe_timeout: Duration::from_secs(5),
            read_ahead: 1 << 20,
            buffer: Buffer::default(),
            callback_workers: 2 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            max_callbacks: 10_000,
            close_timeout: Duration::from_secs(5),
        }
    }
}

impl MuxConfig {
    /// Brings what is out of range into range.
    pub(crate) fn sanitised(mut self) -> Self {
        self.stalled_after = self.stalled_after.max(Duration::from_millis(100));
        self.timed_out_after = self.timed_out_after.max(Duration::from_secs(1)).max(self.stalled_after);
        self.read_ahead = self.read_ahead.max(4 << 10);
        self.callback_workers = self.callback_workers.max(1);
        self.max_callbacks = self.max_callbacks.max(1);
        self.buffer = self.buffer.sanitised();
        self
    }
}

/// Which nodes of a cluster serve subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePreference {
    /// Masters only. A subscriber on a replica misses messages when replication breaks, and no
    /// signal can tell. While a master is out of reach one of its replicas serves instead, unless
    /// more than 1 000 channels wait for a node. The gap lasts until a master serves again.
    Masters,
    /// Masters and replicas alike, evenly.
    Balanced,
    /// Replicas where there are any, to spare the masters.
    Replicas,
}

/// The buffer between the network and one subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Bytes that it holds, bookkeeping included. At least 1 KiB; one message is always accepted.
    pub bytes: usize,
    /// What happens to messages when it is full.
    pub overflow: OverflowPolicy,
}

impl Default for Buffer {
    fn default() -> Self {
        Self { bytes: 1 << 20, overflow: OverflowPolicy::DropOldest }
    }
}

impl Buffer {
    pub(crate) fn sanitised(self) -> Self {
        Self { bytes: self.bytes.max(1 << 10), ..self }
    }
}

/// What happens to messages when a subscription's buffer is full.
/// [`Signal::Lagged`](super::Signal::Lagged) tells of dropped messages, at the place where they are
/// missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// Reading from the node stops until there is room. This delays every other subscription on the
    /// same node. If the server's buffer overflows, it closes the connection: that is then a `Gap`.
    Block,
    /// The oldest messages go: what is read is fresh.
    DropOldest,
    /// The newest messages go: what is read has no holes up to the signal.
    DropNewest,
}
