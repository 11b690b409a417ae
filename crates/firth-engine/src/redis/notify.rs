//! Waking callers that wait: RESP3 client tracking on the client's shared connections, with a slow
//! poll as the guarantee.
//!
//! Everything that can be waited for has a version in one key. When a caller begins to wait, the
//! notifier *arms* the key: it reads the key with `CLIENT CACHING YES` in front. The server then
//! pushes an invalidation with the next change of the key. The version that the read returns shows
//! what was missed before. If no caller waits for a key, the notifier does not arm it, so a busy
//! consumer costs nothing.
//!
//! If a connection is replaced, its armed keys are lost. So the notifier reads armed keys again
//! after a reconnection and at each tick of the poll. If the server or its ACL rules do not allow
//! tracking, the poll is the only way. Keyspace notifications are not used.

use super::keys::KeyNames;
use crate::name::Partition;
use crate::watch::{Hint, HintKey};
use bytes::Bytes;
use firth_redis::resp::Frame;
use firth_redis::{CallError, Client, Command, ConnectionEventKind, Pipe, Push, cmd, pipe};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};

/// How often armed keys are read again.
const POLL: Duration = Duration::from_secs(1);
/// How often a hint fires even without a change.
const FALLBACK: Duration = Duration::from_secs(5);
/// Keys read at one tick; more take turns.
const PER_TICK: usize = 2000;

/// Knows who waits for what.
pub(super) struct Notifier {
    table: Arc<WatchTable>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct WatchTable {
    slots: Mutex<Slots>,
    wanted: Notify,
}

#[derive(Default)]
struct Slots {
    by_hint: HashMap<HintKey, HintSlot>,
    /// Whose version lies in a key.
    by_key: HashMap<Bytes, HintKey>,
    /// Counts turns of reads.
    turn: u64,
}

/// One thing that is waited for.
struct HintSlot {
    changes: watch::Sender<u64>,
    /// The key whose change is pushed, and the command that reads its version.
    key: Bytes,
    read: Command,
    /// A caller waits.
    is_wanted: bool,
    /// The server will push the next change.
    is_armed: bool,
    /// A read is under way.
    in_flight: bool,
    /// The turn of its last read.
    turn: u64,
    /// An invalidation came while a read was under way: it may be the answer to that very read.
    hit_in_flight: bool,
    /// The version that the next read shows if nothing is missed; `None` for a hint that has not
    /// looked yet.
    expected: Option<i64>,
}

impl HintSlot {
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

    /// The server says that the key changed. `expected` stays: the change may be one of another
    /// field (a clock that is kept, say). If the next read shows a new version, the caller looks
    /// once more, because that version may have come after its look.
    fn invalidated(&mut self) {
        self.is_armed = false;
        self.hit_in_flight = self.in_flight;
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

impl WatchTable {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("nothing panics while it holds this lock")
    }

    /// A caller begins to wait.
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
    fn take(&self, which: impl Fn(&HintSlot) -> bool, most: usize) -> Vec<(HintKey, Command)> {
        let mut slots = self.lock();
        let Slots { by_hint, turn, .. } = &mut *slots;
        *turn += 1;
        let due = by_hint.iter_mut().filter(|(_, slot)| slot.is_wanted && !slot.in_flight && which(slot));
        let mut due: Vec<_> = due.collect();
        if due.len() > most {
            due.select_nth_unstable_by_key(most, |(_, slot)| slot.turn);
            due.truncate(most);
        }
        let read = |(key, slot): (&HintKey, &mut HintSlot)| {
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
        let table = Arc::new(WatchTable::default());
        let task = tokio::spawn(serve(client, table.clone()));
        Self { table, task }
    }

    /// A hint on `key`.
    pub(super) fn hint(&self, keys: &KeyNames, key: HintKey) -> Hint {
        let mut slots = self.table.lock();
        let Slots { by_hint, by_key, .. } = &mut *slots;
        let slot = by_hint.entry(key.clone()).or_insert_with(|| {
            let (name, read) = source(keys, &key);
            let name = Bytes::from(name);
            by_key.insert(name.clone(), key.clone());
            HintSlot::new(name, read)
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
fn source(keys: &KeyNames, key: &HintKey) -> (String, Command) {
    let partition = |at: &Partition| keys.partition(at);
    let field = |key: String| (key.clone(), cmd("HGET").key(key).arg("v"));
    let plain = |key: String| (key.clone(), cmd("GET").key(key));
    match key {
        HintKey::Log(at) => field(partition(at).meta.clone()),
        HintKey::Stream(stream) => (stream.clone(), cmd("XLEN").key(stream)),
        HintKey::GroupLeases(at) => plain(partition(at).lease_version.clone()),
        HintKey::Pool(pool) => field(keys.pool(pool).meta),
        HintKey::ClaimShard(claim_shard) => field(keys.claim_shard_meta(claim_shard)),
        HintKey::Space(space) => plain(keys.space(space).version),
    }
}

async fn serve(client: Client, table: Arc<WatchTable>) {
    let mut pushes = client.pushes();
    let mut events = client.events();
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
                Some(event) if event.kind == ConnectionEventKind::Connected => table.disarm(),
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

fn read_all(client: &Client, table: &Arc<WatchTable>, reads: &mut JoinSet<()>, due: Vec<(HintKey, Command)>) {
    for (key, command) in due {
        let client = client.clone();
        let table = table.clone();
        reads.spawn(async move {
            let answer = arm(&client, &command).await;
            let mut slots = table.lock();
            let Some(slot) = slots.by_hint.get_mut(&key) else { return };
            match answer {
                Ok((version, armed)) => {
                    slot.read(version, armed);
                    // A caller began to wait after the push that used this read up: arm it again.
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

/// Reads a version so that its next change is pushed. The connection may not track yet; then it is
/// told to. Where that is impossible, the version is only read.
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

    fn slot() -> HintSlot {
        HintSlot { is_wanted: true, in_flight: true, ..HintSlot::new(Bytes::new(), cmd("GET")) }
    }

    fn fired(slot: &HintSlot) -> u64 {
        *slot.changes.borrow()
    }

    #[test]
    fn q18_more_waiters_than_a_tick_reads_take_turns() {
        let table = WatchTable::default();
        for n in 0..10 {
            let pool = crate::name::PoolName::new(format!("p{n}")).unwrap();
            table.lock().by_hint.insert(HintKey::Pool(pool), HintSlot { in_flight: false, ..slot() });
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
    fn q18_a_push_of_another_field_hides_no_change() {
        let mut slot = slot();
        slot.read(5, true);
        slot.invalidated();
        assert_eq!((fired(&slot), slot.is_armed), (2, false));
        slot.read(5, true);
        assert_eq!(fired(&slot), 2, "the version is the same: nothing to look for");
        slot.invalidated();
        slot.read(6, true);
        assert_eq!(fired(&slot), 4, "the change may have come after the look that the push caused");
        slot.read(6, true);
        assert_eq!(fired(&slot), 4);
    }

    #[test]
    fn a_push_during_a_read_leaves_the_key_unarmed() {
        let mut slot = slot();
        slot.invalidated();
        slot.read(7, true);
        assert!(!slot.is_armed, "the push may have used up what the read armed");
    }
}
