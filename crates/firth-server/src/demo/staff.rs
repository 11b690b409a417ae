//! The workers of the demo: consumers that can be frozen with an order in their hands, and killed.

use super::script::{TOPIC, say};
use firth::{Broker, Consumer, ConsumerBuilder, ConsumerHandle, Error, ErrorKind, Nack, Record, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// No step takes longer, or something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running consumer.
pub(super) struct DemoWorker {
    name: String,
    handle: ConsumerHandle,
    mood: Arc<Mood>,
    task: JoinHandle<Result<()>>,
}

/// What the story does to a worker.
#[derive(Default)]
struct Mood {
    /// It takes the next order and never finishes.
    is_frozen: AtomicBool,
    is_busy: AtomicBool,
}

impl DemoWorker {
    /// A worker that never fails.
    pub(super) async fn open(
        broker: &Broker,
        group: &'static str,
        name: &'static str,
        is_repaired: &Arc<AtomicBool>,
    ) -> Result<Self> {
        Self::start(broker.consumer(TOPIC, group).name(name), group, is_repaired).await
    }

    pub(super) async fn start(
        consumer: ConsumerBuilder,
        group: &'static str,
        is_repaired: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let consumer = consumer.await?;
        let handle = consumer.handle();
        let name = handle.name().rsplit_once('-').map_or(handle.name(), |(name, _)| name).to_owned();
        let mood = Arc::new(Mood::default());
        let is_repaired = is_repaired.clone();
        let task = tokio::spawn(work(consumer, (name.clone(), group), mood.clone(), is_repaired));
        Ok(Self { name, handle, mood, task })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Two of four partitions, so that at least one of them has orders in it.
    pub(super) fn has_its_share(&self) -> bool {
        self.handle.assignment().len() == 2
    }

    pub(super) fn partitions(&self) -> Vec<u32> {
        self.handle.assignment().into_iter().collect()
    }

    pub(super) fn freeze(&self) {
        self.mood.is_frozen.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.mood.is_busy.load(Ordering::Relaxed)
    }

    /// As a crash does it: no goodbye, nothing settled, no lease given back.
    pub(super) fn kill(self) {
        self.task.abort();
    }

    pub(super) async fn close(self) -> Result<()> {
        self.handle.close();
        let ended = self.task.await;
        ended.map_err(|error| Error::new(ErrorKind::Internal, "a worker failed").with_source(error))?
    }
}

async fn work(
    consumer: Consumer,
    (name, group): (String, &'static str),
    mood: Arc<Mood>,
    is_repaired: Arc<AtomicBool>,
) -> Result<()> {
    let run = consumer.run(move |record| {
        let name = name.clone();
        let mood = mood.clone();
        let is_repaired = is_repaired.clone();
        async move {
            if mood.is_frozen.load(Ordering::Relaxed) {
                mood.is_busy.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            serve(&name, group, &record, is_repaired.load(Ordering::Relaxed))
        }
    });
    run.await
}

fn serve(name: &str, group: &str, record: &Record, is_repaired: bool) -> Result<(), Nack> {
    let drink = record.text()?;
    let attempt = record.attempt();
    if group == "billing" && drink.contains("tea") && !is_repaired {
        if attempt == 1 {
            say(&format!(
                "{name}: {drink} fails, the card reader is broken; it is tried again, later orders of this guest wait"
            ))?;
        }
        return Err(Nack::retry("the card reader is broken"));
    }
    if attempt > 1 {
        say(&format!("{name}: {drink} done at attempt {attempt}"))?;
    }
    Ok(())
}

/// Waits for a condition, looking often.
pub(super) async fn until<F: Future<Output = Result<bool>>>(
    what: &str,
    mut is_so: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await? {
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::Timeout, format!("waited in vain for {what}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
