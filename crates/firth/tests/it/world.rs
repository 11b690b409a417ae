//! Small hands for the tests: brokers, ways to wait, a faulty engine.

use firth::{Broker, Consumer, ConsumerHandle, Engine, ErrorKind, Message, Nack, Record, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Longer than any healthy wait; time is mostly paused.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A broker on a fresh directory.
pub(crate) async fn on_files() -> (Broker, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Broker::open(dir.path()).await.unwrap(), dir)
}

/// Asserts the kind of a failure.
#[track_caller]
pub(crate) fn fails<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) {
    let error = result.expect_err("it must be refused");
    assert_eq!(error.kind(), kind, "{error}");
}

/// Waits until `check` holds; panics after [`PATIENCE`].
pub(crate) async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for `future`; panics after [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future.into_future())
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// The payloads of a partition as text.
pub(crate) async fn payloads(engine: &Engine, topic: &str, partition: u32) -> Vec<String> {
    use firth_engine::facet::ReadLimit;
    let at = firth_engine::Partition::new(firth_engine::TopicName::new(topic).unwrap(), partition);
    let records = engine.read(&at, firth::RecordId::ZERO, ReadLimit::records(10_000)).await.unwrap();
    records.iter().map(|record| String::from_utf8(record.content.payload.to_vec()).unwrap()).collect()
}

/// What handlers did, in order: who, and with which payload.
#[derive(Clone, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<(String, String)>>>);

impl Diary {
    pub(crate) fn note(&self, who: &str, record: &Record) {
        self.0.lock().unwrap().push((who.to_owned(), record.text().unwrap().to_owned()));
    }

    /// The payloads, in the order in which they were handled.
    pub(crate) fn payloads(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, payload)| payload.clone()).collect()
    }

    /// The payloads that `who` handled.
    pub(crate) fn of(&self, who: &str) -> Vec<String> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(by, _)| by == who)
            .map(|(_, payload)| payload.clone())
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Waits until this many records were handled.
    pub(crate) async fn reaches(&self, count: usize) {
        eventually(&format!("{count} records handled"), async || self.len() >= count).await;
    }

    /// The different payloads, sorted as numbers.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let all: BTreeSet<u64> = self.payloads().iter().map(|payload| payload.parse().unwrap()).collect();
        all.into_iter().collect()
    }
}

/// A running consumer that writes a diary.
pub(crate) struct Reader {
    pub(crate) handle: ConsumerHandle,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Reader {
    /// Starts `consumer`; everything is acknowledged.
    pub(crate) fn start(consumer: Consumer, who: &str, diary: &Diary) -> Self {
        let who = who.to_owned();
        let diary = diary.clone();
        Self::with(consumer, move |record| {
            diary.note(&who, &record);
            async { Ok(()) }
        })
    }

    /// Starts `consumer` with this handler.
    pub(crate) fn with<F>(consumer: Consumer, handler: impl Fn(Record) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Nack>> + Send + 'static,
    {
        let handle = consumer.handle();
        Self { handle, task: tokio::spawn(consumer.run(handler).into_future()) }
    }

    /// Leaves gracefully.
    pub(crate) async fn close(self) {
        self.handle.close();
        soon("the consumer closes", self.task).await.unwrap().unwrap();
    }

    /// Vanishes without a word.
    pub(crate) async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    /// Waits for the end that comes by itself.
    pub(crate) async fn ends(self) -> Result<()> {
        soon("the consumer ends", self.task).await.unwrap()
    }
}

/// Numbers as payloads: `from..to`, with keys `key-0` to `key-4`.
pub(crate) fn numbered(from: u64, to: u64) -> impl Iterator<Item = Message> {
    (from..to).map(|n| Message::new(n.to_string()).key(format!("key-{}", n % 5)))
}

/// Sends [`numbered`] messages.
pub(crate) async fn send(broker: &Broker, topic: &str, from: u64, to: u64) {
    let producer = broker.producer(topic).await.unwrap();
    producer.send_all(numbered(from, to)).await.unwrap();
    producer.close().await.unwrap();
}

/// A broker in memory with one topic.
pub(crate) async fn with_topic(partitions: u32) -> Broker {
    let broker = Broker::memory();
    broker.create_topic("orders").partitions(partitions).await.unwrap();
    broker
}

/// Everything that `group` has not settled.
pub(crate) async fn lag(broker: &Broker, group: &str) -> u64 {
    let group = firth_engine::GroupName::new(group).unwrap();
    let mut lag = 0;
    for at in broker.topic("orders").await.unwrap().partitions() {
        lag += broker.engine().status(&at, &group).await.unwrap().lag();
    }
    lag
}
