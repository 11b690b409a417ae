//! Direct writes: a writer of the hub writes events to a socket without waking its task.
//!
//! **Why this is safe** (invariant 1). The caller holds the lock of the outbox. Nothing is written
//! while the task holds what it took, nor while a batch is written in part: then only the task
//! writes. So one writer writes at a time, and frames never mix.

use super::{Item, Outbox, PartialWrite, Wake};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::time::Instant;

/// How many pieces one write takes.
const PIECES: usize = 16;

impl Outbox {
    /// Writes the events in front, unless the task is writing or must first finish a partial write.
    /// False if something is left for the task.
    pub(crate) fn write_direct(
        &mut self,
        now: Instant,
        write: impl Fn(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> bool {
        if self.is_held || self.partial.is_some() {
            return false;
        }
        while let Some(Item::Batch(_)) = self.items.front() {
            // If the socket is broken, its task finds out.
            let Ok(written @ 1..) = write(&self.batches_in_front()) else { return false };
            self.scheduled = Wake::No;
            self.written_at = Some(now);
            self.wrote(written);
            if self.partial.is_some() {
                return false;
            }
        }
        if self.items.is_empty() {
            self.emptied();
        }
        !self.has_more()
    }

    fn batches_in_front<'a>(&'a self) -> SmallVec<[IoSlice<'a>; 1]> {
        let bytes = |item: &'a Item| match item {
            Item::Batch(batch) => Some(IoSlice::new(batch.bytes())),
            _ => None,
        };
        self.items.iter().map_while(bytes).take(PIECES).collect()
    }

