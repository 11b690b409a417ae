//! The laws of the copier on random writers, chunks, delays and crashes: the state that a reader of
//! the topic builds is the table's, and no row is copied twice.

use super::*;
use crate::copy_state::CopyState;
use firth_router::Tenant;
use firth_router::event::{Document, Operation, Text};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PARTITIONS: usize = 3;
const TABLES: [&str; 2] = ["s.a", "s.b"];

/// A row: its number, and a large value that a change may leave untold.
type Row = (u32, u32);
type Table = BTreeMap<u8, Row>;

/// What a transaction does with a row.
#[derive(Clone, Copy, Debug)]
enum Write {
    /// Writes the number; the large value stays, and is not told.
    Number(u32),
    Both(u32, u32),
    Remove,
    /// Gives the row another key.
    Move(u8),
    Truncate,
}

#[derive(Clone, Debug)]
enum Act {
    /// A transaction is written to the log, but queries do not see it yet.
    Commit {
        table: usize,
        key: u8,
        write: Write,
    },
    /// The oldest such transaction becomes visible.
    Show,
    /// The stream tells the next transaction.
    Stream,
    /// The reader asks what the copier wants; a chunk has at most this many rows.
    Ask(usize),
    Save,
    /// The partition stores what was handed to it.
    Store(usize),
    Crash,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let write = prop_oneof![
        3 => any::<u32>().prop_map(Write::Number),
        2 => any::<(u32, u32)>().prop_map(|(n, large)| Write::Both(n, large)),
        2 => Just(Write::Remove),
        1 => (0..20_u8).prop_map(Write::Move),
        1 => Just(Write::Truncate),
    ];
    let act = prop_oneof![
        5 => (0..2_usize, 0..20_u8, write).prop_map(|(table, key, write)| Act::Commit { table, key, write }),
        5 => Just(Act::Show),
        5 => Just(Act::Stream),
        5 => (1..6_usize).prop_map(Act::Ask),
        5 => Just(Act::Save),
        5 => (0..PARTITIONS).prop_map(Act::Store),
        1 => Just(Act::Crash),
    ];
    proptest::collection::vec(act, 0..250)
}

