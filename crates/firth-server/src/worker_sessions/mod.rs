//! Worker sessions: for HTTP clients that cannot hold a worker, the server holds one per service
//! and name.
//!
//! A session lives as long as its client renews it within the TTL that it asked for; each call
//! under the session renews it, an open stream does not, so a client that hangs is as dead as one
//! that crashed. A session that is not renewed ends as a crash of its worker does, at once: its
//! claims are orphans, and others take over. If the server dies, the engine's lease of the same TTL
//! does the same. So the claims of a client that stops go to others one TTL after its last call,
//! and not before.
//!
//! Bounded: [`MAX_SESSIONS`] sessions. No lock of the map is held while a worker joins or leaves.

mod session;
mod table;
mod unit_data;

pub(crate) use session::{Ending, Renewal, WorkerSession};
pub(crate) use table::{ClaimNews, ClaimRow};
pub(crate) use unit_data::{DataSource, DataVerdicts, HeldData, MAX_UNSETTLED, WhenFull};

use crate::handle::Handles;
use firth::claims::{Claim, WorkerConfig};
use firth::{Broker, Error, ErrorKind, Result, StartAt};
use session::is_over;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use unit_data::MAX_FEEDS;

/// The most sessions at a time.
const MAX_SESSIONS: usize = 1024;

/// A service and a worker of it.
type ServiceWorker = (String, String);

/// All sessions; clones share them.
#[derive(Clone)]
pub(crate) struct WorkerSessions(Arc<SessionsShared>);

struct SessionsShared {
    broker: Broker,
    handles: Handles,
    closing: CancellationToken,
    numbers: AtomicU64,
    sessions: Mutex<HashMap<ServiceWorker, Arc<WorkerSession>>>,
    /// One per open reader of a unit's data.
    permits: Arc<Semaphore>,
}

impl WorkerSessions {
    pub(crate) fn new(broker: Broker) -> Self {
        let closing = CancellationToken::new();
        let numbers = AtomicU64::new(0);
        let sessions = Mutex::default();
        let permits = Arc::new(Semaphore::new(MAX_FEEDS));
        Self(Arc::new(SessionsShared {
            broker,
            handles: Handles::new(),
            closing,
            numbers,
            sessions,
            permits,
        }))
    }

    /// Joins a service under this name; a session that had it before is over.
    pub(crate) async fn join(
        &self,
        (service, name): (&str, &str),
        config: WorkerConfig,
    ) -> Result<(String, Duration)> {
        self.check_room()?;
        let ttl = config.ttl;
        let worker = self.0.broker.claims(service).worker(name).config(config).await?;
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let session = WorkerSession::start(number, ttl, worker);
        let valid = session.valid_after(session.renew()?);
        let former = {
            let mut sessions = self.sessions();
            sessions.retain(|_, session| !session.is_over());
            sessions.insert((service.to_owned(), name.to_owned()), session)
        };
        if let Some(former) = former {
            former.end(Ending::Replaced);
        }
        if self.0.closing.is_cancelled() {
            self.close().await;
        }
        Ok((self.0.handles.write(number), valid))
    }

    /// The session of this handle, renewed by asking.
    pub(crate) fn session(
        &self,
        (service, name): (&str, &str),
        handle: &str,
    ) -> Result<(Arc<WorkerSession>, Renewal)> {
        let place = (service.to_owned(), name.to_owned());
        let number = self.0.handles.read(handle).ok_or_else(is_over)?;
        let session = self.sessions().get(&place).cloned();
        let session = session.filter(|session| session.number == number).ok_or_else(is_over)?;
        let beat = session.renew()?;
        Ok((session, beat))
    }

    /// News after a place, at most `max`, waiting up to `wait` for the first, but never so long
    /// that the client's time runs out. `show` sees each with its place and handle.
    pub(crate) async fn news<T>(
        &self,
        session: &WorkerSession,
        (after, max, wait): (u64, usize, Duration),
        show: impl Fn(u64, Option<String>, &ClaimRow<Claim>) -> T,
    ) -> Result<Vec<T>> {
        let until = Instant::now() + wait.min(session.ttl / 3);
        let look = |table: &table::ClaimTable<Claim>| -> Vec<T> {
            let rows = table.after(after).take(max);
            rows.map(|(place, row)| show(place, self.handle_of(row), row)).collect()
        };
        tokio::select! {
            found = session.news(until, look) => found,
            () = self.0.closing.cancelled() => Err(closing()),
        }
    }

