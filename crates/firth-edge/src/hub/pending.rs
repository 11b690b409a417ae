//! [`Pending`]: what a burst brings, gathered for each session, so that a session is touched once
//! and gets one [`FrameBatch`]. Sessions that get the same share the batch, and its bytes are put
//! together once.
//!
//! While events come, a session is a leaf of a tree: the path from the root to it is what the
//! session gets. Most sessions get the same, so the tree is mostly one path.

use crate::outbox::{EncodedEvent, FrameBatch};
use smallvec::SmallVec;
use std::sync::Arc;

/// Most deliveries that are gathered.
const ROOM: usize = 1 << 18;

/// How many messages that differ, and how many ways to go on, are looked through for each event
/// before another is made. Pages of one kind use the same names.
const DIFFERENT: usize = 4;
const WAYS: usize = 8;

#[derive(Default)]
pub(super) struct Pending {
    /// Where each session stands, by its slot: 0, or a node's number and one.
    leaves: Vec<u32>,
    /// Seats that get something.
    touched: Vec<usize>,
    nodes: Vec<Node>,
    deliveries: usize,
}

struct Node {
    parent: u32,
    encoded: Arc<EncodedEvent>,
    batch: Option<Arc<FrameBatch>>,
}

/// What was made for one event so far.
#[derive(Default)]
pub(super) struct Made {
    events: SmallVec<[Arc<EncodedEvent>; DIFFERENT]>,
    /// From a leaf, with one of the shipments, to a node.
    ways: SmallVec<[(u32, usize, u32); WAYS]>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.deliveries >= ROOM
    }

    /// The session gets this next: a message that was made for the event already, if it `fits`, or
    /// a fresh one.
    pub(super) fn add(
        &mut self,
        slot: usize,
        made: &mut Made,
        fits: impl Fn(&EncodedEvent) -> bool,
        fresh: impl FnOnce() -> EncodedEvent,
    ) {
        if self.leaves.len() <= slot {
            self.leaves.resize(slot + 1, 0);
        }
        let leaf = self.leaves[slot];
        if leaf == 0 {
            self.touched.push(slot);
        }
        self.deliveries += 1;
        let known = made.events.iter().position(|known| fits(known));
        let way = known.and_then(|known| made.ways.iter().find(|way| (way.0, way.1) == (leaf, known)));
        if let Some((_, _, node)) = way {
            self.leaves[slot] = *node;
            return;
        }
        let encoded = known.map_or_else(|| Arc::new(fresh()), |known| made.events[known].clone());
        self.nodes.push(Node { parent: leaf, encoded: encoded.clone(), batch: None });
        let node = u32::try_from(self.nodes.len()).expect("there is room for fewer");
        self.leaves[slot] = node;
        let number = known.unwrap_or(made.events.len());
        if known.is_none() && made.events.len() < DIFFERENT {
            made.events.push(encoded);
        }
        if number < made.events.len() && made.ways.len() < WAYS {
            made.ways.push((leaf, number, node));
        }
    }

    /// Gives each session's run out, and is empty then.
    pub(super) fn drain(&mut self, mut give: impl FnMut(usize, &Arc<FrameBatch>)) {
        for slot in std::mem::take(&mut self.touched) {
            let leaf = std::mem::take(&mut self.leaves[slot]);
            give(slot, &self.batch(leaf));
        }
        self.nodes = Vec::new();
        self.deliveries = 0;
    }

    fn batch(&mut self, leaf: u32) -> Arc<FrameBatch> {
        let node = |number: u32| number as usize - 1;
        if let Some(batch) = &self.nodes[node(leaf)].batch {
            return batch.clone();
        }
        let mut path = Vec::new();
        let mut at = leaf;
        while at != 0 {
            path.push(self.nodes[node(at)].encoded.clone());
            at = self.nodes[node(at)].parent;
        }
        path.reverse();
        let batch = Arc::new(FrameBatch::new(path));
        self.nodes[node(leaf)].batch = Some(batch.clone());
        batch
    }
}
