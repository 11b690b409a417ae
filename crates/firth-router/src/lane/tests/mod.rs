//! The lane's laws: accounting, order, bounds; and the defects of the design that it must not have.

mod model;

use super::*;
use crate::event::{Event, Operation};
use crate::name::{GatewayId, SubscriptionId, Tenant};
use crate::registry::{Subscription, Wanted};
use crate::routing::Target;
use std::sync::Arc;

fn item(seq: u64, key: &str, priority: Priority, overflow: Overflow) -> Item {
    let tenant = Tenant::new("t").unwrap();
    let target = Target::Direct(GatewayId::new("g").unwrap());
    let subscription = Subscription::new(SubscriptionId::new("s").unwrap(), tenant.clone(), "orders", target);
    let wanted =
        Wanted { subscription: Arc::new(Subscription { priority, overflow, ..subscription }), leaves: false };
    let event = Event::new(Operation::Update, tenant, "orders", key);
    let partition = u32::from(key.len() as u8 % 2);
    Item::new(Position { partition, seq }, 1, Arc::new(event), &[wanted]).with_record_number(seq)
}

fn plain(seq: u64, key: &str) -> Item {
    item(seq, key, Priority::Normal, Overflow::Conflate)
}

fn config() -> RoutingConfig {
    let mut config = RoutingConfig::default();
    config.batch.max_size = 4;
    config.backpressure.queue_size = 20;
    config.delivery.max_in_flight = 4;
    config
}

fn seqs(batch: &Batch) -> Vec<u64> {
    batch.items.iter().map(|item| item.position.seq).collect()
}

fn refuse() -> Answer {
    Answer::Refused("no".to_owned())
}

#[test]
fn an_idle_gateway_gets_an_event_at_once_and_a_busy_one_gets_full_batches() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    lane.offer(plain(1, "a"), now);
    let first = lane.poll(now).expect("nothing is on its way, so nothing is waited for");
    for seq in 2..=4 {
        lane.offer(plain(seq, &format!("k{seq}")), now);
    }
    assert!(lane.poll(now).is_none(), "three events wait for a fourth");
    lane.offer(plain(5, "k5"), now);
    assert_eq!(seqs(&lane.poll(now).unwrap()), [2, 3, 4, 5]);
    lane.offer(plain(6, "k6"), now);
    lane.settle(first.id, Outcome::Accepted, now, 0.0);
    assert!(lane.poll(now).is_none(), "one batch is still on its way");
}

#[test]
fn a_partial_batch_is_sent_when_its_time_has_come_and_nothing_of_it_is_lost() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    lane.offer(plain(1, "a"), now);
    lane.poll(now).unwrap();
    lane.offer(plain(2, "b"), now);
    let due = lane.wake(now).expect("it will be sent by the clock");
    assert_eq!(due, now + Duration::from_millis(50));
    assert_eq!(seqs(&lane.poll(due).unwrap()), [2]);
}

#[test]
fn a_batch_never_exceeds_its_size() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    (1..=20).for_each(|seq| assert_eq!(lane.offer(plain(seq, "same"), now), Offer::Taken));
    let batch = lane.poll(now).unwrap();
    assert_eq!(seqs(&batch), [1, 2, 3, 4]);
    assert!(lane.poll(now).is_none(), "the document's later events wait for these");
    lane.settle(batch.id, Outcome::Accepted, now, 0.0);
    assert_eq!(seqs(&lane.poll(now).unwrap()), [5, 6, 7, 8]);
}

