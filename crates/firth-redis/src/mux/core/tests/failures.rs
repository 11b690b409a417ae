//! What the core makes of full buffers, refusals, contradictions and idle nodes.

use super::*;

/// A buffer that is full with one message, and then makes everything wait.
const ONE_BY_ONE: Buffer = Buffer { bytes: 0, overflow: crate::mux::OverflowPolicy::Block };

#[test]
fn nothing_overtakes_a_message_that_waits_for_room() {
    let mut rig = rig();
    let (mailbox, _) = rig.join_with(ONE_BY_ONE, SubscriptionKind::Sharded, &[LOW]);
    rig.open(1, 1);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    let big = "x".repeat(2000);
    let frames =
        [format!("smessage {LOW} 1{big}"), format!("smessage {LOW} 2{big}"), format!("sunsubscribe {LOW} 0")];
    let mut left: VecDeque<PushItem> = frames.iter().map(|text| frame(text)).collect();
    left.push_back(lost());
    let mut seen = Vec::new();
    while !left.is_empty() || !rig.core.links[rig.link(1)].blocked.is_empty() {
        left = rig.hear_all(1, left);
        let read = read(&mailbox);
        assert!(!read.is_empty(), "each round makes progress");
        seen.extend(read.into_iter().map(|text| text.trim_end_matches('x').to_owned()));
    }
    assert_eq!(seen, ["1", "2", "gap Migrated"], "what was received before the break is not lost");
}

#[test]
fn an_old_message_does_not_come_after_the_new_nodes_messages() {
    let mut rig = rig();
    let (mailbox, _) = rig.join_with(ONE_BY_ONE, SubscriptionKind::Channel, &["a"]);
    let old = rig.opened[0];
    let new = 3 - old;
    rig.open(old, 1);
    rig.handle(old, "subscribe a 1");
    let big = "x".repeat(2000);
    rig.handle(old, &format!("message a 1{big}"));
    rig.handle(old, &format!("message a 2{big}"));
    rig.topology(new, new);
    rig.open(new, 1);
    rig.handle(new, "subscribe a 1");
    let mut seen = read(&mailbox);
    rig.hear_all(old, VecDeque::new());
    rig.handle(new, "message a 3");
    seen.extend(read(&mailbox));
    let seen: Vec<&str> = seen.iter().map(|text| text.trim_end_matches('x')).collect();
    assert_eq!(seen, ["1", "gap Reassigned", "resumed", "3"]);
}

#[test]
fn a_refused_name_harms_nobody_else() {
    let mut rig = rig();
    // Both wait for the connections, and so may be asked for together.
    let (_, fine) = rig.join(SubscriptionKind::Channel, &["a", "b"]);
    let (_, foul) = rig.join(SubscriptionKind::Channel, &["secret"]);
    let (_, also_fine) = rig.join(SubscriptionKind::Channel, &["c"]);
    rig.open(1, 1);
    rig.open(2, 1);
    // A server that refuses a command as a whole if `secret` is in it.
    while !rig.sent.is_empty() {
        let (port, text) = rig.sent.remove(0);
        for command in text.split("SUBSCRIBE ").filter(|names| !names.is_empty()) {
            if command.contains("secret") {
                rig.handle(port, "- NOPERM not yours");
            } else {
                command
                    .split(' ')
                    .filter(|n| !n.is_empty())
                    .for_each(|n| rig.handle(port, &format!("subscribe {n} 1")));
            }
        }
    }
    let outcome = |confirm: &Confirmation| {
        let mut wait = std::pin::pin!(confirm.wait(std::time::Duration::from_secs(1)));
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(&mut wait)
            .expect("it was settled")
    };
    assert!(outcome(&fine).is_ok() && outcome(&also_fine).is_ok());
    assert_eq!(outcome(&foul).unwrap_err().code(), Some("NOPERM"));
}

#[test]
fn a_redirected_probe_leaves_its_node_usable() {
    let mut rig = rig();
    let (_low, _) = rig.join(SubscriptionKind::Sharded, &[LOW]);
    rig.open(1, 1);
    rig.handle(1, &format!("- MOVED {} n:2", crate::slot(LOW.as_bytes())));
    rig.take_sent();
    let (_other, _) = rig.join(SubscriptionKind::Sharded, &["a1"]);
    assert!(crate::slot(b"a1") < 8192);
    assert_eq!(rig.take_sent(), [(1, "SSUBSCRIBE a1".to_owned())]);
}

#[test]
fn nodes_that_contradict_each_other_are_not_asked_in_a_whirl() {
    let mut rig = rig();
    let _subscriber = rig.join(SubscriptionKind::Sharded, &[LOW]);
    rig.open(1, 1);
    let slot = crate::slot(LOW.as_bytes());
    let mut asked = 0;
    for round in 0..20 {
        let sent = rig.take_sent();
        let Some((port, _)) = sent.first() else { break };
        asked += 1;
        let port = *port;
        rig.handle(port, &format!("- MOVED {slot} n:{}", 3 - port));
        if round == 0 {
            rig.open(2, 1);
        }
    }
    assert!(asked <= 4, "{asked} times");
    rig.tick(std::time::Duration::from_millis(50));
    assert_eq!(rig.take_sent().len(), 1, "the search goes on");
}

