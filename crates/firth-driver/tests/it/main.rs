//! The driver as an outside program sees it: real processes, a real server, and the history checker
//! as the judge.

#![allow(clippy::unwrap_used, reason = "a test has no better use for an error")]

mod chaos;
mod failing;
mod process;
mod protocol;
mod served;
mod stage;
mod world;