#[test]
fn a_refused_event_is_tried_three_times_and_then_given_up_while_others_go_on() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    [plain(1, "a"), plain(2, "a"), plain(3, "b")]
        .into_iter()
        .for_each(|item| assert_eq!(lane.offer(item, now), Offer::Taken));
    let batch = lane.poll(now).unwrap();
    let answers = vec![refuse(), Answer::Accepted, Answer::Accepted];
    let released = lane.settle(batch.id, Outcome::Answered(answers), now, 0.0);
    let delivered =
        Released { position: plain(3, "b").position, record_number: 3, cause: ReleaseCause::Delivered };
    assert_eq!(released, [delivered], "what came after a refused event of its document does not count");
    lane.offer(plain(4, "c"), now);
    let other = lane.poll(now).unwrap();
    assert_eq!(seqs(&other), [4], "another document does not wait");
    lane.settle(other.id, Outcome::Accepted, now, 0.0);
    for wait in [100, 200] {
        assert_eq!(lane.wake(now), Some(now + Duration::from_millis(wait)));
        now += Duration::from_millis(wait);
        let again = lane.poll(now).unwrap();
        assert_eq!(seqs(&again), [1, 2]);
        let released = lane.settle(again.id, Outcome::Answered(vec![refuse()]), now, 0.0);
        let why = |cause: &ReleaseCause| matches!(cause, ReleaseCause::Dead(why) if why.ends_with(" (attempts: 3)"));
        assert_eq!(released.iter().filter(|one| why(&one.cause)).count(), usize::from(wait == 200));
    }
    assert_eq!(lane.accounting(1).dead, 1);
    let last = lane.poll(now).unwrap();
    assert_eq!(seqs(&last), [2], "the next one of the document goes on");
    lane.settle(last.id, Outcome::Accepted, now, 0.0);
    assert_eq!(lane.held(), 0);
}

#[test]
fn the_wait_grows_is_capped_and_jittered() {
    let retry = RoutingConfig::default().delivery.retry;
    let millis = |refusals, jitter| retry_delay(&retry, refusals, jitter).as_millis();
    assert_eq!([millis(1, 0.0), millis(2, 0.0), millis(3, 0.0)], [100, 200, 400]);
    assert_eq!(millis(40, 0.0), 5000);
    assert_eq!(millis(u32::MAX, 0.0), 5000);
    assert_eq!(millis(1, 1.0), 50);
}

#[test]
fn an_unreachable_gateway_opens_the_breaker_and_loses_nothing() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    (1..=3).for_each(|seq| assert_eq!(lane.offer(plain(seq, "a"), now), Offer::Taken));
    for rest in [0, 0, 100, 200, 400] {
        assert!(rest == 0 || lane.poll(now).is_none(), "it rests");
        now += Duration::from_millis(rest);
        let batch = lane.poll(now).unwrap();
        assert_eq!(seqs(&batch), [1, 2, 3]);
        assert_eq!(lane.settle(batch.id, Outcome::Unreached, now, 0.0), []);
    }
    assert!(lane.poll(now).is_none(), "the breaker is open");
    assert_eq!(lane.wake(now), Some(now + Duration::from_secs(1)));
    now += Duration::from_secs(1);
    let probe = lane.poll(now).unwrap();
    lane.offer(plain(9, "b"), now);
    assert!(lane.poll(now + Duration::from_secs(1)).is_none(), "one probe at a time");
    assert_eq!(lane.settle(probe.id, Outcome::Accepted, now, 0.0).len(), 3);
    assert_eq!(seqs(&lane.poll(now).unwrap()), [9]);
}

#[test]
fn a_gateway_that_asks_for_a_pause_gets_it_without_losing_attempts() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    lane.offer(plain(1, "a"), now);
    let batch = lane.poll(now).unwrap();
    lane.settle(batch.id, Outcome::Busy(Some(Duration::from_secs(2))), now, 0.0);
    assert!(lane.poll(now).is_none());
    assert_eq!(lane.wake(now), Some(now + Duration::from_secs(2)));
    let again = lane.poll(now + Duration::from_secs(2)).unwrap();
    assert_eq!((seqs(&again), again.items[0].refusals), (vec![1], 0));
    assert_eq!(lane.circuit(), Circuit::Closed);
}

