//! [`Session`]: one client's side of the hub, for each of its carriers: WebSocket, server-sent
//! events, polls, or a program of yours.
//!
//! The carrier owns the session and the socket: it gives in what the client says, waits until there
//! is something to send, takes it, writes it, and says that it did. Dropping the session ends it.

use super::mailbox::{Mailbox, RawSocket};
use super::subscribe::Asked;
use super::{Hub, now};
use crate::auth::Grant;
use crate::journal::Missing;
use crate::limits::MessageRate;
use crate::outbox::{
    CloseReason, EncodedEvent, FrameBatch, Item, PartialWrite, QueuedEvent, Said, SlowPolicy,
};
use crate::packet::Packet;
use crate::position::Position;
use crate::protocol::client::ClientMessage;
use crate::protocol::{EdgeError, SubscriptionRequest, server};
use crate::replay::Replay;
use crate::upstream::Hold;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How many events of history are looked through at a time.
const REPLAY_STEP: usize = 256;
/// How many bytes are taken at a time.
const BATCH: usize = 64 << 10;

/// One connection.
pub struct Session {
    hub: Hub,
    slot: usize,
    mailbox: Arc<Mailbox>,
    replay: Option<Box<Replay>>,
    /// Events that were taken and are not written yet.
    in_write: u64,
    rate: MessageRate,
    heard_at: Instant,
    beat_at: Instant,
    expires_at: Option<Instant>,
    over: Option<CloseReason>,
    /// What the router was asked for, for each subscription.
    held: Vec<(String, Hold)>,
    /// The same for those that are about to be made live.
    prepared: Vec<(String, Hold)>,
}

/// One message to the client.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Where the client stands once it has it, if the message says so.
    pub at: Option<Position>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// Shared with all connections that get the same.
    Shared(Arc<EncodedEvent>),
    Own(Packet),
}

impl Outgoing {
    fn own(packet: Packet, at: Option<Position>) -> Self {
        Self { at, content: Content::Own(packet) }
    }

    fn shared(encoded: Arc<EncodedEvent>) -> Self {
        Self { at: Some(encoded.frame.at.clone()), content: Content::Shared(encoded) }
    }

    /// JSON, in one line.
    pub fn text(&self) -> &str {
        self.packet().text()
    }

    fn packet(&self) -> &Packet {
        match &self.content {
            Content::Shared(encoded) => &encoded.packet,
            Content::Own(packet) => packet,
        }
    }
}

/// It, as a frame of the WebSocket protocol.
impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        self.packet().as_ref()
    }
}

/// One thing to write: a message, or several that are one batch.
pub(crate) enum WriteOp {
    /// Only a session with a raw socket has it.
    Partial(Box<PartialWrite>),
    Batch(Arc<FrameBatch>),
    Message(Outgoing),
    /// What the WebSocket protocol itself has to say.
    Control(Vec<u8>),
}

impl AsRef<[u8]> for WriteOp {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Partial(partial) => partial.rest(),
            Self::Batch(batch) => batch.bytes(),
            Self::Message(message) => message.as_ref(),
            Self::Control(frames) => frames,
        }
    }
}

/// As a [`Step`], for WebSockets.
#[derive(Default)]
pub(crate) struct WriteOps {
    pub(crate) list: SmallVec<[WriteOp; 1]>,
    pub(crate) close: Option<(u16, &'static str)>,
    retry: Option<Duration>,
}

impl WriteOps {
    fn push(&mut self, message: Outgoing) {
        self.list.push(WriteOp::Message(message));
    }
}

/// What to write next.
#[derive(Debug, Default)]
pub struct Step {
    /// These messages, in one go.
    pub messages: Vec<Outgoing>,
    /// Then close, with this code and reason.
    pub close: Option<(u16, &'static str)>,
    /// And tell the client when to come back.
    pub retry: Option<Duration>,
}

impl Session {
    pub(super) fn open(hub: Hub, grant: Grant, slow: Option<SlowPolicy>) -> Result<Self, EdgeError> {
        let now = now();
        let expires_at = grant.remaining(SystemTime::now()).and_then(|left| now.checked_add(left));
        let rate = MessageRate::new(hub.config().limits.messages_per_second, now);
        let (slot, mailbox) = hub.core().join(grant, slow, now)?;
        Ok(Self {
            hub,
            slot,
            mailbox,
            replay: None,
            in_write: 0,
            rate,
            heard_at: now,
            beat_at: now,
            expires_at,
            over: None,
            held: Vec::new(),
            prepared: Vec::new(),
        })
    }

    /// Lets writers write events to this socket while the carrier has nothing to write.
    pub(crate) fn attach(&self, socket: Arc<dyn RawSocket>) {
        self.mailbox.attach(socket);
    }

    /// The carrier itself has something to say: it is ready.
    pub(crate) fn must_speak(&self) {
        self.mailbox.notify();
    }

