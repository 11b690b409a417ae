//! Pairs answers with operations, and measures what unplaced channels cost.

use super::*;
use std::time::{Duration, Instant as Clock};

/// A channel that is served at the only node that was chosen for it.
fn plain(rig: &mut Rig, name: &'static str) -> (u16, Arc<EventMailbox>) {
    let (mailbox, _) = rig.join(SubscriptionKind::Channel, &[name]);
    let port = rig.opened[0];
    rig.open(port, 1);
    rig.handle(port, &format!("subscribe {name} 1"));
    rig.take_sent();
    (port, mailbox)
}

/// The number of the barrier in what was sent last.
fn barrier(rig: &mut Rig) -> u64 {
    rig.take_sent().last().unwrap().1.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn c06_the_error_of_a_barrier_ends_the_unsubscribe_before_it() {
    let mut rig = rig();
    let (port, mailbox) = plain(&mut rig, "a");
    rig.leave(SubscriptionKind::Channel, "a", &mailbox);
    rig.handle(port, "unsubscribe a 0");
    rig.handle(port, "- LOADING the dataset is loaded");
    assert_eq!(rig.core.registry.iter().count(), 0, "the server has ended it");
    assert!(!rig.core.links[rig.link(port)].is_owed_answers());
    let (again, _) = rig.join(SubscriptionKind::Channel, &["a"]);
    rig.handle(port, "subscribe a 1");
    rig.handle(port, "message a x");
    assert_eq!((read(&again), rig.resets), (vec!["x".to_owned()], 0));
}

#[test]
fn c06_an_unsubscribe_and_its_barrier_may_both_be_refused() {
    let mut rig = rig();
    let (port, mailbox) = plain(&mut rig, "a");
    rig.leave(SubscriptionKind::Channel, "a", &mailbox);
    rig.handle(port, "- BUSY a script runs");
    assert!(rig.core.links[rig.link(port)].has_stale_subscriptions, "the server still has it");
    assert!(rig.core.links[rig.link(port)].is_owed_answers());
    rig.handle(port, "- BUSY a script runs");
    assert!(!rig.core.links[rig.link(port)].is_owed_answers());
    assert_eq!(rig.resets, 0);
}

#[test]
fn c06_a_slot_that_moves_while_its_channel_is_left_is_not_taken_for_the_barrier() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.leave(SubscriptionKind::Sharded, LOW, &mailbox);
    let number = barrier(&mut rig);
    // Taken away by the server, and then refused because it is elsewhere.
    rig.handle(1, &format!("sunsubscribe {LOW} 0"));
    rig.handle(1, &format!("- MOVED {} n:2", crate::slot(LOW.as_bytes())));
    rig.handle(1, &format!("PONG {number}"));
    assert_eq!((rig.core.registry.iter().count(), rig.resets), (0, 0));
}

#[test]
fn c06_the_error_of_an_idle_ping_belongs_to_no_operation() {
    let mut rig = rig();
    let (port, mailbox) = plain(&mut rig, "a");
    let link = rig.link(port);
    // Sent in this order: the PING, a subscription, the end of another one. The notice of the PING
    // comes last.
    let before = rig.core.next_op;
    let (b, _) = rig.join_at(port, "b");
    rig.leave(SubscriptionKind::Channel, "a", &mailbox);
    let number = barrier(&mut rig);
    rig.item(port, PushItem::Pinged { after: before });
    rig.handle(port, "- NOPERM no PING for you");
    rig.handle(port, "subscribe b 2");
    rig.item(port, PushItem::Pinged { after: number });
    rig.handle(port, "unsubscribe a 1");
    rig.handle(port, &format!("PONG {number}"));
    rig.handle(port, "PONG 0");
    rig.handle(port, "message b x");
    assert_eq!((read(&b), rig.resets), (vec!["x".to_owned()], 0));
    assert!(rig.core.links[link].ops.is_empty());
}

impl Rig {
    /// Joins a channel, which must be placed at this node.
    fn join_at(&mut self, port: u16, name: &'static str) -> (Arc<EventMailbox>, Arc<Confirmation>) {
        let other = self.core.by_address.keys().find(|node| node.port != port).cloned();
        assert_eq!(other, None, "there is one connection");
        let shard = ClusterShard { master: node(port), replicas: vec![] };
        self.core.set_topology(Arc::new(Topology::from_ranges([(0..=16383, shard)])), self.now);
        self.join(SubscriptionKind::Channel, &[name])
    }
}

