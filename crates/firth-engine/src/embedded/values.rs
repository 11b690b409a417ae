//! The values of the state space: plain structs, each with its packed form. Nothing here decides
//! anything.

use crate::ahead::Ahead;
use crate::codec::{Reader, put_number, put_run};
use crate::error::{Error, Result};
use crate::facet::SourceMark;
use crate::hold::Token;
use crate::id::{Epoch, RecordId};
use crate::name::HolderName;
use bytes::Bytes;

/// A value of the state space.
pub(super) trait Value: Sized {
    /// What it is, for error messages.
    const WHAT: &'static str;
    fn pack(&self, out: &mut Vec<u8>);
    fn unpack(reader: &mut Reader) -> Option<Self>;

    fn packed(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        self.pack(&mut out);
        out.into()
    }

    fn read(bytes: Bytes) -> Result<Self> {
        let mut reader = Reader(bytes);
        Self::unpack(&mut reader)
            .ok_or_else(|| Error::corrupt(format!("a stored {} is damaged: see `firth check`", Self::WHAT)))
    }
}

fn put_id(out: &mut Vec<u8>, id: RecordId) {
    put_number(out, id.ms);
    put_number(out, id.seq);
}

fn id(reader: &mut Reader) -> Option<RecordId> {
    Some(RecordId::new(reader.number()?, reader.number()?))
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PartitionMeta {
    /// Its number.
    pub(super) no: u64,
    /// The newest record.
    pub(super) last: RecordId,
    /// The newest record that was trimmed.
    pub(super) trimmed: RecordId,
    /// Delayed messages, and how many there ever were.
    pub(super) delayed: u64,
    pub(super) delayed_ever: u64,
    /// Remembered idempotent producers.
    pub(super) producers: u64,
    /// Retention by size: the last record whose size was added up (0: none since the last other
    /// trim), and the sum.
    pub(super) measured: u64,
    pub(super) measured_bytes: u64,
    /// Under which it was made.
    pub(super) rank: u64,
}

impl Value for PartitionMeta {
    const WHAT: &'static str = "partition";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.no);
        put_id(out, self.last);
        put_id(out, self.trimmed);
        put_number(out, self.delayed);
        put_number(out, self.delayed_ever);
        put_number(out, self.producers);
        if self.measured > 0 || self.rank > 0 {
            put_number(out, self.measured);
            put_number(out, self.measured_bytes);
        }
        if self.rank > 0 {
            put_number(out, self.rank);
        }
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        Some(Self {
            no: reader.number()?,
            last: id(reader)?,
            trimmed: id(reader)?,
            delayed: reader.number()?,
            delayed_ever: reader.number()?,
            producers: reader.number()?,
            measured: reader.number().unwrap_or(0),
            measured_bytes: reader.number().unwrap_or(0),
            rank: reader.number().unwrap_or(0),
        })
    }
}

/// Delayed messages of a partition that were cancelled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cancelled {
    /// Messages up to this time may have been cancelled and forgotten.
    pub(super) forgotten_ms: u64,
    /// The others, in order.
    pub(super) last: Vec<RecordId>,
}

impl Value for Cancelled {
    const WHAT: &'static str = "list of cancelled messages";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.forgotten_ms);
        put_number(out, self.last.len() as u64);
        self.last.iter().for_each(|id| put_id(out, *id));
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let forgotten_ms = reader.number()?;
        let count = reader.number()?;
        let last = (0..count).map(|_| id(reader)).collect::<Option<_>>()?;
        Some(Self { forgotten_ms, last })
    }
}

impl Value for SourceMark {
    const WHAT: &'static str = "source mark";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.epoch.0);
        put_run(out, &self.upto);
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        Some(Self { epoch: Epoch(reader.number()?), upto: reader.run()? })
    }
}

/// A group in one partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GroupMeta {
    /// Its number.
    pub(super) no: u64,
    pub(super) frontier: RecordId,
    pub(super) ahead: Ahead,
    /// The epoch that opened it last, and whether that owner left properly.
    pub(super) opened: Epoch,
    pub(super) left: bool,
    /// Owners in a row that vanished while `crash_seq` was the first open record.
    pub(super) crashes: u32,
    pub(super) crash_seq: u64,
    pub(super) due: u64,
    pub(super) dead: u64,
    /// What the last owner said of the records that it starts; nothing in what older versions
    /// wrote.
    pub(super) reach: Option<u64>,
}

