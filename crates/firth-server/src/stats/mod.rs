//! Samples of the last 15 minutes and the last 24 hours, without a database: for the console, for
//! `GET /v1/stats` and for `firth stats`.
//!
//! `ring` and `store` are pure; this file looks at the clock, at memory and disk, and asks
//! [`Events`](crate::events::Events) to look at the engine. A look that events make for a listener
//! or a scrape counts too.
//!
//! **Cost.** Looking takes at most 1 % of the time, and at most 10 % while a reader asks for
//! samples.

mod day;
mod ring;
mod store;
mod watched;

pub(crate) use store::{GROUP, GroupFigures, Samples, StatsFigures, TOTAL, TopicFigures, View, Window};
pub(crate) use watched::{MAX_TOPICS, WatchedTopics};

use crate::events::Events;
use crate::wire::{millis, unix_ms};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use store::StatsStore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the engine is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Where in its second a look begins: far from both ends, so that no second is left out.
const PHASE: Duration = Duration::from_millis(500);
/// A look takes at most one in this number of the time, while a reader asks and otherwise.
const SHARE_ASKED: u32 = 10;
const SHARE_IDLE: u32 = 100;
/// A reader counts as present for this long after it asked.
const PRESENT: Duration = Duration::from_secs(10);
/// How often the data directory is measured, and how many of its files at most.
const MEASURE: Duration = Duration::from_secs(30);
const MAX_FILES: usize = 20_000;

/// The samples; clones share them.
#[derive(Clone)]
pub(crate) struct Stats(Arc<Shared>);

struct Shared {
    store: Mutex<StatsStore>,
    /// The clock of the samples: Unix time at the start, on from there without going back.
    started: Instant,
    started_ms: u64,
    asked: Mutex<Option<Instant>>,
    disk: Mutex<Option<(u64, u64)>>,
    /// Whether a task of this server samples.
    samples: AtomicBool,
}

/// One answer: everything that was asked for, of one moment.
pub(crate) struct Answered {
    pub(crate) now_ms: u64,
    pub(crate) all_topics: usize,
    pub(crate) total: Samples<TOTAL>,
    pub(crate) topics: Vec<View<TopicFigures, 2>>,
    pub(crate) groups: Vec<View<GroupFigures, GROUP>>,
    /// Records that were given up in the last 24 hours.
    pub(crate) died: u64,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let started_ms = unix_ms(SystemTime::now()) / 1000 * 1000;
        Self(Arc::new(Shared {
            store: Mutex::new(StatsStore::new()),
            started: Instant::now(),
            started_ms,
            asked: Mutex::default(),
            disk: Mutex::default(),
            samples: AtomicBool::new(false),
        }))
    }

    /// Takes in what a look saw, with the memory and the disk of now.
    pub(crate) fn note(&self, seen: StatsFigures) {
        let disk = self.disk();
        let seen = StatsFigures { memory: resident_bytes().unwrap_or_default(), disk, ..seen };
        self.store().note(self.now_ms(), seen);
    }

    /// Reads the samples after `after_ms`; with series of the topics and groups of `topic`.
    pub(crate) fn read(&self, window: Window, after_ms: u64, topic: Option<&str>) -> Answered {
        *self.0.asked.lock().expect("nothing panics under this lock") = Some(Instant::now());
        let store = self.store();
        let at = (window, after_ms);
        Answered {
            now_ms: store.seen_ms().unwrap_or_else(|| self.now_ms()),
            all_topics: store.all_topics(),
            died: store.died(),
            total: store.total(window, after_ms),
            topics: store.topics(at, |figures| topic == Some(figures.topic.as_str())),
            groups: store.groups(at, |figures| topic == Some(figures.topic.as_str())),
        }
    }

    /// Bytes of the data directory, and bytes free on its disk, as they were measured last.
    pub(crate) fn disk(&self) -> Option<(u64, u64)> {
        *self.0.disk.lock().expect("nothing panics under this lock")
    }

    /// Whether no sampler runs here, and the last look was a while ago.
    pub(crate) fn is_old(&self) -> bool {
        let seen_ms = self.store().seen_ms();
        !self.0.samples.load(Ordering::Relaxed)
            && seen_ms.is_none_or(|seen| self.now_ms().saturating_sub(seen) >= millis(PHASE))
    }

    /// Samples until the server closes; `dir` is the data directory, if there is one.
    pub(crate) fn start(&self, events: Events, dir: Option<PathBuf>, closing: CancellationToken) {
        self.0.samples.store(true, Ordering::Relaxed);
        let stats = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stats.sample(events, dir) => {}
                () = closing.cancelled() => {}
            }
        });
    }

    async fn sample(self, events: Events, dir: Option<PathBuf>) {
        let mut measured: Option<Instant> = None;
        loop {
            if let Some(dir) = dir.as_ref().filter(|_| measured.is_none_or(|at| at.elapsed() >= MEASURE)) {
                measured = Some(Instant::now());
                let dir = dir.clone();
                let disk = tokio::task::spawn_blocking(move || disk(&dir)).await.ok().flatten();
                *self.0.disk.lock().expect("nothing panics under this lock") = disk;
            }
            let began = Instant::now();
            // A watcher for listeners of events makes the same looks.
            if !events.is_watching() {
                events.sample().await;
            }
            let rest = began.elapsed() * self.share();
            tokio::time::sleep(self.until_next().max(rest)).await;
        }
    }

    fn share(&self) -> u32 {
        let asked = *self.0.asked.lock().expect("nothing panics under this lock");
        if asked.is_some_and(|at| at.elapsed() < PRESENT) { SHARE_ASKED } else { SHARE_IDLE }
    }

    /// How long until the middle of the next second.
    fn until_next(&self) -> Duration {
        let into = Duration::from_millis(millis(self.0.started.elapsed()) % millis(EVERY));
        if into < PHASE { PHASE - into } else { EVERY + PHASE - into }
    }

    fn now_ms(&self) -> u64 {
        self.0.started_ms + millis(self.0.started.elapsed())
    }

    fn store(&self) -> MutexGuard<'_, StatsStore> {
        self.0.store.lock().expect("nothing panics under this lock")
    }
}

