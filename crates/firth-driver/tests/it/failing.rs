//! Members that die or sleep: who takes over, and what their late verdicts are worth.

use crate::process::{ack_all, silence};
use crate::world::{World, is_assigned, is_delivered, is_sent, message};
use firth_driver::{Command, Event};

#[tokio::test]
async fn a_killed_consumer_is_taken_over_without_loss_and_in_order() {
    let world = World::new(4, &["g"]).await;
    let (first, second) =
        (world.consumer("m1", "g", 1000, ack_all()), world.consumer("m2", "g", 1000, ack_all()));
    world
        .until("both have a share", || first.heard(is_assigned) >= 2 && second.heard(is_assigned) >= 2)
        .await;
    let producer = world.producer("p");
    (0..400).for_each(|n| producer.send(message("p", n)));
    world.until("work is under way", || first.heard(is_delivered) > 10).await;
    first.kill();
    (400..600).for_each(|n| producer.send(message("p", n)));
    world.until("everything is sent", || producer.heard(is_sent) == 600).await;
    world.settled().await;
    assert!(producer.finish() && second.finish());
    world.judge().await;
}

#[tokio::test]
async fn a_consumer_that_slept_past_its_lease_settles_nothing() {
    let world = World::new(1, &["g"]).await;
    let sleeper = world.consumer("m1", "g", 500, silence());
    let producer = world.producer("p");
    (0..10).for_each(|n| producer.send(message("p", n)));
    world.until("everything is in its hands", || sleeper.heard(is_delivered) == 10).await;
    sleeper.stop();
    let heir = world.consumer("m2", "g", 500, silence());
    world.until("the next owner has everything", || heir.heard(is_delivered) >= 1).await;
    // Its verdicts wait in the pipe until it wakes.
    for event in sleeper.said() {
        if let Event::Delivered { id, epoch, token, .. } = event {
            sleeper.order(Command::Ack { id, epoch: Some(epoch), token });
        }
    }
    sleeper.go_on();
    let refused = |event: &Event| matches!(event, Event::AckErr { definite: true, .. });
    world.until("every late verdict is refused for certain", || sleeper.heard(refused) == 10).await;
    assert!(matches!(world.tally("g"), Event::Final { lag: 10, .. }), "nothing was settled");
    heir.kill();
    sleeper.kill();
    let last = world.consumer("m3", "g", 500, ack_all());
    world.settled().await;
    assert!(producer.finish() && last.finish());
    world.judge().await;
}
