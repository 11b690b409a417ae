//! What failed here, kept until it is due: the engine then need not read it again. Pure.
//!
//! Only a convenience: whatever is not here is read. Bounded by number and bytes; what does not fit is not kept. Copies are kept: a
//! record as it was read shares its memory with everything that was read with it.

use bytes::Bytes;
use firth_engine::{Content, RecordId};
use std::collections::{BTreeSet, HashMap};
use tokio::time::Instant;

const MAX_RECORDS: usize = 16 * 1024;
const MAX_BYTES: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Memory {
    packed: HashMap<RecordId, (Instant, Bytes)>,
    by_time: BTreeSet<(Instant, RecordId)>,
    bytes: usize,
}

impl Memory {
    /// Keeps the content of a record that is due at about this time.
    pub(super) fn keep(&mut self, id: RecordId, due: Instant, content: &Content) {
        self.take(id);
        if self.packed.len() < MAX_RECORDS && self.bytes + content.packed_len() <= MAX_BYTES {
            let packed = content.packed();
            self.bytes += packed.len();
            self.by_time.insert((due, id));
            self.packed.insert(id, (due, packed));
        }
    }

    /// Up to `max` records that are due by now, the earliest first.
    pub(super) fn due(&self, now: Instant, max: usize) -> Vec<RecordId> {
        self.by_time.iter().take_while(|(due, _)| *due <= now).take(max).map(|(_, id)| *id).collect()
    }

    /// The content, if it is here; then it is not any more.
    pub(super) fn take(&mut self, id: RecordId) -> Option<Content> {
        let (due, packed) = self.packed.remove(&id)?;
        self.by_time.remove(&(due, id));
        self.bytes -= packed.len();
        Some(Content::unpack(packed).expect("what was packed here can be unpacked"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn id(seq: u64) -> RecordId {
        RecordId::new(7, seq)
    }

    #[test]
    fn what_is_due_comes_by_its_time_and_is_given_out_once() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        for seq in 1..=3 {
            memory.keep(id(seq), now + Duration::from_secs(10 - seq), &Content::new("x"));
        }
        assert_eq!(memory.due(now, 9), []);
        assert_eq!(memory.due(now + Duration::from_secs(8), 9), [id(3), id(2)]);
        assert_eq!(memory.due(now + Duration::from_secs(9), 1), [id(3)]);
        assert!(memory.take(id(3)).is_some() && memory.take(id(3)).is_none());
        assert_eq!(memory.due(now + Duration::from_secs(9), 9), [id(2), id(1)]);
    }

    #[test]
    fn a_full_memory_keeps_no_more_and_forgets_what_is_kept_again() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let large = Content::new(vec![0; MAX_BYTES / 2]);
        (1..=3).for_each(|seq| memory.keep(id(seq), now, &large));
        assert_eq!(memory.due(now, 9), [id(1)], "two of them and what is around them are too much");
        memory.keep(id(1), now, &Content::new("small"));
        assert!(memory.bytes < 100 && memory.by_time.len() == 1);
        (1..=MAX_RECORDS as u64 + 5).for_each(|seq| memory.keep(id(seq), now, &Content::new("x")));
        assert_eq!((memory.packed.len(), memory.by_time.len()), (MAX_RECORDS, MAX_RECORDS));
    }
}
