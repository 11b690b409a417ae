//! Writes a batch as the message `EventBatch`, straight from the events: every text goes from where
//! it lies into the frame, once.

use super::frames::frame_of;
use super::messages::{Gap, signed, signed_seq};
use crate::lane::{Batch, Item};
use crate::registry::Gateway;
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

/// The frame of a batch under a number.
pub(super) fn batch_frame(to: &Gateway, node: &str, number: u64, batch: &Batch) -> Bytes {
    let gap = batch.gap.as_ref().map(Gap::from);
    let lengths: Vec<usize> = batch.items.iter().map(event_len).collect();
    let events: usize = lengths.iter().map(|length| block_len(*length)).sum();
    let gap_len = gap.as_ref().map_or(0, |gap| block_len(gap.encoded_len()));
    let texts = text_len(to.id.as_str()) + text_len(node) + text_len(&batch.topic);
    let length = texts + events + number_len(number) + gap_len;
    frame_of(length, |out| {
        put_text(out, 1, to.id.as_str().as_bytes());
        for (item, length) in batch.items.iter().zip(lengths) {
            put_head(out, 2, length);
            put_event(out, item);
        }
        put_text(out, 3, node.as_bytes());
        put_number(out, 4, number);
        if let Some(gap) = gap {
            put_head(out, 5, gap.encoded_len());
            gap.encode_raw(out);
        }
        put_text(out, 6, batch.topic.as_bytes());
    })
}

fn event_len(item: &Item) -> usize {
    let event = &item.event;
    let (operation, tenant, key) = item.on_wire();
    let texts = [first(item), operation.as_str(), tenant, &event.collection, key];
    let documents = [event.document(), event.before.as_ref()].into_iter().flatten();
    // Names of a list are written also if they are empty, but names are never empty.
    let names = item.wanted.iter().map(|one| {
        let length = block_len(one.subscription.as_str().len());
        if one.leaves { 2 * length } else { length }
    });
    texts.iter().map(|text| text_len(text)).sum::<usize>()
        + documents.map(|document| block_len(document.text().len())).sum::<usize>()
        + names.sum::<usize>()
        + number_len(number_of_seq(item))
        + number_len(number_of_partition(item))
        + number_len(item.epoch)
        + number_len(event.committed_ms)
        + number_len(item.appended_ms)
        + item.trace.as_ref().map_or(0, |trace| block_len(trace.len()))
        + rare(item).map(|(_, text)| 1 + block_len(text.len())).sum::<usize>()
        + if event.is_for_all_tenants() { 3 } else { 0 }
}

/// What few events have, under tags that take two bytes.
const CONTROL: u32 = 16;
const ALL_TENANTS: u32 = 17;
const REASON: u32 = 18;
const MISSING: u32 = 19;

/// Texts that few events have.
fn rare(item: &Item) -> impl Iterator<Item = (u32, &str)> {
    let reason = item.event.reason.as_deref().unwrap_or_default();
    let texts =
        [(CONTROL, item.control()), (REASON, reason)].into_iter().filter(|(_, text)| !text.is_empty());
    texts.chain(item.event.missing.iter().map(|column| (MISSING, &**column)))
}

fn put_rare(out: &mut BytesMut, item: &Item) {
    for (tag, text) in rare(item) {
        encode_varint(u64::from(tag << 3 | 2), out);
        encode_varint(text.len() as u64, out);
        out.put_slice(text.as_bytes());
        if tag == CONTROL && item.event.is_for_all_tenants() {
            encode_varint(u64::from(ALL_TENANTS << 3), out);
            encode_varint(1, out);
        }
    }
}

fn put_event(out: &mut BytesMut, item: &Item) {
    let event = &item.event;
    put_text(out, 1, first(item).as_bytes());
    let (operation, tenant, key) = item.on_wire();
    put_text(out, 2, operation.as_str().as_bytes());
    put_text(out, 3, tenant.as_bytes());
    put_text(out, 4, event.collection.as_bytes());
    put_text(out, 5, key.as_bytes());
    put_text(out, 6, event.document().map_or(&[], |document| &document.text()[..]));
    put_number(out, 7, number_of_seq(item));
    put_number(out, 8, number_of_partition(item));
    item.wanted.iter().for_each(|one| put_text(out, 9, one.subscription.as_str().as_bytes()));
    let leaving = item.wanted.iter().filter(|one| one.leaves);
    leaving.for_each(|one| put_text(out, 10, one.subscription.as_str().as_bytes()));
    put_number(out, 11, item.epoch);
    put_text(out, 12, event.before.as_ref().map_or(&[], |document| &document.text()[..]));
    put_number(out, 13, event.committed_ms);
    put_text(out, 14, item.trace.as_deref().unwrap_or_default().as_bytes());
    put_number(out, 15, item.appended_ms);
    put_rare(out, item);
}

