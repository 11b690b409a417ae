//! What failed here, kept until it is due: the engine then need not read it again. Pure.
//!
//! Only a convenience: whatever is not here is read. Copies are kept, since a record as it was read shares its memory with everything that
//! was read with it; many on one page, and pages are used again: pieces that live long among many that do not make all memory dear.
//! Bounded by number, by runs and by the bytes of the pages; what does not fit is not kept.

use bytes::{Bytes, BytesMut};
use firth_engine::{Content, RecordId};
use foldhash::fast::RandomState;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

const MAX_RECORDS: usize = 16 * 1024;
const MAX_BYTES: usize = 16 * 1024 * 1024;
const PAGE: usize = 64 * 1024;
const MAX_RUNS: usize = 64;
/// What is due later than this is read again: it is rare, and would hold whole pages.
const SOON: Duration = Duration::from_secs(10);
/// What does not come this long after its time is not waited for: it went elsewhere.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Memory {
    kept: HashMap<RecordId, Kept, RandomState>,
    /// What is kept, and some that is not any more.
    order: Runs,
    /// What the engine was asked for.
    asked: Vec<Turn>,
    pages: Pages,
}

struct Kept {
    due: Instant,
    packed: Bytes,
}

/// When a record is due.
type Turn = (Instant, RecordId);

impl Memory {
    /// Keeps the content of a record that is due in about so long.
    pub(super) fn keep(&mut self, id: RecordId, now: Instant, after: Duration, content: &Content) {
        let due = now + after;
        if after <= SOON
            && self.order.len() + self.asked.len() < MAX_RECORDS
            && let Some(packed) = self.pages.copy(content)
        {
            self.kept.insert(id, Kept { due, packed });
            self.put((due, id));
        } else {
            self.forget(id);
        }
    }

