//! The queue's laws: details on the engine in memory (mostly with paused time), promises on every
//! engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod admin;
mod adopting;
mod blocked;
mod browsing;
mod chaos;
mod claims;
mod consuming;
mod dead_letters;
mod engines;
mod everywhere;
mod examples;
mod faults;
mod faulty;
mod features;
mod housekeeping;
mod in_flight;
mod many;
mod outages;
mod pausing;
mod producing;
mod promises;
mod retrying;
mod sharing;
mod side_groups;
mod sources;
mod streams;
mod topics;
mod trickle;
mod world;