fn first(item: &Item) -> &str {
    item.wanted.first().map_or("", |one| one.subscription.as_str())
}

fn number_of_seq(item: &Item) -> u64 {
    signed_seq(item.position.seq).cast_unsigned()
}

fn number_of_partition(item: &Item) -> u64 {
    i64::from(signed(item.position.partition)).cast_unsigned()
}

/// The tag, below 16, takes one byte.
fn block_len(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

/// As all values: nothing if it is what a reader assumes anyway.
fn text_len(text: &str) -> usize {
    if text.is_empty() { 0 } else { block_len(text.len()) }
}

fn number_len(number: u64) -> usize {
    if number == 0 { 0 } else { 1 + encoded_len_varint(number) }
}

fn put_head(out: &mut BytesMut, tag: u8, length: usize) {
    out.put_u8(tag << 3 | 2);
    encode_varint(length as u64, out);
}

fn put_text(out: &mut BytesMut, tag: u8, text: &[u8]) {
    if !text.is_empty() {
        put_head(out, tag, text.len());
        out.put_slice(text);
    }
}

fn put_number(out: &mut BytesMut, tag: u8, number: u64) {
    if number != 0 {
        out.put_u8(tag << 3);
        encode_varint(number, out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::frame;
    use super::super::messages::EventBatch;
    use super::*;
    use crate::event::{Document, Event, Operation};
    use crate::lane::Position;
    use crate::name::{GatewayId, SubscriptionId, Tenant};
    use crate::registry::{Subscription, Wanted};
    use crate::routing::Target;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn wanted(id: &str, leaves: bool) -> Wanted {
        let target = Target::Direct(GatewayId::new("g").unwrap());
        let id = SubscriptionId::new(id).unwrap();
        let subscription = Subscription::new(id, Tenant::new("t").unwrap(), "c", target);
        Wanted { subscription: Arc::new(subscription), leaves }
    }

    fn document() -> impl Strategy<Value = Option<Document>> {
        let text = |text: String| Document::from_value(&serde_json::json!({ "t": text })).unwrap();
        proptest::option::of(".{0,200}".prop_map(text))
    }

    fn item() -> impl Strategy<Value = Item> {
        let interests = proptest::collection::vec(("[a-z]{1,9}", any::<bool>()), 1..4);
        let numbers = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>());
        let trace = proptest::option::of("[0-9a-f-]{1,55}".prop_map(Arc::<str>::from));
        (numbers, ".{1,30}", document(), document(), interests, trace).prop_map(
            |(numbers, key, before, after, interests, trace)| {
                let (partition, seq, epoch, committed_ms) = numbers;
                let event = Event::new(Operation::Update, Tenant::new("t").unwrap(), "c", key);
                let event = match seq % 4 {
                    0 => Event::control(Operation::Truncate, None, "c").with_reason("why"),
                    1 => Event::control(Operation::Resync, Some(Tenant::new("t").unwrap()), "c"),
                    2 => Event { before, after, committed_ms, ..event }.with_missing(["a", "b"]),
                    _ => Event { before, after, committed_ms, ..event },
                };
                let interests: Vec<_> = interests.iter().map(|(id, leaves)| wanted(id, *leaves)).collect();
                let item = Item::new(Position { partition, seq }, epoch, Arc::new(event), &interests);
                item.appended_at(committed_ms.rotate_left(7)).with_trace(trace)
            },
        )
    }

    proptest! {
        #[test]
        fn the_frame_is_what_the_message_would_be(
            items in proptest::collection::vec(item(), 0..5), node in "[a-z]{0,9}", number in any::<u64>(), topic in "[a-z]{0,9}",
        ) {
            let to = Gateway::new(GatewayId::new("gw").unwrap(), "http://x");
            let batch = Batch { id: number, topic: topic.into(), items: Arc::new(items), gap: None };
            let message = EventBatch::new(&to, &node, &batch);
            prop_assert_eq!(batch_frame(&to, &node, number, &batch), frame(&message));
        }
    }
}