    /// Takes in what the client said. Answers, also to mistakes, are among the next messages.
    pub(crate) fn hear(&mut self, message: &ClientMessage) {
        let outcome = match message {
            ClientMessage::Subscribe(request) => {
                self.make_live(&request.subscriptions, request.after.clone(), request.reference)
            }
            ClientMessage::Unsubscribe(request) => {
                self.hub.core().unsubscribe(self.slot, &request.subscriptions, request.reference);
                self.let_go(&request.subscriptions);
                Ok(())
            }
            ClientMessage::Heartbeat | ClientMessage::Auth(_) => Ok(()),
        };
        if let Err(error) = outcome {
            self.refuse(&error, message.reference());
        }
    }

    /// Waits for what must be there before subscriptions can be made live: that the router knows of
    /// them, and that this hub has come as far as the client. Carriers call it first.
    pub(crate) async fn prepare(
        &mut self,
        requests: &[SubscriptionRequest],
        after: Option<&Position>,
    ) -> Result<(), EdgeError> {
        if let Some(registrar) = self.hub.registrar() {
            self.hub.core().may_subscribe(self.slot, requests, after.is_some())?;
            let tenant = self.hub.core().sessions[self.slot].grant.tenant.clone();
            let holds = requests.iter().map(async |request| {
                Ok::<_, EdgeError>((request.id.clone(), registrar.hold(&tenant, request).await?))
            });
            self.prepared = futures_util::future::try_join_all(holds).await?;
        }
        if let Some(after) = after {
            self.hub.reach(after).await;
        }
        Ok(())
    }

    /// Subscribes to all of them or none; with `after`, everything behind it comes first, or the
    /// client hears that it must fetch its state anew.
    pub fn subscribe(
        &mut self,
        requests: &[SubscriptionRequest],
        after: Option<Position>,
    ) -> Result<(), EdgeError> {
        self.make_live(requests, after, None)
    }

    /// Ends subscriptions by their names.
    pub fn unsubscribe(&mut self, names: &[String]) {
        self.hub.core().unsubscribe(self.slot, names, None);
        self.let_go(names);
    }

    fn make_live(
        &mut self,
        requests: &[SubscriptionRequest],
        after: Option<Position>,
        reference: Option<u64>,
    ) -> Result<(), EdgeError> {
        let prepared = std::mem::take(&mut self.prepared);
        let registered: Vec<u64> = prepared.iter().map(|(_, hold)| hold.number()).collect();
        let mut core = self.hub.core();
        // Under the hub's lock: a gap comes before this look, or finds the subscription.
        let after = after.map(|after| match prepared.iter().all(|(_, hold)| hold.covers(&after)) {
            true => Ok(after),
            false => Err(Missing::TooOld),
        });
        let asked = Asked { requests, registered: &registered, reference };
        core.subscribe(self.slot, &asked, after)?;
        drop(core);
        self.held.extend(prepared);
        Ok(())
    }

    fn let_go(&mut self, names: &[String]) {
        self.held.retain(|(name, _)| !names.contains(name));
    }

    /// Notes that the client lives; refused if it says too much.
    pub(crate) fn heard(&mut self) -> Result<(), EdgeError> {
        self.alive();
        self.rate.pass(self.heard_at)
    }

    /// Notes that the client lives.
    pub(crate) fn alive(&mut self) {
        self.heard_at = now();
    }

    /// The client's token was renewed.
    pub(crate) fn regrant(&mut self, grant: Grant) -> Result<(), EdgeError> {
        let remaining = grant.remaining(SystemTime::now());
        self.hub.core().regrant(self.slot, grant)?;
        self.expires_at = remaining.and_then(|left| now().checked_add(left));
        Ok(())
    }

    /// Tells the client what is wrong.
    pub(crate) fn refuse(&self, error: &EdgeError, reference: Option<u64>) {
        crate::metrics::refused(error.code);
        self.mailbox.outbox().say(server::error(error, reference));
        self.mailbox.notify();
    }

    /// Sends what waits, then ends.
    pub(crate) fn end(&self, code: u16, reason: &'static str) {
        self.mailbox.outbox().end(CloseReason { code, reason, retry: None });
        self.mailbox.notify();
    }

    /// The same, for a client that shall come back: not all at once.
    pub(crate) fn send_away(&self, reason: &'static str) {
        let retry = Some(super::core::spread(self.hub.config().retry_spread));
        self.mailbox.outbox().end(CloseReason { code: super::core::RESTART, reason, retry });
        self.mailbox.notify();
    }

    /// Waits until there is something to write. Safe to cancel.
    pub async fn ready(&self) {
        if self.replay.is_none() && self.over.is_none() {
            std::future::poll_fn(|context| self.mailbox.poll_notified(context)).await;
        }
    }

    /// Takes what to write next; empty when nothing waits. Says how to close when nothing comes any
    /// more.
    pub fn take(&mut self) -> Step {
        let WriteOps { list, close, retry } = self.take_writes();
        let mut messages = Vec::with_capacity(list.len());
        for piece in list {
            match piece {
                WriteOp::Message(message) => messages.push(message),
                WriteOp::Batch(batch) => {
                    messages.extend(batch.events().iter().cloned().map(Outgoing::shared));
                }
                WriteOp::Partial(_) | WriteOp::Control(_) => unreachable!("only WebSockets have them"),
            }
        }
        Step { messages, close, retry }
    }

