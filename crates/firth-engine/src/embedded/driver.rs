//! How steps are run: on memory inside the caller's task, on files by the committer.

#[cfg(feature = "embedded")]
use super::backup::Dump;
use super::clock::Clock;
#[cfg(feature = "embedded")]
use super::committer::Committer;
#[cfg(feature = "embedded")]
use super::file::FileStore;
use super::hints::HintTable;
use super::hooks::{Hooks, Mutation};
#[cfg(feature = "embedded")]
use super::keys::{self, Space};
use super::memory::MemoryStore;
#[cfg(feature = "embedded")]
use super::step::KeyView;
use super::step::{Now, Step};
#[cfg(feature = "embedded")]
use super::values::{KeptClock, Value};
#[cfg(feature = "embedded")]
use crate::backup::Backup;
use crate::durability::Durability;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Partition;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Runs steps, one after the other, each atomic.
pub(super) struct StepDriver {
    place: Place,
    clock: Clock,
    pub(super) hints: Arc<HintTable>,
    hooks: Hooks,
    is_closed: AtomicBool,
}

enum Place {
    Memory(Mutex<MemoryStore>),
    #[cfg(feature = "embedded")]
    File {
        store: Arc<FileStore>,
        committer: Committer,
    },
}

impl StepDriver {
    pub(super) fn memory(hooks: Hooks) -> Self {
        Self {
            place: Place::Memory(Mutex::default()),
            clock: Clock::start(),
            hints: Arc::default(),
            hooks,
            is_closed: AtomicBool::new(false),
        }
    }

    #[cfg(feature = "embedded")]
    pub(super) fn file(store: FileStore, newest_us: u64, hooks: Hooks) -> Result<Self> {
        let store = Arc::new(store);
        let hints = Arc::<HintTable>::default();
        let committer = Committer::start(store.clone(), hints.clone(), hooks)?;
        // Without it the clock starts anew, so damage in it stops nothing.
        let kept = store.durable()?.get(Space::State, &keys::clock())?;
        let kept = kept.and_then(|kept| KeptClock::read(kept).ok());
        Ok(Self {
            place: Place::File { store, committer },
            clock: Clock::start_after(newest_us, kept),
            hints,
            hooks,
            is_closed: AtomicBool::new(false),
        })
    }

    /// Runs a step that changes something. `cost` is about how many bytes it carries.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        cost: usize,
        run: impl FnOnce(&mut Step<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.check_open()?;
        let now = self.clock.now();
        let _ = cost;
        match &self.place {
            Place::Memory(store) => self.change_memory(store, now, run),
            #[cfg(feature = "embedded")]
            Place::File { committer, .. } => {
                let Some(kept) = self.clock.to_store() else { return committer.submit(cost, now, run).await };
                let keeping = move |step: &mut Step<'_>| {
                    let answer = run(step)?;
                    step.store(keys::clock(), &kept);
                    Ok(answer)
                };
                let answer = committer.submit(cost, now, keeping).await?;
                self.clock.was_stored(kept);
                Ok(answer)
            }
        }
    }

    fn change_memory<T>(
        &self,
        store: &Mutex<MemoryStore>,
        now: Now,
        run: impl FnOnce(&mut Step<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut store = store.lock().map_err(|_| Error::new(ErrorKind::Internal, "a step panicked"))?;
        let mut step = Step::new(&*store, now, &self.hooks);
        let answer = run(&mut step)?;
        let mut batch = step.batch;
        if !self.hooks.planted(Mutation::AckWithoutWrite) || batch.writes.len() < 3 {
            store.apply(&mut batch);
        }
        drop(store);
        self.hints.touch(batch.hints);
        Ok(answer)
    }

    /// Runs a step that only looks, on what is durable.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Step<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.check_open()?;
        let now = self.clock.now();
        match &self.place {
            Place::Memory(store) => {
                let store = store.lock().map_err(|_| Error::new(ErrorKind::Internal, "a step panicked"))?;
                run(&Step::new(&*store, now, &self.hooks))
            }
            #[cfg(feature = "embedded")]
            Place::File { store, .. } => {
                let store = store.clone();
                let hooks = self.hooks;
                let look = move || run(&Step::new(&store.durable()?, now, &hooks));
                tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| {
                    Err(Error::new(ErrorKind::Internal, "a read did not finish").with_source(error))
                })
            }
        }
    }

    /// Begins a backup.
    #[cfg(feature = "embedded")]
    pub(super) async fn backup(&self) -> Result<Backup> {
        self.check_open()?;
        let Place::File { store, .. } = &self.place else {
            let context = "memory: is gone with its process, so there is nothing to back up: use file:DIR";
            return Err(Error::new(ErrorKind::Unsupported, context));
        };
        let store = store.clone();
        let engine_us = self.clock.now().us;
        let begun = tokio::task::spawn_blocking(move || Dump::begin(store, engine_us).map(Backup::new)).await;
        begun.map_err(|error| Error::new(ErrorKind::Internal, "a backup did not begin").with_source(error))?
    }

    /// What is known to be wrong with what is stored.
    pub(super) fn health(&self) -> Result<()> {
        match &self.place {
            Place::Memory(_) => Ok(()),
            #[cfg(feature = "embedded")]
            Place::File { store, .. } => store.health(),
        }
    }

    /// Names the partition in the error of a read that met damage, and remembers it.
    pub(super) fn readable<T>(&self, at: &Partition, answer: Result<T>) -> Result<T> {
        answer.map_err(|error| {
            if error.kind() != ErrorKind::Corrupt {
                return error;
            }
            #[cfg(feature = "embedded")]
            if let Place::File { store, .. } = &self.place {
                store.note_damage(at);
            }
            error.during(format_args!("partition {at}"))
        })
    }

    /// The partition is gone, and its damage with it.
    pub(super) fn forget_damage(&self, at: &Partition) {
        let _ = at;
        #[cfg(feature = "embedded")]
        if let Place::File { store, .. } = &self.place {
            store.forget_damage(at);
        }
    }

    /// Whether appends are taken now.
    pub(super) fn takes_appends(&self) -> Result<()> {
        match &self.place {
            Place::Memory(_) => Ok(()),
            #[cfg(feature = "embedded")]
            Place::File { store, .. } => store.takes_appends(),
        }
    }

    /// Whether acknowledgements can mean this.
    pub(super) fn can_promise(&self, durability: Durability) -> Result<()> {
        let missing = match (&self.place, durability) {
            (_, Durability::Replicated(_)) => "replicas: only Redis and Valkey have them",
            (Place::Memory(_), Durability::Synced) => "a disk: open file: for that",
            _ => return Ok(()),
        };
        let context = format!("durability {durability} needs {missing}");
        Err(Error::new(ErrorKind::Unsupported, context))
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "the engine was closed")),
            false => Ok(()),
        }
    }

    pub(super) async fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match &self.place {
            Place::Memory(_) => Ok(()),
            #[cfg(feature = "embedded")]
            Place::File { committer, .. } => committer.close().await,
        }
    }
}
