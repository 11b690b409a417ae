//! The queue's laws, on the engine in memory (mostly with paused time) and on files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod admin;
mod adopting;
mod chaos;
mod claims;
mod consuming;
mod dead_letters;
mod engines;
mod everywhere;
mod faults;
mod faulty;
mod features;
mod producing;
mod retrying;
mod sharing;
mod topics;
mod world;