impl GroupMeta {
    /// The first record that is not settled.
    pub(super) fn first_open(&self) -> u64 {
        self.ahead.first_missing_after(self.frontier.seq)
    }
}

impl Value for GroupMeta {
    const WHAT: &'static str = "group";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.no);
        put_id(out, self.frontier);
        self.ahead.pack(out);
        put_number(out, self.opened.0);
        out.push(u8::from(self.left));
        put_number(out, u64::from(self.crashes));
        put_number(out, self.crash_seq);
        put_number(out, self.due);
        put_number(out, self.dead);
        if let Some(reach) = self.reach {
            put_number(out, reach);
        }
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        Some(Self {
            no: reader.number()?,
            frontier: id(reader)?,
            ahead: Ahead::unpack(reader)?,
            opened: Epoch(reader.number()?),
            left: reader.byte()? != 0,
            crashes: reader.small()?,
            crash_seq: reader.number()?,
            due: reader.number()?,
            dead: reader.number()?,
            reach: reader.number(),
        })
    }
}

/// A record that waits for its next attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DueEntry {
    /// Engine time in milliseconds.
    pub(super) ms: u64,
    /// The attempt that comes next.
    pub(super) attempt: u32,
    pub(super) crashes: u32,
    /// Whether the owner has it.
    pub(super) taken: bool,
    /// The last reason and the failures before it, see [`failures`](crate::failures).
    pub(super) failures: String,
    /// The packed content, if it is kept aside.
    pub(super) kept: Option<Bytes>,
}

impl Value for DueEntry {
    const WHAT: &'static str = "due record";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.ms);
        put_number(out, u64::from(self.attempt));
        put_number(out, u64::from(self.crashes));
        out.push(u8::from(self.taken) | if self.kept.is_some() { 2 } else { 0 });
        put_run(out, self.failures.as_bytes());
        out.extend_from_slice(self.kept.as_deref().unwrap_or_default());
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let ms = reader.number()?;
        let attempt = reader.small()?;
        let crashes = reader.small()?;
        let flags = reader.byte()?;
        let failures = reader.text()?;
        let kept = (flags & 2 != 0).then(|| reader.0.clone());
        Some(Self { ms, attempt, crashes, taken: flags & 1 != 0, failures, kept })
    }
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeadEntry {
    /// When it died, engine time in milliseconds.
    pub(super) ms: u64,
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// As in [`DueEntry`].
    pub(super) failures: String,
    /// The packed content.
    pub(super) content: Bytes,
}

impl Value for DeadEntry {
    const WHAT: &'static str = "dead letter";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.ms);
        put_number(out, u64::from(self.attempts));
        put_number(out, u64::from(self.crashes));
        put_run(out, self.failures.as_bytes());
        out.extend_from_slice(&self.content);
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        Some(Self {
            ms: reader.number()?,
            attempts: reader.small()?,
            crashes: reader.small()?,
            failures: reader.text()?,
            content: reader.0.clone(),
        })
    }
}

/// A batch that a producer sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SentBatch {
    /// The producer's number of the first record, and how many records.
    pub(super) first: u64,
    pub(super) count: u64,
    /// Where it went; [`RecordId::ZERO`] if it was delayed.
    pub(super) id: RecordId,
}

/// What a partition remembers of an idempotent producer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProducerState {
    /// When it was last heard of.
    pub(super) ms: u64,
    /// Its last batches, oldest first.
    pub(super) batches: Vec<SentBatch>,
}

impl Value for ProducerState {
    const WHAT: &'static str = "producer";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.ms);
        put_number(out, self.batches.len() as u64);
        for batch in &self.batches {
            put_number(out, batch.first);
            put_number(out, batch.count);
            put_id(out, batch.id);
        }
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let ms = reader.number()?;
        let count = reader.number()?;
        let batches = (0..count)
            .map(|_| Some(SentBatch { first: reader.number()?, count: reader.number()?, id: id(reader)? }))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { ms, batches })
    }
}

/// A lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseEntry {
    pub(super) holder: Option<HolderName>,
    pub(super) epoch: Epoch,
    pub(super) token: Token,
    /// Engine time in milliseconds.
    pub(super) deadline: u64,
    pub(super) beats: u64,
    pub(super) note: Bytes,
    /// The largest rank that ever took it; 0 if none.
    pub(super) rank: u64,
}

impl Value for LeaseEntry {
    const WHAT: &'static str = "lease";