    /// Takes these bytes off the batches in front. A batch that is written in part cannot be left
    /// out any more.
    fn wrote(&mut self, mut written: usize) {
        while written > 0
            && let Some(Item::Batch(batch)) = self.items.pop_front()
        {
            self.forget_batch(&batch);
            let length = batch.bytes().len();
            if written < length {
                self.partial = Some(Box::new(PartialWrite { batch, written }));
                return;
            }
            self.sent(batch.events().len() as u64);
            written -= length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{pipe, queued_event};
    use super::super::{FrameBatch, Room, Said, SlowPolicy};
    use super::*;
    use crate::packet::Packet;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};

    fn outbox() -> Outbox {
        let tick = Duration::from_millis(10);
        let policy = SlowPolicy::Gap;
        Outbox::new(Room { events: 10_000, bytes: 10 << 20, tick, policy })
    }

    /// Events with these numbers.
    fn batch(numbers: std::ops::Range<u64>) -> Arc<FrameBatch> {
        Arc::new(FrameBatch::new(numbers.map(|number| queued_event(number, "k", &["a"]).encoded).collect()))
    }

    #[test]
    fn a_direct_write_needs_no_task() {
        let mut outbox = outbox();
        let now = Instant::now();
        assert_eq!(outbox.push_batch(&batch(1..4), now), Wake::Now);
        let room = Cell::new(usize::MAX);
        let bytes = RefCell::default();
        assert!(outbox.write_direct(now, pipe(&room, &bytes)));
        assert_eq!(*bytes.borrow(), batch(1..4).bytes());
        assert_eq!((outbox.accounting().sent, outbox.accounting().queued), (3, 0));
        assert_eq!(outbox.push_batch(&batch(4..5), now), Wake::Later, "it has just been written to");
    }

    #[test]
    fn invariant_1_nothing_is_written_beside_a_task_that_writes() {
        let mut outbox = outbox();
        let now = Instant::now();
        let none = |_: &[IoSlice<'_>]| unreachable!("nothing may be written");
        outbox.say("first".into());
        outbox.push_batch(&batch(1..2), now);
        assert!(!outbox.write_direct(now, none), "an answer comes before it");
        outbox.take(usize::MAX, now);
        outbox.push_batch(&batch(2..3), now);
        assert!(!outbox.write_direct(now, none), "the task writes");
        outbox.let_go();
        assert!(outbox.write_direct(now, pipe(&Cell::new(usize::MAX), &RefCell::default())));
        assert!(outbox.write_direct(now, none), "nothing waits");
    }

    #[test]
    fn invariant_1_a_partial_write_is_finished_first_even_if_the_client_is_cut() {
        let mut outbox = outbox();
        let now = Instant::now();
        outbox.room = Room { events: 4, policy: SlowPolicy::Cut, ..outbox.room };
        let room = Cell::new(10);
        let bytes = RefCell::default();
        outbox.push_batch(&batch(1..4), now);
        assert!(!outbox.write_direct(now, pipe(&room, &bytes)), "the rest is for the task");
        for number in 4..12 {
            outbox.push_batch(&batch(number..number + 1), now);
        }
        assert!(outbox.is_cut());
        let taken = outbox.take(usize::MAX, now);
        bytes.borrow_mut().extend_from_slice(taken.partial.unwrap().rest());
        assert_eq!(*bytes.borrow(), batch(1..4).bytes());
        assert!(taken.items.is_empty() && taken.close_reason.is_some());
        assert!(outbox.accounting().balance());
    }

    /// What happens to an outbox.
    #[derive(Clone, Debug)]
    enum Turn {
        /// This many events.
        Come(u64),
        Say,
        /// The socket has room for this many bytes.
        Room(usize),
        /// The task takes bytes, and writes only the second number of them for now.
        Take(usize, usize),
        /// And the rest.
        Write,
    }

    fn turn() -> impl Strategy<Value = Turn> {
        prop_oneof![
            4 => (1_u64..5).prop_map(Turn::Come),
            1 => Just(Turn::Say),
            4 => (0_usize..700).prop_map(Turn::Room),
            2 => (1_usize..900, 0_usize..700).prop_map(|(bytes, now)| Turn::Take(bytes, now)),
            2 => Just(Turn::Write),
        ]
    }

    /// What the task writes of it.
    fn bytes_of(item: &Item) -> Vec<u8> {
        match item {
            Item::Batch(batch) => batch.bytes().to_vec(),
            Item::Text(Said { text, .. }) => Packet::new(&[text]).as_ref().to_vec(),
            _ => unreachable!("there is room for all"),
        }
    }

    proptest! {
        #[test]
        fn whoever_writes_every_frame_arrives_whole_and_in_order(turns in proptest::collection::vec(turn(), 1..150)) {
            let mut outbox = outbox();
            let now = Instant::now();
            let mut count = 0;
            let mut held = None::<(Vec<u8>, u64)>;
            let wire = RefCell::<Vec<u8>>::default();
            let turns = turns.into_iter().chain([Turn::Write, Turn::Take(usize::MAX, 0), Turn::Write]);
            for turn in turns {
                match turn {
                    Turn::Come(events) => {
                        outbox.push_batch(&batch(count + 1..count + 1 + events), now);
                        count += events;
                    }
                    Turn::Say => {
                        outbox.say("something".into());
                    }
                    Turn::Room(room) => {
                        let before = wire.borrow().len();
                        let is_done = outbox.write_direct(now, pipe(&Cell::new(room), &wire));
                        prop_assert!(held.is_none() || wire.borrow().len() == before, "one writes at a time");
                        prop_assert_eq!(is_done, held.is_none() && !outbox.has_more());
                    }
                    Turn::Take(bytes, at_once) if held.is_none() => {
                        let taken = outbox.take(bytes, now);
                        let events = |item: &Item| match item { Item::Batch(batch) => batch.events().len() as u64, _ => 0 };
                        let partial = taken.partial.as_ref();
                        let mut all = partial.map_or(Vec::new(), |partial| partial.rest().to_vec());
                        all.extend(taken.items.iter().flat_map(bytes_of));
                        let sum = partial.map_or(0, |partial| partial.batch.events().len() as u64)
                            + taken.items.iter().map(events).sum::<u64>();
                        let rest = all.split_off(at_once.min(all.len()));
                        wire.borrow_mut().extend(all);
                        held = Some((rest, sum));
                    }
                    Turn::Take(..) => {}
                    Turn::Write => {
                        if let Some((rest, events)) = held.take() {
                            wire.borrow_mut().extend(rest);
                            outbox.sent(events);
                            outbox.let_go();
                        }
                    }
                }
                prop_assert!(outbox.accounting().balance());
            }
            prop_assert_eq!((outbox.accounting().sent, outbox.accounting().queued), (count, 0));
            let mut socket = WebSocket::from_raw_socket(std::io::Cursor::new(wire.take()), Role::Client, None);
            let mut next = 1;
            let mut socket_end = false;
            while !socket_end {
                match socket.read() {
                    Ok(Message::Text(text)) if text.as_str() == "something" => {}
                    Ok(Message::Text(text)) => {
                        let expected = format!("0000000000000001:{next}\"");
                        prop_assert!(text.contains(&expected), "{} is not {}", text, expected);
                        next += 1;
                    }
                    Ok(other) => prop_assert!(false, "no message: {:?}", other),
                    Err(_) => socket_end = true,
                }
            }
            prop_assert_eq!(next, count + 1, "all came");
        }
    }
}
