//! Waking those who wait: RESP3 client tracking on the client's shared connections, with a slow poll as the guarantee.
//!
//! Everything that can be waited for has a version in one key. When somebody begins to wait, the key is *armed*: read with
//! `CLIENT CACHING YES` in front, so that the server pushes an invalidation with its next change; the version read then
//! shows what was missed before. Nothing is armed while nobody waits, so a busy consumer costs nothing. A connection
//! that was replaced has forgotten everything: armed keys are read again after a reconnection and at each tick of the
//! poll, which also is the only way where the server or its rules know no tracking. Keyspace notifications are not used.

use super::keys::Keys;
use crate::name::Partition;
use crate::watch::{Hint, HintKey};
use bytes::Bytes;
use firth_redis::resp::Frame;
use firth_redis::{CallError, Client, Command, EventKind, Pipe, Push, cmd, pipe};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};

/// How often armed keys are read again.
const POLL: Duration = Duration::from_secs(1);
/// How often a hint fires whatever happens.
const FALLBACK: Duration = Duration::from_secs(5);
/// Keys read at one tick; more take turns.
const PER_TICK: usize = 2000;

/// Knows who waits for what.
pub(super) struct Notifier {
    table: Arc<Table>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Table {
    slots: Mutex<Slots>,
    wanted: Notify,
}

#[derive(Default)]
struct Slots {
    by_hint: HashMap<HintKey, Slot>,
    /// Whose version lies in a key.
    by_key: HashMap<Bytes, HintKey>,
    /// Counts turns of reads.
    turn: u64,
}

/// One thing that is waited for.
struct Slot {
    changes: watch::Sender<u64>,
    /// The key whose change is pushed, and the command that reads its version.
    key: Bytes,
    read: Command,
    /// Somebody waits.
    is_wanted: bool,
    /// The server will push the next change.
    is_armed: bool,
    /// A read is under way.
    in_flight: bool,
    /// The turn of its last read.
    turn: u64,
    /// An invalidation came while a read was under way: it may be the answer to that very read.
    hit_in_flight: bool,
    /// The version that the next read shows if nothing is missed; `None` for a hint that has not looked yet.
    expected: Option<i64>,
}

impl Slot {
    fn new(key: Bytes, read: Command) -> Self {
        Self {
            changes: watch::Sender::new(0),
            key,
            read,
            is_wanted: false,
            is_armed: false,
            in_flight: false,
            turn: 0,
            hit_in_flight: false,
            expected: None,
        }
    }