#[test]
fn under_pressure_only_low_priority_is_left_out_and_the_gateway_is_told() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    (1..=14).for_each(|seq| {
        assert_eq!(lane.offer(item(seq, "low", Priority::Low, Overflow::Conflate), now), Offer::Taken);
    });
    assert_eq!(lane.pressure(), Pressure::Soft);
    lane.offer(item(15, "low", Priority::Low, Overflow::Conflate), now);
    lane.offer(item(16, "xyz", Priority::Low, Overflow::Shed), now);
    lane.offer(item(17, "high", Priority::High, Overflow::Shed), now);
    let batch = lane.poll(now).unwrap();
    assert_eq!(seqs(&batch), [17, 1, 2, 3], "urgent ones go first");
    let gap: Vec<_> = batch.gap.as_ref().unwrap().positions().map(|position| position.seq).collect();
    assert_eq!(gap, [14, 16], "the older one made room for the newer; the other was left out");
    assert_eq!(lane.accounting(1).gapped, 0, "not before the gateway knows");
    lane.settle(batch.id, Outcome::Accepted, now, 0.0);
    assert_eq!(lane.accounting(1).gapped + lane.accounting(0).gapped, 2);
}

#[test]
fn a_full_lane_refuses_and_can_be_parked() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    for seq in 1..=20 {
        assert_eq!(lane.offer(plain(seq, &format!("k{seq:02}")), now), Offer::Taken);
    }
    assert_eq!(lane.pressure(), Pressure::Hard);
    assert_eq!(lane.offer(plain(21, "x"), now), Offer::Full);
    let batch = lane.poll(now).unwrap();
    let parked = lane.park(1, 0);
    assert_eq!(parked.len(), 16);
    assert!(parked.iter().all(|one| one.cause == ReleaseCause::Parked));
    assert_eq!(
        lane.settle(batch.id, Outcome::Accepted, now, 0.0).len(),
        4,
        "what was on its way still counts"
    );
    assert_eq!((lane.held(), lane.pressure()), (0, Pressure::None));
    assert!(lane.accounting(1).balance());
}

#[test]
fn one_event_that_is_larger_than_the_queue_still_gets_through() {
    let mut small = config();
    small.backpressure.queue_bytes = 10;
    let mut lane = Lane::new(small);
    let now = Instant::now();
    assert_eq!(lane.offer(plain(1, "a"), now), Offer::Taken);
    assert_eq!(lane.offer(plain(2, "a"), now), Offer::Full);
}

#[test]
fn the_least_urgent_are_not_starved_for_ever() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    lane.offer(item(0, "low", Priority::Low, Overflow::Keep), now);
    for seq in 1..=FAIR_TURN * 4 {
        while lane.held() < 12 {
            lane.offer(
                item(
                    seq * 100 + lane.held() as u64,
                    &format!("k{seq}-{}", lane.held()),
                    Priority::High,
                    Overflow::Keep,
                ),
                now,
            );
        }
        let batch = lane.poll(now).unwrap();
        let has_low = batch.items.iter().any(|item| item.priority == Priority::Low);
        lane.settle(batch.id, Outcome::Accepted, now, 0.0);
        if has_low {
            return;
        }
    }
    panic!("the low one never went out");
}

#[test]
fn a_rest_that_ends_before_a_pause_does_not_wake_the_lane_again_and_again() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    let mut out = Vec::new();
    for (seq, key) in [(1, "a"), (2, "b"), (3, "c")] {
        lane.offer(plain(seq, key), now);
        now += Duration::from_secs(1);
        out.push(lane.poll(now).expect("the window has room").id);
    }
    let pause = Duration::from_secs(60);
    let outcomes = [Outcome::Busy(Some(pause)), Outcome::Unreached, Outcome::Unreached];
    for (id, outcome) in out.into_iter().zip(outcomes) {
        lane.settle(id, outcome, now, 0.5);
    }
    assert!(lane.poll(now).is_none());
    assert_eq!(lane.wake(now), Some(now + pause), "the rest is shorter");
    now += Duration::from_secs(59);
    assert!(lane.poll(now).is_none());
    assert_eq!(lane.wake(now), Some(now + Duration::from_secs(1)), "the rest is over, the pause is not");
}

