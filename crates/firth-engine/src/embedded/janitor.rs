//! The janitor: the thread that drops files which are no longer needed. It stands apart from the committer because dropping may
//! wait for compactions.
//!
//! Trimmed records that were still in memory reach the disk later, so a cut is repeated a few times. Whatever is lost here is
//! repeated by the next trim or the next opening.

use super::committer::Job;
use super::file::FileStore;
use super::step::Chore;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::WeakSender;

/// When, and how often, a cut is repeated.
const CUT_AGAIN: Duration = Duration::from_secs(5);
const CUTS: u32 = 12;
/// How long the committer may take to refresh what readers see.
const REFRESH: Duration = Duration::from_secs(2);

pub(super) struct Janitor {
    store: Arc<FileStore>,
    committer: WeakSender<Job>,
    refresh: Arc<AtomicBool>,
    /// Logs to cut again: up to where, and how many times more.
    cuts: HashMap<u64, (u64, u32)>,
}

impl Janitor {
    pub(super) fn new(store: Arc<FileStore>, committer: WeakSender<Job>, refresh: Arc<AtomicBool>) -> Self {
        Self { store, committer, refresh, cuts: HashMap::new() }
    }

    pub(super) fn serve(mut self, chores: &Receiver<Chore>) {
        loop {
            match chores.recv_timeout(CUT_AGAIN) {
                Ok(chore) => self.serve_chore(chore),
                Err(RecvTimeoutError::Timeout) => self.cut_again(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn serve_chore(&mut self, chore: Chore) {
        match chore {
            Chore::DropLog(no) => {
                self.cuts.remove(&no);
                self.report(self.store.current().map(|opened| opened.drop_log(no)));
            }
            Chore::CutLog(no, seq) => {
                self.cuts.insert(no, (seq, CUTS));
                self.cut(no, seq);
            }
        }
    }

    fn cut_again(&mut self) {
        let cuts: Vec<(u64, u64)> = self.cuts.iter().map(|(no, (seq, _))| (*no, *seq)).collect();
        cuts.into_iter().for_each(|(no, seq)| self.cut(no, seq));
        self.cuts.retain(|_, (_, left)| {
            *left -= 1;
            *left > 0
        });
    }

    fn cut(&self, no: u64, seq: u64) {
        let Ok(opened) = self.store.current() else {
            return;
        };
        match opened.cut_log(no, seq) {
            Ok(false) => {}
            Ok(true) => {
                self.refresh_readers();
                self.report(Ok(opened.release_files(no)));
            }
            Err(error) => self.report(Ok(Err(error))),
        }
    }

    /// The view of readers keeps dropped files alive until it is renewed, which in a quiet engine nobody else does.
    fn refresh_readers(&self) {
        let Some(committer) = self.committer.upgrade() else {
            return;
        };
        self.refresh.store(true, Ordering::Release);
        let _ = committer.try_send(Job::nudge());
        let deadline = Instant::now() + REFRESH;
        while self.refresh.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn report(&self, outcome: crate::Result<fjall::Result<()>>) {
        if let Ok(Err(error)) = outcome {
            tracing::warn!(%error, "cannot drop old files; the next trim tries again");
        }
    }
}
