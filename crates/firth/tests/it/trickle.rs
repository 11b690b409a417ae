//! While records trickle in, a lane waits at the end of the log. What is delayed or replayed does
//! not come that way, and comes in its time.

use crate::world::{Diary, Reader, eventually};
use firth::{Broker, Message, Nack, Record, Replay, RetryPolicy};
use firth_testkit::{Flavor, RedisServer};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// The lane's own poll comes every five seconds: it would need longer for this many.
const IN_TIME: Duration = Duration::from_secs(8);
const IN_A_ROW: u64 = 4;

/// What the reader notes, and what it is told.
#[derive(Clone, Default)]
struct Desk {
    diary: Diary,
    rejects: Arc<AtomicBool>,
    trickled: Arc<AtomicU64>,
}

impl Desk {
    fn handle(&self, record: &Record) -> Result<(), Nack> {
        if record.payload() == "0" {
            self.trickled.fetch_add(1, SeqCst);
        } else if self.rejects.load(SeqCst) {
            return Err(Nack::reject("asked for"));
        } else {
            self.diary.note("reader", record);
        }
        Ok(())
    }

    /// Waits until the trickle is all that there is: nothing else makes the lane look about.
    async fn calm(&self) {
        let before = self.trickled.load(SeqCst);
        eventually("records trickle in", async || self.trickled.load(SeqCst) > before + 100).await;
    }
}

/// A topic on Redis, read by one process while another sends a record every few milliseconds.
async fn with_trickle(test: impl AsyncFnOnce(Broker, Desk)) {
    let server = RedisServer::start(Flavor::Redis).await;
    let (ours, theirs) =
        (Broker::connect(&server.url()).await.unwrap(), Broker::connect(&server.url()).await.unwrap());
    ours.create_topic("orders").partitions(1).await.unwrap();
    let desk = Desk::default();
    let consumer = ours.consumer("orders", "billing").retry(RetryPolicy::never()).await.unwrap();
    let reader = {
        let desk = desk.clone();
        Reader::with(consumer, move |record| std::future::ready(desk.handle(&record)))
    };
    let producer = theirs.producer("orders").await.unwrap();
    let trickle = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(3));
        loop {
            ticks.tick().await;
            producer.send("0").await.unwrap();
        }
    });
    test(theirs.clone(), desk).await;
    trickle.abort();
    reader.close().await;
    ours.close().await.unwrap();
    theirs.close().await.unwrap();
}

#[tokio::test]
async fn delayed_messages_are_not_left_to_the_poll() {
    with_trickle(async |theirs, desk| {
        let producer = theirs.producer("orders").await.unwrap();
        let mut took = Duration::ZERO;
        for n in 1..=IN_A_ROW {
            desk.calm().await;
            let start = Instant::now();
            let later = Message::new(n.to_string()).deliver_after(Duration::from_millis(50));
            producer.send(later).await.unwrap();
            eventually("the delayed message comes", async || desk.diary.numbers().contains(&n)).await;
            took += start.elapsed();
        }
        assert!(took < IN_TIME, "{took:?}");
    })
    .await;
}

#[tokio::test]
async fn replayed_letters_are_not_left_to_the_poll() {
    with_trickle(async |theirs, desk| {
        let producer = theirs.producer("orders").await.unwrap();
        let letters = theirs.dead_letters("orders");
        desk.rejects.store(true, SeqCst);
        producer.send_all((1..=IN_A_ROW).map(|n| Message::new(n.to_string()))).await.unwrap();
        eventually("all are dead", async || letters.count().await.unwrap() == IN_A_ROW).await;
        desk.rejects.store(false, SeqCst);
        let mut took = Duration::ZERO;
        for n in 1..=IN_A_ROW {
            desk.calm().await;
            let start = Instant::now();
            let oldest = letters.list(None, 1).await.unwrap().letters.remove(0);
            letters.replay(&[oldest.id], Replay::Group).await.unwrap();
            eventually("the letter comes", async || desk.diary.numbers().len() as u64 == n).await;
            took += start.elapsed();
        }
        assert!(took < IN_TIME, "{took:?}");
    })
    .await;
}