#[test]
fn what_was_refused_under_an_epoch_that_is_over_is_sent_under_the_new_one_and_not_counted() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    let epoch = |batch: &Batch| batch.items[0].epoch;
    lane.offer(plain(1, "a"), now);
    for (number, is_over) in [(5, true), (6, true), (7, true), (8, false), (8, false), (8, false)] {
        lane.own(BTreeMap::from([(1, number)]));
        let batch = lane.poll(now + Duration::from_secs(60)).unwrap();
        assert_eq!(epoch(&batch), number);
        lane.own(BTreeMap::from([(1, number + u64::from(is_over))]));
        lane.settle(batch.id, Outcome::Answered(vec![refuse()]), now, 0.0);
    }
    assert_eq!((lane.held(), lane.accounting(1).dead), (0, 1), "the third refusal under its own epoch");
    lane.offer(plain(2, "a"), now);
    lane.own(BTreeMap::new());
    assert_eq!(
        epoch(&lane.poll(now).unwrap()),
        plain(2, "a").epoch,
        "of a partition that is another's, its own"
    );
}

#[test]
fn what_is_refused_of_a_partition_that_is_anothers_now_is_not_given_up_and_leaves_only_as_a_whole() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    lane.own(BTreeMap::from([(1, 5)]));
    for (seq, key) in [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a")] {
        lane.offer(plain(seq, key), now);
    }
    lane.own(BTreeMap::new());
    for _ in 0..10 {
        let batch = lane.poll(now).unwrap();
        let refusals = batch.items.iter().map(|_| refuse()).collect();
        assert_eq!(lane.settle(batch.id, Outcome::Answered(refusals), now, 0.0), []);
        assert_eq!((lane.foreign(), lane.accounting(1).dead), (vec![1], 0));
        now += Duration::from_secs(60);
    }
    assert_eq!((lane.park(1, 0).len(), lane.held()), (5, 0));
    assert!(lane.foreign().is_empty());
    lane.own(BTreeMap::from([(1, 7)]));
    lane.offer(plain(1, "a"), now);
    assert_eq!(
        seqs(&lane.poll(now).unwrap()),
        [1],
        "its documents are free for what the next ownership brings"
    );
}

#[test]
fn rises_of_pressure_and_events_that_are_sent_again_are_counted() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    for seq in 1..=19 {
        lane.offer(plain(seq, &format!("k{seq}")), now);
    }
    assert_eq!(lane.take_counters(), LaneCounters { soft: 1, hard: 1, ..LaneCounters::default() });
    assert_eq!(lane.take_counters(), LaneCounters::default());
    let batch = lane.poll(now).unwrap();
    lane.settle(batch.id, Outcome::Unreached, now, 0.0);
    assert_eq!(lane.take_counters().retries, 4);
    for (attempt, again) in [(1, 1), (2, 1), (3, 0)] {
        now += Duration::from_secs(60);
        // The refused event alone goes round; the others are accepted.
        let batch = std::iter::from_fn(|| lane.poll(now))
            .find(|batch| batch.items.iter().any(|item| item.position.seq == 1));
        let batch = batch.unwrap();
        let answers =
            batch.items.iter().map(|item| if item.position.seq == 1 { refuse() } else { Answer::Accepted });
        lane.settle(batch.id, Outcome::Answered(answers.collect()), now, 0.0);
        assert_eq!(lane.take_counters().retries, again, "attempt {attempt}");
    }
    assert_eq!(lane.accounting(0).dead + lane.accounting(1).dead, 1);
}

