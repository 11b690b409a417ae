//! Desired set of subscriptions, keyed by (kind, name): its listeners, and where each is served.
//! Pure.

use super::event::{GapReason, SubscriptionKind};
use super::mailbox::EventMailbox;
use crate::cluster::slot;
use crate::config::Address;
use crate::error::CallError;
use bytes::Bytes;
use slab::Slab;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A refused channel that has subscribers is asked for again after this long, and longer each time.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_secs(30);

/// Index of a channel (or pattern) in the registry.
pub(crate) type ChannelId = usize;
/// Index of a node's link.
pub(crate) type LinkId = usize;

/// Where a channel is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// No node: the next reconcile step chooses one.
    None,
    /// The subscription was sent as this operation and is not confirmed.
    Requested { link: LinkId, op: u64 },
    /// The server confirmed it.
    Live { link: LinkId },
    /// No listener is left; the unsubscribe was sent as this operation.
    Leaving { link: LinkId, op: u64 },
}

impl Placement {
    pub(crate) fn link(self) -> Option<LinkId> {
        match self {
            Self::None => None,
            Self::Requested { link, .. } | Self::Live { link } | Self::Leaving { link, .. } => Some(link),
        }
    }
}

/// A hole in what a channel's listeners receive.
#[derive(Debug, Clone)]
pub(crate) struct ChannelGap {
    pub(crate) reason: GapReason,
    pub(crate) since: Instant,
    /// Node that served the channel before.
    pub(crate) from: Address,
    pub(crate) stalled: bool,
    pub(crate) timed_out: bool,
    /// Since when a node serves the channel that may no longer be its master.
    pub(crate) unverified_since: Option<Instant>,
}

impl ChannelGap {
    pub(crate) fn new(reason: GapReason, from: Address, since: Instant) -> Self {
        Self { reason, since, from, stalled: false, timed_out: false, unverified_since: None }
    }
}

/// A wanted channel or pattern.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) kind: SubscriptionKind,
    pub(crate) name: Bytes,
    pub(crate) slot: u16,
    pub(crate) placement: Placement,
    /// Previous node, whose messages are taken until it has confirmed the unsubscribe.
    pub(crate) previous: Option<LinkId>,
    pub(crate) listeners: SmallVec<[Arc<EventMailbox>; 1]>,
    pub(crate) waiters: Vec<Arc<Confirmation>>,
    pub(crate) gap: Option<Box<ChannelGap>>,
    /// Number of listeners that were told of the gap: the first ones, since new ones come last.
    pub(crate) informed: u32,
    /// Position in the list of unplaced channels, plus one.
    pub(crate) unplaced_index: Option<NonZeroU32>,
    /// Redirections in a row, and refusals in a row.
    pub(crate) redirections: u8,
    pub(crate) refusals: u8,
    /// Not to be asked for before this time.
    pub(crate) retry_at: Option<Instant>,
}

impl Channel {
    /// Whether messages of this link belong to this channel: a previous node may still send some.
    pub(crate) fn accepts(&self, from: LinkId) -> bool {
        self.placement.link() == Some(from) || self.previous == Some(from)
    }

    /// The server refused it: it is requested again after a pause, which grows.
    pub(crate) fn pause_after_refusal(&mut self, now: Instant) {
        let pause = REFUSAL_PAUSE.saturating_mul(1 << self.refusals.min(8)).min(LONGEST_REFUSAL_PAUSE);
        self.retry_at = Some(now + pause);
        self.refusals = self.refusals.saturating_add(1);
    }

    pub(crate) fn drop_listener(&mut self, mailbox: &Arc<EventMailbox>) {
        if let Some(at) = self.listeners.iter().position(|m| Arc::ptr_eq(m, mailbox)) {
            self.listeners.remove(at);
            self.informed -= u32::from(at < self.informed as usize);
        }
    }
}

/// The desired set.
#[derive(Debug, Default)]
pub(crate) struct ChannelRegistry {
    channels: Slab<Channel>,
    index: [HashMap<Bytes, ChannelId, foldhash::fast::RandomState>; 3],
    /// The channel that was found last: messages often come in runs.
    last: Cell<Option<ChannelId>>,
    counts: ChannelCounts,
}

/// How many channels are served, and how many wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChannelCounts {
    /// Confirmed by a server, by kind.
    pub(crate) live: [usize; 3],
    /// Wanted and not confirmed.
    pub(crate) unserved: usize,
}

