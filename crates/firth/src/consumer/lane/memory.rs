//! What failed here, kept until it is due: the engine then need not read it again. Pure.
//!
//! Only a convenience: whatever is not here is read. Copies are kept, since a record as it was read shares its memory with everything that
//! was read with it; many on one page, since thousands of small pieces that live long make all other memory dear. Bounded by number and by
//! the bytes of the pages; what does not fit is not kept.

use bytes::{Bytes, BytesMut};
use firth_engine::{Content, RecordId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

const MAX_RECORDS: usize = 16 * 1024;
const MAX_BYTES: usize = 16 * 1024 * 1024;
const PAGE: usize = 64 * 1024;
/// What is due later than this is read again: it is rare, and would hold whole pages.
const SOON: Duration = Duration::from_secs(10);
/// What does not come this long after its time is not waited for: it came without being asked for, or went elsewhere.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Memory {
    kept: BTreeMap<(Instant, RecordId), Copied>,
    /// What the engine was asked for, by id.
    asked: Vec<Asked>,
    pages: Pages,
}

struct Asked {
    id: RecordId,
    due: Instant,
    copy: Option<Copied>,
}

impl Memory {
    /// Keeps the content of a record that is due in about so long.
    pub(super) fn keep(&mut self, id: RecordId, now: Instant, after: Duration, content: &Content) {
        if after <= SOON
            && self.kept.len() + self.asked.len() < MAX_RECORDS
            && let Some(copy) = self.pages.copy(content)
            && let Some(former) = self.kept.insert((now + after, id), copy)
        {
            self.pages.let_go(&former);
        }
    }

    /// Up to `max` records that are due by now, the earliest first, in the order of their ids: what the engine is asked for.
    pub(super) fn ask(&mut self, now: Instant, max: usize) -> Vec<RecordId> {
        self.answered(now);
        while self.asked.len() < max
            && let Some(first) = self.kept.first_entry().filter(|first| first.key().0 <= now)
        {
            let ((due, id), copy) = first.remove_entry();
            self.asked.push(Asked { id, due, copy: Some(copy) });
        }
        self.asked.sort_unstable_by_key(|asked| asked.id);
        self.asked.iter().map(|asked| asked.id).collect()
    }

    /// The content of a record that the engine was asked for, once.
    pub(super) fn take(&mut self, id: RecordId) -> Option<Content> {
        let at = self.asked.binary_search_by_key(&id, |asked| asked.id).ok()?;
        let copy = self.asked[at].copy.take()?;
        self.pages.let_go(&copy);
        Some(Content::unpack(copy.packed).expect("what was packed here can be unpacked"))
    }

    /// The engine has answered: what did not come is asked for again, but not for ever.
    pub(super) fn answered(&mut self, now: Instant) {
        for Asked { id, due, copy } in self.asked.drain(..) {
            let Some(copy) = copy else { continue };
            if due + PATIENCE < now {
                self.pages.let_go(&copy);
            } else {
                self.kept.insert((due, id), copy);
            }
        }
    }
}

/// The packed form of a content, on a page.
struct Copied {
    page: u64,
    packed: Bytes,
}

/// Memory that many copies share; it is free again when the last of them is.
#[derive(Default)]
struct Pages {
    open: BytesMut,
    /// The pages from number `first` on, the last of them open.
    all: VecDeque<Page>,
    first: u64,
    bytes: usize,
    packed: Vec<u8>,
}

struct Page {
    bytes: usize,
    copies: usize,
}

impl Pages {
    /// Copies a content, if there is memory left.
    fn copy(&mut self, content: &Content) -> Option<Copied> {
        self.packed.clear();
        content.pack(&mut self.packed);
        if self.all.is_empty() || self.open.capacity() < self.packed.len() {
            self.turn(PAGE.max(self.packed.len()))?;
        }
        self.open.extend_from_slice(&self.packed);
        self.all.back_mut()?.copies += 1;
        Some(Copied { page: self.first + self.all.len() as u64 - 1, packed: self.open.split().freeze() })
    }

