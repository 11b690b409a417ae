//! The janitor: the thread that drops files which are no longer needed, and makes files for logs
//! that have grown. It stands apart from the committer because dropping may wait for compactions.
//!
//! Trimmed records that were still in memory reach the disk later, so the janitor repeats a cut a
//! few times. If a job of the janitor is lost, the next trim or the next opening repeats it.

use super::committer::Job;
use super::file::{FileStore, Opened};
use super::step::MaintenanceJob;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;

/// When, and how often, a cut is repeated.
const CUT_AGAIN: Duration = Duration::from_secs(1);
const CUTS: u32 = 60;
/// How often the files of dropped tables are let go: a reader may have kept them the first time.
const RELEASES: u32 = 3;
/// How often the shared keyspace is tidied in vain before it waits for more litter.
const TIDYINGS: u32 = 5;
/// Releasing leaves a tiny table behind, so it must be worth it.
const WORTH_RELEASING: u64 = 256 << 10;
/// How long the committer may take to refresh what readers see.
const REFRESH: Duration = Duration::from_secs(2);

pub(super) struct Janitor {
    store: Arc<FileStore>,
    committer: WeakSender<Job>,
    refresh: Arc<AtomicBool>,
    cuts: HashMap<u64, LogCut>,
    /// Logs that are gone, and whose files a backup still reads.
    postponed: BTreeSet<u64>,
    litter: Litter,
}

/// What was removed from the shared keyspace and still lies in its tables.
#[derive(Default)]
struct Litter {
    bytes: u64,
    /// Times that tidying changed nothing.
    in_vain: u32,
}

/// A log to cut again.
#[derive(Clone, Copy, Default)]
struct LogCut {
    /// Up to where.
    seq: u64,
    /// How many times more.
    left: u32,
    /// How many times more to let go of files.
    releases: u32,
    /// What was cut last, and how many bytes were left then. As long as both stand there is hardly
    /// anything to cut.
    done: Option<(u64, u64)>,
}

impl Janitor {
    pub(super) fn new(store: Arc<FileStore>, committer: WeakSender<Job>, refresh: Arc<AtomicBool>) -> Self {
        let (cuts, postponed, litter) = (HashMap::new(), BTreeSet::new(), Litter::default());
        Self { store, committer, refresh, cuts, postponed, litter }
    }

