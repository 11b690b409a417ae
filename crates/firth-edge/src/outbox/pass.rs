//! Writing events past the connection's task.

use super::{Begun, Item, Outbox, Wake};
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::time::Instant;

/// How many pieces one write takes.
const PIECES: usize = 16;

impl Outbox {
    /// Writes the events in front, unless the task is writing or must first end what was begun. False if something is left for the task.
    pub(crate) fn pass(&mut self, now: Instant, write: impl Fn(&[IoSlice<'_>]) -> io::Result<usize>) -> bool {
        if self.is_held || self.begun.is_some() {
            return false;
        }
        while let Some(Item::Run(_)) = self.items.front() {
            // Whatever is wrong with the socket, its task finds out.
            let Ok(written @ 1..) = write(&self.runs_in_front()) else { return false };
            self.scheduled = Wake::No;
            self.written_at = Some(now);
            self.passed(written);
            if self.begun.is_some() {
                return false;
            }
        }
        if self.items.is_empty() {
            self.emptied();
        }
        !self.has_more()
    }

    fn runs_in_front<'a>(&'a self) -> SmallVec<[IoSlice<'a>; 1]> {
        let bytes = |item: &'a Item| match item {
            Item::Run(run) => Some(IoSlice::new(run.bytes())),
            _ => None,
        };
        self.items.iter().map_while(bytes).take(PIECES).collect()
    }

