//! The committer: the one thread that writes files, and the group commit.
//!
//! Callers send jobs over a queue that is bounded by count and by bytes. If the queue is full, the
//! callers wait. The thread takes the queued jobs as one group (at most `GROUP`), runs and writes
//! step after step, and syncs *once*. Only then it answers the callers of the group. While the
//! thread syncs one group, the next one gathers: concurrent callers share an fsync, and a lone
//! caller never waits for others.
//!
//! If a write or sync fails, the storage library is unusable. The callers of that group get an
//! error with unknown outcome, and reads go on from the last durable state. Once there is room on
//! the disk, the thread opens the store again. The opening first writes anew everything that is not
//! known to be on the disk (`rescue.rs`).

use super::file::{FileStore, Opened};
use super::hints::HintTable;
use super::hooks::{CrashCounter, CrashPoint, Hooks, Mutation};
use super::janitor::Janitor;
use super::step::{Batch, MaintenanceJob, Now, Step};
use crate::durability::Durability;
use crate::error::{Error, ErrorKind, Result};
use fjall::PersistMode;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Jobs that may wait; more callers wait outside.
const QUEUE: usize = 4096;
/// Bytes that may wait.
const QUEUE_BYTES: usize = 64 << 20;
/// Steps that share one sync.
const GROUP: usize = 1024;
/// How often the free space is looked up while writing.
const LOOK_AT_DISK: Duration = Duration::from_millis(100);
/// How long between two attempts to open a broken store again.
const REOPEN: Duration = Duration::from_millis(500);
/// Maintenance jobs that may wait; a lost one is repeated by the next trim or the next opening.
const JOBS: usize = 1024;

type Finish = Box<dyn FnOnce(Result<()>) + Send>;
/// Runs the step, or answers the caller at once that it was not run.
type Run = Box<dyn FnOnce(Result<&mut Step<'_>>) -> Option<Ran> + Send>;

/// What came of a step, and what to do once everything that it saw is durable.
enum Ran {
    Done(Finish),
    /// It changes nothing. *Why its caller waits nevertheless:* it may look for the reason, and
    /// readers see only what is durable.
    Refused(Finish),
}

pub(super) struct Job {
    run: Run,
    now: Now,
    _room: Option<OwnedSemaphorePermit>,
}

impl Job {
    /// Does nothing, but makes the committer look around.
    pub(super) fn nudge() -> Self {
        Self { run: Box::new(|_| None), now: Now { us: 0 }, _room: None }
    }
}

/// The callers' side.
pub(super) struct Committer {
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    room: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    pub(super) fn start(store: Arc<FileStore>, hints: Arc<HintTable>, hooks: Hooks) -> Result<Self> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (jobs, waiting) = sync_channel(JOBS);
        let refresh = Arc::<AtomicBool>::default();
        let janitor = Janitor::new(store.clone(), sender.downgrade(), refresh.clone());
        let janitor = spawn("firth-janitor", move || janitor.serve(&waiting))?;
        let thread = Thread::new(store, hints, hooks, jobs, refresh);
        let thread = spawn("firth-committer", move || thread.serve(receiver, janitor))?;
        Ok(Self {
            queue: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(QUEUE_BYTES)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Runs a step in the next group and answers once it is durable.
    pub(super) async fn submit<T: Send + 'static>(
        &self,
        cost: usize,
        now: Now,
        run: impl FnOnce(&mut Step<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let queue = self.queue.lock().expect("nothing panics while it holds this lock").clone();
        let queue = queue.ok_or_else(closed)?;
        let cost = u32::try_from(cost.clamp(1, QUEUE_BYTES)).expect("the clamp fits");
        let room = self.room.clone().acquire_many_owned(cost).await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let run: Run = Box::new(move |step| {
            let step = match step {
                Ok(step) => step,
                Err(unusable) => {
                    let _ = reply.send(Err(unusable));
                    return None;
                }
            };
            Some(match run(step) {
                Ok(value) => Ran::Done(Box::new(move |durable: Result<()>| {
                    let _ = reply.send(durable.map(|()| value));
                })),
                Err(refusal) => Ran::Refused(Box::new(move |_| {
                    let _ = reply.send(Err(refusal));
                })),
            })
        });
        queue.send(Job { run, now, _room: Some(room) }).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "a step panicked").with_unknown_outcome())
        })
    }

    /// Lets the queue run dry, syncs and closes the files.
    pub(super) async fn close(&self) -> Result<()> {
        self.queue.lock().expect("nothing panics while it holds this lock").take();
        let thread = self.thread.lock().expect("nothing panics while it holds this lock").take();
        let Some(thread) = thread else {
            return Ok(());
        };
        let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
        match joined {
            Ok(true) => Ok(()),
            _ => Err(Error::new(ErrorKind::Internal, "the committer panicked")),
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the engine was closed")
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| Error::new(ErrorKind::Unavailable, "cannot start a thread").with_source(error))
}