impl ChannelCounts {
    /// Count that includes a channel with this placement.
    fn of(&mut self, kind: SubscriptionKind, placement: Placement) -> Option<&mut usize> {
        match placement {
            Placement::Live { .. } => Some(&mut self.live[kind.index()]),
            Placement::None | Placement::Requested { .. } => Some(&mut self.unserved),
            Placement::Leaving { .. } => None,
        }
    }
}

impl ChannelRegistry {
    #[inline]
    pub(crate) fn find(&self, kind: SubscriptionKind, name: &[u8]) -> Option<ChannelId> {
        if let Some(last) = self.last.get()
            && self.channels.get(last).is_some_and(|c| c.kind == kind && c.name == name)
        {
            return Some(last);
        }
        let found = self.index[kind.index()].get(name).copied();
        if found.is_some() {
            self.last.set(found);
        }
        found
    }

    pub(crate) fn find_or_insert(&mut self, kind: SubscriptionKind, name: &Bytes) -> ChannelId {
        if let Some(id) = self.find(kind, name) {
            return id;
        }
        let id = self.insert(kind, name);
        self.index[kind.index()].insert(name.clone(), id);
        id
    }

    /// Adds a channel that is not found by its name.
    pub(crate) fn insert(&mut self, kind: SubscriptionKind, name: &Bytes) -> ChannelId {
        self.counts.unserved += 1;
        self.channels.insert(Channel {
            kind,
            name: name.clone(),
            slot: slot(name),
            placement: Placement::None,
            previous: None,
            listeners: SmallVec::new(),
            waiters: Vec::new(),
            gap: None,
            informed: 0,
            unplaced_index: None,
            redirections: 0,
            refusals: 0,
            retry_at: None,
        })
    }

    /// Changes where a channel is served; returns where it was.
    pub(crate) fn set_placement(&mut self, id: ChannelId, placement: Placement) -> Placement {
        let channel = &mut self.channels[id];
        let before = std::mem::replace(&mut channel.placement, placement);
        if let Some(count) = self.counts.of(channel.kind, before) {
            *count -= 1;
        }
        if let Some(count) = self.counts.of(channel.kind, placement) {
            *count += 1;
        }
        before
    }

    pub(crate) fn counts(&self) -> ChannelCounts {
        self.counts
    }

    /// Reserves room for this many more names at once; growing step by step would leave much of it
    /// unused.
    pub(crate) fn reserve(&mut self, kind: SubscriptionKind, names: usize) {
        if names > self.channels.len() {
            self.channels.reserve_exact(names);
            self.index[kind.index()].reserve(names);
        }
    }

    pub(crate) fn remove(&mut self, id: ChannelId) {
        let channel = self.channels.remove(id);
        if self.last.get() == Some(id) {
            self.last.set(None);
        }
        if let Some(count) = self.counts.of(channel.kind, channel.placement) {
            *count -= 1;
        }
        if let Entry::Occupied(known) = self.index[channel.kind.index()].entry(channel.name)
            && *known.get() == id
        {
            known.remove();
        }
    }

    pub(crate) fn get(&self, id: ChannelId) -> Option<&Channel> {
        self.channels.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.get_mut(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChannelId, &Channel)> {
        self.channels.iter()
    }
}

impl std::ops::Index<ChannelId> for ChannelRegistry {
    type Output = Channel;

    fn index(&self, id: ChannelId) -> &Channel {
        &self.channels[id]
    }
}

impl std::ops::IndexMut<ChannelId> for ChannelRegistry {
    fn index_mut(&mut self, id: ChannelId) -> &mut Channel {
        &mut self.channels[id]
    }
}

/// Lets a caller wait until the server has confirmed a number of operations, or refused one.
#[derive(Debug)]
pub(crate) struct Confirmation {
    state: Mutex<(usize, Option<CallError>)>,
    changed: Notify,
}

impl Confirmation {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((count, None)), changed: Notify::new() })
    }

    /// One more thing to wait for.
    pub(crate) fn expect(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
    }

    pub(crate) fn done(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = state.0.saturating_sub(1);
        if state.0 == 0 {
            self.changed.notify_one();
        }
    }

    pub(crate) fn fail(&self, error: CallError) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.get_or_insert(error);
        self.changed.notify_one();
    }

    /// Waits for the end; `None` if it has not come within the limit.
    pub(crate) async fn wait(&self, limit: Duration) -> Option<Result<(), CallError>> {
        let settled = async {
            loop {
                {
                    let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&state.1, state.0) {
                        (Some(error), _) => return Err(error.clone()),
                        (None, 0) => return Ok(()),
                        _ => {}
                    }
                }
                self.changed.notified().await;
            }
        };
        tokio::time::timeout(limit, settled).await.ok()
    }
}
