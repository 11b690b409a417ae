//! Laws of delayed messages: listed, cancelled, delivered before their time.

use crate::world::{eventually, fails, numbered, numbers, partition, read_all, unmade_partition};
use firth_engine::facet::{
    Append, DelayedAction, DelayedContent, DelayedOutcome, DelayedPage, DelayedState, ReadLimit,
};
use firth_engine::{Content, Engine, ErrorKind, Partition, RecordId};
use std::collections::BTreeSet;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn number(content: &Content) -> u64 {
    String::from_utf8(content.payload.to_vec()).unwrap().parse().unwrap()
}

async fn list(engine: &Engine, at: &Partition) -> DelayedPage {
    engine.delayed(at, RecordId::ZERO, ReadLimit::records(1000)).await.unwrap()
}

/// Delays messages numbered `from..to` in one batch, and answers how they are listed.
async fn delay(
    engine: &Engine,
    at: &Partition,
    (from, to): (u64, u64),
    after: Duration,
) -> Vec<DelayedContent> {
    let batch: Vec<Content> = (from..to).map(numbered).collect();
    engine.append(at, Append { after, ..Append::new(batch) }).await.unwrap();
    let mut all = list(engine, at).await.messages;
    all.retain(|message| (from..to).contains(&number(&message.content)));
    all
}

fn is(outcome: DelayedOutcome, state: DelayedState, changed: bool) {
    assert_eq!((outcome.state, outcome.changed), (state, changed), "{outcome:?}");
}

/// Delayed messages are listed in the order of their times, page by page, each once. A message that
/// enters the log is not listed any more.
pub async fn delayed_messages_are_listed_page_by_page(engine: Engine) {
    let at = partition(&engine).await;
    let all = engine.delayed(&at, RecordId::ZERO, ReadLimit::records(10)).await.unwrap();
    assert_eq!((all.messages.len(), all.next), (0, None));
    for hours in [3, 1, 2] {
        let after = Duration::from_secs(3600 * hours);
        let three = (0..3).map(|n| numbered(10 * hours + n)).collect::<Vec<_>>();
        engine.append(&at, Append { after, ..Append::new(three) }).await.unwrap();
    }
    let wanted = [10, 11, 12, 20, 21, 22, 30, 31, 32];
    for max in [1, 2, 4, 100] {
        let mut found = Vec::new();
        let mut after = RecordId::ZERO;
        let mut pages = 0;
        loop {
            let page = engine.delayed(&at, after, ReadLimit::records(max)).await.unwrap();
            assert!(page.messages.is_sorted_by_key(|message| message.ripe_in), "{page:?}");
            found.extend(page.messages.iter().map(|message| number(&message.content)));
            pages += 1;
            let Some(next) = page.next else { break };
            after = next;
        }
        assert_eq!((found.as_slice(), pages <= 9), (wanted.as_slice(), true), "{max} at a time");
    }
    let first = &engine.delayed(&at, RecordId::ZERO, ReadLimit::records(1)).await.unwrap().messages[0];
    assert!(
        first.ripe_in > Duration::from_secs(3500) && first.ripe_in <= Duration::from_secs(3601),
        "{first:?}"
    );
    let soon = Append { after: Duration::from_millis(1), ..Append::new([numbered(5)]) };
    engine.append(&at, soon).await.unwrap();
    eventually("the message becomes due", || async { engine.promote_due(&at, 10).await.unwrap().moved == 1 })
        .await;
    let rest = engine.delayed(&at, RecordId::ZERO, ReadLimit::records(100)).await.unwrap();
    assert_eq!((rest.messages.len(), number(&rest.messages[0].content)), (9, 10));
}

/// Any message of a batch can be cancelled, in any order, and never enters the log. The others keep
/// their names, their times and their order.
pub async fn a_cancelled_message_never_enters_the_log(engine: Engine) {
    let at = partition(&engine).await;
    let messages = delay(&engine, &at, (0, 200), Duration::from_millis(1500)).await;
    assert_eq!(messages.len(), 200);
    let cancelled = [0, 1, 7, 8, 63, 64, 65, 100, 150, 149, 199];
    for index in cancelled {
        let outcome = engine.change_delayed(&at, messages[index].id, DelayedAction::Cancel).await.unwrap();
        is(outcome, DelayedState::Cancelled, true);
        let again = engine.change_delayed(&at, messages[index].id, DelayedAction::Cancel).await.unwrap();
        is(again, DelayedState::Cancelled, false);
        let late = engine.change_delayed(&at, messages[index].id, DelayedAction::Deliver).await.unwrap();
        is(late, DelayedState::Cancelled, false);
    }
    let left: Vec<u64> = (0..200).filter(|number| !cancelled.contains(&(*number as usize))).collect();
    assert_eq!(engine.bounds(&at).await.unwrap().delayed, left.len() as u64);
    let listed = list(&engine, &at).await.messages;
    let known: Vec<RecordId> = left.iter().map(|number| messages[*number as usize].id).collect();
    assert_eq!(listed.iter().map(|message| message.id).collect::<Vec<_>>(), known);
    eventually("all messages become due", || async {
        engine.promote_due(&at, 1000).await.unwrap();
        engine.bounds(&at).await.unwrap().delayed == 0
    })
    .await;
    assert_eq!(numbers(&read_all(&engine, &at).await), left);
    // The memory outlives the time of the messages.
    let after = engine.change_delayed(&at, messages[8].id, DelayedAction::Cancel).await.unwrap();
    is(after, DelayedState::Cancelled, false);
    let entered = engine.change_delayed(&at, messages[9].id, DelayedAction::Cancel).await.unwrap();
    is(entered, DelayedState::Delivered, false);
}