    fn pack(&self, out: &mut Vec<u8>) {
        put_run(out, self.holder.as_ref().map_or("", |holder| holder.as_str()).as_bytes());
        put_number(out, self.epoch.0);
        out.extend_from_slice(&self.token.0.to_be_bytes());
        put_number(out, self.deadline);
        put_number(out, self.beats);
        put_run(out, &self.note);
        put_number(out, self.rank);
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let holder = reader.text()?;
        let holder = if holder.is_empty() { None } else { Some(HolderName::new(holder).ok()?) };
        let epoch = Epoch(reader.number()?);
        let mut token = [0; 16];
        for byte in &mut token {
            *byte = reader.byte()?;
        }
        Some(Self {
            holder,
            epoch,
            token: Token(u128::from_be_bytes(token)),
            deadline: reader.number()?,
            beats: reader.number()?,
            note: reader.run()?,
            // Leases stored before there were ranks end here.
            rank: if reader.is_empty() { 0 } else { reader.number()? },
        })
    }
}

/// A catalog entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CatalogEntry {
    pub(super) version: u64,
    pub(super) value: Bytes,
}

impl Value for CatalogEntry {
    const WHAT: &'static str = "catalog entry";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, self.version);
        out.extend_from_slice(&self.value);
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        Some(Self { version: reader.number()?, value: reader.0.clone() })
    }
}

/// The clock as it was kept.
#[cfg(feature = "embedded")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct KeptClock {
    /// Which start of the machine, and when after it, in µs.
    pub(super) boot_id: u128,
    pub(super) boot: u64,
    /// As in [`LogicalClock`](crate::clock::LogicalClock).
    pub(super) offset: i64,
    pub(super) last: u64,
}

#[cfg(feature = "embedded")]
impl Value for KeptClock {
    const WHAT: &'static str = "clock";

    fn pack(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.boot_id.to_be_bytes());
        put_number(out, self.boot);
        put_number(out, self.offset.cast_unsigned());
        put_number(out, self.last);
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        let mut boot_id = [0; 16];
        for byte in &mut boot_id {
            *byte = reader.byte()?;
        }
        Some(Self {
            boot_id: u128::from_be_bytes(boot_id),
            boot: reader.number()?,
            offset: reader.number()?.cast_signed(),
            last: reader.number()?,
        })
    }
}

/// A bare counter.
impl Value for u64 {
    const WHAT: &'static str = "counter";

    fn pack(&self, out: &mut Vec<u8>) {
        put_number(out, *self);
    }

    fn unpack(reader: &mut Reader) -> Option<Self> {
        reader.number()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round<V: Value + PartialEq + std::fmt::Debug>(value: V) {
        assert_eq!(V::read(value.packed()).unwrap(), value);
    }

    proptest! {
        #[test]
        fn values_survive_packing(a: u64, b: u64, c: u32, flag: bool, reason in ".{0,20}", bytes: Vec<u8>) {
            let id = RecordId::new(a, b);
            let bytes = Bytes::from(bytes);
            let (measured, measured_bytes) = if flag { (b.max(1), a) } else { (0, 0) };
            round(PartitionMeta { no: a, last: id, trimmed: id, delayed: b, delayed_ever: a, producers: b, measured, measured_bytes, rank: c.into() });
            round(GroupMeta { no: b, frontier: id, ahead: [b / 2 + 1].into_iter().collect(), opened: Epoch(a), left: flag,
                crashes: c, crash_seq: a, due: b, dead: a, reach: flag.then_some(b) });
            round(DueEntry { ms: a, attempt: c, crashes: c, taken: flag, failures: reason.clone(),
                kept: flag.then(|| bytes.clone()) });
            round(DeadEntry { ms: a, attempts: c, crashes: c, failures: reason, content: bytes.clone() });
            round(ProducerState { ms: a, batches: vec![SentBatch { first: a, count: b, id }] });
            round(LeaseEntry { holder: flag.then(|| HolderName::new("h").unwrap()), epoch: Epoch(a),
                token: Token(u128::from(a) << 64 | u128::from(b)), deadline: a, beats: b, note: bytes.clone(), rank: b });
            round(CatalogEntry { version: a, value: bytes });
            #[cfg(feature = "embedded")]
            round(KeptClock { boot_id: u128::from(b), boot: a, offset: b.cast_signed(), last: a });
            round(a);
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = (GroupMeta::read(bytes.clone()), DueEntry::read(bytes.clone()), LeaseEntry::read(bytes.clone()));
            let _ = (PartitionMeta::read(bytes.clone()), ProducerState::read(bytes.clone()), DeadEntry::read(bytes));
        }
    }
}