    /// Takes a unit by name; with `seize`, also from a living owner.
    pub(crate) async fn take<T>(
        &self,
        session: &WorkerSession,
        (name, seize): (&str, bool),
        show: impl FnOnce(u64, Option<String>, &ClaimRow<Claim>) -> T,
    ) -> Result<T> {
        let worker = session.worker();
        let taken = if seize { worker.seize(name).await } else { worker.claim(name).await };
        let claim = match taken {
            // Perhaps it is ours: granted just now, or by a call whose answer was lost.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let ours = worker.claims().into_iter().find(|claim| claim.name() == name);
                ours.ok_or(error)?
            }
            taken => taken?,
        };
        session.with_table(|table| {
            let place = table.grant(name, claim.epoch().0, claim);
            let row = table.at(place).ok_or_else(is_over)?;
            Ok(show(place, self.handle_of(row), row))
        })
    }

    /// The claim of a handle.
    pub(crate) fn claim(&self, session: &WorkerSession, handle: &str) -> Result<Claim> {
        let number = self.0.handles.read(handle);
        number.and_then(|number| session.with_table(|table| table.claim(number))).ok_or_else(|| {
            let why = "this session has no such claim: it was lost, given back or done; stop working on it";
            Error::new(ErrorKind::Fenced, why)
        })
    }

    /// The feed of a claim, open from its first use to the claim's end.
    pub(crate) fn unit_data(
        &self,
        session: &WorkerSession,
        claim: &Claim,
        how: (DataSource, StartAt),
    ) -> Result<Arc<HeldData>> {
        session.unit_data.get(claim, how, &self.0.permits)
    }

    /// Something that ends with the session, and with the server.
    pub(crate) async fn during<T>(
        &self,
        session: &WorkerSession,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = session.over() => Err(is_over()),
            () = self.0.closing.cancelled() => Err(closing()),
        }
    }

    /// The unit is finished and its claim forgotten.
    pub(crate) async fn done(&self, session: &WorkerSession, claim: &Claim) -> Result<()> {
        claim.done().await?;
        session.with_table(|table| drop(table.remove(claim.name(), claim.epoch().0)));
        session.unit_data.forget(claim.name(), claim.epoch().0);
        Ok(())
    }

    /// Leaves: all its claims are free at once.
    pub(crate) async fn leave(&self, place: (&str, &str), session: &WorkerSession) {
        session.end(Ending::Left);
        session.finished().await;
        let mut sessions = self.sessions();
        let place = (place.0.to_owned(), place.1.to_owned());
        if sessions.get(&place).is_some_and(|known| known.number == session.number) {
            sessions.remove(&place);
        }
    }

    /// How many calls and streams of workers are to end: all of them, soon.
    pub(crate) fn stop_waiting(&self) {
        self.0.closing.cancel();
    }

    /// Ends every session as a crash does, without giving claims back. The claims stay with the
    /// clients until the engine's leases run out. So no other worker starts a unit while its client
    /// still works on it.
    pub(crate) async fn close(&self) {
        self.0.closing.cancel();
        let sessions = std::mem::take(&mut *self.sessions());
        for session in sessions.into_values() {
            session.end(Ending::Closing);
            session.finished().await;
        }
    }

    fn check_room(&self) -> Result<()> {
        if self.0.closing.is_cancelled() {
            return Err(closing());
        }
        let mut sessions = self.sessions();
        sessions.retain(|_, session| !session.is_over());
        if sessions.len() >= MAX_SESSIONS {
            let why = format!("at most {MAX_SESSIONS} workers have a session here at a time");
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        Ok(())
    }

    fn handle_of(&self, row: &ClaimRow<Claim>) -> Option<String> {
        (row.number > 0).then(|| self.0.handles.write(row.number))
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<ServiceWorker, Arc<WorkerSession>>> {
        self.0.sessions.lock().expect("nothing panics under this lock")
    }
}

fn closing() -> Error {
    Error::new(ErrorKind::Closed, "the server is shutting down: join again in a moment")
}
