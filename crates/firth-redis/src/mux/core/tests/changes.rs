//! What subscribers, redirections and new topologies make the core do.

use super::*;

#[test]
fn nothing_is_confirmed_before_the_server_says_so() {
    let mut rig = rig();
    let (mailbox, _) = rig.join(SubscriptionKind::Channel, &["a"]);
    assert_eq!((rig.opened.len(), rig.sent.len()), (1, 0), "the connection comes first");
    let port = rig.opened[0];
    rig.open(port, 1);
    assert_eq!(rig.take_sent(), [(port, "SUBSCRIBE a".to_owned())]);
    let placement = |rig: &Rig| {
        rig.core.registry[rig.core.registry.find(SubscriptionKind::Channel, b"a").unwrap()].placement
    };
    assert!(matches!(placement(&rig), Placement::Requested { .. }));
    rig.handle(port, "subscribe a 1");
    assert!(matches!(placement(&rig), Placement::Live { .. }));
    rig.handle(port, "message a hello");
    assert_eq!(read(&mailbox), ["hello"]);
}

#[test]
fn a_newcomer_behind_the_last_one_out_is_subscribed_again() {
    let mut rig = rig();
    let old = live(&mut rig);
    rig.leave(SubscriptionKind::Sharded, LOW, &old);
    let (new, _) = rig.join(SubscriptionKind::Sharded, &[LOW]);
    let sent = rig.take_sent();
    assert_eq!(sent.len(), 2);
    assert!(sent[0].1.starts_with(&format!("SUNSUBSCRIBE {LOW} PING")), "{sent:?}");
    assert_eq!(sent[1].1, format!("SSUBSCRIBE {LOW}"));
    let barrier = sent[0].1.rsplit(' ').next().unwrap().to_owned();
    rig.handle(1, &format!("sunsubscribe {LOW} 0"));
    rig.handle(1, &format!("PONG {barrier}"));
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    rig.handle(1, &format!("smessage {LOW} x"));
    assert_eq!((read(&new), rig.resets), (vec!["x".to_owned()], 0));
    assert!(rig.core.is_settled());
}

#[test]
fn a_subscription_taken_away_is_asked_for_again_and_follows_the_redirection() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.handle(1, &format!("smessage {LOW} 1"));
    rig.handle(1, &format!("sunsubscribe {LOW} 0"));
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))], "the old owner knows the new one best");
    rig.handle(1, &format!("- MOVED {} n:2", crate::slot(LOW.as_bytes())));
    assert_eq!(rig.opened, [1, 2]);
    rig.open(2, 1);
    assert_eq!(rig.take_sent(), [(2, format!("SSUBSCRIBE {LOW}"))]);
    rig.handle(2, &format!("ssubscribe {LOW} 1"));
    rig.handle(2, &format!("smessage {LOW} 2"));
    assert_eq!(read(&mailbox), ["1", "gap Migrated", "moved 1 2", "resumed", "2"]);
    assert!(rig.refreshes > 0);
}

#[test]
fn a_lost_node_is_told_and_its_channels_wait_for_a_new_owner() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.item(1, lost());
    rig.tick(std::time::Duration::from_secs(2));
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost", "stalled"]);
    rig.topology(2, 2);
    rig.open(2, 1);
    assert_eq!(rig.take_sent(), [(2, format!("SSUBSCRIBE {LOW}"))]);
    rig.handle(2, &format!("ssubscribe {LOW} 1"));
    assert_eq!(read(&mailbox), ["moved 1 2", "resumed"]);
}

#[test]
fn a_new_owner_is_joined_before_the_old_one_is_left() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.topology(2, 2);
    rig.open(2, 1);
    rig.handle(1, &format!("smessage {LOW} from-the-old-one"));
    assert_eq!(rig.take_sent(), [(2, format!("SSUBSCRIBE {LOW}"))]);
    rig.handle(2, &format!("ssubscribe {LOW} 1"));
    let sent = rig.take_sent();
    assert!(sent[0].0 == 1 && sent[0].1.starts_with("SUNSUBSCRIBE"), "{sent:?}");
    assert_eq!(read(&mailbox), ["gap Reassigned", "from-the-old-one", "moved 1 2", "resumed"]);
    rig.handle(1, &format!("smessage {LOW} a-straggler"));
    rig.handle(1, &format!("sunsubscribe {LOW} 0"));
    rig.handle(1, &format!("smessage {LOW} a-ghost"));
    assert_eq!(read(&mailbox), ["a-straggler"]);
}

#[test]
fn ordinary_channels_do_not_move_with_slots() {
    let mut rig = rig();
    let (mailbox, _) = rig.join(SubscriptionKind::Channel, &["a"]);
    let port = rig.opened[0];
    rig.open(port, 1);
    rig.handle(port, "subscribe a 1");
    rig.take_sent();
    rig.topology(2, 1);
    assert!(rig.take_sent().is_empty());
    assert!(read(&mailbox).is_empty());
}

