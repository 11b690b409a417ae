//! Laws of the mux's core, without a server: events in, orders and signals out.

mod answers;
mod changes;
mod local;
mod standins;
mod trouble;

use std::task::Context;

use bytes::BytesMut;

use super::*;
use crate::{
    cluster::topology::Shard,
    connection::{Greeting, feed::FeedItem},
    error::LostCause,
    mux::{
        config::Buffer,
        event::{Event, Signal},
    },
    resp::{Decoder, Limits, pubsub::Said},
};

fn node(port: u16) -> Address {
    Address::new("n", port)
}

/// Two masters: 1 owns the lower half of the slots, 2 the upper.
fn topology(lower: u16, upper: u16) -> Arc<Topology> {
    let shard = |n| Shard { master: node(n), replicas: vec![] };
    Arc::new(Topology::from_ranges([(0..=8191, shard(lower)), (8192..=16383, shard(upper))]))
}

/// A core with its clock, and what came out of it.
struct Rig {
    core: Core,
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
        let core = Core::new(config, topology(1, 2), Place::Single);
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
        let (mut orders, mut wakers) = (Vec::new(), Vec::new());
        self.core.drain(&mut orders, &mut wakers);
        for order in orders {
            match order {
                Order::Open(_, address) => self.opened.push(address.port),
                Order::Send(link, _, bytes) => {
                    let port = self.core.links[link].address.port;
                    let words: Vec<&[u8]> = bytes
                        .split(|&b| b == b'\n')
                        .filter(|w| !w.starts_with(b"*") && !w.starts_with(b"$"))
                        .collect();
                    let text = String::from_utf8(words.join(&b' ')).unwrap().replace('\r', "");
                    self.sent.push((port, text.trim().to_owned()));
                }
                Order::Refresh => self.refreshes += 1,
                Order::Reset(_) => self.resets += 1,
                Order::Close(_) => self.closed += 1,
                Order::Moved(slot, to) => self.moved.push((slot, to)),
            }
        }
    }

    fn join(&mut self, kind: Kind, names: &[&'static str]) -> (Arc<Mailbox>, Arc<Confirm>) {
        self.join_with(Buffer::default(), kind, names)
    }

    fn join_with(
        &mut self,
        buffer: Buffer,
        kind: Kind,
        names: &[&'static str],
    ) -> (Arc<Mailbox>, Arc<Confirm>) {
        let mailbox = Arc::new(Mailbox::new(buffer, Arc::default()));
        let confirm = Confirm::new(names.len());
        let names: Vec<Bytes> = names.iter().map(|n| Bytes::from_static(n.as_bytes())).collect();
        let want = Want { kind, names: &names, mailbox: &mailbox };
        self.core.join(want, &confirm, self.now);
        self.settle();
        (mailbox, confirm)
    }

    fn leave(&mut self, kind: Kind, name: &'static str, mailbox: &Arc<Mailbox>) {
        let names = [Bytes::from_static(name.as_bytes())];
        self.core.leave(Want { kind, names: &names, mailbox }, None);
        self.settle();
    }

    fn link(&self, port: u16) -> LinkId {
        self.core.by_address[&node(port)]
    }

    fn item(&mut self, port: u16, item: FeedItem) {
        let link = self.link(port);
        self.core.hear(link, &mut VecDeque::from([item]), self.now);
        self.settle();
    }

    fn open(&mut self, port: u16, generation: u64) {
        self.item(port, FeedItem::Opened { generation, greeting: Greeting::of_resp3() });
    }

    fn hear(&mut self, port: u16, text: &str) {
        let frame = frame(text);
        self.item(port, frame);
    }

    /// Hears several things in one go; what is not dealt with is given back, for the next time.
    fn hear_all(&mut self, port: u16, mut items: VecDeque<FeedItem>) -> VecDeque<FeedItem> {
        let link = self.link(port);
        self.core.hear(link, &mut items, self.now);
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
        self.core.retopologise(topology(lower, upper), self.now);
        self.settle();
    }
}

fn lost() -> FeedItem {
    FeedItem::Lost(LostCause::Eof)
}

fn frame(text: &str) -> FeedItem {
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
    FeedItem::Said(Said::read(&Decoder::new(Limits::default()).decode(&mut wire).unwrap().unwrap()))
}

fn read(mailbox: &Mailbox) -> Vec<String> {
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

fn live(rig: &mut Rig) -> Arc<Mailbox> {
    let (mailbox, _) = rig.join(Kind::Sharded, &[LOW]);
    rig.open(1, 1);
    rig.hear(1, &format!("ssubscribe {LOW} 1"));
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))]);
    mailbox
}
