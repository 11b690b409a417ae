//! What the tests share: a topic in memory that keeps its laws, and a reader to start and stop.

use bytes::Bytes;
use firth::Message;
use firth_connect::control::SourceControl;
use firth_connect::postgres::{Config, Options, Reader as Reading};
use firth_connect::sink::{Appended, Sink};
use firth_connect::{Condition, Error, ErrorKind, Keep, Progress, Result, State, Status};
use firth_router::event::Event;
use firth_testkit::{PostgresServer, wait};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A topic of which a source stores records and marks in one step, fenced by epoch.
#[derive(Debug)]
pub(crate) struct Topic {
    partitions: Vec<Mutex<Partition>>,
    epoch: Mutex<u64>,
    state: Mutex<State>,
    /// Whether a state is stored, but its reader never hears of it.
    holds_saves: AtomicBool,
}

#[derive(Debug, Default)]
struct Partition {
    events: Vec<Event>,
    mark: Option<Bytes>,
}

impl Topic {
    pub(crate) fn new(partitions: usize) -> Arc<Self> {
        Arc::new(Self {
            partitions: (0..partitions).map(|_| Mutex::default()).collect(),
            epoch: Mutex::default(),
            state: Mutex::default(),
            holds_saves: AtomicBool::new(false),
        })
    }

    /// From now on a state is stored, but its reader never hears of it; or that is over.
    pub(crate) fn hold_saves(&self, holds: bool) {
        self.holds_saves.store(holds, Ordering::SeqCst);
    }

    /// As if this was saved last.
    pub(crate) fn set_state(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// The events of each partition.
    pub(crate) fn by_partition(&self) -> Vec<Vec<Event>> {
        self.partitions.iter().map(|partition| lock(partition).events.clone()).collect()
    }

    /// All events, partition by partition.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.by_partition().concat()
    }

    /// Waits until there are this many.
    pub(crate) async fn wait_for(&self, count: usize, reader: &Reader) -> Vec<Event> {
        let enough = async || {
            let failed = matches!(reader.status().condition, Condition::Failed | Condition::Lost);
            assert!(!failed, "{:?}", reader.status());
            self.events().len() >= count
        };
        wait::until(PATIENCE, format!("{count} events are in the topic"), enough).await;
        self.events()
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    /// A reader of the next epoch.
    pub(crate) fn read(self: &Arc<Self>, config: &Config) -> Reader {
        let epoch = {
            let mut epoch = lock(&self.epoch);
            *epoch += 1;
            *epoch
        };
        let handle = Arc::new(Handle { topic: self.clone(), epoch });
        let config = config.clone();
        let progress = Progress::default();
        let task = tokio::spawn({
            let progress = progress.clone();
            let state = self.state();
            async move {
                let config = &config;
                let sink = handle.clone();
                let keep = &*handle;
                let control = &SourceControl::detached(&config.name);
                Reading { config, sink, keep, epoch, control, progress: &progress }.run(state).await
            }
        });
        Reader { task, progress }
    }
}

/// A topic under an epoch.
struct Handle {
    topic: Arc<Topic>,
    epoch: u64,
}

impl Handle {
    fn check(&self) -> Result<()> {
        match *lock(&self.topic.epoch) == self.epoch {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Fenced, "a newer reader has taken over")),
        }
    }
}

impl Sink for Handle {
    fn partitions(&self) -> u32 {
        self.topic.partitions.len() as u32
    }

    fn partition_for(&self, key: &[u8]) -> u32 {
        firth::Mapping::default().partition(key, self.partitions())
    }

    async fn marks(&self) -> Result<Vec<Option<Bytes>>> {
        Ok(self.topic.partitions.iter().map(|partition| lock(partition).mark.clone()).collect())
    }

    async fn append(&self, partition: u32, messages: Vec<Message>, upto: Bytes) -> Result<Appended> {
        // A real engine takes its time; a reader may die in between.
        tokio::task::yield_now().await;
        {
            let mut partition = lock(&self.topic.partitions[partition as usize]);
            self.check()?;
            if partition.mark.as_ref().is_some_and(|mark| upto <= *mark) {
                return Ok(Appended::Duplicate);
            }
            let events = messages.iter().map(|message| Event::from_payload(message.payload()).unwrap());
            partition.events.extend(events);
            partition.mark = Some(upto);
        }
        tokio::task::yield_now().await;
        Ok(Appended::Stored)
    }
}

impl Keep for Handle {
    async fn save(&self, state: &State) -> Result<()> {
        self.check()?;
        self.topic.set_state(state.clone());
        match self.topic.holds_saves.load(Ordering::SeqCst) {
            true => std::future::pending().await,
            false => Ok(()),
        }
    }
}

/// A running reader. Dropping it is its death.
pub(crate) struct Reader {
    pub(crate) task: JoinHandle<Error>,
    progress: Progress,
}

impl Reader {
    pub(crate) fn status(&self) -> Status {
        self.progress.status()
    }

    /// Waits until it does this; answers why.
    pub(crate) async fn wait_until(&self, condition: Condition) -> String {
        let mut seen = Status::default();
        let reached = wait::until_some(PATIENCE, async || {
            seen = self.status();
            (seen.condition == condition).then_some(())
        });
        assert!(reached.await.is_some(), "waited for {condition:?}, but it is {seen:?}");
        self.status().reason.unwrap_or_default()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source `shop` of this server: its changes alone, not the rows that are there.
pub(crate) fn source(server: &PostgresServer, tables: &[&str]) -> Config {
    source_with(server, tables, &json!({}))
}

/// As [`source`], with the rows that are there.
pub(crate) fn copied(server: &PostgresServer, tables: &[&str]) -> Config {
    source_with(server, tables, &json!({ "snapshot": "initial" }))
}

/// As [`source`], with other options.
pub(crate) fn source_with(server: &PostgresServer, tables: &[&str], change: &serde_json::Value) -> Config {
    let mut options = json!({
        "url": server.url(), "topic": "changes", "tables": tables, "tenant": { "constant": "acme" },
        "snapshot": "never",
    });
    options.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let options: Options = serde_json::from_value(options).unwrap();
    Config::new("shop", &options, Some(server.password().to_owned())).unwrap()
}

/// Ends the slot and makes it again under its name, while no reader holds it, with a statement in
/// between.
pub(crate) async fn remake_slot(server: &PostgresServer, between: &str) {
    let gone = async || server.try_sql("SELECT pg_drop_replication_slot('firth_shop')").await.is_ok();
    wait::until(PATIENCE, "the slot is dropped", gone).await;
    server.sql(between).await;
    server.sql("SELECT pg_create_logical_replication_slot('firth_shop', 'pgoutput')").await;
}

/// Where the slot stands.
pub(crate) async fn confirmed(server: &PostgresServer) -> u64 {
    let sql = "SELECT coalesce(max(confirmed_flush_lsn - '0/0'), 0) FROM pg_replication_slots";
    server.sql(sql).await.parse().unwrap()
}

/// An event in words.
pub(crate) fn shown(event: &Event) -> String {
    let text = |document: &Option<firth_router::event::Document>| {
        document.as_ref().map_or("-".into(), |document| String::from_utf8(document.text().to_vec()).unwrap())
    };
    format!(
        "{} {}: {} > {}",
        event.operation.as_str(),
        event.message_key(),
        text(&event.before),
        text(&event.after)
    )
}
