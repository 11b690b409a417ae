//! Writers that count what they did while the cluster changes under them. Each key has one writer,
//! so that the books can be checked to the last increment: what was acknowledged is there, and
//! nothing was done twice.

use super::SOON;
use firth_redis::{CallError, Client, Script, cmd, pipe};
use firth_testkit::wait;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// How a writer increments its two keys.
#[derive(Debug, Clone, Copy)]
pub enum CallKind {
    /// One command at a time.
    Call,
    /// Both in one pipeline.
    Pipeline,
    /// Both in one transaction; the keys share a slot.
    Transaction,
    /// Both in one script; the keys share a slot.
    Script,
    /// Both bound together, with a command without a key behind them.
    Together,
}

impl CallKind {
    pub const ALL: [Self; 5] = [Self::Call, Self::Pipeline, Self::Transaction, Self::Script, Self::Together];
}

/// What a writer knows of one key.
#[derive(Debug, Default, Clone, Copy)]
struct CallCounts {
    acknowledged: u64,
    /// Increments that may or may not have been done.
    unsure: u64,
}

/// Writers at work.
pub struct CallLoad {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    writers: JoinSet<CallAccounting>,
}

/// What a writer did.
#[derive(Default)]
pub struct CallAccounting {
    counts: HashMap<String, CallCounts>,
    /// Errors that say that nothing was done.
    pub refused: Vec<CallError>,
    /// Errors that leave it open.
    pub unsure: Vec<CallError>,
}

impl CallLoad {
    /// Starts a writer for each way and tag; a tag decides the slot of the writer's keys.
    pub fn start(client: &Client, tags: &[String], ways: &[CallKind]) -> Self {
        let mut load = Self { stop: Arc::default(), rounds: Arc::default(), writers: JoinSet::new() };
        for tag in tags {
            for &way in ways {
                let writer = Writer {
                    client: client.clone(),
                    keys: [format!("{{{tag}}}{way:?}:a"), format!("{{{tag}}}{way:?}:b")],
                    way,
                    script: Script::new(
                        "return {redis.call('INCR', KEYS[1]), redis.call('INCR', KEYS[2]), ARGV[1]}",
                    ),
                };
                let stop = load.stop.clone();
                let rounds = load.rounds.clone();
                load.writers.spawn(async move { writer.work(&stop, &rounds).await });
            }
        }
        load
    }

    /// Waits until every writer could have written some more.
    pub async fn proceeds(&self) {
        let enough = self.rounds.load(Ordering::Relaxed) + 20 * self.writers.len() as u64;
        wait::until(SOON, "the writers go on", async || self.rounds.load(Ordering::Relaxed) >= enough).await;
    }

    /// Stops the writers and collects their books.
    pub async fn stop(self) -> CallAccounting {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = CallAccounting::default();
        for books in self.writers.join_all().await {
            all.counts.extend(books.counts);
            all.refused.extend(books.refused);
            all.unsure.extend(books.unsure);
        }
        all
    }
}

impl CallAccounting {
    /// Compares the books with what the cluster holds: everything is there, and nothing twice.
    pub async fn check(&self, client: &Client) {
        for (key, count, value) in self.values(client).await {
            assert!(value >= count.acknowledged, "{key} lost something: {value} of {count:?}");
        }
        self.check_after_loss(client).await;
    }

    /// The same after a master died, who may have taken to the grave what its replica had not yet:
    /// nothing is there twice.
    pub async fn check_after_loss(&self, client: &Client) {
        for (key, count, value) in self.values(client).await {
            assert!(value <= count.acknowledged + count.unsure, "{key} was done twice: {value} of {count:?}");
        }
    }

    async fn values(&self, client: &Client) -> Vec<(&String, CallCounts, u64)> {
        let mut values = Vec::new();
        for (key, count) in &self.counts {
            let value: Option<u64> = client.call(cmd("GET").key(key)).await.expect("the storm is over");
            values.push((key, *count, value.unwrap_or(0)));
        }
        values
    }

    /// Panics if an increment failed otherwise than by being lost under way.
    pub fn assert_only_lost_under_way(&self) {
        let lost = |error: &&CallError| {
            matches!(error, CallError::Lost { sent: true, .. } | CallError::Timeout { sent: true, .. })
        };
        let others: Vec<String> = self
            .refused
            .iter()
            .chain(&self.unsure)
            .filter(|error| !lost(error))
            .take(5)
            .map(|error| format!("{error:?}"))
            .collect();
        assert!(others.is_empty(), "{others:#?}");
    }

    /// Panics unless every single increment was acknowledged.
    pub fn assert_spotless(&self) {
        let spots = self.refused.iter().chain(&self.unsure);
        let few: Vec<String> = spots.take(5).map(|error| format!("{error:?}")).collect();
        let refused = self.refused.len();
        let unsure = self.unsure.len();
        assert!(few.is_empty(), "{refused} refused, {unsure} unsure: {few:#?}");
    }

    /// Increments that were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.counts.values().map(|count| count.acknowledged).sum()
    }
}

struct Writer {
    client: Client,
    keys: [String; 2],
    way: CallKind,
    script: Script,
}

impl Writer {
    async fn work(self, stop: &AtomicBool, rounds: &AtomicU64) -> CallAccounting {
        let mut books = CallAccounting::default();
        while !stop.load(Ordering::Relaxed) {
            let outcome = self.round().await;
            for (key, outcome) in self.keys.iter().zip(outcome) {
                let count = books.counts.entry(key.clone()).or_default();
                match outcome {
                    Ok(_) => count.acknowledged += 1,
                    Err(error) if error.may_have_run() => {
                        count.unsure += 1;
                        books.unsure.push(error);
                    }
                    // Of commands bound together one may have run while the other's key was
                    // elsewhere; sent on by itself, it would no longer be together with the first.
                    Err(error) if matches!(self.way, CallKind::Together) && error.code() == Some("ASK") => {}
                    Err(error) => books.refused.push(error),
                }
            }
            rounds.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        books
    }

    async fn round(&self) -> [Result<i64, CallError>; 2] {
        let [a, b] = &self.keys;
        let both = || pipe().then(cmd("INCR").key(a)).then(cmd("INCR").key(b));
        let answers = match self.way {
            CallKind::Call => {
                let first = self.client.call(cmd("INCR").key(a)).await;
                return [first, self.client.call(cmd("INCR").key(b)).await];
            }
            CallKind::Pipeline => self.client.pipeline::<(i64, i64)>(both()).await,
            CallKind::Transaction => self.client.transaction::<(i64, i64)>(both()).await,
            CallKind::Together => {
                let unit = both().then(cmd("WAIT").arg(0).arg(1000)).together();
                self.client.pipeline::<(i64, i64, i64)>(unit).await.map(|(a, b, _)| (a, b))
            }
            CallKind::Script => {
                let call = self.script.keys([a, b]).arg("x");
                self.client.eval::<(i64, i64, String)>(&call).await.map(|(a, b, _)| (Ok(a), Ok(b)))
            }
        };
        match answers {
            Ok((a, b)) => [a, b],
            Err(error) => [Err(error.clone()), Err(error)],
        }
    }
}
