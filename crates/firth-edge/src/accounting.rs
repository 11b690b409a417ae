//! [`Accounting`]: where every matched event of every connection went. Nothing is dropped without
//! an entry.

use std::ops::AddAssign;

/// Events times connections. `taken = sent + conflated + gap_marked + queued + left_behind`,
/// always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Matched, and meant for a connection.
    pub taken: u64,
    /// Written to the connection.
    pub sent: u64,
    /// Replaced by a newer event of the same document, which says so.
    pub conflated: u64,
    /// Left out, and covered by a gap message.
    pub gap_marked: u64,
    /// Waiting, or being written.
    pub queued: u64,
    /// Still unsent when the connection ended; its client resumes behind what it saw.
    pub left_behind: u64,
}

impl Accounting {
    /// Whether everything has been accounted for.
    pub fn balance(&self) -> bool {
        self.taken == self.sent + self.conflated + self.gap_marked + self.queued + self.left_behind
    }
}

impl AddAssign for Accounting {
    fn add_assign(&mut self, other: Self) {
        self.taken += other.taken;
        self.sent += other.sent;
        self.conflated += other.conflated;
        self.gap_marked += other.gap_marked;
        self.queued += other.queued;
        self.left_behind += other.left_behind;
    }
}
