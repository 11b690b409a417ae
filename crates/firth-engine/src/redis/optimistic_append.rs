//! Optimistic appends: plain commands instead of a script, for logs that one process appends to.
//! The server needs a third of the time for them. A script spends most of its time on itself and on
//! hashing every byte of its arguments.
//!
//! A dedicated session watches the partition's hash and has a transaction open. The engine knows
//! what the hash said when the watch began, so it assigns the ids of the next append itself. The
//! transaction takes effect only if no other client has changed the hash since. The next watch
//! begins in the same write:
//!
//! ```text
//! XADD.. HSET l v m EXEC │ WATCH HMGET TIME MULTI        one write, one answer; a conflict changes nothing
//! ```
//!
//! **Why MULTI goes last.** If the server refused a MULTI that has commands right behind it, it
//! would run these one by one and unguarded.
//!
//! **Why a session begins with a script.** A server that was started again does not know the
//! script. So the engine notices the restart before it writes anything.
//!
//! Only an optimization: on a conflict, on a refusal, or if the partition has no such session,
//! nothing has happened. The append then goes by script, which reports what is wrong. Time is the
//! partition's: the server's last answer to TIME, plus what has passed here since.

use super::RedisEngine;
use super::blob;
use super::burst_detector::BurstDetector;
use super::error_mapping::{odd_answer, of_call};
use super::keys::PartitionKeys;
use super::reply_decoding::Parts;
use super::scripts::SCRIPTS;
use super::unit_clock::read_clock;
use crate::clock::LogicalClock;
use crate::error::Result;
use crate::id::RecordId;
use firth_redis::resp::{Frame, Ignore};
use firth_redis::{CallError, Client, Command, Pipe, ScriptCall, Session, cmd, pipe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many partitions have an appender at a time: each holds a connection.
const AT_ONCE: usize = 8;
/// An appender without appends is given up after about this long. Until then signs of life gather
/// in its open transaction.
const IDLE: Duration = Duration::from_secs(2);
/// How long the server's time is reckoned from what it said last.
const FRESH: Duration = Duration::from_secs(1);
/// Numbers that the scripts can compute with exactly.
const MAX_EXACT: u64 = 1 << 53;
const UNPOISONED: &str = "nothing panics while it holds this lock";

type Appenders = Mutex<Vec<Arc<Appender>>>;
type Answer = Result<Frame, CallError>;

/// The appenders of an engine.
#[derive(Default)]
pub(super) struct OptimisticAppends {
    appenders: Arc<Appenders>,
    tending: Mutex<JoinSet<()>>,
    /// The server's user may not watch, or the engine is closed.
    is_off: Arc<AtomicBool>,
}

/// A partition and the session that appends to it.
struct Appender {
    keys: Arc<PartitionKeys>,
    /// What stands behind the commands of every append.
    next: Pipe,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Taken while an append uses it: if the caller gives up half way, the session ends.
    session: Option<Session>,
    head: Option<Head>,
}

/// The partition's hash as it was when the watch began, with a transaction open.
#[derive(Clone, Copy)]
struct Head {
    last: RecordId,
    version: u64,
    largest: u64,
    clock: LogicalClock,
    server_us: u64,
    heard: Instant,
}

/// What came of an append.
enum Outcome {
    /// It happened; its first id, and what is known for the next one.
    Done(RecordId, Option<Head>),
    /// Another client has changed the partition.
    Conflict,
    /// The server did not take it.
    Refused(CallError),
}

impl RedisEngine {
    /// Appends blobs by plain commands; `None` if that cannot be, and then nothing has happened.
    pub(super) async fn append_optimistically(
        &self,
        keys: &Arc<PartitionKeys>,
        blobs: &[Vec<u8>],
    ) -> Result<Option<RecordId>> {
        if !keys.bursts.is_burst() {
            return Ok(None);
        }
        let Some(appender) = self.optimistic.appender(keys, &self.steps.client) else { return Ok(None) };
        // Of two at once, one would only conflict with the other.
        let Ok(mut state) = appender.state.try_lock() else { return Ok(None) };
        let Some(mut session) = state.session.take() else { return Ok(None) };
        let head = match state.head.take().filter(|head| head.heard.elapsed() < FRESH) {
            Some(head) => head,
            None => match begin(&mut session, keys).await {
                Ok(Some(head)) => head,
                Ok(None) => return Ok(None),
                Err(CallError::Server(error)) if &*error.code == "NOSCRIPT" => {
                    // A step by script readies a server that was started again. If it cannot, the
                    // next append fails and says so.
                    let _ = self.steps.quick(head_of(keys)).await;
                    state.session = Some(session);
                    return Ok(None);
                }
                Err(error) => {
                    self.optimistic.refused(&keys.bursts, &error);
                    return Ok(None);
                }
            },
        };
        let Some((request, ids)) = appender.transaction(&head, blobs) else { return Ok(None) };
        let outcome = match session.pipeline::<Vec<Frame>>(request).await {
            Ok(answers) => judge(answers, ids)?,
            Err(error) if error.may_have_run() => return Err(of_call(error)),
            Err(error) => Outcome::Refused(error),
        };
        Ok(match outcome {
            Outcome::Done(first, next) => {
                keys.bursts.went_well();
                if next.is_some() {
                    (state.session, state.head) = (Some(session), next);
                }
                Some(first)
            }
            Outcome::Conflict => {
                keys.bursts.went_wrong();
                state.session = Some(session);
                None
            }
            Outcome::Refused(error) => {
                self.optimistic.refused(&keys.bursts, &error);
                None
            }
        })
    }
}

impl OptimisticAppends {
    /// The appender of a partition. If it has none and fewer than [`AT_ONCE`] exist, one is opened
    /// for later appends.
    fn appender(&self, keys: &Arc<PartitionKeys>, client: &Client) -> Option<Arc<Appender>> {
        if self.is_off.load(Ordering::Relaxed) {
            return None;
        }
        let mut appenders = lock(&self.appenders);
        if let Some(appender) = appenders.iter().find(|appender| Arc::ptr_eq(&appender.keys, keys)) {
            return Some(appender.clone());
        }
        if appenders.len() < AT_ONCE {
            let appender = Arc::new(Appender::new(keys.clone()));
            appenders.push(appender.clone());
            drop(appenders);
            let mut tending = self.tending.lock().expect(UNPOISONED);
            while tending.try_join_next().is_some() {}
            tending.spawn(tend(appender, client.clone(), self.appenders.clone()));
        }
        None
    }

    fn refused(&self, bursts: &BurstDetector, error: &CallError) {
        tracing::debug!(%error, "cannot append without a script");
        bursts.went_wrong();
        if matches!(error, CallError::Server(error) if &*error.code == "NOPERM") {
            self.is_off.store(true, Ordering::Relaxed);
        }
    }

    /// Ends all appenders and makes no more.
    pub(super) fn close(&self) {
        self.is_off.store(true, Ordering::Relaxed);
        self.tending.lock().expect(UNPOISONED).abort_all();
        lock(&self.appenders).clear();
    }
}

/// Opens the session of an appender. Gives the appender up when it is idle or its session is gone.
async fn tend(appender: Arc<Appender>, client: Client, appenders: Arc<Appenders>) {
    match client.session_for(&appender.keys.meta).await {
        Ok(session) => appender.state.lock().await.session = Some(session),
        Err(error) => {
            tracing::debug!(%error, "no session to append without a script");
            appender.keys.bursts.went_wrong();
        }
    }
    loop {
        let is_useless = appender.state.try_lock().is_ok_and(|state| state.session.is_none());
        if is_useless || appender.keys.bursts.rests(IDLE) {
            break;
        }
        tokio::time::sleep(IDLE).await;
    }
    lock(&appenders).retain(|other| !Arc::ptr_eq(other, &appender));
}

/// Watches the partition; `None` if there is none, or if its log goes further than its hash says.
/// What was begun before is given up.
async fn begin(session: &mut Session, keys: &PartitionKeys) -> Result<Option<Head>, CallError> {
    let all = pipe()
        .then(cmd("DISCARD"))
        .then(watch(keys))
        .then(head_of(keys).command().clone())
        .then(cmd("MULTI"));
    let (_discard, watch, head, multi) = session.pipeline::<(Ignore, Ignore, Frame, Ignore)>(all).await?;
    watch?;
    multi?;
    let head = head?;
    let mut parts = Parts::of(head.value());
    let read = Head::read(&mut parts).and_then(|head| Ok((head.at(&mut parts)?, parts.id()?)));
    Ok(read.ok().filter(|(head, newest)| head.last >= *newest).map(|(head, _)| head))
}

fn watch(keys: &PartitionKeys) -> Command {
    cmd("WATCH").key(&keys.meta)
}

fn head_of(keys: &PartitionKeys) -> ScriptCall {
    SCRIPTS.head.keys([&keys.meta, &keys.stream])
}

impl Head {
    /// What the hash says.
    fn read(hash: &mut Parts<'_>) -> Result<Self> {
        let last = hash.id()?;
        let version = hash.number()?;
        let largest = hash.number()?;
        let clock = read_clock(hash.value()?);
        Ok(Self { last, version, largest, clock, server_us: 0, heard: Instant::now() })
    }

    /// As of the server's time.
    fn at(self, time: &mut Parts<'_>) -> Result<Self> {
        Ok(Self { server_us: time.number()? * 1_000_000 + time.number()?, ..self })
    }

    /// Reads what stands behind EXEC in [`Appender::next`].
    fn next(mut answers: impl Iterator<Item = Answer>) -> Option<Self> {
        let mut next = || answers.next().and_then(Answer::ok);
        let _watch = next()?;
        let hash = next()?;
        let time = next()?;
        let _multi = next()?;
        Self::read(&mut Parts::of(hash.value())).ok()?.at(&mut Parts::of(time.value())).ok()
    }

    /// The partition's time, in milliseconds.
    fn now_ms(&self) -> u64 {
        self.clock.now(self.server_us + super::micros(self.heard.elapsed()), None) / 1000
    }
}

/// The first id of an append, and how many commands its transaction has.
struct Ids {
    first: RecordId,
    commands: usize,
}

impl Appender {
    fn new(keys: Arc<PartitionKeys>) -> Self {
        let hash = cmd("HMGET").key(&keys.meta).arg("l").arg("v").arg("m").arg("c");
        let next =
            pipe().then(cmd("EXEC")).then(watch(&keys)).then(hash).then(cmd("TIME")).then(cmd("MULTI"));
        Self { keys, next, state: tokio::sync::Mutex::default() }
    }

    /// An append within the transaction that is open, and the next watch; `None` if the numbers are
    /// used up.
    fn transaction(&self, head: &Head, blobs: &[Vec<u8>]) -> Option<(Pipe, Ids)> {
        let ms = head.now_ms().max(head.last.ms);
        let first = RecordId::new(ms, head.last.seq + 1);
        let mut last = RecordId::new(ms, head.last.seq);
        let mut largest = head.largest;
        let mut all = pipe();
        for blob in blobs {
            last = last.plus(blob::count(blob) as u64);
            largest = largest.max(blob.len() as u64);
            all.push(&cmd("XADD").key(&self.keys.stream).arg(last.to_string()).arg("r").arg(blob));
        }
        if last.seq >= MAX_EXACT {
            return None;
        }
        all.push(&hash_after(&self.keys, head, last, largest));
        let commands = all.len();
        all.append(&self.next);
        Some((all, Ids { first, commands }))
    }
}

fn hash_after(keys: &PartitionKeys, head: &Head, last: RecordId, largest: u64) -> Command {
    let change = cmd("HSET").key(&keys.meta).field("l", last.to_string()).field("v", head.version + 1);
    if largest > head.largest { change.field("m", largest) } else { change }
}

/// What the answers to [`Appender::transaction`] say. Only a transaction that ran and failed half
/// way is an error here.
fn judge(answers: Vec<Answer>, ids: Ids) -> Result<Outcome> {
    let mut answers = answers.into_iter();
    let refused = answers.by_ref().take(ids.commands).find_map(Result::err);
    let executed = match (refused, answers.next().unwrap_or_else(missing)) {
        (None, Ok(executed)) => executed,
        (Some(error), _) | (None, Err(error)) => return Ok(Outcome::Refused(error)),
    };
    if executed.value().is_null() {
        return Ok(Outcome::Conflict);
    }
    if executed.value().iter().any(|answer| answer.error().is_some()) {
        return Err(odd_answer().with_unknown_outcome());
    }
    // The append stands, even if the watch behind it failed.
    Ok(Outcome::Done(ids.first, Head::next(answers)))
}

fn missing() -> Answer {
    Err(CallError::Invalid("an answer of a transaction is missing".to_owned()))
}

fn lock(appenders: &Appenders) -> MutexGuard<'_, Vec<Arc<Appender>>> {
    appenders.lock().expect(UNPOISONED)
}