#[test]
fn what_is_read_from_the_topic_again_is_not_given_up_here_however_often_it_is_refused() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    let partition = plain(1, "a").position.partition;
    lane.offer(plain(1, "a"), now);
    for _ in 0..10 {
        // It is on its way while its gateway is parked, from this very event on.
        let batch = lane.poll(now).expect("it is tried again");
        lane.exempt_from(partition, Some(1));
        let released = lane.settle(batch.id, Outcome::Answered(vec![refuse()]), now, 0.0);
        assert_eq!(released, [], "its letter, if any, is written by whoever reads it again");
        now = lane.wake(now).expect("it rests meanwhile");
    }
    assert_eq!(lane.park(partition, 1).len(), 1);
    // What was fed, what is before that place, and what comes when that is over is given up as
    // ever.
    for (seq, from, is_fed) in [(2, Some(1), true), (3, Some(4), false), (5, None, false)] {
        lane.exempt_from(partition, from);
        let item = if is_fed { plain(seq, "b").read_again() } else { plain(seq, "b") };
        lane.offer(item, now);
        let mut released = Vec::new();
        for _ in 0..3 {
            let batch = lane.poll(now).expect("it is tried again");
            lane.exempt_from(partition, from);
            released = lane.settle(batch.id, Outcome::Answered(vec![refuse()]), now, 0.0);
            now = lane.wake(now).unwrap_or(now);
        }
        assert!(
            matches!(released[..], [Released { cause: ReleaseCause::Dead(_), .. }]),
            "{seq}: {released:?}"
        );
    }
    assert!(lane.accounting(partition).balance() && lane.held() == 0);
}

#[test]
fn a_lane_is_stuck_when_events_wait_and_the_gateway_is_silent_or_ejected() {
    let mut lane = Lane::new(config());
    let start = Instant::now();
    let stall_timeout = Duration::from_secs(1);
    lane.offer(plain(1, "a"), start);
    let batch = lane.poll(start).unwrap();
    let later = start + stall_timeout;
    assert!(
        !lane.is_stuck(later, stall_timeout),
        "nothing waits behind the silent batch: one more event may tell more"
    );
    lane.offer(plain(2, "b"), start);
    assert!(!lane.is_stuck(start, stall_timeout) && lane.is_stuck(later, stall_timeout));
    lane.settle(batch.id, Outcome::Accepted, later, 0.0);
    assert!(!lane.is_stuck(later, stall_timeout));
    let mut now = later;
    for _ in 0..lane.config.delivery.breaker.failures {
        now = lane.wake(now).unwrap_or(now);
        let batch = lane.poll(now).expect("it is closed still");
        lane.settle(batch.id, Outcome::Unreached, now, 0.0);
    }
    assert!(lane.is_stuck(now, stall_timeout), "it is ejected");
}

#[test]
fn r04_a_gateway_that_is_not_registered_has_no_failures() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    lane.set_absent(true);
    lane.offer(plain(1, "a"), now);
    assert!(lane.poll(now).is_none() && lane.wake(now).is_none() && lane.awaits_sign());
    assert_eq!(lane.circuit(), Circuit::Closed);
    assert!(lane.is_silent(now, Duration::from_secs(1)), "nobody waits for it");
    lane.set_absent(false);
    assert_eq!(seqs(&lane.poll(now).unwrap()), [1]);
}

#[test]
fn t06_an_event_without_an_answer_is_sent_again() {
    let now = Instant::now();
    for answers in [vec![], vec![Answer::Accepted]] {
        let mut lane = Lane::new(config());
        (1..=4).for_each(|seq| assert_eq!(lane.offer(plain(seq, &format!("k{seq}")), now), Offer::Taken));
        let batch = lane.poll(now).unwrap();
        assert_eq!(seqs(&batch), [1, 2, 3, 4]);
        let accepted = answers.len();
        let released = lane.settle(batch.id, Outcome::Answered(answers), now, 0.0);
        assert_eq!((released.len(), lane.held()), (accepted, 4 - accepted));
        let retry = lane.wake(now).expect("the events without an answer wait for another attempt");
        let mut again = seqs(&lane.poll(retry).unwrap());
        again.sort_unstable(); // no order is promised between documents
        assert_eq!(again, [1, 2, 3, 4][accepted..]);
    }
}

fn in_partition_0(seq: u64, event: Event) -> Item {
    let mut item = Item::new(Position { partition: 0, seq }, 1, Arc::new(event), &[]).with_record_number(seq);
    item.wanted = plain(seq, "kk").wanted;
    item
}