    /// Opens a page of so many bytes.
    fn turn(&mut self, bytes: usize) -> Option<()> {
        if self.bytes + bytes > MAX_BYTES {
            return None;
        }
        self.open = BytesMut::with_capacity(bytes);
        self.bytes += bytes;
        self.all.push_back(Page { bytes, copies: 0 });
        // The one before was open until now.
        if let Some(before) = self.all.len().checked_sub(2) {
            self.free_if_empty(before);
        }
        Some(())
    }

    fn let_go(&mut self, copy: &Copied) {
        let at = usize::try_from(copy.page - self.first).expect("few pages");
        self.all[at].copies -= 1;
        if at + 1 < self.all.len() {
            self.free_if_empty(at);
        }
    }

    fn free_if_empty(&mut self, at: usize) {
        let page = &mut self.all[at];
        if page.copies == 0 {
            self.bytes -= std::mem::take(&mut page.bytes);
        }
        while self.all.front().is_some_and(|page| page.bytes == 0) {
            self.all.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seq: u64) -> RecordId {
        RecordId::new(7, seq)
    }

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn what_is_due_is_asked_for_by_its_time_and_given_out_once() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        for seq in 1..=3 {
            memory.keep(id(seq), now, ms(10 - seq), &Content::new("x"));
        }
        assert_eq!(memory.ask(now, 9), []);
        assert_eq!(memory.ask(now + ms(9), 2), [id(2), id(3)]);
        assert!(memory.take(id(3)).is_some_and(|content| content.payload == "x"));
        assert!(memory.take(id(3)).is_none() && memory.take(id(1)).is_none());
        memory.answered(now + ms(9));
        assert_eq!(memory.ask(now + ms(9), 9), [id(1), id(2)], "what did not come is asked for again");
    }

    #[test]
    fn what_never_comes_is_forgotten() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        memory.keep(id(1), now, ms(1), &Content::new("x"));
        for _ in 0..3 {
            assert_eq!(memory.ask(now + ms(500), 9), [id(1)]);
        }
        assert_eq!(memory.ask(now + ms(1002), 9), []);
        assert!(memory.kept.is_empty());
    }

    #[test]
    fn what_waits_long_and_what_does_not_fit_is_not_kept() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        memory.keep(id(1), now, SOON + ms(1), &Content::new("x"));
        let large = Content::new(vec![0; MAX_BYTES / 2]);
        (2..=4).for_each(|seq| memory.keep(id(seq), now, ms(seq), &large));
        assert_eq!(
            memory.ask(now + SOON * 2, 9),
            [id(2)],
            "two of them and what is around them are too much"
        );
        memory.take(id(2));
        memory.answered(now);
        (1..=MAX_RECORDS as u64 + 5).for_each(|seq| memory.keep(id(seq), now, ms(1), &Content::new("x")));
        assert_eq!(memory.kept.len(), MAX_RECORDS);
    }

    /// Whatever order they go in, pages are counted as long as a copy lies on them and no longer.
    #[test]
    fn pages_are_counted_as_long_as_something_lies_on_them() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let quarter = Content::new(vec![0; PAGE / 4 - 24]);
        for seq in 1..=40 {
            let after = if seq == 1 { SOON } else { ms(seq) };
            memory.keep(id(seq), now, after, &quarter);
            assert_eq!(memory.pages.bytes, PAGE * usize::try_from(seq).unwrap().div_ceil(4));
        }
        let most = memory.ask(now + ms(40), 100);
        assert_eq!(most.len(), 39);
        assert!(most.into_iter().all(|id| memory.take(id).is_some()));
        assert_eq!(memory.pages.bytes, 2 * PAGE, "the one of the first and the open one");
        assert_eq!(memory.ask(now + SOON, 1), [id(1)]);
        memory.take(id(1));
        assert_eq!((memory.pages.bytes, memory.pages.all.len()), (PAGE, 1));
        memory.keep(id(41), now, ms(1), &quarter);
        assert_eq!((memory.pages.bytes, memory.pages.all.len()), (PAGE, 1));
    }
}
