//! The lines themselves: sending, sharing, settling, handing over.

use crate::process::{ack_all, silence};
use crate::world::{World, is_assigned, is_delivered, is_revoked, is_sent, message};
use firth_driver::{Command, Event};
use std::collections::BTreeSet;

#[tokio::test]
async fn two_members_and_two_groups_each_get_everything_once() {
    let world = World::new(4, &["g", "h"]).await;
    let members = [("g1", "g"), ("g2", "g"), ("h1", "h")]
        .map(|(name, group)| world.consumer(name, group, 5000, ack_all()));
    // The first member had all partitions for a while.
    let owns = |n: usize| members[n].heard(is_assigned).checked_sub(members[n].heard(is_revoked));
    world
        .until("all partitions have their owners", || [owns(0), owns(1), owns(2)] == [2, 2, 4].map(Some))
        .await;
    let producer = world.producer("p");
    (0..500).for_each(|n| producer.send(message("p", n)));
    world.until("everything is sent", || producer.heard(is_sent) == 500).await;
    world.settled().await;
    assert!(producer.finish());
    let share = |n: usize| {
        let told = members[n].said();
        told.iter()
            .filter_map(|event| match event {
                Event::Delivered { partition, .. } => Some(*partition),
                _ => None,
            })
            .collect::<BTreeSet<_>>()
    };
    assert!(share(0).is_disjoint(&share(1)), "no partition is shared");
    assert!(members.iter().all(|member| member.heard(is_delivered) > 0));
    assert!(members.into_iter().all(crate::process::Process::finish));
    world.judge().await;
    assert_eq!(
        world.timeline.count(
            |entry| matches!(&entry.what, firth_driver::history::What::Told(event) if is_delivered(event))
        ),
        1000
    );
}

#[tokio::test]
async fn a_graceful_end_hands_over_without_duplicates() {
    let world = World::new(2, &["g"]).await;
    let first = world.consumer("m1", "g", 60_000, ack_all());
    let producer = world.producer("p");
    (0..200).for_each(|n| producer.send(message("p", n)));
    world.until("work is under way", || first.heard(is_delivered) > 20).await;
    let second = world.consumer("m2", "g", 60_000, ack_all());
    assert!(first.finish(), "a graceful end is a good one");
    // The lease lasts a minute: only a handover lets the second go on in time.
    world.until("the second has everything", || second.heard(is_assigned) >= 2).await;
    (200..300).for_each(|n| producer.send(message("p", n)));
    world.until("everything is sent", || producer.heard(is_sent) == 300).await;
    world.settled().await;
    assert!(producer.finish() && second.finish());
    world.judge().await;
}

#[tokio::test]
async fn what_was_in_hand_at_a_graceful_end_comes_to_the_next_owner_as_the_same_attempt() {
    let world = World::new(1, &["g"]).await;
    let first = world.consumer("m1", "g", 60_000, silence());
    let producer = world.producer("p");
    producer.send(message("p", 0));
    world.until("it is in hand", || first.heard(is_delivered) == 1).await;
    assert!(first.finish());
    let second = world.consumer("m2", "g", 60_000, ack_all());
    world.settled().await;
    let told = second.said();
    let attempts: Vec<_> = told
        .iter()
        .filter_map(|event| match event {
            Event::Delivered { attempt, .. } => Some(*attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1]);
    assert!(producer.finish() && second.finish());
    world.judge().await;
}

#[tokio::test]
async fn a_nack_tries_again_and_a_reject_ends_among_the_dead() {
    let world = World::new(1, &["g"]).await;
    let policy = |id: &str, epoch, token, attempt| {
        let own = id.to_owned();
        let reason = "never".to_owned();
        Some(match id {
            "p-1" if attempt < 3 => Command::Nack { id: own, token, after_ms: Some(1) },
            "p-2" => Command::Reject { id: own, token, reason },
            _ => Command::Ack { id: own, epoch: Some(epoch), token },
        })
    };
    let member = world.consumer("m", "g", 5000, Box::new(policy));
    let producer = world.producer("p");
    (0..4).for_each(|n| producer.send(message("p", n)));
    // Four settlements and two failed attempts are answered.
    world
        .until("everything is answered", || member.heard(|event| matches!(event, Event::AckOk { .. })) == 6)
        .await;
    let told = member.said();
    let attempts: Vec<u32> = told
        .iter()
        .filter_map(|event| match event {
            Event::Delivered { id, attempt, .. } if id == "p-1" => Some(*attempt),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert!(producer.finish() && member.finish());
    let dead = vec!["p-2".to_owned()];
    assert_eq!(world.tally("g"), Event::Final { pending: 0, due: 0, lag: 0, dead });
    world.judge().await;
}

#[tokio::test]
async fn a_verdict_that_makes_no_sense_is_refused_and_changes_nothing() {
    let world = World::new(1, &["g"]).await;
    let member = world.consumer("m", "g", 5000, silence());
    let producer = world.producer("p");
    producer.send(message("p", 0));
    world.until("it is in hand", || member.heard(is_delivered) == 1).await;
    let id = "p-0".to_owned();
    let epoch = Some(1);
    member.order(Command::Ack { id: id.clone(), epoch: None, token: 77 });
    member.order(Command::Ack { id: "other".into(), epoch: None, token: 1 });
    member.order(Command::Ack { id: id.clone(), epoch, token: 1 });
    let refused = |event: &Event| matches!(event, Event::AckErr { definite: true, .. });
    world.until("all three are refused", || member.heard(refused) == 3).await;
    assert!(matches!(world.tally("g"), Event::Final { lag: 1, .. }));
    member.order(Command::Ack { id: id.clone(), epoch: None, token: 1 });
    world.settled().await;
    member.order(Command::Ack { id, epoch: None, token: 1 });
    world.until("a second verdict is refused", || member.heard(refused) == 4).await;
    assert!(producer.finish() && member.finish());
}
