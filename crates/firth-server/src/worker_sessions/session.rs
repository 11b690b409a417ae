//! One session: a worker held for a client, as long as the client renews it.
//!
//! One task reads the worker's events into the [`ClaimTable`] and watches the deadline. The
//! client's time begins when the server has its request, which is never before the client sent it;
//! so a client that counts from the sending stops before any other worker starts.

use super::table::{ClaimNews, ClaimTable};
use super::unit_data::SessionData;
use firth::claims::{Claim, Event, Worker, WorkerHandle};
use firth::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Rows that may wait to be seen. At this number the worker is granted nothing more.
const MAX_UNSEEN: usize = 1000;

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client left: its claims are free at once.
    Left,
    /// The client was not heard of in time: its claims are orphans at once.
    Silent,
    /// The name joined again, or the worker cannot go on: the engine has seen to its claims.
    Replaced,
    /// The server stops: the claims stay the client's until the engine's lease has run out.
    Closing,
}

pub(crate) struct WorkerSession {
    pub(super) number: u64,
    pub(super) ttl: Duration,
    worker: WorkerHandle,
    pub(super) unit_data: SessionData,
    state: Mutex<SessionState>,
    /// Something is new, or room.
    changed: Notify,
    /// It is to end.
    over: CancellationToken,
    /// It has ended, and so has the worker.
    finished: CancellationToken,
}

struct SessionState {
    table: ClaimTable<Claim>,
    deadline: Instant,
    ending: Option<Ending>,
}

impl WorkerSession {
    pub(super) fn start(number: u64, ttl: Duration, worker: Worker) -> Arc<Self> {
        let state =
            SessionState { table: ClaimTable::default(), deadline: Instant::now() + ttl, ending: None };
        let session = Arc::new(Self {
            number,
            ttl,
            worker: worker.handle(),
            unit_data: SessionData::default(),
            state: Mutex::new(state),
            changed: Notify::new(),
            over: CancellationToken::new(),
            finished: CancellationToken::new(),
        });
        tokio::spawn(session.clone().run(worker));
        session
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn worker(&self) -> &WorkerHandle {
        &self.worker
    }

    /// The client lives.
    pub(super) fn renew(&self) -> Result<Renewal> {
        let mut state = self.lock();
        if state.ending.is_some() {
            return Err(is_over());
        }
        let now = Instant::now();
        state.deadline = now + self.ttl;
        Ok(Renewal(now))
    }

    /// For how long the client may work on its claims, from when it sent its request.
    pub(crate) fn valid_after(&self, beat: Renewal) -> Duration {
        let valid = self.worker.health().valid_for;
        if valid.is_zero() {
            return valid;
        }
        self.ttl.min(valid + beat.0.elapsed())
    }

    pub(crate) fn with_table<T>(&self, read: impl FnOnce(&mut ClaimTable<Claim>) -> T) -> T {
        let done = read(&mut self.lock().table);
        self.changed.notify_waiters();
        done
    }

    /// What `look` finds, waiting up to `until` for something; nothing when the time is up.
    pub(super) async fn news<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&ClaimTable<Claim>) -> Vec<T>,
    ) -> Result<Vec<T>> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let found = look(&self.lock().table);
            if !found.is_empty() || Instant::now() >= until {
                return Ok(found);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
                () = self.over.cancelled() => return Err(is_over()),
            }
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Resolves when it is to end.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Ends it; the first reason counts.
    pub(super) fn end(&self, why: Ending) {
        self.lock().ending.get_or_insert(why);
        self.over.cancel();
    }

    /// Resolves when its worker has ended.
    pub(super) async fn finished(&self) {
        self.finished.cancelled().await;
    }

    async fn run(self: Arc<Self>, mut worker: Worker) {
        self.read(&mut worker).await;
        // Drop the session's handles first: a worker that leaves waits for claims with a handle,
        // and hands the others over at once.
        let why = {
            let mut state = self.lock();
            state.table.clear();
            state.ending.unwrap_or(Ending::Replaced)
        };
        self.over.cancel();
        self.unit_data.clear();
        let ended = match why {
            Ending::Left => worker.close().await,
            Ending::Silent => worker.abort().await,
            // As a crash: the engine knows how long the claims are the client's.
            Ending::Replaced | Ending::Closing => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a worker's claims wait for its lease to run out");
        }
        self.finished.cancel();
    }

    /// Takes the worker's events in until the session is over.
    async fn read(&self, worker: &mut Worker) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (deadline, has_room) = {
                let state = self.lock();
                (state.deadline, state.table.ended() < MAX_UNSEEN)
            };
            tokio::select! {
                biased;
                () = self.over.cancelled() => return,
                () = tokio::time::sleep_until(deadline) => {
                    if self.is_silent() {
                        return;
                    }
                }
                event = worker.next(), if has_room => match event {
                    Some(Ok(event)) => self.note(event),
                    Some(Err(error)) => {
                        tracing::info!(%error, "a worker cannot go on");
                        return self.end(Ending::Replaced);
                    }
                    None => return self.end(Ending::Replaced),
                },
                () = changed, if !has_room => {}
            }
        }
    }

    /// Whether the client's time has run out; then it is over.
    fn is_silent(&self) -> bool {
        let mut state = self.lock();
        let is_silent = Instant::now() >= state.deadline;
        if is_silent {
            state.ending.get_or_insert(Ending::Silent);
        }
        is_silent
    }

    fn note(&self, event: Event) {
        if let Event::Lost(claim) | Event::Released(claim) = &event {
            self.unit_data.forget(claim.name(), claim.epoch().0);
        }
        self.with_table(|table| match event {
            Event::Granted(claim) => {
                let name = claim.name().to_owned();
                table.grant(&name, claim.epoch().0, claim);
            }
            Event::Recalled(claim) => table.change(claim.name(), claim.epoch().0, ClaimNews::Recalled),
            Event::Lost(claim) => table.change(claim.name(), claim.epoch().0, ClaimNews::Lost),
            Event::Released(claim) => table.change(claim.name(), claim.epoch().0, ClaimNews::Released),
            Event::Orphaned { name, last_owner } => table.orphan(name, last_owner),
            _ => {}
        });
    }
}

/// When a request came.
#[derive(Clone, Copy)]
pub(crate) struct Renewal(Instant);

/// The refusal of a session that is over, or was never here.
pub(super) fn is_over() -> Error {
    let why = "no such session is open here: its time ran out, it was left, its name joined again, or the server was restarted; \
               stop working on its claims and join again";
    Error::new(ErrorKind::NotFound, why)
}
