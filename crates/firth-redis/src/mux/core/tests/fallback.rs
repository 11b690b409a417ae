//! Replicas as a fallback for masters out of reach.

use super::*;
use std::time::Duration;

/// Masters 1 and 2; 11 replicates 1.
fn with_replica(master: u16, replica: u16) -> Arc<Topology> {
    let lower = ClusterShard { master: node(master), replicas: vec![node(replica)] };
    let upper = ClusterShard { master: node(2), replicas: vec![] };
    Arc::new(Topology::from_ranges([(0..=8191, lower), (8192..=16383, upper)]))
}

fn rig() -> (Rig, Arc<EventMailbox>) {
    let mut rig = super::rig();
    rig.core.deployment = MuxDeployment::Cluster(None);
    rig.core.set_topology(with_replica(1, 11), rig.now);
    let mailbox = live(&mut rig);
    (rig, mailbox)
}

/// Master 1 is gone, and 11 has taken the channel.
fn on_fallback() -> (Rig, Arc<EventMailbox>) {
    let (mut rig, mailbox) = rig();
    rig.item(1, lost());
    assert_eq!(rig.opened, [1], "perhaps it is back in a moment");
    rig.item(1, lost());
    assert_eq!(rig.opened, [1, 11]);
    rig.open(11, 1);
    assert_eq!(rig.take_sent(), [(11, format!("SSUBSCRIBE {LOW}"))]);
    rig.handle(11, &format!("ssubscribe {LOW} 1"));
    rig.handle(11, &format!("smessage {LOW} by-the-replica"));
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost", "by-the-replica"]);
    (rig, mailbox)
}

/// Asks the cluster, which answers with this.
fn look(rig: &mut Rig, topology: Arc<Topology>) {
    rig.core.set_topology(topology, rig.now);
    rig.core.topology_refreshed(rig.now, rig.now);
    rig.settle();
}

fn is_done(confirm: &Confirmation) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(confirm.wait(Duration::from_secs(1))).is_some_and(|outcome| outcome.is_ok())
}

#[test]
fn a_gap_goes_on_while_a_replica_stands_in_and_ends_with_its_promotion() {
    let (mut rig, mailbox) = on_fallback();
    let same = rig.core.topology.clone();
    look(&mut rig, same);
    rig.tick(Duration::from_secs(10));
    assert_eq!(read(&mailbox), ["stalled"], "however long it lasts, a replica may miss some");
    assert!(rig.refreshes > 0, "who is the master?");
    look(&mut rig, with_replica(11, 1));
    assert_eq!(read(&mailbox), ["moved 1 11", "resumed"]);
    assert!(rig.take_sent().is_empty(), "it has the channel already");
    rig.handle(11, &format!("smessage {LOW} by-the-master"));
    assert_eq!(read(&mailbox), ["by-the-master"]);
}

#[test]
fn a_stand_in_that_drops_its_channels_when_promoted_is_asked_again_at_once() {
    let (mut rig, mailbox) = on_fallback();
    rig.handle(11, &format!("sunsubscribe {LOW} 0"));
    assert_eq!(rig.take_sent(), [(11, format!("SSUBSCRIBE {LOW}"))]);
    rig.handle(11, &format!("ssubscribe {LOW} 1"));
    rig.handle(11, &format!("smessage {LOW} by-the-master"));
    look(&mut rig, with_replica(11, 1));
    assert_eq!(read(&mailbox), ["by-the-master", "moved 1 11", "resumed"]);
}

#[test]
fn a_master_that_comes_back_gets_its_channels_and_the_stand_in_is_left() {
    let (mut rig, mailbox) = on_fallback();
    rig.open(1, 2);
    let sent = rig.take_sent();
    assert!(sent[0].0 == 11 && sent[0].1.starts_with(&format!("SUNSUBSCRIBE {LOW}")), "{sent:?}");
    assert_eq!(sent[1..], [(1, format!("SSUBSCRIBE {LOW}"))]);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    assert!(read(&mailbox).is_empty(), "it may be a master no longer");
    let same = rig.core.topology.clone();
    look(&mut rig, same);
    assert_eq!(read(&mailbox), ["resumed"]);
    assert!(!rig.core.registry.iter().any(|(_, c)| rig.core.is_on_fallback(c)));
}

#[test]
fn a_master_that_is_back_in_a_moment_needs_no_stand_in() {
    let (mut rig, _) = rig();
    rig.item(1, lost());
    rig.open(1, 2);
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))]);
    assert_eq!(rig.opened, [1]);
}

#[test]
fn who_comes_while_a_replica_stands_in_waits_for_a_master() {
    let (mut rig, _) = on_fallback();
    let (newcomer, confirm) = rig.join(SubscriptionKind::Sharded, &[LOW]);
    let (_, other) = rig.join(SubscriptionKind::Sharded, &["b1"]);
    assert!(!is_done(&confirm) && !is_done(&other), "nothing is promised yet");
    assert!(rig.take_sent().is_empty());
    look(&mut rig, with_replica(11, 1));
    assert!(is_done(&confirm));
    assert!(read(&newcomer).is_empty(), "its subscription begins after the gap");
}

#[test]
fn nobody_stands_in_for_very_many_channels() {
    let (mut rig, _) = rig();
    let names: Vec<&'static str> = (0..3000).map(|n| &*format!("many-{n}").leak()).collect();
    let low = |name: &&&'static str| crate::slot(name.as_bytes()) < 8192;
    let low: Vec<&'static str> = names.iter().filter(low).copied().collect();
    assert!(low.len() > 1_000);
    rig.join(SubscriptionKind::Sharded, &low);
    for (_, text) in rig.take_sent() {
        let names = text.split(' ').filter(|word| !word.is_empty() && *word != "SSUBSCRIBE");
        names.for_each(|name| rig.handle(1, &format!("ssubscribe {name} 1")));
    }
    rig.item(1, lost());
    rig.item(1, lost());
    assert_eq!(rig.opened, [1]);
}