/// The thread's side.
struct Thread {
    store: Arc<FileStore>,
    hints: Arc<HintTable>,
    hooks: Hooks,
    jobs: SyncSender<MaintenanceJob>,
    crashes: CrashCounter,
    latest: Now,
    disk: Disk,
    /// The janitor wants readers to look at the newest state.
    refresh: Arc<AtomicBool>,
    broken: Option<StoreBroken>,
}

/// The store is unusable.
struct StoreBroken {
    why: String,
    /// When it was last tried to open it again.
    tried: Option<Instant>,
}

/// What was last seen of the free space.
struct Disk {
    looked: Option<Instant>,
    is_low: bool,
}

/// A group of steps that share one sync.
#[derive(Default)]
struct Group {
    finishes: Vec<Finish>,
    batch: Batch,
    has_writes: bool,
    needs_sync: bool,
}

impl Thread {
    fn new(
        store: Arc<FileStore>,
        hints: Arc<HintTable>,
        hooks: Hooks,
        jobs: SyncSender<MaintenanceJob>,
        refresh: Arc<AtomicBool>,
    ) -> Self {
        let disk = Disk { looked: None, is_low: false };
        let latest = Now { us: 0 };
        let crashes = CrashCounter::default();
        Self { store, hints, hooks, jobs, crashes, latest, disk, refresh, broken: None }
    }

    fn serve(mut self, mut queue: mpsc::Receiver<Job>, janitor: JoinHandle<()>) {
        let mut jobs = Vec::with_capacity(GROUP);
        while queue.blocking_recv_many(&mut jobs, GROUP) > 0 {
            self.serve_group(&mut jobs);
        }
        drop(self.jobs);
        let _ = janitor.join();
        if let Ok(opened) = self.store.current() {
            let _ = opened.seal();
        }
        self.store.close();
    }

    fn serve_group(&mut self, jobs: &mut Vec<Job>) {
        let opened = match self.usable() {
            Ok(opened) => opened,
            Err(refusal) => return self.refuse(jobs, &refusal),
        };
        self.look_at_disk();
        let mut group = Group::default();
        for job in jobs.drain(..) {
            match self.broken {
                None => self.run(&opened, job, &mut group),
                Some(_) => refuse(job, &self.refusal()),
            }
        }
        self.finish(&opened, group);
    }

    /// Runs and writes one step.
    fn run(&mut self, opened: &Opened, job: Job, group: &mut Group) {
        self.latest.us = self.latest.us.max(job.now.us);
        let mut step = Step::new(opened, self.latest, &self.hooks);
        let outcome = catch_unwind(AssertUnwindSafe(|| (job.run)(Ok(&mut step))));
        let finish = match outcome {
            Ok(Some(Ran::Done(finish))) => finish,
            Ok(Some(Ran::Refused(finish))) => return group.finishes.push(finish),
            Ok(None) | Err(_) => return,
        };
        let mut batch = step.batch;
        if batch.writes.is_empty() {
            group.finishes.push(finish);
            group.batch.jobs.append(&mut batch.jobs);
            return;
        }
        if self.disk.is_low && !batch.frugal {
            return finish(Err(self.store.low_disk()));
        }
        self.crashes.pass(&self.hooks, CrashPoint::BeforeWrite);
        match opened.write(std::mem::take(&mut batch.writes)) {
            Ok(grown) => batch.jobs.extend(grown.into_iter().map(MaintenanceJob::Grow)),
            Err(error) => return finish(Err(self.fail(error))),
        }
        self.crashes.pass(&self.hooks, CrashPoint::AfterWrite);
        group.add(finish, batch, self.store.options().durability);
    }

    /// Syncs the group and answers everyone.
    fn finish(&mut self, opened: &Opened, group: Group) {
        let mut result = self.broken.as_ref().map_or(Ok(()), |broken| Err(broken.why.clone()));
        let is_asked = self.refresh.load(Ordering::Acquire);
        if result.is_ok() && (group.has_writes || is_asked) {
            let mode = if group.needs_sync { PersistMode::SyncData } else { PersistMode::Buffer };
            let synced = match self.hooks.planted(Mutation::AckWithoutSync) {
                true => Ok(()),
                false => opened.persist(mode),
            };
            match synced {
                Ok(()) => {
                    opened.publish();
                    self.refresh.store(false, Ordering::Release);
                }
                Err(error) => result = Err(self.fail(error).context().to_owned()),
            }
            self.crashes.pass(&self.hooks, CrashPoint::AfterSync);
        }
        if result.is_ok() {
            self.hints.touch(group.batch.hints);
            for job in group.batch.jobs {
                let _ = self.jobs.try_send(job);
            }
        }
        for finish in group.finishes {
            finish(result.clone().map_err(|why| unknown(&why)));
        }
    }