    fn fire(&mut self) {
        self.is_wanted = false;
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The server says that the key changed.
    fn invalidated(&mut self) {
        self.is_armed = false;
        self.hit_in_flight = self.in_flight;
        self.expected = self.expected.map(|version| version + 1);
        self.fire();
    }

    /// The key was read; armed unless tracking is not possible.
    fn read(&mut self, version: i64, armed: bool) {
        self.in_flight = false;
        self.is_armed = armed && !std::mem::take(&mut self.hit_in_flight);
        if self.expected.replace(version) != Some(version) {
            self.fire();
        }
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("nothing panics while it holds this lock")
    }

    /// Somebody begins to wait.
    fn want(&self, key: &HintKey) {
        let mut slots = self.lock();
        if let Some(slot) = slots.by_hint.get_mut(key) {
            slot.is_wanted = true;
            if !slot.is_armed && !slot.in_flight {
                self.wanted.notify_one();
            }
        }
    }

    /// What must be read now, marked as under way.
    fn take(&self, which: impl Fn(&Slot) -> bool, most: usize) -> Vec<(HintKey, Command)> {
        let mut slots = self.lock();
        let Slots { by_hint, turn, .. } = &mut *slots;
        *turn += 1;
        let due = by_hint.iter_mut().filter(|(_, slot)| slot.is_wanted && !slot.in_flight && which(slot));
        let mut due: Vec<_> = due.collect();
        if due.len() > most {
            due.select_nth_unstable_by_key(most, |(_, slot)| slot.turn);
            due.truncate(most);
        }
        let read = |(key, slot): (&HintKey, &mut Slot)| {
            (slot.in_flight, slot.turn) = (true, *turn);
            (key.clone(), slot.read.clone())
        };
        due.into_iter().map(read).collect()
    }

    fn invalidated(&self, frame: &Frame) {
        let mut parts = frame.value().iter();
        if parts.next().and_then(firth_redis::resp::Value::as_str) != Some("invalidate") {
            return;
        }
        let Some(keys) = parts.next().filter(|keys| !keys.is_null()) else {
            // Everything was flushed.
            return self.fire_all();
        };
        let mut slots = self.lock();
        let Slots { by_hint, by_key, .. } = &mut *slots;
        for key in keys.iter().filter_map(firth_redis::resp::Value::as_bytes) {
            if let Some(slot) = by_key.get(key).and_then(|hint| by_hint.get_mut(hint)) {
                slot.invalidated();
            }
        }
    }

    /// Nothing is certain: everybody looks again.
    fn fire_all(&self) {
        let mut slots = self.lock();
        for slot in slots.by_hint.values_mut() {
            slot.is_armed = false;
            slot.hit_in_flight = slot.in_flight;
            slot.fire();
        }
    }

    /// A new connection knows nothing of what was armed.
    fn disarm(&self) {
        self.lock().by_hint.values_mut().for_each(|slot| {
            slot.is_armed = false;
            slot.hit_in_flight = slot.in_flight;
        });
        self.wanted.notify_one();
    }

    fn sweep(&self) {
        let mut slots = self.lock();
        let Slots { by_hint, by_key, .. } = &mut *slots;
        by_hint.retain(|_, slot| {
            let is_used = slot.in_flight || slot.changes.receiver_count() > 0;
            if !is_used {
                by_key.remove(&slot.key);
            }
            is_used
        });
    }
}

impl Notifier {
    pub(super) fn start(client: Client) -> Self {
        let table = Arc::new(Table::default());
        let task = tokio::spawn(serve(client, table.clone()));
        Self { table, task }
    }