/// Memory of this process that is in RAM.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes that a directory takes, and bytes that are free on its disk.
fn disk(dir: &Path) -> Option<(u64, u64)> {
    let stats = rustix::fs::statvfs(dir).ok()?;
    let mut used = 0;
    let mut files = 0;
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            files += 1;
            if files > MAX_FILES {
                return Some((used, stats.f_bavail.saturating_mul(stats.f_frsize)));
            }
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => used += about.len(),
                // It went away since it was listed.
                Err(_) => {}
            }
        }
    }
    Some((used, stats.f_bavail.saturating_mul(stats.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_second_has_its_look_in_the_middle() {
        let stats = Stats::new();
        let mut seconds = Vec::new();
        for _ in 0..5 {
            tokio::time::sleep(stats.until_next()).await;
            seconds.push((stats.now_ms() - stats.0.started_ms, stats.until_next()));
        }
        assert_eq!(seconds.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [500, 1500, 2500, 3500, 4500]);
        assert!(seconds.iter().all(|(_, next)| *next == EVERY));
    }

    #[tokio::test(start_paused = true)]
    async fn looks_take_less_of_the_time_while_no_reader_asks() {
        let stats = Stats::new();
        assert_eq!(stats.share(), SHARE_IDLE);
        stats.read(Window::Fine, 0, None);
        assert_eq!(stats.share(), SHARE_ASKED);
        tokio::time::sleep(PRESENT).await;
        assert_eq!(stats.share(), SHARE_IDLE);
    }

    #[test]
    fn the_disk_of_a_directory_is_measured_with_its_folders() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("inner")).unwrap();
        std::fs::write(dir.path().join("inner/a"), [0; 100]).unwrap();
        std::fs::write(dir.path().join("b"), [0; 11]).unwrap();
        let (used, free) = disk(dir.path()).unwrap();
        assert!(used == 111 && free > 0, "{used} {free}");
        assert!(resident_bytes().unwrap() > 1 << 20);
    }
}
