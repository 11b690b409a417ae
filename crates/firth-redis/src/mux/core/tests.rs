//! Laws of the mux's core, without a server: events in, orders and signals out.

use std::task::Context;

use bytes::BytesMut;

use super::*;
use crate::{
    cluster::topology::Shard,
    connection::{Greeting, feed::FeedItem},
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
    refreshes: usize,
    resets: usize,
}

impl Rig {
    fn new(config: MuxConfig) -> Self {
        let core = Core::new(config, topology(1, 2), None);
        Self { core, now: Instant::now(), sent: vec![], opened: vec![], refreshes: 0, resets: 0 }
    }

    fn settle(&mut self) {
        let (mut orders, mut wakers) = (Vec::new(), Vec::new());
        self.core.drain(&mut orders, &mut wakers);
        for order in orders {
            match order {
                Order::Open(_, address) => self.opened.push(address.port),
                Order::Send(link, bytes) => {
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
                Order::Close(_) => {}
            }
        }
    }

    fn join(&mut self, kind: Kind, names: &[&'static str]) -> (Arc<Mailbox>, Arc<Confirm>) {
        let mailbox = Arc::new(Mailbox::new(Buffer::default()));
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
        let frame = Decoder::new(Limits::default()).decode(&mut wire).unwrap().unwrap();
        self.item(port, FeedItem::Said(Said::read(&frame)));
    }

    fn take_sent(&mut self) -> Vec<(u16, String)> {
        std::mem::take(&mut self.sent)
    }

    fn tick(&mut self, after: std::time::Duration) {
        self.now += after;
        self.core.tick(self.now);
        self.settle();
    }
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

#[test]
fn nothing_is_confirmed_before_the_server_says_so() {
    let mut rig = rig();
    let (mailbox, _) = rig.join(Kind::Channel, &["a"]);
    assert_eq!((rig.opened.len(), rig.sent.len()), (1, 0), "the connection comes first");
    let port = rig.opened[0];
    rig.open(port, 1);
    assert_eq!(rig.take_sent(), [(port, "SUBSCRIBE a".to_owned())]);
    let home = |rig: &Rig| rig.core.registry[rig.core.registry.find(Kind::Channel, b"a").unwrap()].home;
    assert!(matches!(home(&rig), Home::Asked { .. }));
    rig.hear(port, "subscribe a 1");
    assert!(matches!(home(&rig), Home::Live { .. }));
    rig.hear(port, "message a hello");
    assert_eq!(read(&mailbox), ["hello"]);
}

#[test]
fn a_newcomer_behind_the_last_one_out_is_subscribed_again() {
    let mut rig = rig();
    let old = live(&mut rig);
    rig.leave(Kind::Sharded, LOW, &old);
    let (new, _) = rig.join(Kind::Sharded, &[LOW]);
    let sent = rig.take_sent();
    assert_eq!(sent.len(), 2);
    assert!(sent[0].1.starts_with(&format!("SUNSUBSCRIBE {LOW} PING")), "{sent:?}");
    assert_eq!(sent[1].1, format!("SSUBSCRIBE {LOW}"));
    let barrier = sent[0].1.rsplit(' ').next().unwrap().to_owned();
    rig.hear(1, &format!("sunsubscribe {LOW} 0"));
    rig.hear(1, &format!("PONG {barrier}"));
    rig.hear(1, &format!("ssubscribe {LOW} 1"));
    rig.hear(1, &format!("smessage {LOW} x"));
    assert_eq!((read(&new), rig.resets), (vec!["x".to_owned()], 0));
    assert!(rig.core.is_settled());
}

#[test]
fn a_subscription_taken_away_is_asked_for_again_and_follows_the_redirection() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.hear(1, &format!("smessage {LOW} 1"));
    rig.hear(1, &format!("sunsubscribe {LOW} 0"));
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))], "the old owner knows the new one best");
    rig.hear(1, &format!("- MOVED {} n:2", crate::slot(LOW.as_bytes())));
    assert_eq!(rig.opened, [1, 2]);
    rig.open(2, 1);
    assert_eq!(rig.take_sent(), [(2, format!("SSUBSCRIBE {LOW}"))]);
    rig.hear(2, &format!("ssubscribe {LOW} 1"));
    rig.hear(2, &format!("smessage {LOW} 2"));
    assert_eq!(read(&mailbox), ["1", "gap Migrated", "moved 1 2", "resumed", "2"]);
    assert!(rig.refreshes > 0);
}