/// One event of the stream: its change in the transaction.
#[derive(Clone, Debug)]
enum Told {
    Event(u32, Event),
    Truncate(&'static str),
}

struct Txn {
    xid: u32,
    told: Vec<Told>,
}

/// What survives a crash of the reader.
struct World {
    /// As the log has it, and as queries see it.
    written: [Table; 2],
    seen: [Table; 2],
    log: Vec<(Txn, [Table; 2])>,
    shown: usize,
    topic: Vec<Vec<Told>>,
    /// Per partition: the place in the stream and the group of its mark.
    marks: Vec<(usize, u64)>,
    saved: CopyState,
}

fn event(operation: Operation, table: usize, key: u8) -> Event {
    Event::new(operation, Tenant::new("t").unwrap(), TABLES[table], key.to_string())
}

fn document(row: Row, is_whole: bool) -> Document {
    let large = if is_whole { format!(r#","large":{}"#, row.1) } else { String::new() };
    Document::from_json(format!(r#"{{"n":{}{large}}}"#, row.0)).unwrap()
}

impl World {
    fn new() -> Self {
        let first: Table = (0..20).filter(|key| key % 3 > 0).map(|key| (key, (u32::from(key), 7))).collect();
        let written = [first.clone(), first];
        let mut saved = CopyState::default();
        saved.add(&TABLES.map(str::to_owned));
        Self {
            seen: written.clone(),
            written,
            log: Vec::new(),
            shown: 0,
            topic: vec![Vec::new(); PARTITIONS],
            marks: vec![(0, 0); PARTITIONS],
            saved,
        }
    }

    /// The number of transaction `n` of the log.
    fn xid(n: usize) -> u32 {
        100 + n as u32
    }

    fn commit(&mut self, table: usize, key: u8, write: Write) {
        let rows = &mut self.written[table];
        let partial = |operation, key, row| {
            let event = event(operation, table, key).with_after(document(row, false));
            event.with_missing(["large"])
        };
        let whole = |operation, key, row| event(operation, table, key).with_after(document(row, true));
        let told = match (write, rows.get(&key).copied()) {
            (Write::Truncate, _) => {
                rows.clear();
                vec![Told::Truncate(TABLES[table])]
            }
            (Write::Both(n, large), old) => {
                let operation = if old.is_some() { Operation::Update } else { Operation::Insert };
                rows.insert(key, (n, large));
                vec![Told::Event(0, whole(operation, key, (n, large)))]
            }
            (Write::Number(n), Some((_, large))) => {
                rows.insert(key, (n, large));
                vec![Told::Event(0, partial(Operation::Update, key, (n, large)))]
            }
            (Write::Remove, Some(_)) => {
                rows.remove(&key);
                vec![Told::Event(0, event(Operation::Delete, table, key))]
            }
            (Write::Move(to), Some(row)) if to != key && !rows.contains_key(&to) => {
                rows.remove(&key);
                rows.insert(to, row);
                vec![
                    Told::Event(0, event(Operation::Delete, table, key)),
                    Told::Event(0, whole(Operation::Insert, to, row)),
                ]
            }
            _ => return,
        };
        let txn = Txn { xid: Self::xid(self.log.len()), told };
        self.log.push((txn, self.written.clone()));
    }

    fn show(&mut self) {
        if let Some((_, after)) = self.log.get(self.shown) {
            self.seen = after.clone();
            self.shown += 1;
        }
    }

    fn visibility(&self) -> Visibility {
        let (oldest, end) = (Self::xid(self.shown), Self::xid(self.log.len()));
        let running = (oldest..end).map(|xid| xid.to_string()).collect::<Vec<_>>().join(",");
        format!("{oldest}:{end}:{running}").parse().unwrap()
    }
}

/// One life of a reader.
struct Life {
    copier: Copier,
    next: usize,
    /// What partitions have not stored yet: the record, its place and group.
    waiting: Vec<Vec<(Told, usize, u64)>>,
    handed_over: bool,
}

fn partition_of(key: &Text) -> usize {
    key.parse::<usize>().unwrap() % PARTITIONS
}

impl Life {
    fn new(world: &World) -> Self {
        let held = world.marks.iter().map(|(_, group)| *group).collect();
        Self {
            copier: Copier::new(world.saved.clone(), held),
            // The source may have forgotten what every partition has.
            next: world.marks.iter().map(|(place, _)| place.div_ceil(2)).min().unwrap(),
            waiting: vec![Vec::new(); PARTITIONS],
            handed_over: false,
        }
    }

    fn push(&mut self, world: &World, partition: usize, told: Told, (place, group): (usize, u64)) {
        if (place, group) > world.marks[partition] {
            self.waiting[partition].push((told, place, group));
        }
    }

    /// Between two transactions: places of the stream are odd, those of groups even.
    fn passed(&mut self, world: &World) {
        let Some(groups) = self.copier.passed(self.next as u64) else { return };
        for (number, rows) in groups.into_iter().map(|group| (group.number, group.events)) {
            for event in rows {
                let partition = partition_of(&event.key);
                if self.copier.lacks(partition, number) {
                    self.push(world, partition, Told::Event(0, event), (2 * self.next, number));
                }
            }
        }
        self.copier.handed_over();
        self.handed_over = true;
    }

    fn stream(&mut self, world: &World) {
        if self.copier.is_reading() || self.next == world.log.len() {
            return self.passed(world);
        }
        self.passed(world);
        let (txn, _) = &world.log[self.next];
        self.copier.begin(txn.xid);
        let place = 2 * self.next + 1;
        for told in txn.told.clone() {
            match told {
                Told::Event(change, mut event) => {
                    self.copier.touch(change, &mut event).unwrap();
                    let partition = partition_of(&event.key);
                    let group = self.copier.mark(partition);
                    self.push(world, partition, Told::Event(change, event), (place, group));
                }
                Told::Truncate(table) => {
                    self.copier.truncate(table);
                    for partition in 0..PARTITIONS {
                        let group = self.copier.mark(partition);
                        self.push(world, partition, Told::Truncate(table), (place, group));
                    }
                }
            }
        }
        self.next += 1;
    }

    fn ask(&mut self, world: &World, limit: usize) {
        match self.copier.wanted() {
            Some(Wanted::Look) => self.copier.looked(&world.visibility()),
            Some(Wanted::Chunk { copy, after, upto }) => {
                self.copier.begin_reading();
                let table = TABLES.iter().position(|table| *table == copy.table).unwrap();
                let border = |key: &Option<RowKey>| key.as_ref().map(|key| key[0].parse::<u8>().unwrap());
                let (after, upto) = (border(&after), border(&upto));
                let within =
                    |key: u8| after.is_none_or(|after| key > after) && upto.is_none_or(|upto| key <= upto);
                // What was read before is read in one piece.
                let limit = if upto.is_some() { usize::MAX } else { limit };
                let all: Vec<_> = world.seen[table].iter().filter(|(key, _)| within(**key)).collect();
                let rows = all.iter().take(limit).map(|(key, row)| ReadRow {
                    key: vec![key.to_string()],
                    event: Some(event(Operation::Snapshot, table, **key).with_after(document(**row, true))),
                    // Two fit into a group.
                    size: GROUP_BYTES / 2,
                });
                let (rows, is_whole) = (rows.collect(), all.len() <= limit);
                let (visibility, high) = (world.visibility(), world.log.len() as u64);
                self.copier.read(Chunk { visibility, high, rows, is_whole }).unwrap();
            }
            None => {}
        }
    }

    fn store(&mut self, world: &mut World, partition: usize) {
        // Records of one place and group go in one step; sometimes more do.
        let waiting = &mut self.waiting[partition];
        let Some((_, place, group)) = waiting.first() else { return };
        let mark = (*place, *group);
        let count = waiting.iter().take_while(|(_, place, group)| (*place, *group) == mark).count();
        assert!(mark > world.marks[partition], "marks grow");
        world.topic[partition].extend(waiting.drain(..count).map(|(told, ..)| told));
        world.marks[partition] = mark;
        self.stored();
    }

    fn stored(&mut self) {
        if self.handed_over && self.waiting.iter().all(Vec::is_empty) {
            self.handed_over = false;
            self.copier.stored(|_, _| {});
        }
    }

    fn act(&mut self, act: &Act, world: &mut World) {
        match act {
            Act::Commit { table, key, write } => world.commit(*table, *key, *write),
            Act::Show => world.show(),
            Act::Stream => self.stream(world),
            Act::Ask(limit) => self.ask(world, *limit),
            Act::Save => {
                if let Some(state) = self.copier.unsaved().cloned() {
                    world.saved = state.clone();
                    self.copier.saved(state);
                }
            }
            Act::Store(partition) => self.store(world, *partition),
            Act::Crash => *self = Self::new(world),
        }
        self.stored();
    }
}

/// What a reader of the topic knows.
fn rebuilt(world: &World) -> [BTreeMap<u8, serde_json::Value>; 2] {
    let mut state = [BTreeMap::new(), BTreeMap::new()];
    for (partition, told) in
        world.topic.iter().enumerate().flat_map(|(n, log)| log.iter().map(move |told| (n, told)))
    {
        match told {
            Told::Truncate(table) => {
                let table = TABLES.iter().position(|known| known == table).unwrap();
                state[table].retain(|key: &u8, _| usize::from(*key) % PARTITIONS != partition);
            }
            Told::Event(_, event) => {
                let table = TABLES.iter().position(|table| *table == &*event.collection).unwrap();
                let key: u8 = event.key.parse().unwrap();
                match &event.after {
                    None => drop(state[table].remove(&key)),
                    Some(after) => {
                        let mut after = after.to_value().unwrap();
                        for column in &event.missing {
                            let known =
                                state[table].get(&key).map(|row: &serde_json::Value| row[&**column].clone());
                            after[&**column] = known.unwrap_or_default();
                        }
                        state[table].insert(key, after);
                    }
                }
            }
        }
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_topic_holds_the_table_whatever_is_written_and_dies_when(acts in acts()) {
        let mut world = World::new();
        let mut life = Life::new(&world);
        for act in &acts {
            life.act(act, &mut world);
        }
        let mut rounds = 0;
        while !(life.copier.is_done() && life.next == world.log.len() && life.waiting.iter().all(Vec::is_empty)) {
            rounds += 1;
            prop_assert!(rounds < 5_000, "it ends: {:?}", life.copier);
            for act in [Act::Show, Act::Stream, Act::Ask(3), Act::Save] {
                life.act(&act, &mut world);
            }
            (0..PARTITIONS).for_each(|partition| life.act(&Act::Store(partition), &mut world));
        }
        let expected = world.written.clone().map(|table| -> BTreeMap<u8, serde_json::Value> {
            table.into_iter().map(|(key, row)| (key, document(row, true).to_value().unwrap())).collect()
        });
        prop_assert_eq!(rebuilt(&world), expected);

        // A group that grew after a first crash may be told again after a second one.
        if acts.iter().filter(|act| matches!(act, Act::Crash)).count() > 1 {
            return Ok(());
        }
        let mut copied = BTreeSet::new();
        for told in world.topic.iter().flatten() {
            if let Told::Event(_, event) = told && event.operation == Operation::Snapshot {
                prop_assert!(copied.insert((event.collection.to_string(), event.key.to_string())), "copied twice");
            }
        }
    }
}
