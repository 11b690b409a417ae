//! The record of a run, and what it proves: [`check`] states every broken promise.
//!
//! One timeline holds what was handed to producers and consumers, what they said, and what was
//! broken on purpose, in the order in which the outside program did and saw it. Two processes'
//! lines may be seen in another order than they were written, so that each law only uses causes:
//! what was asked after something was seen did happen after it. [`Entry`] reads and writes as a
//! JSON line, so that records can be kept.
//!
//! | law | violation |
//! |---|---|
//! | what is acknowledged is delivered to every group and settled | [`Violation::Lost`], [`Violation::Unsettled`] |
//! | what is certainly not stored is never delivered | [`Violation::Ghost`] |
//! | payloads and keys arrive as they were sent | [`Violation::Altered`] |
//! | a key's messages are delivered in order, also by the next owner | [`Violation::Order`] |
//! | nothing comes twice unless a verdict or a failure says so | [`Violation::Duplicate`] |
//! | a replaced owner settles nothing | [`Violation::Fenced`] |
//! | an epoch has one owner | [`Violation::TwoOwners`] |

mod index;
mod laws;
mod order;
#[cfg(test)]
mod planted;

use crate::protocol::{Command, Event, Input};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Something that was done or seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The process, by a name that no other one of the run has.
    pub source: String,
    /// The group, for consumers and for `final`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What it was.
    pub what: What,
}

/// What was done or seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// About to be handed to a producer.
    Input(Input),
    /// About to be handed to a consumer.
    Asked(Command),
    /// Heard from it.
    Told(Event),
    /// About to be broken.
    Fault(Fault),
}

/// What was broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// This process was killed, stopped for a while, or cut off.
    Process,
    /// The server, or everyone's way to it.
    Server,
}

/// What to hold a run against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Whether consumers ran with strict ordering.
    pub in_order: bool,
    /// Whether each consumer owns its partitions alone; those of one server share its ownership.
    pub exclusive: bool,
}

impl Default for Promise {
    fn default() -> Self {
        Self { in_order: true, exclusive: true }
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged message was never delivered to a group, and the group has nothing left.
    Lost {
        /// The message.
        id: String,
        /// The group.
        group: String,
    },
    /// An acknowledged message was delivered, but it is gone although no verdict can have settled
    /// it.
    Unsettled {
        /// The message.
        id: String,
        /// The group.
        group: String,
    },
    /// A delivered message that no producer sent, or whose send certainly failed.
    Ghost {
        /// The message.
        id: String,
        /// The group.
        group: String,
    },
    /// A message arrived with another payload or key.
    Altered {
        /// The message.
        id: String,
        /// The group.
        group: String,
    },
    /// A message overtook an earlier one of its key.
    Order {
        /// The key.
        key: String,
        /// The one that should have come before.
        first: String,
        /// The one that overtook it.
        second: String,
        /// The group.
        group: String,
    },
    /// A message came again although it was settled, or without any failure.
    Duplicate {
        /// The message.
        id: String,
        /// The group.
        group: String,
        /// Whether its settlement had been confirmed.
        settled: bool,
    },
    /// A verdict was confirmed although a newer owner had been seen before it was asked for.
    Fenced {
        /// The message.
        id: String,
        /// The group.
        group: String,
        /// The owner's epoch.
        epoch: u64,
        /// The newer one.
        newer: u64,
    },
    /// Two processes had a partition under one epoch.
    TwoOwners {
        /// The partition.
        partition: u32,
        /// The group.
        group: String,
        /// The epoch.
        epoch: u64,
    },
    /// The record does not say that a group had nothing left, so that losses cannot be told.
    Unfinished {
        /// The group.
        group: String,
        /// What was left; `None` if `final` is missing.
        lag: Option<u64>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { id, group } => write!(f, "{group}: {id} was acknowledged and never delivered"),
            Self::Unsettled { id, group } => write!(f, "{group}: {id} is gone without a verdict"),
            Self::Ghost { id, group } => write!(f, "{group}: {id} was delivered, but never stored"),
            Self::Altered { id, group } => {
                write!(f, "{group}: {id} was delivered with another payload or key")
            }
            Self::Order { key, first, second, group } => {
                write!(f, "{group}: {second} overtook {first} of key {key}")
            }
            Self::Duplicate { id, group, settled: true } => {
                write!(f, "{group}: {id} came again after it was settled")
            }
            Self::Duplicate { id, group, settled: false } => {
                write!(f, "{group}: {id} came twice without a failure")
            }
            Self::Fenced { id, group, epoch, newer } => {
                write!(f, "{group}: {id} was settled under epoch {epoch} after epoch {newer} had begun")
            }
            Self::TwoOwners { partition, group, epoch } => {
                write!(f, "{group}: partition {partition} had two owners under epoch {epoch}")
            }
            Self::Unfinished { group, lag: Some(lag) } => write!(f, "{group}: the run ended with {lag} left"),
            Self::Unfinished { group, lag: None } => write!(f, "{group}: the record has no final line"),
        }
    }
}

/// Every broken promise of a run; empty if all were kept.
pub fn check(timeline: &[Entry], promise: Promise) -> Vec<Violation> {
    let run = index::Run::read(timeline);
    let mut found = Vec::new();
    for (name, group) in &run.groups {
        let view = laws::View { name, group, run: &run };
        view.losses(&mut found);
        view.arrivals(&mut found);
        view.duplicates(&mut found);
        view.fencing(promise.exclusive, &mut found);
        if promise.in_order {
            order::check(&view, &mut found);
        }
    }
    found
}
