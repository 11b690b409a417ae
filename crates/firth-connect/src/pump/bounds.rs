//! The limits of a pump, one by one: when a batch goes, how large it is, and what is remembered.

use super::*;

const LIMITS: Limits =
    Limits { batch_records: 3, batch_bytes: 10, linger: Duration::from_secs(1), buffer_bytes: 1000 };

/// A pump of two partitions with an open transaction.
fn pump() -> (Pump<u64, u64>, Instant) {
    let mut pump = Pump::new(LIMITS, vec![None, None]);
    pump.begin();
    (pump, Instant::now())
}

fn push(pump: &mut Pump<u64, u64>, now: Instant, partition: usize, position: u64, size: usize) -> bool {
    pump.push(now, Change { partition, position, message: Message::new(position.to_string()), size })
}

/// How many records the next batch takes while the source has more.
fn polled(pump: &mut Pump<u64, u64>, now: Instant) -> Option<usize> {
    pump.poll(now, false).map(|batch| batch.messages.len())
}

#[test]
fn a_batch_that_is_full_by_records_goes_at_once() {
    let (mut pump, now) = pump();
    for position in 1..=2 {
        push(&mut pump, now, 0, position, 1);
        assert_eq!(polled(&mut pump, now), None);
    }
    (3..=5).for_each(|position| assert!(push(&mut pump, now, 0, position, 1)));
    assert_eq!(polled(&mut pump, now), Some(3), "a batch has at most so many records");
    pump.stored(0);
    assert_eq!(polled(&mut pump, now), None, "the rest waits for more");
}

#[test]
fn a_batch_that_is_full_by_bytes_goes_at_once() {
    let (mut pump, now) = pump();
    push(&mut pump, now, 0, 1, 6);
    assert_eq!(polled(&mut pump, now), None);
    push(&mut pump, now, 0, 2, 6);
    assert_eq!(polled(&mut pump, now), Some(1), "both would be too large");
    pump.stored(0);
    assert_eq!(polled(&mut pump, now), None, "what has gone counts no more");
    assert_eq!(pump.buffered_bytes(), 6);
}

#[test]
fn a_record_that_is_larger_than_a_batch_goes_alone() {
    let (mut pump, now) = pump();
    push(&mut pump, now, 0, 1, 50);
    push(&mut pump, now, 0, 2, 1);
    assert_eq!(polled(&mut pump, now), Some(1));
    pump.stored(0);
    assert_eq!(pump.buffered_bytes(), 1);
}

#[test]
fn only_a_partition_without_a_batch_under_way_becomes_due() {
    let (mut pump, now) = pump();
    (1..=4).for_each(|position| assert!(push(&mut pump, now, 0, position, 1)));
    assert_eq!(polled(&mut pump, now), Some(3));
    assert_eq!(pump.due(), None, "the driver sleeps until the batch is stored");
    push(&mut pump, now + Duration::from_millis(1), 1, 5, 1);
    assert_eq!(pump.due(), Some(now + Duration::from_millis(1) + LIMITS.linger));
    pump.stored(0);
    assert_eq!(pump.due(), Some(now + LIMITS.linger));
}

/// A database that is busy with other tables sends transactions without any record for the topic.
#[test]
fn transactions_without_records_take_no_room() {
    let (mut pump, now) = pump();
    push(&mut pump, now, 0, 1, 1);
    pump.commit(1);
    for end in 2..=1000 {
        pump.begin();
        pump.commit(end);
    }
    assert_eq!(pump.txns.len(), 1);
    assert_eq!(pump.confirmed(), None, "the first one is not stored yet");
    pump.poll(now, true).unwrap();
    pump.stored(0);
    assert_eq!(pump.confirmed(), Some(1000));
}

#[test]
fn what_is_confirmed_never_goes_back() {
    let mut pump: Pump<u64, u64> = Pump::new(LIMITS, vec![None]);
    pump.sent_upto(10);
    pump.begin();
    pump.commit(5);
    assert_eq!(pump.confirmed(), Some(10));
    pump.sent_upto(7);
    assert_eq!(pump.confirmed(), Some(10));
}

#[test]
fn a_change_that_is_read_again_is_dropped_also_before_its_batch_is_stored() {
    let (mut pump, now) = pump();
    push(&mut pump, now, 0, 5, 1);
    pump.poll(now, true).unwrap();
    assert!(!push(&mut pump, now, 0, 5, 1));
    assert!(push(&mut pump, now, 0, 6, 1));
}

#[test]
fn new_partitions_hold_what_the_old_ones_hold() {
    let mut pump: Pump<u64, u64> = Pump::new(LIMITS, vec![None]);
    let now = Instant::now();
    pump.grow(3, &7);
    pump.begin();
    for partition in 0..3 {
        assert!(!push(&mut pump, now, partition, 7, 1), "{partition}");
        assert!(push(&mut pump, now, partition, 8, 1), "{partition}");
    }
    pump.commit(8);
    while let Some(batch) = pump.poll(now, true) {
        pump.stored(batch.partition);
    }
    pump.grow(1, &9);
    pump.begin();
    assert!(push(&mut pump, now, 2, 10, 1), "partitions never become fewer");
}
