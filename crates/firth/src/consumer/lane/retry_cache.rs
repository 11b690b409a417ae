//! Cache of records that wait for their retry: the engine need not read them again. Pure.
//!
//! A record that is not here is read from the log. The cache keeps copies, since a record as it was
//! read shares its memory with all records of that read. Many copies lie on one page, and pages are
//! used again: small allocations that live long slow the allocator down. Bounded by number, by runs
//! and by the bytes of the pages; a record that does not fit is not kept.

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
/// A record that is due later is read again: that is rare, and it would hold a whole page.
const SOON: Duration = Duration::from_secs(10);
/// The cache forgets a record that does not come this long after its time.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct RetryCache {
    kept: HashMap<RecordId, Kept, RandomState>,
    /// When the kept records are due; some of them are no longer kept.
    order: Runs,
    /// The records that the engine was asked for.
    asked: Vec<Turn>,
    pages: PagePool,
}

struct Kept {
    due: Instant,
    packed: Bytes,
}

/// When a record is due.
type Turn = (Instant, RecordId);

impl RetryCache {
    /// Keeps the content of a record that is due after about `after`.
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

    /// Up to `max` records that are due by now, the earliest ones, in the order of their ids. The
    /// engine is asked for these.
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

    /// Takes the content of a record that came, asked for or not.
    pub(super) fn take(&mut self, id: RecordId) -> Option<Content> {
        let packed = self.forget(id)?;
        Some(Content::unpack(packed).expect("what was packed here can be unpacked"))
    }

    /// The engine has answered: records that did not come are asked for again, for a while.
    pub(super) fn answered(&mut self, now: Instant) {
        for (due, id) in std::mem::take(&mut self.asked) {
            if self.kept.get(&id).is_none_or(|kept| kept.due != due) {
                continue;
            }
            if due + GRACE < now {
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
            self.pages = PagePool::default();
        }
        Some(kept.packed)
    }
}

/// Due times in few sorted runs: with one delay there is one run, with growing delays one for each.
#[derive(Default)]
struct Runs(Vec<VecDeque<Turn>>);

impl Runs {
    fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// Adds one to the first run that stays sorted; false if there would be too many runs.
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

/// Memory that many copies share. A page is reused when its last copy is dropped.
#[derive(Default)]
struct PagePool {
    /// The page in use; then the full ones.
    open: BytesMut,
    full: Vec<BytesMut>,
    bytes: usize,
}

impl PagePool {
    /// Copies a content in its packed form, if there is memory left.
    fn copy(&mut self, content: &Content) -> Option<Bytes> {
        let size = content.packed_len();
        if self.open.capacity() < size {
            self.open_next(PAGE.max(size))?;
        }
        content.pack(&mut self.open);
        Some(self.open.split().freeze())
    }

    /// Opens a page of at least `size` bytes.
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
        let mut cache = RetryCache::default();
        let now = Instant::now();
        for seq in 1..=3 {
            cache.keep(id(seq), now, ms(10 - seq), &Content::new("x"));
        }
        assert_eq!(cache.ask(now, 9), []);
        assert_eq!(cache.ask(now + ms(9), 2), [id(2), id(3)]);
        assert!(cache.take(id(3)).is_some_and(|content| content.payload == "x"));
        assert!(cache.take(id(3)).is_none());
        cache.answered(now + ms(9));
        assert_eq!(cache.ask(now + ms(9), 9), [id(1), id(2)], "what did not come is asked for again");
    }

    /// What is done with must not be asked for in the place of what is not.
    #[test]
    fn what_came_without_being_asked_for_is_not_asked_for_later() {
        let mut cache = RetryCache::default();
        let now = Instant::now();
        (1..=4).for_each(|seq| cache.keep(id(seq), now, ms(seq), &Content::new("x")));
        assert_eq!(cache.ask(now + ms(4), 1), [id(1)]);
        assert!(cache.take(id(2)).is_some());
        cache.keep(id(3), now, ms(9), &Content::new("failed again"));
        assert_eq!(cache.ask(now + ms(4), 9), [id(1), id(4)]);
        assert_eq!(cache.ask(now + ms(9), 9), [id(1), id(3), id(4)]);
        assert!(cache.take(id(3)).is_some_and(|content| content.payload == "failed again"));
    }