#[test]
fn a_question_to_a_silent_node_is_put_to_the_new_owner() {
    let mut rig = rig();
    let _subscriber = rig.join(SubscriptionKind::Sharded, &[LOW]);
    rig.open(1, 1);
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))]);
    rig.topology(2, 2);
    rig.open(2, 1);
    let sent = rig.take_sent();
    assert!(sent[0].0 == 1 && sent[0].1.starts_with("SUNSUBSCRIBE"), "{sent:?}");
    assert_eq!(sent[1], (2, format!("SSUBSCRIBE {LOW}")));
}

#[test]
fn a_channel_taken_away_as_soon_as_it_came_back_stays_in_its_gap() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.handle(1, &format!("sunsubscribe {LOW} 0"));
    let both = [format!("ssubscribe {LOW} 1"), format!("sunsubscribe {LOW} 0")];
    rig.hear_all(1, both.iter().map(|text| frame(text)).collect());
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    assert_eq!(read(&mailbox), ["gap Migrated", "resumed", "gap Migrated", "resumed"]);
}

#[test]
fn a_newcomer_hears_nothing_of_an_older_gap() {
    let mut rig = rig();
    let old = live(&mut rig);
    rig.item(1, lost());
    let (new, _) = rig.join(SubscriptionKind::Sharded, &[LOW]);
    rig.tick(std::time::Duration::from_secs(3));
    rig.open(1, 2);
    rig.handle(1, &format!("ssubscribe {LOW} 1"));
    rig.handle(1, &format!("smessage {LOW} x"));
    assert_eq!(read(&new), ["x"]);
    assert_eq!(read(&old), ["lost 1", "gap NodeLost", "stalled", "resumed", "x"]);
    rig.leave(SubscriptionKind::Sharded, LOW, &old);
    rig.item(1, lost());
    assert_eq!(read(&new), ["lost 1", "gap NodeLost"]);
}

#[test]
fn a_channel_that_is_refused_does_not_make_the_mux_ask_for_the_topology() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.item(1, lost());
    rig.open(1, 2);
    rig.handle(1, "- NOPERM not yours any more");
    assert_eq!(read(&mailbox).last().unwrap(), "gap Refused(\"NOPERM not yours any more\")");
    rig.refreshes = 0;
    rig.take_sent();
    for _ in 0..10 {
        rig.tick(std::time::Duration::from_millis(50));
    }
    assert_eq!((rig.refreshes, rig.take_sent().len()), (0, 0));
    rig.tick(std::time::Duration::from_secs(1));
    assert_eq!(rig.take_sent(), [(1, format!("SSUBSCRIBE {LOW}"))], "but it keeps hoping");
}

#[test]
fn messages_of_other_nodes_do_not_recheck_unplaced_channels() {
    let mut rig = rig();
    let _low = live(&mut rig);
    let (_high, _) = rig.join(SubscriptionKind::Sharded, &["a"]);
    assert!(crate::slot(b"a") >= 8192);
    rig.open(2, 1);
    rig.handle(2, "ssubscribe a 1");
    rig.item(1, lost());
    assert!(!rig.core.unplaced.is_empty());
    rig.handle(2, "smessage a x");
    assert!(!rig.core.recheck_all, "nothing to reconcile");
}

#[test]
fn connections_that_serve_nothing_are_closed() {
    let mut rig = rig();
    let mailbox = live(&mut rig);
    rig.leave(SubscriptionKind::Sharded, LOW, &mailbox);
    let sent = rig.take_sent();
    rig.handle(1, &format!("PONG {}", sent[0].1.rsplit(' ').next().unwrap()));
    rig.core.sweep(rig.now);
    rig.now += IDLE / 2;
    rig.core.sweep(rig.now);
    rig.settle();
    assert_eq!((rig.closed, rig.core.links.len()), (0, 1), "somebody may come back");
    rig.now += IDLE / 2;
    rig.core.sweep(rig.now);
    rig.settle();
    assert_eq!((rig.closed, rig.core.links.len()), (1, 0));
    let _again = live(&mut rig);
    assert_eq!(rig.opened, [1, 1]);
}

#[test]
fn a_node_that_left_is_forgotten_as_soon_as_nothing_is_owed() {
    let mut rig = rig();
    let _mailbox = live(&mut rig);
    rig.topology(2, 2);
    rig.open(2, 1);
    rig.handle(2, &format!("ssubscribe {LOW} 1"));
    rig.core.sweep(rig.now);
    rig.settle();
    assert_eq!(rig.closed, 0, "it has not confirmed the end of the subscription");
    rig.item(1, lost());
    rig.core.sweep(rig.now);
    rig.settle();
    assert_eq!((rig.closed, rig.core.links.len()), (1, 1));
}