#[test]
fn a_troubled_node_gets_one_probe_at_a_time() {
    let mut rig = rig();
    let names: Vec<&'static str> = vec!["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"];
    rig.join(SubscriptionKind::Sharded, &names);
    rig.open(1, 1);
    let count = |sent: Vec<(u16, String)>| {
        sent.iter().map(|(_, text)| text.matches("SSUBSCRIBE").count()).sum::<usize>()
    };
    let first = rig.take_sent();
    assert_eq!(count(first.clone()), 1, "a new connection is tried with one operation");
    rig.handle(1, "- CLUSTERDOWN the cluster is down");
    rig.tick(std::time::Duration::from_millis(200));
    let second = rig.take_sent();
    assert_ne!(first, second, "one bad slot does not speak for all");
    assert_eq!(count(second), 1, "one probe");
    rig.tick(std::time::Duration::from_millis(50));
    assert_eq!(count(rig.take_sent()), 0, "nothing while it is under way");
    rig.handle(1, "- CLUSTERDOWN the cluster is down");
    rig.tick(std::time::Duration::from_millis(600));
    let third = rig.take_sent();
    assert_eq!(count(third.clone()), 1);
    rig.handle(1, &format!("ssubscribe {} 1", third[0].1.rsplit(' ').next().unwrap()));
    assert!(count(rig.take_sent()) > 1, "it serves: the rest follows at once");
}

#[test]
fn with_auto_resubscribe_off_a_gap_lasts_until_it_is_asked_to_end() {
    let mut rig = Rig::new(MuxConfig { auto_resubscribe: false, ..MuxConfig::default() });
    let mailbox = live(&mut rig);
    rig.item(1, lost());
    rig.open(1, 2);
    rig.tick(std::time::Duration::from_secs(40));
    assert!(rig.take_sent().is_empty());
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost", "stalled", "timed out"]);
    rig.core.resubscribe(SubscriptionKind::Sharded, &[Bytes::from_static(LOW.as_bytes())], rig.now);
    rig.settle();
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))]);
}

#[test]
fn leaving_while_unplaced_leaves_nothing_behind() {
    let mut rig = rig();
    let (mailbox, _) = rig.join(SubscriptionKind::Channel, &["a"]);
    rig.leave(SubscriptionKind::Channel, "a", &mailbox);
    assert!(rig.core.is_settled());
    assert_eq!(rig.core.registry.iter().count(), 0);
    let port = rig.opened[0];
    rig.open(port, 1);
    assert!(rig.take_sent().is_empty());
}

#[test]
fn an_answer_that_fits_no_question_starts_the_connection_afresh() {
    let mut rig = rig();
    live(&mut rig);
    rig.handle(1, "ssubscribe other 2");
    assert_eq!(rig.resets, 1);
}

#[test]
fn a_demoted_master_is_left_before_the_new_one_can_speak() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    let shard = |master, replicas: &[u16]| ClusterShard {
        master: node(master),
        replicas: replicas.iter().map(|&port| node(port)).collect(),
    };
    let swapped = Topology::from_ranges([(0..=8191, shard(3, &[1])), (8192..=16383, shard(2, &[]))]);
    rig.core.set_topology(Arc::new(swapped), rig.now);
    rig.settle();
    rig.handle(1, &format!("smessage {LOW} while-connecting"));
    rig.open(3, 1);
    let sent = rig.take_sent();
    assert_eq!(sent[0], (1, sent[0].1.clone()));
    assert!(sent[0].1.starts_with("SUNSUBSCRIBE"), "{sent:?}");
    assert_eq!(sent[1], (3, format!("SSUBSCRIBE {LOW}")));
    rig.handle(1, &format!("smessage {LOW} both-have-it"));
    rig.handle(3, &format!("ssubscribe {LOW} 1"));
    rig.handle(3, &format!("smessage {LOW} both-have-it"));
    assert_eq!(
        read(&mailbox),
        ["gap Reassigned", "while-connecting", "moved 1 3", "resumed", "both-have-it"]
    );
}

#[test]
fn a_demoted_master_that_takes_a_channel_does_not_end_its_gap() {
    let mut rig = rig();
    rig.core.deployment = MuxDeployment::Cluster(None);
    let mailbox = live(&mut rig);
    rig.handle(1, &format!("sunsubscribe {LOW} 0"));
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    rig.handle(1, &format!("smessage {LOW} by-the-replica"));
    let (newcomer, _) = rig.join(SubscriptionKind::Sharded, &[LOW]);
    assert_eq!(read(&mailbox), ["gap Migrated", "by-the-replica"], "it serves, but may miss some");
    rig.refreshes = 0;
    rig.tick(std::time::Duration::from_millis(50));
    assert_eq!(rig.refreshes, 1, "who is the master?");
    rig.topology(2, 2);
    rig.core.topology_refreshed(rig.now, rig.now);
    rig.open(2, 1);
    rig.handle(2, &format!("ssubscribe {LOW} 1"));
    assert!(read(&mailbox).is_empty(), "nobody has confirmed this one either");
    rig.core.topology_refreshed(rig.now - std::time::Duration::from_millis(1), rig.now);
    assert!(read(&mailbox).is_empty(), "that was asked before");
    rig.core.topology_refreshed(rig.now, rig.now);
    assert_eq!(read(&mailbox), ["moved 1 2", "resumed"]);
    assert_eq!(read(&newcomer), ["gap Reassigned", "moved 1 2", "resumed"]);
}

#[test]
fn a_node_that_serves_is_believed_in_the_end() {
    let mut rig = rig();
    rig.core.deployment = MuxDeployment::Cluster(None);
    let mailbox = live(&mut rig);
    rig.item(1, lost());
    rig.open(1, 2);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    rig.tick(std::time::Duration::from_secs(1));
    assert_eq!(read(&mailbox), ["lost 1", "gap NodeLost"]);
    rig.tick(std::time::Duration::from_secs(2));
    assert_eq!(read(&mailbox), ["stalled", "resumed"]);
    assert!(!rig.core.is_settled());
    rig.tick(std::time::Duration::from_secs(2));
    assert!(rig.core.is_settled());
}
