//! Dead letters: one logical list per topic over all partitions and groups.
//!
//! A [`DeadLetters`] is a view with a filter; it can be browsed page by page, counted, replayed,
//! deleted and followed. Replaying and removing a letter is one step of the engine, so nothing is
//! replayed twice and nothing is lost in between.

mod follow;
mod letter;
mod view;

pub use follow::Follow;
pub use letter::{DeadId, DeadLetter, DeadPage};
pub use view::DeadLetters;

pub use firth_engine::facet::Replay;
