//! Laws of the mux's core, without a server: events in, orders and signals out.

mod changes;
mod failures;
mod fallback;
mod keyspace;
mod replies;

use super::*;
use crate::cluster::topology::ClusterShard;
use crate::connection::ServerInfo;
use crate::connection::push_queue::PushItem;
use crate::error::LostCause;
use crate::mux::config::Buffer;
use crate::mux::event::{Event, Signal};
use crate::resp::pubsub::PubSubFrame;
use crate::resp::{Decoder, ReplyLimits};
use bytes::BytesMut;
use std::task::Context;

fn node(port: u16) -> Address {
    Address::new("n", port)
}

/// Two masters: 1 owns the lower half of the slots, 2 the upper.
fn topology(lower: u16, upper: u16) -> Arc<Topology> {
    let shard = |n| ClusterShard { master: node(n), replicas: vec![] };
    Arc::new(Topology::from_ranges([(0..=8191, shard(lower)), (8192..=16383, shard(upper))]))
}

/// A core with its clock, and what came out of it.
struct Rig {
    core: MuxCore,
    now: Instant,
    sent: Vec<(u16, String)>,
    opened: Vec<u16>,
    closed: usize,
    refreshes: usize,
    resets: usize,
    moved: Vec<(u16, Address)>,
}

impl Rig {
    fn new(config: MuxConfig) -> Self {
        let core = MuxCore::new(config, topology(1, 2), MuxDeployment::Single);
        Self {
            core,
            now: Instant::now(),
            sent: vec![],
            opened: vec![],
            closed: 0,
            refreshes: 0,
            resets: 0,
            moved: vec![],
        }
    }

    fn settle(&mut self) {
        let mut actions = Vec::new();
        let mut wakers = Vec::new();
        self.core.drain(&mut actions, &mut wakers);
        for action in actions {
            match action {
                MuxAction::Open(_, address) => self.opened.push(address.port),
                MuxAction::Send(link, _, bytes) => {
                    let port = self.core.links[link].address.port;
                    let words: Vec<&[u8]> = bytes
                        .split(|&b| b == b'\n')
                        .filter(|w| !w.starts_with(b"*") && !w.starts_with(b"$"))
                        .collect();
                    let text = String::from_utf8(words.join(&b' ')).unwrap().replace('\r', "");
                    self.sent.push((port, text.trim().to_owned()));
                }
                MuxAction::Refresh => self.refreshes += 1,
                MuxAction::Reset(_) => self.resets += 1,
                MuxAction::Close(_) => self.closed += 1,
                MuxAction::Moved(slot, to) => self.moved.push((slot, to)),
            }
        }
    }

    fn join(
        &mut self,
        kind: SubscriptionKind,
        names: &[&'static str],
    ) -> (Arc<EventMailbox>, Arc<Confirmation>) {
        self.join_with(Buffer::default(), kind, names)
    }

    fn join_with(
        &mut self,
        buffer: Buffer,
        kind: SubscriptionKind,
        names: &[&'static str],
    ) -> (Arc<EventMailbox>, Arc<Confirmation>) {
        let mailbox = Arc::new(EventMailbox::new(buffer, Arc::default()));
        let confirm = Confirmation::new(names.len());
        let names: Vec<Bytes> = names.iter().map(|n| Bytes::from_static(n.as_bytes())).collect();
        let want = SubscriberNames { kind, names: &names, mailbox: &mailbox };
        self.core.join(want, &confirm, self.now);
        self.settle();
        (mailbox, confirm)
    }

    fn leave(&mut self, kind: SubscriptionKind, name: &'static str, mailbox: &Arc<EventMailbox>) {
        let names = [Bytes::from_static(name.as_bytes())];
        self.core.leave(SubscriberNames { kind, names: &names, mailbox }, None);
        self.settle();
    }

    fn link(&self, port: u16) -> LinkId {
        self.core.by_address[&node(port)]
    }

    fn item(&mut self, port: u16, item: PushItem) {
        let link = self.link(port);
        self.core.handle(link, &mut VecDeque::from([item]), self.now);
        self.settle();
    }

    fn open(&mut self, port: u16, generation: u64) {
        self.item(port, PushItem::Opened { generation, server_info: ServerInfo::of_resp3() });
    }

    fn handle(&mut self, port: u16, text: &str) {
        let frame = frame(text);
        self.item(port, frame);
    }

    /// Hears several things in one go; what is not dealt with is given back, for the next time.
    fn hear_all(&mut self, port: u16, mut items: VecDeque<PushItem>) -> VecDeque<PushItem> {
        let link = self.link(port);
        self.core.handle(link, &mut items, self.now);
        self.settle();
        items
    }

    fn take_sent(&mut self) -> Vec<(u16, String)> {
        std::mem::take(&mut self.sent)
    }

    fn tick(&mut self, after: std::time::Duration) {
        self.now += after;
        self.core.tick(self.now);
        self.settle();
    }

    fn topology(&mut self, lower: u16, upper: u16) {
        self.core.set_topology(topology(lower, upper), self.now);
        self.settle();
    }
}

fn lost() -> PushItem {
    PushItem::Lost(LostCause::Eof)
}

fn frame(text: &str) -> PushItem {
    let mut wire = BytesMut::new();
    match text.split_once(' ') {
        Some(("-", error)) => wire.extend_from_slice(format!("-{error}\r\n").as_bytes()),
        Some(("PONG", id)) => wire.extend_from_slice(format!("${}\r\n{id}\r\n", id.len()).as_bytes()),
        _ => {
            let words: Vec<&str> = text.split(' ').collect();
            wire.extend_from_slice(format!(">{}\r\n", words.len()).as_bytes());
            for word in words {
                wire.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
        }
    }
    PushItem::Frame(PubSubFrame::read(
        &Decoder::new(ReplyLimits::default()).decode(&mut wire).unwrap().unwrap(),
    ))
}

fn read(mailbox: &EventMailbox) -> Vec<String> {
    let mut events = VecDeque::new();
    let cx = Context::from_waker(Waker::noop());
    if mailbox.poll_take(&cx, &mut events).is_pending() {
        return vec![];
    }
    let show = |event| match event {
        Event::Message(m) => String::from_utf8(m.payload.to_vec()).unwrap(),
        Event::Signal(Signal::Gap { reason, .. }) => format!("gap {reason:?}"),
        Event::Signal(Signal::Resumed { .. }) => "resumed".into(),
        Event::Signal(Signal::Moved { from, to, .. }) => format!("moved {} {}", from.port, to.port),
        Event::Signal(Signal::NodeLost { node, .. }) => format!("lost {}", node.port),
        Event::Signal(Signal::Stalled { .. }) => "stalled".into(),
        Event::Signal(Signal::TimedOut { .. }) => "timed out".into(),
        Event::Signal(Signal::Lagged { dropped }) => format!("lagged {dropped}"),
    };
    events.into_iter().map(show).collect()
}

fn rig() -> Rig {
    Rig::new(MuxConfig::default())
}

/// A sharded channel in the lower half (slot 7365).
const LOW: &str = "b0";

#[test]
fn the_test_channel_lies_in_the_lower_half() {
    assert!(crate::slot(LOW.as_bytes()) < 8192, "{}", crate::slot(LOW.as_bytes()));
}

fn live(rig: &mut Rig) -> Arc<EventMailbox> {
    let (mailbox, _) = rig.join(SubscriptionKind::Sharded, &[LOW]);
    rig.open(1, 1);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))]);
    mailbox
}