    /// Marks the store unusable; returns the error for the caller whose write or sync failed.
    fn fail(&mut self, error: fjall::Error) -> Error {
        let why = format!("writing to {} failed ({})", self.store.dir().display(), describe(&error));
        tracing::error!(%error, "the store failed and is read-only until it can be opened again");
        self.store.set_broken(Some(&why));
        self.broken = Some(StoreBroken { why: why.clone(), tried: None });
        unknown(&why).with_source(error)
    }

    /// The open store, opened again if it had failed and there may be room now.
    fn usable(&mut self) -> Result<Arc<Opened>> {
        if let Some(StoreBroken { why, tried }) = &mut self.broken {
            let is_time = tried.is_none_or(|tried| tried.elapsed() >= REOPEN);
            let has_room =
                self.store.free_bytes().is_none_or(|free| free > self.store.options().min_free.max(1 << 20));
            if !is_time || !has_room {
                return Err(self.refusal());
            }
            *tried = Some(Instant::now());
            if let Err(error) = self.store.reopen() {
                *why = format!("the store cannot be opened again ({})", error.context());
                self.store.set_broken(Some(why));
                return Err(self.refusal());
            }
            tracing::info!("the store is open again");
            self.store.set_broken(None);
            self.broken = None;
        }
        self.store.current()
    }

    fn refuse(&self, jobs: &mut Vec<Job>, refusal: &Error) {
        jobs.drain(..).for_each(|job| refuse(job, refusal));
    }

    fn refusal(&self) -> Error {
        let why = self.broken.as_ref().map_or("the store is closed", |broken| broken.why.as_str());
        Error::new(ErrorKind::Unavailable, format!("read-only: {why}; free space and it goes on by itself"))
    }

    fn look_at_disk(&mut self) {
        if self.disk.looked.is_some_and(|looked| looked.elapsed() < LOOK_AT_DISK) {
            return;
        }
        let is_low = self.store.is_low();
        if is_low != self.disk.is_low {
            tracing::warn!(is_low, "the disk's free space crossed the limit for appends");
        }
        self.disk = Disk { looked: Some(Instant::now()), is_low };
    }
}

impl Group {
    fn add(&mut self, finish: Finish, batch: Batch, promised: Durability) {
        self.finishes.push(finish);
        self.has_writes = true;
        self.needs_sync |= !batch.relaxed && batch.durability.unwrap_or(promised) == Durability::Synced;
        self.batch.hints.extend(batch.hints);
        self.batch.jobs.extend(batch.jobs);
    }
}

/// Answers a job without running it: certainly not done.
fn refuse(job: Job, refusal: &Error) {
    let _ = (job.run)(Err(Error::new(refusal.kind(), refusal.context().to_owned())));
}

fn unknown(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{why}; it is unknown whether this step was stored"))
        .with_unknown_outcome()
}

fn describe(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        fjall::Error::Io(io) => io.to_string(),
        fjall::Error::Poisoned => "an earlier write failed, the disk may be full".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(relaxed: bool, durability: Option<Durability>) -> Batch {
        Batch { relaxed, durability, ..Batch::default() }
    }

    #[test]
    fn t02_a_group_with_one_synced_step_is_synced() {
        let relaxed = || batch(true, None);
        let fast = || batch(false, Some(Durability::Fast));
        let synced = || batch(false, Some(Durability::Synced));
        let promised = || batch(false, None);
        for promise in [Durability::Fast, Durability::Synced] {
            let needs_sync = |steps: Vec<Batch>| {
                let mut group = Group::default();
                steps.into_iter().for_each(|batch| group.add(Box::new(|_| {}), batch, promise));
                group.needs_sync
            };
            assert!(needs_sync(vec![synced(), relaxed()]) && needs_sync(vec![relaxed(), synced()]));
            assert!(needs_sync(vec![fast(), synced(), fast(), relaxed()]));
            assert!(!needs_sync(vec![relaxed(), fast()]));
            assert_eq!(needs_sync(vec![promised(), relaxed(), fast()]), promise == Durability::Synced);
        }
    }
}
