//! The messages of `proto/streamer.proto`, written out so that building needs no compiler for it.

use crate::lane::{Answer, Outcome, Position};
#[cfg(test)]
use bytes::Bytes;
use prost::Message;
use std::time::Duration;

/// The longest pause that a gateway can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventBatch {
    #[prost(string, tag = "1")]
    pub(super) gateway_id: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) events: Vec<StreamerEvent>,
    #[prost(string, tag = "3")]
    pub(super) node: String,
    #[prost(uint64, tag = "4")]
    pub(super) batch: u64,
    #[prost(message, optional, tag = "5")]
    pub(super) gap: Option<Gap>,
    #[prost(string, tag = "6")]
    pub(super) topic: String,
}

#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamerEvent {
    #[prost(string, tag = "1")]
    pub(super) subscription_id: String,
    #[prost(string, tag = "2")]
    pub(super) event_type: String,
    #[prost(string, tag = "3")]
    pub(super) tenant: String,
    #[prost(string, tag = "4")]
    pub(super) collection: String,
    #[prost(string, tag = "5")]
    pub(super) document_id: String,
    #[prost(bytes = "bytes", tag = "6")]
    pub(super) payload: Bytes,
    #[prost(int64, tag = "7")]
    pub(super) seq: i64,
    #[prost(int32, tag = "8")]
    pub(super) partition_id: i32,
    #[prost(string, repeated, tag = "9")]
    pub(super) subscription_ids: Vec<String>,
    #[prost(string, repeated, tag = "10")]
    pub(super) left_subscription_ids: Vec<String>,
    #[prost(uint64, tag = "11")]
    pub(super) epoch: u64,
    #[prost(bytes = "bytes", tag = "12")]
    pub(super) before: Bytes,
    #[prost(uint64, tag = "13")]
    pub(super) committed_ms: u64,
    #[prost(string, tag = "14")]
    pub(super) traceparent: String,
    #[prost(uint64, tag = "15")]
    pub(super) appended_ms: u64,
    #[prost(string, tag = "16")]
    pub(super) control: String,
    #[prost(bool, tag = "17")]
    pub(super) all_tenants: bool,
    #[prost(string, tag = "18")]
    pub(super) reason: String,
    #[prost(string, repeated, tag = "19")]
    pub(super) missing: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gap {
    #[prost(message, repeated, tag = "1")]
    pub(super) events: Vec<Place>,
    #[prost(string, repeated, tag = "2")]
    pub(super) subscription_ids: Vec<String>,
    #[prost(uint64, tag = "3")]
    pub(super) lost: u64,
    #[prost(bool, tag = "4")]
    pub(super) all: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Place {
    #[prost(int32, tag = "1")]
    pub(super) partition_id: i32,
    #[prost(int64, tag = "2")]
    pub(super) seq: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeliveryAck {
    #[prost(int32, tag = "1")]
    pub(super) accepted: i32,
    #[prost(int32, tag = "2")]
    pub(super) rejected: i32,
    #[prost(message, repeated, tag = "3")]
    pub(super) rejections: Vec<Rejection>,
}

/// The answer to one batch of a stream.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BatchAck {
    #[prost(uint64, tag = "1")]
    pub(super) batch: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) ack: Option<DeliveryAck>,
    #[prost(uint32, tag = "3")]
    pub(super) retry_after_ms: u32,
    #[prost(uint32, tag = "4")]
    pub(super) window: u32,
}

