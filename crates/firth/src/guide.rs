//! The guide: one page per question that comes up when a queue goes to work. The code on the pages
//! runs as tests.

#[doc = include_str!("../docs/delivery.md")]
pub mod delivery {}

#[doc = include_str!("../docs/once.md")]
pub mod once {}

#[doc = include_str!("../docs/failures.md")]
pub mod failures {}

#[doc = include_str!("../docs/keeping.md")]
pub mod keeping {}

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

#[doc = include_str!("../docs/migrating.md")]
pub mod migrating {}
