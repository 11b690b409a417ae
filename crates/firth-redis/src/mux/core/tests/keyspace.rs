//! Names that each master speaks of for itself.

use super::*;
use crate::mux::core::keyspace::is_node_local;

const SET: &str = "__keyevent@0__:set";

/// A cluster whose masters 1 and 2 both serve the name.
fn heard() -> (Rig, Arc<EventMailbox>) {
    let mut rig = rig();
    rig.core.deployment = MuxDeployment::Cluster(None);
    let (mailbox, confirm) = rig.join(SubscriptionKind::Channel, &[SET]);
    for port in [1, 2] {
        rig.open(port, 1);
        assert_eq!(rig.take_sent(), [(port, format!("SUBSCRIBE {SET}"))]);
        assert!(!is_done(&confirm), "every master must confirm it");
        rig.handle(port, &format!("subscribe {SET} 1"));
    }
    assert!(is_done(&confirm));
    (rig, mailbox)
}

fn is_done(confirm: &Confirmation) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let wait = confirm.wait(std::time::Duration::from_secs(1));
    runtime.unwrap().block_on(wait).is_some_and(|outcome| outcome.is_ok())
}

/// The topology was asked for, and is this.
fn look(rig: &mut Rig, lower: u16, upper: u16) {
    rig.topology(lower, upper);
    rig.core.topology_refreshed(rig.now, rig.now);
    rig.settle();
}

#[test]
fn c08_names_of_keyspace_notifications_are_told_from_others() {
    for (kind, name, local) in [
        (SubscriptionKind::Channel, "__keyspace@0__:k", true),
        (SubscriptionKind::Channel, "__keyevent@0__:set", true),
        (SubscriptionKind::Channel, "__keyfob", false),
        (SubscriptionKind::Pattern, "__keyspace@0__:k*", true),
        (SubscriptionKind::Pattern, "__keyevent@*", true),
        (SubscriptionKind::Pattern, "__key*__:*", true),
        (SubscriptionKind::Pattern, "__key[es]*", true),
        (SubscriptionKind::Pattern, "__keyfob*", false),
        (SubscriptionKind::Pattern, "__*", false),
        (SubscriptionKind::Pattern, "*", false),
        (SubscriptionKind::Sharded, "__keyspace@0__:k", false),
    ] {
        assert_eq!(is_node_local(kind, name.as_bytes()), local, "{kind:?} {name}");
    }
}

#[test]
fn c08_each_master_is_heard_and_left() {
    let (mut rig, mailbox) = heard();
    rig.handle(1, &format!("message {SET} a"));
    rig.handle(2, &format!("message {SET} b"));
    assert_eq!(read(&mailbox), ["a", "b"]);
    rig.leave(SubscriptionKind::Channel, SET, &mailbox);
    let mut left: Vec<u16> = rig.take_sent().iter().map(|(port, _)| *port).collect();
    left.sort_unstable();
    assert_eq!(left, [1, 2]);
    assert!(rig.core.keyspace_names.iter().all(HashMap::is_empty));
}

#[test]
fn c08_a_gap_ends_when_the_last_master_is_heard_again() {
    let (mut rig, mailbox) = heard();
    rig.item(1, lost());
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost"]);
    rig.item(2, lost());
    assert_eq!(read(&mailbox), ["lost 2", "gap NodeLost"]);
    for port in [1, 2] {
        assert!(read(&mailbox).is_empty(), "one is missing");
        rig.open(port, 2);
        rig.handle(port, &format!("subscribe {SET} 1"));
        look(&mut rig, 1, 2);
    }
    assert_eq!(read(&mailbox), ["resumed"]);
    assert_eq!(rig.core.registry.counts().live, [2, 0, 0]);
}

#[test]
fn c08_the_successor_of_a_dead_master_ends_its_gap() {
    let (mut rig, mailbox) = heard();
    rig.item(1, lost());
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost"]);
    look(&mut rig, 3, 2);
    assert!(read(&mailbox).is_empty(), "the gap is known");
    rig.open(3, 1);
    assert_eq!(rig.take_sent(), [(3, format!("SUBSCRIBE {SET}"))]);
    rig.handle(3, &format!("subscribe {SET} 1"));
    look(&mut rig, 3, 2);
    rig.handle(3, &format!("message {SET} x"));
    assert_eq!(read(&mailbox), ["resumed", "x"]);
    rig.handle(2, &format!("message {SET} y"));
    assert_eq!(read(&mailbox), ["y"]);
}

#[test]
fn c08_a_new_master_is_a_gap_until_it_is_heard() {
    let (mut rig, mailbox) = heard();
    let shard = |n| ClusterShard { master: node(n), replicas: vec![] };
    let three = Topology::from_ranges([(0..=99, shard(3)), (100..=8191, shard(1)), (8192..=16383, shard(2))]);
    rig.core.set_topology(Arc::new(three), rig.now);
    rig.settle();
    assert_eq!(read(&mailbox), ["gap Reassigned"]);
    rig.open(3, 1);
    rig.handle(3, &format!("subscribe {SET} 1"));
    rig.core.topology_refreshed(rig.now, rig.now);
    assert_eq!(read(&mailbox), ["resumed"]);
}

#[test]
fn c08_a_dead_master_whose_slots_went_to_others_ends_its_gap() {
    let (mut rig, mailbox) = heard();
    rig.item(1, lost());
    rig.topology(2, 2);
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost", "resumed"]);
    // One that lives is left without a word: its keys are told of elsewhere.
    look(&mut rig, 2, 3);
    rig.open(3, 1);
    rig.handle(3, &format!("subscribe {SET} 1"));
    assert_eq!(read(&mailbox), ["gap Reassigned"], "a new one is heard from here on, if it is one");
    look(&mut rig, 3, 3);
    assert_eq!(read(&mailbox), ["resumed"]);
    let sent = rig.take_sent();
    assert!(sent.iter().any(|(port, text)| *port == 2 && text.starts_with("UNSUBSCRIBE")), "{sent:?}");
}

#[test]
fn c08_a_subscriber_waits_for_the_first_topology() {
    let mut rig = rig();
    rig.core = MuxCore::new(MuxConfig::default(), Arc::new(Topology::empty()), MuxDeployment::Cluster(None));
    let (mailbox, confirm) = rig.join(SubscriptionKind::Channel, &[SET]);
    assert!(!is_done(&confirm));
    rig.topology(1, 2);
    for port in [1, 2] {
        rig.open(port, 1);
        rig.handle(port, &format!("subscribe {SET} 1"));
    }
    assert!(is_done(&confirm));
    assert!(read(&mailbox).is_empty(), "nothing was promised before");
}