impl BatchAck {
    /// What it says of a batch of `events` events. An answer without results asks for a pause.
    pub(super) fn outcome(self, events: usize) -> Outcome {
        match self.ack {
            Some(ack) => ack.outcome(events),
            None => {
                let pause = Duration::from_millis(self.retry_after_ms.into()).min(MAX_PAUSE);
                Outcome::Busy((self.retry_after_ms > 0).then_some(pause))
            }
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Rejection {
    #[prost(uint32, tag = "1")]
    pub(super) index: u32,
    #[prost(string, tag = "2")]
    pub(super) reason: String,
}

impl From<&crate::lane::Gap> for Gap {
    fn from(gap: &crate::lane::Gap) -> Self {
        let place = |at: Position| Place { partition_id: signed(at.partition), seq: signed_seq(at.seq) };
        Self {
            events: gap.positions().map(place).collect(),
            subscription_ids: gap.subscriptions().into_iter().flatten().map(ToString::to_string).collect(),
            lost: gap.lost(),
            all: gap.concerns_all(),
        }
    }
}

/// Batches are written by [`writer`](super::writer); this is what they must read as.
#[cfg(test)]
impl EventBatch {
    pub(super) fn new(to: &crate::registry::Gateway, node: &str, batch: &crate::lane::Batch) -> Self {
        let gap = batch.gap.as_ref().map(Gap::from);
        let events = batch.items.iter().map(StreamerEvent::from).collect();
        Self {
            gateway_id: to.id.to_string(),
            events,
            node: node.to_owned(),
            batch: batch.id,
            gap,
            topic: batch.topic.to_string(),
        }
    }
}

#[cfg(test)]
impl From<&crate::lane::Item> for StreamerEvent {
    fn from(item: &crate::lane::Item) -> Self {
        let event = &item.event;
        let text = |document: Option<&crate::event::Document>| {
            document.map_or_else(Bytes::new, |document| document.text().clone())
        };
        let names = |leaving: bool| {
            let some = item.wanted.iter().filter(move |one| !leaving || one.leaves);
            some.map(|one| one.subscription.to_string()).collect()
        };
        let subscription_ids: Vec<String> = names(false);
        let (operation, tenant, key) = item.on_wire();
        Self {
            subscription_id: subscription_ids.first().cloned().unwrap_or_default(),
            event_type: operation.as_str().to_owned(),
            tenant: tenant.to_owned(),
            collection: event.collection.to_string(),
            document_id: key.to_owned(),
            payload: text(event.document()),
            seq: signed_seq(item.position.seq),
            partition_id: signed(item.position.partition),
            subscription_ids,
            left_subscription_ids: names(true),
            epoch: item.epoch,
            before: text(event.before.as_ref()),
            traceparent: item.trace.as_deref().unwrap_or_default().to_owned(),
            committed_ms: event.committed_ms,
            appended_ms: item.appended_ms,
            control: item.control().to_owned(),
            all_tenants: event.is_for_all_tenants(),
            reason: event.reason.as_deref().unwrap_or_default().to_owned(),
            missing: event.missing.iter().map(ToString::to_string).collect(),
        }
    }
}

impl DeliveryAck {
    /// What it says of a batch of `events` events.
    pub(super) fn outcome(self, events: usize) -> Outcome {
        if self.rejected == 0 && self.rejections.is_empty() && usize::try_from(self.accepted) == Ok(events) {
            return Outcome::Accepted;
        }
        if self.rejections.is_empty() {
            let reason =
                format!("the gateway accepted {} of {events} events without saying which", self.accepted);
            return Outcome::Answered(vec![Answer::Refused(reason); events]);
        }
        let mut answers = vec![Answer::Accepted; events];
        for Rejection { index, mut reason } in self.rejections {
            reason.truncate(reason.floor_char_boundary(500));
            if let Some(answer) = answers.get_mut(index as usize) {
                *answer = Answer::Refused(reason);
            }
        }
        Outcome::Answered(answers)
    }
}

/// Partitions are few.
pub(super) fn signed(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// Places are far from 2^63.
pub(super) fn signed_seq(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(accepted: i32, rejected: i32, rejections: &[u32]) -> DeliveryAck {
        let rejections =
            rejections.iter().map(|&index| Rejection { index, reason: "no".to_owned() }).collect();
        DeliveryAck { accepted, rejected, rejections }
    }

    #[test]
    fn a_count_alone_accepts_all_or_nothing_and_named_rejections_only_those() {
        assert_eq!(ack(3, 0, &[]).outcome(3), Outcome::Accepted);
        let refused = |outcome: Outcome| match outcome {
            Outcome::Answered(answers) => {
                answers.iter().filter(|answer| **answer != Answer::Accepted).count()
            }
            _ => 0,
        };
        assert_eq!(refused(ack(2, 1, &[]).outcome(3)), 3, "which one is unknown");
        assert_eq!(refused(ack(0, 0, &[]).outcome(3)), 3, "nothing was accepted");
        assert_eq!(refused(ack(2, 1, &[1]).outcome(3)), 1);
        assert_eq!(refused(ack(2, 1, &[1, 7]).outcome(3)), 1, "there is no eighth");
    }
}
