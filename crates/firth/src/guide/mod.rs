//! The guide: one page per question that comes up when a queue goes to work. The code on the pages
//! runs as tests.

#[doc = include_str!("delivery.md")]
pub mod delivery {}

#[doc = include_str!("once.md")]
pub mod once {}

#[doc = include_str!("failures.md")]
pub mod failures {}

#[doc = include_str!("keeping.md")]
pub mod keeping {}

#[doc = include_str!("operating.md")]
pub mod operating {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}
