//! The steps of all facets: pure functions over a [`Step`](super::step::Step), one per call of the
//! contract.

pub(super) mod catalog;
pub(super) mod commit;
pub(super) mod dead;
pub(super) mod delayed;
pub(super) mod due;
pub(super) mod groups;
pub(super) mod leases;
pub(super) mod log;
pub(super) mod marks;
pub(super) mod offers;
pub(super) mod partitions;
pub(super) mod producer;
pub(super) mod trim;