/// A message that is delivered now enters the log at once, at its end, and once.
pub async fn a_message_delivered_now_enters_the_log_once(engine: Engine) {
    let at = partition(&engine).await;
    engine.append(&at, Append::new([numbered(1000)])).await.unwrap();
    let messages = delay(&engine, &at, (0, 100), HOUR).await;
    for index in [50, 99, 0, 51] {
        let outcome = engine.change_delayed(&at, messages[index].id, DelayedAction::Deliver).await.unwrap();
        is(outcome, DelayedState::Delivered, true);
        let last = engine.bounds(&at).await.unwrap().last;
        assert_eq!(outcome.record, Some(last));
        for action in [DelayedAction::Deliver, DelayedAction::Cancel] {
            let again = engine.change_delayed(&at, messages[index].id, action).await.unwrap();
            is(again, DelayedState::Delivered, false);
            assert_eq!(again.record, None);
        }
    }
    assert_eq!(numbers(&read_all(&engine, &at).await), [1000, 50, 99, 0, 51]);
    assert_eq!(engine.bounds(&at).await.unwrap().delayed, 96);
    let mut left: Vec<u64> = list(&engine, &at).await.messages.iter().map(|m| number(&m.content)).collect();
    assert!(left.is_sorted());
    left.extend([50, 99, 0, 51]);
    assert_eq!(left.into_iter().collect::<BTreeSet<_>>().len(), 100);
}

/// Names that a partition never gave are unknown to it, and so is a partition that is not there.
/// Of the cancelled ones it remembers the last 256.
pub async fn unknown_delayed_messages_are_told(engine: Engine) {
    let nowhere = unmade_partition();
    let asked = RecordId::new(1, 1);
    fails(engine.change_delayed(&nowhere, asked, DelayedAction::Cancel).await, ErrorKind::NotFound);
    let at = partition(&engine).await;
    let messages = delay(&engine, &at, (0, 300), HOUR).await;
    let last = messages[299].id;
    for id in [RecordId::ZERO, RecordId::new(last.ms, last.seq + 1), RecordId::new(u64::MAX, u64::MAX)] {
        for action in [DelayedAction::Cancel, DelayedAction::Deliver] {
            is(engine.change_delayed(&at, id, action).await.unwrap(), DelayedState::Missing, false);
        }
    }
    for message in &messages {
        let outcome = engine.change_delayed(&at, message.id, DelayedAction::Cancel).await.unwrap();
        is(outcome, DelayedState::Cancelled, true);
    }
    let again = engine.change_delayed(&at, last, DelayedAction::Cancel).await.unwrap();
    is(again, DelayedState::Cancelled, false);
    let forgotten = engine.change_delayed(&at, messages[0].id, DelayedAction::Cancel).await.unwrap();
    is(forgotten, DelayedState::Missing, false);
    assert_eq!(engine.bounds(&at).await.unwrap().delayed, 0);
}

/// A cancel, a delivery and the message's own time race: one of them decides, and every answer says
/// what happened.
pub async fn racing_changes_of_a_delayed_message_agree(engine: Engine) {
    const COUNT: u64 = 60;
    let at = partition(&engine).await;
    let messages = delay(&engine, &at, (0, COUNT), Duration::from_millis(40)).await;
    let change = async |id, action| engine.change_delayed(&at, id, action).await.unwrap();
    // A slow listing may find that some have promoted already.
    let mut cancelled = BTreeSet::new();
    let mut delivered = 0;
    for message in &messages {
        let (promoted, cancel, deliver) = tokio::join!(
            engine.promote_due(&at, 1),
            change(message.id, DelayedAction::Cancel),
            change(message.id, DelayedAction::Deliver)
        );
        promoted.unwrap();
        assert_eq!(cancel.state, deliver.state, "both answers tell of one fate: {cancel:?} {deliver:?}");
        assert!(!(cancel.changed && deliver.changed), "one call decides: {cancel:?} {deliver:?}");
        if cancel.changed {
            is(cancel, DelayedState::Cancelled, true);
            cancelled.insert(number(&message.content));
        }
        delivered += u64::from(deliver.changed);
    }
    eventually("the others become due", || async {
        engine.promote_due(&at, 1000).await.unwrap();
        engine.bounds(&at).await.unwrap().delayed == 0
    })
    .await;
    let mut found = numbers(&read_all(&engine, &at).await);
    found.sort_unstable();
    let wanted: Vec<u64> = (0..COUNT).filter(|number| !cancelled.contains(number)).collect();
    assert_eq!(found, wanted, "{delivered} were delivered by hand");
}
