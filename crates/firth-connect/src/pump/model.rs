//! The laws of the pump on random histories, interleavings and crashes.

use super::*;
use proptest::prelude::*;

const PARTITIONS: usize = 3;

/// The partitions of the changes of each transaction.
type History = Vec<Vec<usize>>;

/// A change's transaction and its number in it.
type Position = (usize, usize);

fn change<P>(partition: usize, position: P, payload: String, size: usize) -> Change<P> {
    Change { partition, position, message: Message::new(payload), size }
}

/// What survives a crash: the topic, and what the source was told.
#[derive(Default)]
struct World {
    stored: Vec<Vec<Position>>,
    confirmed: Option<usize>,
}

impl World {
    /// The engine's step: the records and the mark, or nothing if the mark covers them.
    fn append(&mut self, partition: usize, batch: &[Position]) {
        let log = &mut self.stored[partition];
        if log.last() < batch.last() {
            log.extend(batch);
        }
    }

    /// Everything up to a confirmed transaction is stored.
    fn check_confirmed(&self, history: &History) {
        for (number, txn) in history.iter().enumerate().take_while(|(n, _)| Some(*n) <= self.confirmed) {
            for (index, partition) in txn.iter().enumerate() {
                assert!(self.stored[*partition].contains(&(number, index)), "confirmed before it was stored");
            }
        }
    }
}

/// What the life of a reader does next.
#[derive(Clone, Debug)]
enum Act {
    Read,
    Poll { is_drained: bool },
    Store(usize),
    Confirm,
    Keepalive,
    Crash,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => Just(Act::Read),
        4 => any::<bool>().prop_map(|is_drained| Act::Poll { is_drained }),
        4 => (0..PARTITIONS).prop_map(Act::Store),
        2 => Just(Act::Confirm),
        1 => Just(Act::Keepalive),
        1 => Just(Act::Crash),
    ];
    proptest::collection::vec(act, 0..200)
}

/// One life of a reader.
struct Life<'a> {
    history: &'a History,
    pump: Pump<Position, usize>,
    next: Position,
    is_begun: bool,
    under_way: Vec<Option<Vec<Position>>>,
    now: Instant,
}

impl<'a> Life<'a> {
    fn new(history: &'a History, world: &World) -> Self {
        let marks = world.stored.iter().map(|log| log.last().copied()).collect();
        let limits = Limits { batch_records: 2, batch_bytes: 5, ..Limits::default() };
        Self {
            history,
            pump: Pump::new(limits, marks),
            next: (world.confirmed.map_or(0, |confirmed| confirmed + 1), 0),
            is_begun: false,
            under_way: vec![None; PARTITIONS],
            now: Instant::now(),
        }
    }

    fn read(&mut self) {
        let (txn, index) = self.next;
        let Some(changes) = self.history.get(txn) else { return };
        if !self.is_begun {
            self.pump.begin();
            self.is_begun = true;
        } else if let Some(partition) = changes.get(index) {
            let payload = format!("{txn} {index}");
            self.pump.push(self.now, change(*partition, self.next, payload, 1 + index % 3));
            self.next.1 += 1;
        } else {
            self.pump.commit(txn);
            self.next = (txn + 1, 0);
            self.is_begun = false;
        }
    }

    fn poll(&mut self, is_drained: bool) {
        self.now += Duration::from_millis(1);
        if let Some(batch) = self.pump.poll(self.now, is_drained) {
            assert!(batch.messages.len() <= 2);
            let read = |message: &Message| {
                let text = std::str::from_utf8(message.payload()).unwrap();
                let (txn, index) = text.split_once(' ').unwrap();
                (txn.parse().unwrap(), index.parse().unwrap())
            };
            let positions: Vec<Position> = batch.messages.iter().map(read).collect();
            assert_eq!(positions.last(), Some(&batch.upto));
            assert!(self.under_way[batch.partition].replace(positions).is_none(), "one batch at a time");
        }
    }

    fn act(&mut self, act: &Act, world: &mut World) {
        match act {
            Act::Read => self.read(),
            Act::Poll { is_drained } => self.poll(*is_drained),
            Act::Store(partition) => {
                if let Some(batch) = self.under_way[*partition].take() {
                    world.append(*partition, &batch);
                    self.pump.stored(*partition);
                }
            }
            Act::Confirm => {
                world.confirmed = world.confirmed.max(self.pump.confirmed());
                world.check_confirmed(self.history);
            }
            Act::Keepalive => {
                if let Some(sent) = self.next.0.checked_sub(1).filter(|_| !self.is_begun) {
                    self.pump.sent_upto(sent);
                }
            }
            Act::Crash => {
                // An append under way may or may not have happened.
                for (partition, batch) in self.under_way.iter_mut().enumerate() {
                    if let Some(batch) = batch.take().filter(|batch| batch.len() % 2 == 1) {
                        world.append(partition, &batch);
                    }
                }
                *self = Life::new(self.history, world);
            }
        }
    }
}

proptest! {
    #[test]
    fn each_change_is_stored_once_and_in_order_whatever_dies_when(
        history in proptest::collection::vec(proptest::collection::vec(0..PARTITIONS, 0..6), 1..12),
        acts in acts(),
    ) {
        let mut world = World { stored: vec![Vec::new(); PARTITIONS], confirmed: None };
        let mut life = Life::new(&history, &world);
        for act in &acts {
            life.act(act, &mut world);
        }
        life.act(&Act::Crash, &mut world);
        while life.next.0 < history.len() {
            life.read();
        }
        while !life.pump.is_idle() {
            life.poll(true);
            (0..PARTITIONS).for_each(|partition| life.act(&Act::Store(partition), &mut world));
        }
        life.act(&Act::Confirm, &mut world);
        for partition in 0..PARTITIONS {
            let expected: Vec<Position> = history.iter().enumerate().flat_map(|(number, txn)| {
                let own = txn.iter().enumerate().filter(|(_, one)| **one == partition);
                own.map(move |(index, _)| (number, index)).collect::<Vec<_>>()
            }).collect();
            prop_assert_eq!(&world.stored[partition], &expected);
        }
        prop_assert_eq!(world.confirmed, Some(history.len() - 1));
        prop_assert_eq!(life.pump.buffered_bytes(), 0);
    }
}

#[test]
fn a_batch_waits_for_more_only_while_there_is_more() {
    let mut pump: Pump<u64, u64> = Pump::new(Limits::default(), vec![None]);
    let now = Instant::now();
    pump.begin();
    pump.push(now, change(0, 1, "a".into(), 1));
    assert!(pump.poll(now, false).is_none());
    assert_eq!(pump.due(), Some(now + Duration::from_millis(5)));
    assert!(pump.poll(now + Duration::from_millis(5), false).is_some());
    pump.push(now, change(0, 2, "b".into(), 1));
    assert!(pump.poll(now, true).is_none(), "one batch of a partition at a time");
    pump.stored(0);
    assert!(pump.poll(now, true).is_some());
}

#[test]
fn a_full_buffer_says_so_until_a_batch_is_stored() {
    let limits = Limits { buffer_bytes: 10, ..Limits::default() };
    let mut pump: Pump<u64, u64> = Pump::new(limits, vec![None]);
    pump.begin();
    pump.push(Instant::now(), change(0, 1, "a".into(), 10));
    assert!(pump.is_full());
    pump.poll(Instant::now(), true).unwrap();
    assert!(pump.is_full());
    pump.stored(0);
    assert!(!pump.is_full());
}