#[test]
fn a_lost_node_is_told_and_its_channels_wait_for_a_new_owner() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.item(1, FeedItem::Lost);
    rig.tick(std::time::Duration::from_secs(2));
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost", "stalled"]);
    rig.core.retopologise(topology(2, 2), rig.now);
    rig.settle();
    rig.open(2, 1);
    assert_eq!(rig.take_sent(), [(2, format!("SSUBSCRIBE {LOW}"))]);
    rig.hear(2, &format!("ssubscribe {LOW} 1"));
    assert_eq!(read(&mailbox), ["moved 1 2", "resumed"]);
}

#[test]
fn a_new_owner_is_joined_before_the_old_one_is_left() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.core.retopologise(topology(2, 2), rig.now);
    rig.settle();
    rig.open(2, 1);
    rig.hear(1, &format!("smessage {LOW} from-the-old-one"));
    assert_eq!(rig.take_sent(), [(2, format!("SSUBSCRIBE {LOW}"))]);
    rig.hear(2, &format!("ssubscribe {LOW} 1"));
    let sent = rig.take_sent();
    assert!(sent[0].0 == 1 && sent[0].1.starts_with("SUNSUBSCRIBE"), "{sent:?}");
    assert_eq!(read(&mailbox), ["gap Reassigned", "from-the-old-one", "moved 1 2", "resumed"]);
}

#[test]
fn ordinary_channels_do_not_move_with_slots() {
    let mut rig = rig();
    let (mailbox, _) = rig.join(Kind::Channel, &["a"]);
    let port = rig.opened[0];
    rig.open(port, 1);
    rig.hear(port, "subscribe a 1");
    rig.take_sent();
    rig.core.retopologise(topology(2, 1), rig.now);
    rig.settle();
    assert!(rig.take_sent().is_empty());
    assert!(read(&mailbox).is_empty());
}

#[test]
fn a_troubled_node_gets_one_probe_at_a_time() {
    let mut rig = rig();
    let names: Vec<&'static str> = vec!["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"];
    rig.join(Kind::Sharded, &names);
    rig.open(1, 1);
    let count = |sent: Vec<(u16, String)>| {
        sent.iter().map(|(_, text)| text.matches("SSUBSCRIBE").count()).sum::<usize>()
    };
    let groups = count(rig.take_sent());
    assert!(groups > 2, "names of several slots");
    for _ in 0..groups {
        rig.hear(1, "- CLUSTERDOWN the cluster is down");
    }
    rig.tick(std::time::Duration::from_millis(200));
    assert_eq!(count(rig.take_sent()), 1, "one probe");
    rig.tick(std::time::Duration::from_millis(50));
    assert_eq!(count(rig.take_sent()), 0, "nothing while it is under way");
    rig.hear(1, "- CLUSTERDOWN the cluster is down");
    rig.tick(std::time::Duration::from_millis(600));
    assert_eq!(count(rig.take_sent()), 1);
}

#[test]
fn with_auto_resubscribe_off_a_gap_lasts_until_it_is_asked_to_end() {
    let mut rig = Rig::new(MuxConfig { auto_resubscribe: false, ..MuxConfig::default() });
    let mailbox = live(&mut rig);
    rig.item(1, FeedItem::Lost);
    rig.open(1, 2);
    rig.tick(std::time::Duration::from_secs(40));
    assert!(rig.take_sent().is_empty());
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost", "stalled", "timed out"]);
    rig.core.revive(Kind::Sharded, &[Bytes::from_static(LOW.as_bytes())], rig.now);
    rig.settle();
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))]);
}

#[test]
fn leaving_while_homeless_leaves_nothing_behind() {
    let mut rig = rig();
    let (mailbox, _) = rig.join(Kind::Channel, &["a"]);
    rig.leave(Kind::Channel, "a", &mailbox);
    assert!(rig.core.is_settled());
    assert_eq!(rig.core.registry.counts(), [0, 0, 0]);
    let port = rig.opened[0];
    rig.open(port, 1);
    assert!(rig.take_sent().is_empty());
}

#[test]
fn an_answer_that_fits_no_question_starts_the_connection_afresh() {
    let mut rig = rig();
    live(&mut rig);
    rig.hear(1, "ssubscribe other 2");
    assert_eq!(rig.resets, 1);
}
