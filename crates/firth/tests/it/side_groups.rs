//! Side groups: the owner of a partition makes, moves and removes groups under its hold, and a
//! former owner changes none (invariant 5).

use crate::engines::{Pair, on_every_engine};
use crate::world::{eventually, fails, numbered, soon};
use firth::{Broker, Consumer, ErrorKind, GroupName, Nack, RecordId, RetryPolicy, SideGroups, StartAt};

on_every_engine!(
    an_owner_makes_moves_and_removes_side_groups
    a_former_owner_changes_no_side_group
    a_side_group_delivers_what_its_owner_has_settled
);

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

async fn owner(broker: &Broker, name: &str) -> (Consumer, SideGroups) {
    let consumer = broker.consumer("orders", "main").name(name).await.unwrap();
    soon("it owns the partition", consumer.handle().assigned(|owned| owned.contains(&0))).await;
    let hold = consumer.handle().hold(0).unwrap();
    let side = broker.side_groups(&hold).unwrap();
    (consumer, side)
}

async fn with_ten(broker: &Broker, partitions: u32) -> Vec<RecordId> {
    broker.create_topic("orders").partitions(partitions).await.unwrap();
    let producer = broker.producer("orders").await.unwrap();
    let messages = numbered(0, 10).map(|message| message.to_partition(0));
    let receipts = producer.send_all(messages).await.unwrap();
    receipts.iter().map(|receipt| receipt.id.unwrap()).collect()
}

async fn an_owner_makes_moves_and_removes_side_groups(pair: Pair) {
    let ids = with_ten(&pair.first, 2).await;
    let (consumer, side) = owner(&pair.first, "a").await;
    assert_eq!(side.list().await.unwrap(), [], "the owner's own group is none of them");
    assert_eq!(side.end().await.unwrap(), ids[9]);
    let slow = group("main.slow");
    assert!(side.status(&slow).await.unwrap().is_none());
    assert!(side.make(&slow, ids[4]).await.unwrap());
    assert!(!side.make(&slow, ids[0]).await.unwrap(), "it is there already");
    assert_eq!(side.status(&slow).await.unwrap().unwrap().frontier, ids[4]);
    side.move_back(&slow, ids[7]).await.unwrap();
    assert_eq!(side.status(&slow).await.unwrap().unwrap().frontier, ids[4], "it never moves on");
    side.move_back(&slow, ids[1]).await.unwrap();
    assert_eq!(side.status(&slow).await.unwrap().unwrap().frontier, ids[1]);
    assert_eq!((side.list().await.unwrap(), side.partitions_of(&slow).await.unwrap()), (vec![slow], vec![0]));
    let slow = group("main.slow");
    assert!(side.remove(&slow).await.unwrap());
    assert!(!side.remove(&slow).await.unwrap());
    fails(side.move_back(&slow, ids[1]).await, ErrorKind::NotFound);
    fails(side.remove(&group("main")).await, ErrorKind::Invalid);
    consumer.close().await.unwrap();
}

async fn a_former_owner_changes_no_side_group(pair: Pair) {
    let ids = with_ten(&pair.first, 2).await;
    let (consumer, former) = owner(&pair.first, "a").await;
    let there = group("main.there");
    let missing = group("main.missing");
    former.make(&there, ids[5]).await.unwrap();
    consumer.close().await.unwrap();
    let (consumer, side) = owner(&pair.second, "b").await;
    assert!(side.hold().epoch > former.hold().epoch);
    fails(former.make(&missing, ids[0]).await, ErrorKind::Fenced);
    fails(former.move_back(&there, ids[0]).await, ErrorKind::Fenced);
    fails(former.remove(&there).await, ErrorKind::Fenced);
    assert_eq!(side.list().await.unwrap(), std::slice::from_ref(&there));
    assert_eq!(side.status(&there).await.unwrap().unwrap().frontier, ids[5]);
    consumer.close().await.unwrap();
}

async fn a_side_group_delivers_what_its_owner_has_settled(pair: Pair) {
    let ids = with_ten(&pair.first, 1).await;
    let builder = pair.first.consumer("orders", "main").retry(RetryPolicy::never());
    let mut consumer = builder.await.unwrap();
    soon("it owns the partition", consumer.handle().assigned(|owned| owned.contains(&0))).await;
    let side = pair.first.side_groups(&consumer.handle().hold(0).unwrap()).unwrap();
    let slow = group("main.slow");
    side.make(&slow, ids[6]).await.unwrap();
    for number in 0..10 {
        let delivery = soon("a delivery", consumer.next()).await.unwrap().unwrap();
        match number {
            7 => delivery.nack(Nack::reject("no").with_header("refused-by", "slow")).await.unwrap(),
            8 => delivery.nack(Nack::reject("never")).await.unwrap(),
            _ => delivery.ack().await.unwrap(),
        }
    }
    let letters = side.dead_letters(ids[6], 10).await.unwrap();
    assert_eq!(letters.iter().map(|letter| letter.id.id).collect::<Vec<_>>(), ids[7..9]);
    assert_eq!(letters[0].record.headers().get("refused-by").unwrap(), "slow");
    assert!(letters[1].record.headers().is_empty());
    assert_eq!(side.take_back(&[ids[7]]).await.unwrap(), 1);
    assert_eq!(side.dead_letters(RecordId::ZERO, 10).await.unwrap().len(), 1);
    let builder = pair.second.consumer("orders", slow.as_str()).start_at(StartAt::Existing);
    let mut catching_up = builder.await.unwrap();
    for id in &ids[7..] {
        let delivery = soon("it is kept for the side group", catching_up.next()).await.unwrap().unwrap();
        assert_eq!(delivery.id(), *id);
        delivery.ack().await.unwrap();
    }
    eventually("all is settled", async || side.status(&slow).await.unwrap().unwrap().frontier == ids[9])
        .await;
    catching_up.close().await.unwrap();
    consumer.close().await.unwrap();
}