    /// Up to `max` records that are due by now, the earliest first, in the order of their ids: what the engine is asked for.
    pub(super) fn ask(&mut self, now: Instant, max: usize) -> Vec<RecordId> {
        self.answered(now);
        while self.asked.len() < max
            && let Some((due, id)) = self.order.pop(now)
        {
            if self.kept.get(&id).is_some_and(|kept| kept.due == due) {
                self.asked.push((due, id));
            }
        }
        let mut ids: Vec<_> = self.asked.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The content of a record that is here again, whether the engine was asked for it or not.
    pub(super) fn take(&mut self, id: RecordId) -> Option<Content> {
        let packed = self.forget(id)?;
        Some(Content::unpack(packed).expect("what was packed here can be unpacked"))
    }

    /// The engine has answered: what did not come is asked for again, but not for ever.
    pub(super) fn answered(&mut self, now: Instant) {
        for (due, id) in std::mem::take(&mut self.asked) {
            if self.kept.get(&id).is_none_or(|kept| kept.due != due) {
                continue;
            }
            if due + PATIENCE < now {
                self.forget(id);
            } else {
                self.put((due, id));
            }
        }
    }

    fn put(&mut self, (due, id): Turn) {
        if !self.order.push((due, id)) {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: RecordId) -> Option<Bytes> {
        let kept = self.kept.remove(&id)?;
        if self.kept.is_empty() {
            self.pages = Pages::default();
        }
        Some(kept.packed)
    }
}

/// Turns in few runs that are each in the order of time: with one delay there is one run, with growing delays one for each.
#[derive(Default)]
struct Runs(Vec<VecDeque<Turn>>);

impl Runs {
    fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// Puts one behind those that come before it; false if there would be too many runs.
    fn push(&mut self, turn: Turn) -> bool {
        let fits = |run: &VecDeque<Turn>| run.back().is_none_or(|last| *last <= turn);
        match self.0.iter().position(fits) {
            Some(at) => self.0[at].push_back(turn),
            None if self.0.len() == MAX_RUNS => return false,
            None => self.0.push(VecDeque::from([turn])),
        }
        true
    }

    /// The earliest one, if it is due by now.
    fn pop(&mut self, now: Instant) -> Option<Turn> {
        let first = |at: &usize| self.0[*at].front().copied();
        let is_due = |at: &usize| first(at).is_some_and(|(due, _)| due <= now);
        let earliest = (0..self.0.len()).filter(is_due).min_by_key(first)?;
        self.0[earliest].pop_front()
    }
}

/// Memory that many copies share. A page is written on again when the last copy on it was let go.
#[derive(Default)]
struct Pages {
    /// The one that is written on, and those that are full.
    open: BytesMut,
    full: Vec<BytesMut>,
    bytes: usize,
}

impl Pages {
    /// Copies a content in its packed form, if there is memory left.
    fn copy(&mut self, content: &Content) -> Option<Bytes> {
        let size = content.packed_len();
        if self.open.capacity() < size {
            self.open_next(PAGE.max(size))?;
        }
        content.pack(&mut self.open);
        Some(self.open.split().freeze())
    }

    /// Opens a page of so many bytes.
    fn open_next(&mut self, size: usize) -> Option<()> {
        let free = self.full.iter_mut().position(|page| page.try_reclaim(size));
        let next = match free {
            Some(at) => self.full.swap_remove(at),
            None if self.bytes + size <= MAX_BYTES => {
                self.bytes += size;
                BytesMut::with_capacity(size)
            }
            None => return None,
        };
        self.full.push(std::mem::replace(&mut self.open, next));
        Some(())
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
        assert!(memory.take(id(3)).is_none());
        memory.answered(now + ms(9));
        assert_eq!(memory.ask(now + ms(9), 9), [id(1), id(2)], "what did not come is asked for again");
    }

    /// What is done with must not be asked for in the place of what is not.
    #[test]
    fn what_came_without_being_asked_for_is_not_asked_for_later() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        (1..=4).for_each(|seq| memory.keep(id(seq), now, ms(seq), &Content::new("x")));
        assert_eq!(memory.ask(now + ms(4), 1), [id(1)]);
        assert!(memory.take(id(2)).is_some());
        memory.keep(id(3), now, ms(9), &Content::new("failed again"));
        assert_eq!(memory.ask(now + ms(4), 9), [id(1), id(4)]);
        assert_eq!(memory.ask(now + ms(9), 9), [id(1), id(3), id(4)]);
        assert!(memory.take(id(3)).is_some_and(|content| content.payload == "failed again"));
    }

    #[test]
    fn what_never_comes_is_forgotten() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        memory.keep(id(1), now, ms(1), &Content::new("x"));
        for _ in 0..3 {
            assert_eq!(memory.ask(now + ms(500), 9), [id(1)]);
        }
        assert_eq!(memory.ask(now + PATIENCE + ms(2), 9), []);
        assert_eq!(memory.kept.len(), 0);
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

    #[test]
    fn pages_are_used_again_and_go_when_nothing_is_kept() {
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
        assert_eq!(memory.pages.bytes, 10 * PAGE, "to be used again");
        (50..86).for_each(|seq| memory.keep(id(seq), now, SOON, &quarter));
        assert_eq!(memory.pages.bytes, 10 * PAGE);
        memory.keep(id(86), now, SOON, &Content::new(vec![0; 3 * PAGE]));
        assert!(memory.pages.bytes > 13 * PAGE);
        let rest = memory.ask(now + SOON, 100);
        assert_eq!(rest.len(), 38);
        assert!(
            rest.into_iter().all(|id| memory.take(id).is_some_and(|content| content.payload.len() > 1000))
        );
        assert_eq!((memory.pages.bytes, memory.pages.full.len()), (0, 0), "nothing is kept, nothing is held");
    }

    /// Delays of all sizes in any order: whatever fits is given out by its time.
    #[test]
    fn what_has_many_delays_is_asked_for_by_its_time() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        for seq in 1..=200 {
            memory.keep(id(seq), now, ms(seq * 73 % 211), &Content::new("x"));
        }
        let (kept, mut before) = (memory.kept.len(), 0);
        assert!(kept > 100 && memory.order.0.len() <= MAX_RUNS, "{kept} in {}", memory.order.0.len());
        for _ in 0..kept {
            let asked = memory.ask(now + ms(211), 1);
            let due = asked[0].seq * 73 % 211;
            assert!(due >= before && memory.take(asked[0]).is_some());
            before = due;
        }
        assert_eq!(memory.ask(now + ms(211), 1), []);
    }

    /// What comes out is what was put in, whatever was kept and given out in between.
    #[test]
    fn no_copy_is_written_over_while_it_is_kept() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let content = |seq: u64| Content::new(vec![seq as u8; 1 + (seq as usize * 7919) % 30_000]);
        let (mut next, mut given) = (1, 0);
        for round in 1..=60 {
            for _ in 0..round % 7 + 1 {
                memory.keep(id(next), now, ms(next * 31 % 97), &content(next));
                next += 1;
            }
            for id in memory.ask(now + ms(97), round as usize % 5 + 2) {
                assert_eq!(memory.take(id), Some(content(id.seq)));
                given += 1;
            }
        }
        let rest = memory.ask(now + ms(97), 1000);
        assert_eq!(given + rest.len() as u64, next - 1);
        assert!(rest.into_iter().all(|id| memory.take(id) == Some(content(id.seq))));
    }
}