    pub(super) fn serve(mut self, jobs: &Receiver<MaintenanceJob>) {
        let mut tick = Instant::now() + CUT_AGAIN;
        loop {
            match jobs.recv_timeout(tick.saturating_duration_since(Instant::now())) {
                Ok(job) => self.run_job(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= tick {
                self.cut_again();
                tick = Instant::now() + CUT_AGAIN;
            }
        }
    }

    fn run_job(&mut self, job: MaintenanceJob) {
        match job {
            MaintenanceJob::Drop(no) if self.store.keeps_files() => {
                self.postponed.insert(no);
            }
            MaintenanceJob::Drop(no) => {
                self.cuts.remove(&no);
                if let Ok(opened) = self.store.current() {
                    self.littered(&opened, opened.logs().drop_log(no));
                }
            }
            MaintenanceJob::Grow(no) => {
                self.report(self.store.current().map(|opened| opened.logs().grow(no)));
            }
            MaintenanceJob::Cut(no, seq) => {
                let known = self.cuts.get(&no).copied().unwrap_or_default();
                self.cuts.insert(no, LogCut { seq, left: CUTS, ..known });
                if !self.store.keeps_files() {
                    self.cut(no, false);
                }
            }
        }
    }

    fn cut_again(&mut self) {
        if self.store.keeps_files() {
            return;
        }
        for no in std::mem::take(&mut self.postponed) {
            self.run_job(MaintenanceJob::Drop(no));
        }
        let logs: Vec<u64> = self.cuts.keys().copied().collect();
        for no in logs {
            self.cut(no, true);
            self.release(no);
        }
        self.cuts.retain(|_, cut| {
            cut.left -= 1;
            cut.left > 0
        });
        if let Ok(opened) = self.store.current() {
            self.tidy_shared_keyspace(&opened);
        }
    }

    /// Cuts a log; `anyway` also if nothing has changed since the last time, when a table may have
    /// been busy.
    fn cut(&mut self, no: u64, anyway: bool) {
        let (Ok(opened), Some(mut cut)) = (self.store.current(), self.cuts.get(&no).copied()) else {
            return;
        };
        let before = opened.logs().table_bytes(no);
        if cut.done == Some((cut.seq, before)) && !anyway {
            return;
        }
        self.littered(&opened, opened.logs().cut(no, cut.seq));
        let after = opened.logs().table_bytes(no);
        cut.done = Some((cut.seq, after));
        let dropped = before.saturating_sub(after) >= WORTH_RELEASING;
        if dropped {
            cut.releases = RELEASES;
        }
        self.cuts.insert(no, cut);
        if dropped {
            self.release(no);
        }
    }

    fn release(&mut self, no: u64) {
        if let (Ok(opened), Some(cut)) = (self.store.current(), self.cuts.get_mut(&no))
            && cut.releases > 0
        {
            cut.releases -= 1;
            self.report(Ok(self.let_go(&opened, no)));
        }
    }

    /// Lets go of the files of dropped tables. The library keeps these files while a reader uses an
    /// older snapshot, and it forgets older snapshots when it flushes. So all readers must move to
    /// a newer snapshot, and a flush must follow.
    fn let_go(&self, opened: &Opened, no: u64) -> fjall::Result<()> {
        opened.logs().touch(no)?;
        self.refresh_readers();
        opened.logs().touch(no)?;
        opened.logs().flush(no)
    }

    /// Notes what was removed from the shared keyspace.
    fn littered(&mut self, opened: &Opened, removed: fjall::Result<u64>) {
        match removed {
            Ok(0) => {}
            Ok(removed) => {
                self.litter = Litter { bytes: self.litter.bytes + removed, in_vain: 0 };
                self.tidy_shared_keyspace(opened);
            }
            Err(error) => self.report(Ok(Err(error))),
        }
    }

    /// Rewrites the shared keyspace's tables once half of their bytes are litter. If a reader still
    /// uses an older snapshot, the library keeps the old tables, and the janitor tries again later.
    fn tidy_shared_keyspace(&mut self, opened: &Opened) {
        let before = opened.logs().shared_keyspace().disk_space();
        let Litter { bytes, in_vain } = self.litter;
        if bytes < WORTH_RELEASING || bytes < before / 2 || in_vain == TIDYINGS {
            return;
        }
        self.report(Ok(self.compact_shared_keyspace(opened)));
        let freed = before.saturating_sub(opened.logs().shared_keyspace().disk_space());
        self.litter = match freed {
            // What was in memory only never reached the tables.
            _ if freed >= bytes.min(before) / 2 => Litter::default(),
            _ => Litter { bytes, in_vain: in_vain + 1 },
        };
    }

    fn compact_shared_keyspace(&self, opened: &Opened) -> fjall::Result<()> {
        self.flush_shared_keyspace(opened)?;
        opened.logs().shared_keyspace().major_compact()?;
        self.flush_shared_keyspace(opened)
    }

    /// Moves all readers to the newest snapshot, so that the library forgets what only older ones
    /// needed.
    fn flush_shared_keyspace(&self, opened: &Opened) -> fjall::Result<()> {
        opened.logs().touch_shared_keyspace()?;
        self.refresh_readers();
        opened.logs().touch_shared_keyspace()?;
        opened.logs().flush_shared_keyspace()
    }

    /// Makes the committer renew the readers' snapshot, which keeps dropped files alive until then.
    /// In an idle engine only the janitor asks for that.
    fn refresh_readers(&self) {
        let Some(committer) = self.committer.upgrade() else {
            return;
        };
        self.refresh.store(true, Ordering::Release);
        let _ = committer.try_send(Job::nudge());
        let deadline = Instant::now() + REFRESH;
        while self.refresh.load(Ordering::Acquire) && Instant::now() < deadline {
            // own thread: the committer takes the nudge when it next turns
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn report(&self, outcome: crate::Result<fjall::Result<()>>) {
        if let Ok(Err(error)) = outcome {
            tracing::warn!(%error, "cannot drop old files; the next trim tries again");
        }
    }
}