    /// As [`take`](Self::take), in as few pieces as there are.
    pub(crate) fn take_writes(&mut self) -> WriteOps {
        let mut pieces = WriteOps::default();
        if self.replay.is_some() {
            self.read_history(&mut pieces);
            return pieces;
        }
        let taken = self.mailbox.outbox().take(BATCH, now());
        if let Some(partial) = taken.partial {
            self.in_write += partial.batch.events().len() as u64;
            pieces.list.push(WriteOp::Partial(partial));
        }
        for (name, tail) in &taken.presence {
            pieces.push(Outgoing::own(server::presence(name, tail), None));
        }
        for item in taken.items {
            self.put(item, &mut pieces);
        }
        if let Some(close_reason) = taken.close_reason.filter(|_| self.replay.is_none()) {
            pieces.push(Outgoing::own(Packet::new(&[&server::bye(&close_reason)]), None));
            (pieces.close, pieces.retry) =
                (Some((close_reason.code, close_reason.reason)), close_reason.retry);
            self.over = Some(close_reason);
        } else if taken.has_more {
            self.mailbox.notify();
        }
        pieces
    }

    /// What was taken last has been written.
    pub fn written(&mut self) {
        let mut outbox = self.mailbox.outbox();
        outbox.sent(std::mem::take(&mut self.in_write));
        // Nothing overtakes the rest of the history.
        if self.replay.is_none() {
            outbox.let_go();
        }
    }

    /// When [`on_time`](Self::on_time) must be called, unless the client is not expected to speak.
    pub fn deadline(&self, must_speak: bool) -> tokio::time::Instant {
        let config = self.hub.config();
        let mut next = self.beat_at + config.heartbeat;
        if must_speak {
            next = next.min(self.heard_at + config.silence);
        }
        self.expires_at.map_or(next, |end| next.min(end)).into()
    }

    /// Says that the gateway is there (then it answers true); ends a session that is silent for too
    /// long or whose token has run out.
    pub fn on_time(&mut self, must_speak: bool) -> bool {
        let now = now();
        let config = *self.hub.config();
        if self.expires_at.is_some_and(|end| end <= now) {
            self.expires_at = None;
            self.end(super::core::REVOKED, "the token has run out");
        } else if must_speak && self.heard_at + config.silence <= now {
            self.heard_at = now;
            self.end(SILENT, "silent for too long");
        } else if self.beat_at + config.heartbeat <= now {
            self.beat_at = now;
            self.hub.core().beat(self.slot);
            return true;
        }
        false
    }

    /// The place behind everything that was queued so far.
    pub fn head(&self) -> Position {
        self.hub.core().head(self.slot)
    }

    /// Whether nothing waits now.
    pub fn is_idle(&self) -> bool {
        self.replay.is_none() && !self.mailbox.outbox().has_more()
    }

    fn put(&mut self, item: Item, pieces: &mut WriteOps) {
        pieces.push(match item {
            Item::Event(queued_event) => {
                self.in_write += 1;
                let QueuedEvent { encoded, replaced, .. } = queued_event;
                match replaced {
                    0 => Outgoing::shared(encoded),
                    _ => {
                        let frame = &encoded.frame;
                        let at = &encoded.frame.at;
                        Outgoing::own(server::event(frame, at, &encoded.marks, replaced), Some(at.clone()))
                    }
                }
            }
            Item::Batch(batch) => {
                self.in_write += batch.events().len() as u64;
                return pieces.list.push(WriteOp::Batch(batch));
            }
            Item::Gap(gap) => Outgoing::own(server::gap(&gap), Some(gap.until)),
            Item::Text(Said { text, at }) => Outgoing::own(Packet::new(&[&text]), at.map(|at| *at)),
            Item::Replay(replay) => {
                self.replay = Some(replay);
                return;
            }
        });
    }

    fn read_history(&mut self, pieces: &mut WriteOps) {
        let Some(mut replay) = self.replay.take() else { return };
        let before = pieces.list.len();
        let more = replay.read(REPLAY_STEP, |frame, at, marks| {
            pieces.push(Outgoing::own(server::event(frame, &at, &marks, 0), Some(at)));
        });
        let found = (pieces.list.len() - before) as u64;
        self.in_write += found;
        let mut outbox = self.mailbox.outbox();
        outbox.replayed(found);
        if more {
            self.replay = Some(replay);
        } else if outbox.has_more() {
            self.mailbox.notify();
        }
    }
}

/// The close code of a client that did not speak.
pub(crate) const SILENT: u16 = 4408;

impl Drop for Session {
    fn drop(&mut self) {
        self.hub.core().leave(self.slot, now());
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.slot)
    }
}

#[cfg(test)]
mod tests;