fn control(seq: u64, tenant: Option<&str>, collection: &str) -> Item {
    let tenant = tenant.map(|name| Tenant::new(name).unwrap());
    in_partition_0(seq, Event::control(Operation::Truncate, tenant, collection))
}

fn of(seq: u64, collection: &str, key: &str) -> Item {
    in_partition_0(seq, Event::new(Operation::Update, Tenant::new("t").unwrap(), collection, key))
}

#[test]
fn a_control_goes_out_behind_all_earlier_events_of_its_collection_and_before_all_later_ones() {
    let mut lane = Lane::new(config());
    let mut now = Instant::now();
    lane.offer(of(1, "orders", "a"), now);
    let first = lane.poll(now).unwrap();
    for item in
        [of(2, "orders", "b"), control(3, Some("t"), "orders"), of(4, "orders", "a"), of(5, "items", "c")]
    {
        assert_eq!(lane.offer(item, now), Offer::Taken);
    }
    now += Duration::from_millis(50);
    let second = lane.poll(now).unwrap();
    assert_eq!(seqs(&second), [2, 5], "another collection is not held up");
    lane.settle(first.id, Outcome::Answered(vec![refuse()]), now, 0.0);
    lane.settle(second.id, Outcome::Accepted, now, 0.0);
    assert!(lane.poll(now).is_none(), "a refused event is still to come");
    lane.offer(of(6, "items", "c"), now);
    assert_eq!(lane.poll(now).map(|batch| seqs(&batch)), Some(vec![6]));
    now += Duration::from_millis(100);
    let again = lane.poll(now).unwrap();
    assert_eq!(seqs(&again), [1]);
    lane.settle(again.id, Outcome::Accepted, now, 0.0);
    let alone = lane.poll(now + Duration::from_millis(50)).unwrap();
    assert_eq!(seqs(&alone), [3]);
    lane.offer(of(7, "orders", "d"), now);
    assert!(lane.poll(now + Duration::from_secs(1)).is_none(), "the control is on its way");
    lane.settle(alone.id, Outcome::Unreached, now, 0.0);
    now += Duration::from_secs(60);
    let alone = lane.poll(now).unwrap();
    assert_eq!(seqs(&alone), [3], "it comes back before what waits for it");
    lane.settle(alone.id, Outcome::Accepted, now, 0.0);
    assert_eq!(seqs(&lane.poll(now).unwrap()), [4, 7]);
}

#[test]
fn controls_wait_for_each_other_only_where_they_meet() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    let items = [
        control(1, Some("t"), "orders"),
        control(2, Some("u"), "orders"),
        control(3, None, "orders"),
        control(4, Some("t"), "items"),
    ];
    for item in items {
        lane.offer(item, now);
    }
    let first = lane.poll(now).unwrap();
    assert_eq!(seqs(&first), [1, 2, 4]);
    lane.settle(first.id, Outcome::Accepted, now, 0.0);
    assert_eq!(seqs(&lane.poll(now).unwrap()), [3]);
}

#[test]
fn what_waits_for_a_control_is_parked_and_counted_like_all_else() {
    let mut lane = Lane::new(config());
    let now = Instant::now();
    lane.offer(of(1, "orders", "a"), now);
    let first = lane.poll(now).unwrap();
    for item in [control(2, None, "orders"), of(3, "orders", "b"), of(4, "orders", "c")] {
        lane.offer(item, now);
    }
    assert_eq!((lane.held(), lane.lowest(0), lane.waiting(0).count()), (4, Some(1), 3));
    let parked: Vec<_> = lane.park(0, 3).into_iter().map(|one| (one.position.seq, one.cause)).collect();
    assert_eq!(parked, [(3, ReleaseCause::Parked), (4, ReleaseCause::Parked)]);
    lane.settle(first.id, Outcome::Accepted, now, 0.0);
    assert_eq!((lane.held(), lane.lowest(0)), (1, Some(2)));
    let last = lane.poll(now).unwrap();
    assert_eq!(lane.settle(last.id, Outcome::Accepted, now, 0.0).len(), 1);
    assert_eq!(lane.held(), 0);
}
