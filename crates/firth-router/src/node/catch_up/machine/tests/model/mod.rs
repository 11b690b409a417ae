//! Random events against a naive model: two nodes that take the partition from each other, the
//! engine, the lanes and one gateway.
//!
//! After each step the model checks that some group keeps each event that the gateway has not
//! accepted. It checks that the gateway gets the events of a document in order. At the end the
//! gateway must have every event that no letter holds, and no group may be left.

mod node;
mod store;

use super::super::{CatchUp, CatchUpAction, CatchUpEvent};
use firth::{Epoch, RecordId};
use node::Node;
use store::Store;

const SEEDS: u64 = 200;
const STEPS: usize = 600;

/// How often something happened, so that the model is known to reach it.
#[derive(Default)]
struct Counts {
    parked: usize,
    resumed: usize,
    taken_over: usize,
    fenced: usize,
    given_up: usize,
    crashed: usize,
    lost_replies: usize,
    unsettled_at_close: usize,
}

struct World {
    random: fastrand::Rng,
    store: Store,
    nodes: [Node; 2],
    counts: Counts,
}

impl World {
    fn new(seed: u64) -> Self {
        let nodes = [Node::default(), Node::default()];
        Self { random: fastrand::Rng::with_seed(seed), store: Store::new(), nodes, counts: Counts::default() }
    }

    fn step(&mut self, is_calm: bool) {
        let Self { random, store, nodes, counts } = self;
        let number = random.usize(..2);
        let node = &mut nodes[number];
        match random.u32(..100) {
            0..=14 if !is_calm => store.log += 1,
            15 if !is_calm && random.u32(..4) == 0 => {
                store.take_over(random.usize(..2));
                counts.taken_over += 1;
            }
            16 if !is_calm && random.u32(..8) == 0 => {
                node.crash(random, store);
                store.take_over(1 - number);
                counts.crashed += 1;
            }
            17 if !is_calm => store.gateway_refuses = random.bool(),
            18..=24 if !is_calm || node.wants_park() => node.park(random, store, counts, is_calm),
            25..=39 => node.route(random, store, counts, is_calm),
            40..=54 => node.send(random),
            55..=69 => node.hear(random, store, counts),
            70..=77 => node.notice(number, random, store, counts),
            _ => node.read(random, store, counts, is_calm),
        }
        store.check();
    }

    /// Nothing more happens and nothing fails: everything comes to rest.
    fn settle(&mut self) {
        self.store.gateway_refuses = false;
        for step in 0..200_000 {
            self.step(true);
            self.store.delete_letters();
            let is_done = self.store.is_at_rest() && self.nodes.iter().all(Node::is_at_rest);
            if is_done {
                return;
            }
            assert!(step < 199_999, "it never comes to rest: {:?}\n{:?}", self.store, self.nodes);
        }
    }
}

#[test]
fn some_group_keeps_each_event_until_the_gateway_has_it_in_order() {
    let mut all = [0; 8];
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.store.seed = seed;
        world.store.take_over(0);
        (0..STEPS).for_each(|_| world.step(false));
        world.settle();
        let counts = &world.counts;
        let seen = [
            counts.parked,
            counts.resumed,
            counts.taken_over,
            counts.fenced,
            counts.given_up,
            counts.crashed,
            counts.lost_replies,
            counts.unsettled_at_close,
        ];
        all.iter_mut().zip(seen).for_each(|(sum, count)| *sum += count);
    }
    assert!(all.iter().all(|count| *count > 2), "the events were too tame: {all:?}");
}

fn record(seq: u64) -> RecordId {
    RecordId::new(1, seq)
}

/// The document that an event is of.
fn document(seq: u64) -> u64 {
    seq % 3
}

fn owner(epoch: u64) -> (Epoch, u64) {
    (Epoch(epoch), epoch)
}