#[test]
fn c10_a_redirection_that_makes_no_sense_changes_nothing() {
    let mut rig = rig();
    let _subscriber = rig.join(SubscriptionKind::Sharded, &[LOW]);
    rig.open(1, 1);
    let slot = crate::slot(LOW.as_bytes());
    for nonsense in [
        "MOVED 20000 n:2".to_owned(),
        "MOVED 16384 n:2".into(),
        format!("MOVED {slot} ?:7000"),
        "MOVED".into(),
    ] {
        rig.handle(1, &format!("- {nonsense}"));
        rig.tick(Duration::from_millis(100));
        assert_eq!((rig.moved.len(), &rig.opened[..]), (0, &[1][..]), "{nonsense}");
        assert!(rig.core.hints.is_empty());
        rig.tick(Duration::from_millis(500));
        assert_eq!(rig.take_sent().last().unwrap(), &(1, format!("SSUBSCRIBE {LOW}")), "it asks again");
    }
    assert!(rig.refreshes > 0, "who is the owner?");
    rig.handle(1, &format!("- MOVED {slot} n:2"));
    assert_eq!(rig.moved, [(slot, node(2))]);
}

/// Channels of the lower or the upper half.
fn many(count: usize, lower: bool) -> Vec<&'static str> {
    let names = (0..).map(|n| &*format!("many-{n}").leak());
    names.filter(|name| (crate::slot(name.as_bytes()) < 8192) == lower).take(count).collect()
}

/// Each join and each drop would walk over all of them, and take a minute.
#[test]
fn c12_unplaced_channels_cost_nothing_where_nothing_changes_for_them() {
    let mut rig = rig();
    let far = many(30_000, true);
    let mut handles: Vec<_> =
        far.iter().map(|name| (*name, rig.join(SubscriptionKind::Sharded, &[*name]).0)).collect();
    rig.item(1, lost());
    let started = Clock::now();
    let near = many(1_000, false);
    let first = rig.join(SubscriptionKind::Sharded, &near[..1]);
    rig.open(2, 1);
    rig.handle(2, &format!("ssubscribe {} 1", near[0]));
    let joined: Vec<_> = near[1..].iter().map(|name| rig.join(SubscriptionKind::Sharded, &[*name])).collect();
    let asked: usize = rig.take_sent().iter().map(|(_, text)| text.matches("SSUBSCRIBE").count()).sum();
    assert_eq!(asked, 1_000, "each is asked for at once");
    for _ in 0..100 {
        rig.tick(Duration::from_millis(1));
    }
    for (name, mailbox) in handles.drain(..) {
        rig.leave(SubscriptionKind::Sharded, name, &mailbox);
    }
    assert!(rig.core.unplaced.is_empty(), "all have left");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    drop((first, joined));
}

#[test]
fn c12_a_refused_channel_is_asked_for_again_when_its_pause_is_over() {
    let mut rig = rig();
    let _low = live(&mut rig);
    rig.item(1, lost());
    rig.open(1, 2);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    rig.take_sent();
    rig.tick(Duration::from_millis(50));
    let _joined = rig.join(SubscriptionKind::Sharded, &["a1"]);
    for round in 0..3 {
        assert_eq!(rig.take_sent(), [(1, "SSUBSCRIBE a1".to_owned())], "round {round}");
        rig.handle(1, "- CLUSTERDOWN the cluster is down");
        rig.tick(Duration::from_millis(200));
    }
}

#[test]
fn c18_what_is_held_is_counted_as_it_changes() {
    let mut rig = rig();
    let count = |rig: &Rig| {
        let counts = rig.core.registry.counts();
        (counts.live, counts.unserved)
    };
    let mailbox = live(&mut rig);
    let (waiting, _) = rig.join(SubscriptionKind::Pattern, &["p*"]);
    assert_eq!(count(&rig), ([0, 0, 1], 1));
    rig.item(1, lost());
    assert_eq!(count(&rig), ([0, 0, 0], 2));
    rig.leave(SubscriptionKind::Pattern, "p*", &waiting);
    assert_eq!(count(&rig), ([0, 0, 0], 1));
    rig.open(1, 2);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    assert_eq!(count(&rig), ([0, 0, 1], 0));
    rig.leave(SubscriptionKind::Sharded, LOW, &mailbox);
    assert_eq!(count(&rig), ([0, 0, 0], 0), "what is on its way out is not held");
}
