//! Confirmed registrations: an answer goes out when the index of every member has the subscription.
//!
//! ```text
//! catalog has it ─► list the members ─► bus "these changed, confirm" ─► every member indexes it ─► "confirmed" ─► answer
//!                        ▲──────────── asked again, and those that are gone left out ◄── nothing heard
//! ```
//! The members are listed after the catalog was written: one that is not in the list yet reads the
//! catalog later. Registrations that come at the same time share a round. The wait is bounded; then
//! the caller gets an error that names the nodes.

use super::catalog::{Confirmed, Member, News, Store};
use crate::error::{Error, ErrorKind, Result};
use firth::catalog::{Listener, Signal};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a registration waits for the members. Longer than a member that crashed counts as one.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long a member is waited for before it is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// Registrations in one round: one message of the bus.
const BATCH: usize = 100;
/// Rounds at a time. More registrations gather during a round.
const ROUNDS: usize = 4;
/// Registrations that wait for a round.
const WAITING: usize = 10_000;
/// Confirmations that wait for one round.
const UNREAD: usize = 1024;

/// A registration that waits for the members.
struct Pending {
    news: News,
    answer: oneshot::Sender<Result<()>>,
}

/// Where registrations are handed in.
#[derive(Clone)]
pub(super) struct Confirm(mpsc::Sender<Pending>);

impl Confirm {
    /// Starts the tasks behind it; they end at `stop`. `me` is this node's name among the members,
    /// if it is one.
    pub(super) async fn start(
        store: Store,
        me: String,
        stop: CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<Self> {
        let listener = store.listen_to_confirmations(&me).await?;
        let rounds = Arc::new(Rounds { store, me, asked: AtomicU64::new(0), open: Mutex::default() });
        let (sender, waiting) = mpsc::channel(WAITING);
        tasks.spawn(hear(listener, Arc::clone(&rounds), stop.clone()));
        tasks.spawn(run(waiting, rounds, stop));
        Ok(Self(sender))
    }

    /// Waits until every member has it.
    pub(super) async fn wait(&self, news: News) -> Result<()> {
        let (answer, confirmed) = oneshot::channel();
        let work = async {
            self.0.send(Pending { news, answer }).await.map_err(|_| closed())?;
            confirmed.await.unwrap_or_else(|_| Err(closed()))
        };
        // A round has its own end; this one is for those that found none.
        tokio::time::timeout(PATIENCE * 2, work).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "too many registrations wait to be confirmed; try again"))
        })
    }
}

struct Rounds {
    store: Store,
    me: String,
    asked: AtomicU64,
    open: Mutex<HashMap<u64, mpsc::Sender<Confirmed>>>,
}

impl Rounds {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<Confirmed>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The members that did not confirm yet.
    async fn missing(&self, confirmed: &BTreeSet<String>) -> Result<Vec<Member>> {
        let members = self.store.members().await?.into_iter().map(|(_, member)| member);
        Ok(members.filter(|member| member.id != self.me && !confirmed.contains(&member.id)).collect())
    }

    async fn round(&self, number: u64, mut pending: Vec<Pending>) {
        let (sender, mut answers) = mpsc::channel(UNREAD);
        self.lock().insert(number, sender);
        let deadline = Instant::now() + PATIENCE;
        let mut confirmed = BTreeSet::new();
        let ended = loop {
            let missing = self.missing(&confirmed).await;
            let news: Vec<News> = pending.iter().map(|one| one.news.clone()).collect();
            self.store.ask(&news, &self.me, number).await;
            let mut missing: Vec<Member> = match missing {
                Ok(missing) => missing,
                Err(error) if Instant::now() >= deadline => break Err(error),
                Err(_) => {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            let again = tokio::time::sleep(AGAIN);
            let mut again = std::pin::pin!(again);
            while !missing.is_empty() {
                let answer = tokio::select! {
                    answer = answers.recv() => answer,
                    () = &mut again => None,
                };
                let Some(Confirmed { by, refused, .. }) = answer else { break };
                for (news, why) in refused {
                    let is_it = |one: &mut Pending| one.news.is_same(&news);
                    for refused in pending.extract_if(.., is_it) {
                        let _ = refused.answer.send(Err(Error::new(ErrorKind::Quota, why.clone())));
                    }
                }
                missing.retain(|member| member.id != by);
                confirmed.insert(by);
            }
            if missing.is_empty() {
                break Ok(());
            }
            if Instant::now() >= deadline {
                let names: Vec<_> = missing.iter().map(|member| member.node.as_str()).collect();
                break Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "registered, but router node {} did not confirm it in {} s: events may be missed until it does; register again",
                        names.join(", "),
                        PATIENCE.as_secs()
                    ),
                ));
            }
        };
        self.lock().remove(&number);
        for one in pending {
            let told = match &ended {
                Ok(()) => Ok(()),
                Err(error) => Err(Error::new(error.kind(), error.context().to_owned())),
            };
            // Who does not wait any more does not need to know.
            let _ = one.answer.send(told);
        }
    }
}

/// Begins rounds with what waits.
async fn run(mut waiting: mpsc::Receiver<Pending>, rounds: Arc<Rounds>, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(ROUNDS));
    let tasks = TaskTracker::new();
    let work = async {
        loop {
            let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
            let mut pending = Vec::new();
            if waiting.recv_many(&mut pending, BATCH).await == 0 {
                return;
            }
            let rounds = Arc::clone(&rounds);
            let number = rounds.asked.fetch_add(1, Ordering::Relaxed);
            let stop = stop.clone();
            tasks.spawn(async move {
                let _permit = permit;
                let _ = stop.run_until_cancelled(rounds.round(number, pending)).await;
            });
        }
    };
    let _ = stop.run_until_cancelled(work).await;
    tasks.close();
    tasks.wait().await;
}

/// Passes confirmations on to the rounds that wait for them.
async fn hear(mut listener: Listener, rounds: Arc<Rounds>, stop: CancellationToken) {
    while let Some(Ok(signal)) = stop.run_until_cancelled(listener.next()).await {
        // What was missed in a gap is asked for again.
        let Signal::Message(payload) = signal else { continue };
        let Some(answer) = Confirmed::read(&payload) else { continue };
        let round = rounds.lock().get(&answer.number).cloned();
        if let Some(round) = round {
            let _ = round.try_send(answer);
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the registry was closed")
}