    #[test]
    fn what_never_comes_is_forgotten() {
        let mut cache = RetryCache::default();
        let now = Instant::now();
        cache.keep(id(1), now, ms(1), &Content::new("x"));
        for _ in 0..3 {
            assert_eq!(cache.ask(now + ms(500), 9), [id(1)]);
        }
        assert_eq!(cache.ask(now + GRACE + ms(2), 9), []);
        assert_eq!(cache.kept.len(), 0);
    }

    #[test]
    fn what_waits_long_and_what_does_not_fit_is_not_kept() {
        let mut cache = RetryCache::default();
        let now = Instant::now();
        cache.keep(id(1), now, SOON + ms(1), &Content::new("x"));
        let large = Content::new(vec![0; MAX_BYTES / 2]);
        (2..=4).for_each(|seq| cache.keep(id(seq), now, ms(seq), &large));
        assert_eq!(cache.ask(now + SOON * 2, 9), [id(2)], "two of them and what is around them are too much");
        cache.take(id(2));
        cache.answered(now);
        (1..=MAX_RECORDS as u64 + 5).for_each(|seq| cache.keep(id(seq), now, ms(1), &Content::new("x")));
        assert_eq!(cache.kept.len(), MAX_RECORDS);
    }

    #[test]
    fn pages_are_used_again_and_go_when_nothing_is_kept() {
        let mut cache = RetryCache::default();
        let now = Instant::now();
        let quarter = Content::new(vec![0; PAGE / 4 - 24]);
        for seq in 1..=40 {
            let after = if seq == 1 { SOON } else { ms(seq) };
            cache.keep(id(seq), now, after, &quarter);
            assert_eq!(cache.pages.bytes, PAGE * usize::try_from(seq).unwrap().div_ceil(4));
        }
        let most = cache.ask(now + ms(40), 100);
        assert_eq!(most.len(), 39);
        assert!(most.into_iter().all(|id| cache.take(id).is_some()));
        assert_eq!(cache.pages.bytes, 10 * PAGE, "to be used again");
        (50..86).for_each(|seq| cache.keep(id(seq), now, SOON, &quarter));
        assert_eq!(cache.pages.bytes, 10 * PAGE);
        cache.keep(id(86), now, SOON, &Content::new(vec![0; 3 * PAGE]));
        assert!(cache.pages.bytes > 13 * PAGE);
        let rest = cache.ask(now + SOON, 100);
        assert_eq!(rest.len(), 38);
        assert!(
            rest.into_iter().all(|id| cache.take(id).is_some_and(|content| content.payload.len() > 1000))
        );
        assert_eq!((cache.pages.bytes, cache.pages.full.len()), (0, 0), "nothing is kept, nothing is held");
    }

    /// Delays of all sizes in any order: the cache keeps what fits, and gives it out in the order
    /// of the due times.
    #[test]
    fn what_has_many_delays_is_asked_for_by_its_time() {
        let mut cache = RetryCache::default();
        let now = Instant::now();
        for seq in 1..=200 {
            cache.keep(id(seq), now, ms(seq * 73 % 211), &Content::new("x"));
        }
        let kept = cache.kept.len();
        let mut before = 0;
        assert!(kept > 100 && cache.order.0.len() <= MAX_RUNS, "{kept} in {}", cache.order.0.len());
        for _ in 0..kept {
            let asked = cache.ask(now + ms(211), 1);
            let due = asked[0].seq * 73 % 211;
            assert!(due >= before && cache.take(asked[0]).is_some());
            before = due;
        }
        assert_eq!(cache.ask(now + ms(211), 1), []);
    }

    /// A record comes out as it was put in, after any number of other records came and went.
    #[test]
    fn no_copy_is_written_over_while_it_is_kept() {
        let mut cache = RetryCache::default();
        let now = Instant::now();
        let content = |seq: u64| Content::new(vec![seq as u8; 1 + (seq as usize * 7919) % 30_000]);
        let mut next = 1;
        let mut given = 0;
        for round in 1..=60 {
            for _ in 0..round % 7 + 1 {
                cache.keep(id(next), now, ms(next * 31 % 97), &content(next));
                next += 1;
            }
            for id in cache.ask(now + ms(97), round as usize % 5 + 2) {
                assert_eq!(cache.take(id), Some(content(id.seq)));
                given += 1;
            }
        }
        let rest = cache.ask(now + ms(97), 1000);
        assert_eq!(given + rest.len() as u64, next - 1);
        assert!(rest.into_iter().all(|id| cache.take(id) == Some(content(id.seq))));
    }
}
