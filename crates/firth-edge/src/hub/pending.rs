//! [`Pending`]: what a burst brings, gathered for each session, so that a session is touched once and gets one [`Run`]. Sessions that get the same
//! share the run, and its bytes are put together once.
//!
//! While events come, a session is a leaf of a tree: the path from the root to it is what the session gets. Most sessions get the same, so the
//! tree is mostly one path.

use crate::outbox::{Run, Shipment};
use smallvec::SmallVec;
use std::sync::Arc;

/// So many deliveries at most are gathered.
const ROOM: usize = 1 << 18;

/// How many messages that differ, and how many ways to go on, are looked through for each event before another is made. Pages of one kind use the
/// same names.
const DIFFERENT: usize = 4;
const WAYS: usize = 8;

#[derive(Default)]
pub(super) struct Pending {
    /// Where each session stands, by its seat: 0, or a node's number and one.
    leaves: Vec<u32>,
    /// Seats that get something.
    touched: Vec<usize>,
    nodes: Vec<Node>,
    deliveries: usize,
}

struct Node {
    parent: u32,
    shipment: Arc<Shipment>,
    run: Option<Arc<Run>>,
}

/// What was made for one event so far.
#[derive(Default)]
pub(super) struct Made {
    shipments: SmallVec<[Arc<Shipment>; DIFFERENT]>,
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

    /// The session gets this next: a message that was made for the event already, if it `fits`, or a fresh one.
    pub(super) fn add(
        &mut self,
        seat: usize,
        made: &mut Made,
        fits: impl Fn(&Shipment) -> bool,
        fresh: impl FnOnce() -> Shipment,
    ) {
        if self.leaves.len() <= seat {
            self.leaves.resize(seat + 1, 0);
        }
        let leaf = self.leaves[seat];
        if leaf == 0 {
            self.touched.push(seat);
        }
        self.deliveries += 1;
        let known = made.shipments.iter().position(|known| fits(known));
        let way = known.and_then(|known| made.ways.iter().find(|way| (way.0, way.1) == (leaf, known)));
        if let Some((_, _, node)) = way {
            self.leaves[seat] = *node;
            return;
        }
        let shipment = known.map_or_else(|| Arc::new(fresh()), |known| made.shipments[known].clone());
        self.nodes.push(Node { parent: leaf, shipment: shipment.clone(), run: None });
        let node = u32::try_from(self.nodes.len()).expect("there is room for fewer");
        self.leaves[seat] = node;
        let number = known.unwrap_or(made.shipments.len());
        if known.is_none() && made.shipments.len() < DIFFERENT {
            made.shipments.push(shipment);
        }
        if number < made.shipments.len() && made.ways.len() < WAYS {
            made.ways.push((leaf, number, node));
        }
    }

    /// Gives each session's run out, and is empty then.
    pub(super) fn drain(&mut self, mut give: impl FnMut(usize, &Arc<Run>)) {
        for seat in std::mem::take(&mut self.touched) {
            let leaf = std::mem::take(&mut self.leaves[seat]);
            give(seat, &self.run(leaf));
        }
        self.nodes = Vec::new();
        self.deliveries = 0;
    }

    fn run(&mut self, leaf: u32) -> Arc<Run> {
        let node = |number: u32| number as usize - 1;
        if let Some(run) = &self.nodes[node(leaf)].run {
            return run.clone();
        }
        let (mut path, mut at) = (Vec::new(), leaf);
        while at != 0 {
            path.push(self.nodes[node(at)].shipment.clone());
            at = self.nodes[node(at)].parent;
        }
        path.reverse();
        let run = Arc::new(Run::new(path));
        self.nodes[node(leaf)].run = Some(run.clone());
        run
    }
}
