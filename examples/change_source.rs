//! A source of change events: follows the log of a database and puts every change into a topic
//! once, although its readers die at the worst moments.
//!
//! Everything it needs is there already. A *claim* gives the database one reader at a time and the
//! next reader its place in the log; the topic is the durable buffer for slower readers, and
//! `send_once` recognises what a reader had sent before it died.

use firth::claims::{Claim, Event};
use firth::{Broker, Message, RecordId, Result};
use std::collections::BTreeMap;

const CHANGES: u64 = 1000;
const BATCH: u64 = 40;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<()> {
    let broker = Broker::memory();
    broker.create_topic("changes").partitions(4).await?;
    broker.claims("sources").offer("db-1", "").await?;
    let mut deaths = 0;
    while !read(&broker, deaths).await? {
        deaths += 1;
    }
    let documents = stored(&broker).await?;
    let count: usize = documents.values().map(Vec::len).sum();
    assert!(
        documents.values().all(|changes| changes.is_sorted_by(|one, next| one < next)),
        "in order, none twice"
    );
    assert_eq!(count as u64, CHANGES);
    println!("{CHANGES} changes are in the topic, each once, after {deaths} deaths");
    broker.close().await
}

/// The life of a reader; false if it died. It does not say goodbye: the next reader takes over when
/// the TTL has run out.
async fn read(broker: &Broker, deaths: usize) -> Result<bool> {
    let mut worker = broker.claims("sources").worker(format!("reader-{deaths}")).await?;
    while let Some(event) = worker.next().await.transpose()? {
        if let Event::Granted(claim) = event {
            let is_done = follow(broker, &claim, 3 + deaths % 3).await?;
            if is_done {
                worker.close().await?;
            }
            return Ok(is_done);
        }
    }
    Ok(false)
}

/// Follows the log, and dies after `steps` steps; true if there is nothing more to read.
async fn follow(broker: &Broker, claim: &Claim, mut steps: usize) -> Result<bool> {
    let producer = broker.producer("changes").await?;
    // Up to `done` everything is in the topic, up to `sending` it may be.
    let (mut done, mut sending) = marker(claim);
    loop {
        if sending == done {
            sending = (done + BATCH).min(CHANGES); // whatever the log has by now
            if sending == done {
                return Ok(true);
            }
            // Said before it is done: a successor sends exactly the same again, under the same
            // name.
            claim.checkpoint(format!("{done} {sending}")).await?;
        } else {
            let name = format!("db-1.{done}-{sending}");
            producer.send_once(&name, (done + 1..=sending).map(change)).await?;
            done = sending;
        }
        steps -= 1;
        if steps == 0 {
            return Ok(false);
        }
    }
}

/// Where the last reader was: for a real database its own kind of position, as opaque bytes.
fn marker(claim: &Claim) -> (u64, u64) {
    let text = claim.last_checkpoint().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("0 0");
    let (done, sending) = text.split_once(' ').expect("it was written above");
    (done.parse().expect("a number"), sending.parse().expect("a number"))
}

/// What the database's log says under this number. Changes of a document have one key, so they stay
/// in order.
fn change(number: u64) -> Message {
    let document = number % 7;
    let event = format!(
        r#"{{"op":"replace","tenant":"acme","collection":"orders","key":"{document}","after":{{"change":{number}}}}}"#
    );
    Message::new(event).key(format!("orders/{document}"))
}

/// The numbers of all changes in the topic, document by document.
async fn stored(broker: &Broker) -> Result<BTreeMap<Vec<u8>, Vec<u64>>> {
    let mut documents: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for partition in 0..4 {
        for record in broker.admin().browse("changes", partition, RecordId::ZERO, CHANGES as usize).await? {
            let event: serde_json::Value = record.json()?;
            let number = event["after"]["change"].as_u64().expect("it was written above");
            documents.entry(record.key().expect("it has one").to_vec()).or_default().push(number);
        }
    }
    Ok(documents)
}
