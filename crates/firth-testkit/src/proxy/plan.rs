//! Which faults are set, and what they mean for one direction (pure).

use std::net::SocketAddr;
use std::time::Duration;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Both ways.
    Both,
}

impl Direction {
    fn covers(self, way: Self) -> bool {
        self == Self::Both || self == way
    }
}

/// One way to break a connection; the methods of [`crate::Proxy`] say what each does exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Swallow bytes, close nothing.
    HalfOpen(Direction),
    /// Hold bytes back.
    Stall(Direction),
    /// Deliver replies later.
    Delay(Duration),
    /// Bytes per second.
    Throttle(u64),
    /// Size of the pieces in which bytes are forwarded.
    Split(usize),
    /// Reset after this many bytes to the client.
    TruncateAfter(u64),
    /// Invert the byte at this offset of what goes to the client.
    Flip(u64),
}

/// The target and the sum of all faults.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) target: SocketAddr,
    faults: Vec<Fault>,
}

impl Plan {
    pub(super) fn to(target: SocketAddr) -> Self {
        Self { target, faults: Vec::new() }
    }

    /// Adds a fault; a newer one of the same kind replaces the older.
    pub(super) fn add(&mut self, fault: Fault) {
        self.faults.retain(|old| std::mem::discriminant(old) != std::mem::discriminant(&fault));
        self.faults.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
    }

    /// What the faults mean for bytes that go `way`.
    pub(super) fn shape(&self, way: Direction) -> Shape {
        let mut shape = Shape::default();
        for fault in &self.faults {
            match *fault {
                Fault::HalfOpen(direction) => shape.swallow = direction.covers(way),
                Fault::Stall(direction) => shape.stall = direction.covers(way),
                Fault::Throttle(rate) => shape.rate = Some(rate.max(1)),
                Fault::Split(size) => shape.split = Some(size.max(1)),
                Fault::Delay(by) if way == Direction::ToClient => shape.delay = by,
                Fault::TruncateAfter(bytes) if way == Direction::ToClient => shape.truncate = Some(bytes),
                Fault::Flip(offset) if way == Direction::ToClient => shape.flip = Some(offset),
                Fault::Delay(_) | Fault::TruncateAfter(_) | Fault::Flip(_) => {}
            }
        }
        shape
    }
}

/// The faults of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) swallow: bool,
    pub(super) stall: bool,
    pub(super) delay: Duration,
    pub(super) rate: Option<u64>,
    pub(super) split: Option<usize>,
    pub(super) truncate: Option<u64>,
    pub(super) flip: Option<u64>,
}

impl Shape {
    /// Whether bytes can go straight through.
    pub(super) fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// How many of `waiting` bytes to write next, `done` bytes after the plan was set.
    pub(super) fn piece(&self, waiting: usize, done: u64) -> usize {
        let mut piece = waiting;
        if let Some(size) = self.split {
            piece = piece.min(size);
        }
        if let Some(rate) = self.rate {
            // ten milliseconds' worth, so that a low rate is a trickle and not a burst
            piece = piece.min(usize::try_from(rate / 100).unwrap_or(usize::MAX).max(1));
        }
        if let Some(limit) = self.truncate {
            piece = piece.min(usize::try_from(limit.saturating_sub(done)).unwrap_or(usize::MAX));
        }
        piece
    }

    /// How long the line must rest after a piece of this size.
    pub(super) fn rest_after(&self, piece: usize) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(piece as f64 / rate as f64))
    }

    /// Whether the connection must be reset, `done` bytes after the plan was set.
    pub(super) fn is_over(&self, done: u64) -> bool {
        self.truncate.is_some_and(|limit| done >= limit)
    }

    /// Inverts the marked byte if it lies in `piece`, which starts `done` bytes after the plan was
    /// set.
    pub(super) fn corrupt(&self, piece: &mut [u8], done: u64) {
        let index =
            self.flip.and_then(|offset| offset.checked_sub(done)).and_then(|at| usize::try_from(at).ok());
        if let Some(byte) = index.and_then(|at| piece.get_mut(at)) {
            *byte = !*byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(faults: &[Fault]) -> Plan {
        let mut plan = Plan::to("127.0.0.1:1".parse().unwrap());
        faults.iter().for_each(|fault| plan.add(*fault));
        plan
    }

    #[test]
    fn a_newer_fault_replaces_an_older_one_of_its_kind_and_adds_to_the_others() {
        let plan = plan(&[Fault::Split(4), Fault::Throttle(1000), Fault::Split(1)]);
        let shape = plan.shape(Direction::ToServer);
        assert_eq!((shape.split, shape.rate), (Some(1), Some(1000)));
    }

    #[test]
    fn truncation_and_corruption_only_meet_what_goes_to_the_client() {
        let plan = plan(&[Fault::TruncateAfter(3), Fault::Flip(0), Fault::HalfOpen(Direction::ToClient)]);
        assert!(plan.shape(Direction::ToServer).is_plain());
        assert!(!plan.shape(Direction::ToClient).is_plain());
    }

    #[test]
    fn a_piece_never_passes_the_truncation_limit() {
        let shape = plan(&[Fault::TruncateAfter(10), Fault::Split(8)]).shape(Direction::ToClient);
        assert_eq!(shape.piece(100, 0), 8);
        assert_eq!(shape.piece(100, 8), 2);
        assert!(!shape.is_over(9));
        assert!(shape.is_over(10));
    }

    #[test]
    fn exactly_the_marked_byte_is_inverted() {
        let shape = plan(&[Fault::Flip(5)]).shape(Direction::ToClient);
        let mut bytes = [0u8; 4];
        shape.corrupt(&mut bytes, 0);
        assert_eq!(bytes, [0; 4]);
        shape.corrupt(&mut bytes, 4);
        assert_eq!(bytes, [0, 255, 0, 0]);
        shape.corrupt(&mut bytes, 8);
        assert_eq!(bytes, [0, 255, 0, 0]);
    }
}