    /// A hint on `key`.
    pub(super) fn hint(&self, keys: &Keys, key: HintKey) -> Hint {
        let mut slots = self.table.lock();
        let Slots { by_hint, by_key, .. } = &mut *slots;
        let slot = by_hint.entry(key.clone()).or_insert_with(|| {
            let (name, read) = source(keys, &key);
            let name = Bytes::from(name);
            by_key.insert(name.clone(), key.clone());
            Slot::new(name, read)
        });
        // A new listener must not miss what happens before the next look.
        slot.expected = None;
        slot.is_armed = false;
        let hint = Hint::new(slot.changes.subscribe(), Some(FALLBACK));
        drop(slots);
        let table = self.table.clone();
        hint.with_arm(move || table.want(&key))
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The key of a version, and the command that reads it.
fn source(keys: &Keys, key: &HintKey) -> (String, Command) {
    let partition = |at: &Partition| keys.partition(at);
    let field = |key: String| (key.clone(), cmd("HGET").key(key).arg("v"));
    let plain = |key: String| (key.clone(), cmd("GET").key(key));
    match key {
        HintKey::Log(at) => field(partition(at).meta.clone()),
        HintKey::Stream(stream) => (stream.clone(), cmd("XLEN").key(stream)),
        HintKey::GroupLeases(at) => plain(partition(at).lease_version.clone()),
        HintKey::Pool(pool) => field(keys.pool(pool).meta),
        HintKey::Board(board) => field(keys.board_meta(board)),
        HintKey::Space(space) => plain(keys.space(space).version),
    }
}

async fn serve(client: Client, table: Arc<Table>) {
    let (mut pushes, mut events) = (client.pushes(), client.events());
    let mut tick = tokio::time::interval(POLL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reads = JoinSet::new();
    loop {
        tokio::select! {
            push = pushes.next() => match push {
                Some(Push::Frame(frame)) => table.invalidated(&frame),
                Some(Push::Lagged(_)) => table.fire_all(),
                None => return,
            },
            event = events.next() => match event {
                Some(event) if event.kind == EventKind::Connected => table.disarm(),
                Some(_) => {}
                None => return,
            },
            () = table.wanted.notified() => {
                read_all(&client, &table, &mut reads, table.take(|slot| !slot.is_armed, usize::MAX));
            }
            _ = tick.tick() => {
                table.sweep();
                read_all(&client, &table, &mut reads, table.take(|_| true, PER_TICK));
            }
            Some(_) = reads.join_next(), if !reads.is_empty() => {}
        }
    }
}

fn read_all(client: &Client, table: &Arc<Table>, reads: &mut JoinSet<()>, due: Vec<(HintKey, Command)>) {
    for (key, command) in due {
        let (client, table) = (client.clone(), table.clone());
        reads.spawn(async move {
            let answer = arm(&client, &command).await;
            let mut slots = table.lock();
            let Some(slot) = slots.by_hint.get_mut(&key) else { return };
            match answer {
                Ok((version, armed)) => {
                    slot.read(version, armed);
                    // Somebody began to wait after the push that used this read up.
                    if slot.is_wanted && armed && !slot.is_armed {
                        table.wanted.notify_one();
                    }
                }
                // The next tick tries again.
                Err(_) => slot.in_flight = false,
            }
        });
    }
}

/// Reads a version so that its next change is pushed. The connection may not track yet; then it is told to. Where that is
/// impossible, the version is only read.
async fn arm(client: &Client, read: &Command) -> Result<(i64, bool), CallError> {
    let caching = || pipe().then(cmd("CLIENT").arg("CACHING").arg("YES"));
    let tracking = || pipe().then(cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN"));
    if let Some(version) = try_arm(client, caching(), read).await? {
        return Ok((version, true));
    }
    let both = tracking().then(cmd("CLIENT").arg("CACHING").arg("YES"));
    if let Some(version) = try_arm(client, both, read).await? {
        return Ok((version, true));
    }
    let version: Option<i64> = client.call(read.clone()).await?;
    Ok((version.unwrap_or(0), false))
}

/// The version, or `None` if one of the commands before the read was refused.
async fn try_arm(client: &Client, mut before: Pipe, read: &Command) -> Result<Option<i64>, CallError> {
    before.push(read);
    let mut answers = client.pipeline::<Vec<Frame>>(before.together()).await?;
    let version = answers.pop().expect("the pipeline holds the read")?;
    for answer in answers {
        match answer {
            Ok(_) => {}
            Err(CallError::Server(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(version.value().as_i64().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        Slot { is_wanted: true, in_flight: true, ..Slot::new(Bytes::new(), cmd("GET")) }
    }

    fn fired(slot: &Slot) -> u64 {
        *slot.changes.borrow()
    }

    #[test]
    fn q18_more_waiters_than_a_tick_reads_take_turns() {
        let table = Table::default();
        for n in 0..10 {
            let pool = crate::name::PoolName::new(format!("p{n}")).unwrap();
            table.lock().by_hint.insert(HintKey::Pool(pool), Slot { in_flight: false, ..slot() });
        }
        let mut read = std::collections::HashSet::new();
        for _ in 0..4 {
            let due = table.take(|_| true, 3);
            assert_eq!(due.len(), 3);
            read.extend(due.into_iter().map(|(key, _)| key));
            table.lock().by_hint.values_mut().for_each(|slot| slot.in_flight = false);
        }
        assert_eq!(read.len(), 10, "each within four ticks");
    }

    #[test]
    fn the_first_look_fires_and_an_unchanged_version_does_not() {
        let mut slot = slot();
        slot.read(5, true);
        assert_eq!((fired(&slot), slot.is_armed), (1, true));
        slot.read(5, true);
        assert_eq!(fired(&slot), 1);
        slot.read(6, true);
        assert_eq!(fired(&slot), 2);
    }

    #[test]
    fn a_push_explains_one_change_and_more_fire_again() {
        let mut slot = slot();
        slot.read(5, true);
        slot.invalidated();
        assert_eq!((fired(&slot), slot.is_armed), (2, false));
        slot.read(6, true);
        assert_eq!(fired(&slot), 2, "that was the change of the push");
        slot.invalidated();
        slot.read(8, true);
        assert_eq!(fired(&slot), 4, "one more had happened");
    }

    #[test]
    fn a_push_during_a_read_leaves_the_key_unarmed() {
        let mut slot = slot();
        slot.invalidated();
        slot.read(7, true);
        assert!(!slot.is_armed, "the push may have used up what the read armed");
    }
}