    /// So many bytes of the runs in front are written. A run that is begun cannot be left out any more.
    fn passed(&mut self, mut written: usize) {
        while written > 0
            && let Some(Item::Run(run)) = self.items.pop_front()
        {
            self.forget_run(&run);
            let length = run.bytes().len();
            if written < length {
                self.begun = Some(Box::new(Begun { run, written }));
                return;
            }
            self.sent(run.shipments().len() as u64);
            written -= length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{parcel, pipe};
    use super::super::{Room, Run, Said, SlowPolicy};
    use super::*;
    use crate::packet::Packet;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};

    fn outbox() -> Outbox {
        let (tick, policy) = (Duration::from_millis(10), SlowPolicy::Gap);
        Outbox::new(Room { events: 10_000, bytes: 10 << 20, tick, policy })
    }

    /// Events with these numbers.
    fn run(numbers: std::ops::Range<u64>) -> Arc<Run> {
        Arc::new(Run::new(numbers.map(|number| parcel(number, "k", &["a"]).shipment).collect()))
    }

    #[test]
    fn what_passes_is_written_and_needs_no_task() {
        let (mut outbox, now) = (outbox(), Instant::now());
        assert_eq!(outbox.push_run(&run(1..4), now), Wake::Now);
        let (room, bytes) = (Cell::new(usize::MAX), RefCell::default());
        assert!(outbox.pass(now, pipe(&room, &bytes)));
        assert_eq!(*bytes.borrow(), run(1..4).bytes());
        assert_eq!((outbox.books().sent, outbox.books().queued), (3, 0));
        assert_eq!(outbox.push_run(&run(4..5), now), Wake::Later, "it has just been written to");
    }

    #[test]
    fn nothing_passes_a_task_that_writes_nor_what_comes_before_it() {
        let (mut outbox, now) = (outbox(), Instant::now());
        let none = |_: &[IoSlice<'_>]| unreachable!("nothing may be written");
        outbox.say("first".into());
        outbox.push_run(&run(1..2), now);
        assert!(!outbox.pass(now, none), "an answer comes before it");
        outbox.take(usize::MAX, now);
        outbox.push_run(&run(2..3), now);
        assert!(!outbox.pass(now, none), "the task writes");
        outbox.let_go();
        assert!(outbox.pass(now, pipe(&Cell::new(usize::MAX), &RefCell::default())));
        assert!(outbox.pass(now, none), "nothing waits");
    }

    #[test]
    fn what_has_begun_is_ended_first_even_if_the_client_is_cut() {
        let (mut outbox, now) = (outbox(), Instant::now());
        outbox.room = Room { events: 4, policy: SlowPolicy::Cut, ..outbox.room };
        let (room, bytes) = (Cell::new(10), RefCell::default());
        outbox.push_run(&run(1..4), now);
        assert!(!outbox.pass(now, pipe(&room, &bytes)), "the rest is for the task");
        for number in 4..12 {
            outbox.push_run(&run(number..number + 1), now);
        }
        assert!(outbox.is_cut());
        let taken = outbox.take(usize::MAX, now);
        bytes.borrow_mut().extend_from_slice(taken.begun.unwrap().rest());
        assert_eq!(*bytes.borrow(), run(1..4).bytes());
        assert!(taken.items.is_empty() && taken.farewell.is_some());
        assert!(outbox.books().balance());
    }

    /// What happens to an outbox.
    #[derive(Clone, Debug)]
    enum Turn {
        /// So many events.
        Come(u64),
        Say,
        /// The socket has room for so many bytes.
        Pass(usize),
        /// The task takes so many bytes, and writes so many of them for now.
        Take(usize, usize),
        /// And the rest.
        Write,
    }

    fn turn() -> impl Strategy<Value = Turn> {
        prop_oneof![
            4 => (1_u64..5).prop_map(Turn::Come),
            1 => Just(Turn::Say),
            4 => (0_usize..700).prop_map(Turn::Pass),
            2 => (1_usize..900, 0_usize..700).prop_map(|(bytes, now)| Turn::Take(bytes, now)),
            2 => Just(Turn::Write),
        ]
    }

    /// What the task writes of it.
    fn bytes_of(item: &Item) -> Vec<u8> {
        match item {
            Item::Run(run) => run.bytes().to_vec(),
            Item::Text(Said { text, .. }) => Packet::new(&[text]).as_ref().to_vec(),
            _ => unreachable!("there is room for all"),
        }
    }

    proptest! {
        #[test]
        fn whoever_writes_every_frame_arrives_whole_and_in_order(turns in proptest::collection::vec(turn(), 1..150)) {
            let (mut outbox, now) = (outbox(), Instant::now());
            let (mut count, mut held, wire) = (0, None::<(Vec<u8>, u64)>, RefCell::<Vec<u8>>::default());
            let turns = turns.into_iter().chain([Turn::Write, Turn::Take(usize::MAX, 0), Turn::Write]);
            for turn in turns {
                match turn {
                    Turn::Come(events) => {
                        outbox.push_run(&run(count + 1..count + 1 + events), now);
                        count += events;
                    }
                    Turn::Say => {
                        outbox.say("something".into());
                    }
                    Turn::Pass(room) => {
                        let before = wire.borrow().len();
                        let is_done = outbox.pass(now, pipe(&Cell::new(room), &wire));
                        prop_assert!(held.is_none() || wire.borrow().len() == before, "one writes at a time");
                        prop_assert_eq!(is_done, held.is_none() && !outbox.has_more());
                    }
                    Turn::Take(bytes, at_once) if held.is_none() => {
                        let taken = outbox.take(bytes, now);
                        let events = |item: &Item| match item { Item::Run(run) => run.shipments().len() as u64, _ => 0 };
                        let begun = taken.begun.as_ref();
                        let mut all = begun.map_or(Vec::new(), |begun| begun.rest().to_vec());
                        all.extend(taken.items.iter().flat_map(bytes_of));
                        let sum = begun.map_or(0, |begun| begun.run.shipments().len() as u64)
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
                prop_assert!(outbox.books().balance());
            }
            prop_assert_eq!((outbox.books().sent, outbox.books().queued), (count, 0));
            let mut socket = WebSocket::from_raw_socket(std::io::Cursor::new(wire.take()), Role::Client, None);
            let (mut next, mut socket_end) = (1, false);
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
