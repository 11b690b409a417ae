//! Delayed messages: listed, cancelled and delivered before their time.
//!
//! They lie in a sorted set by their time, in entries of one blob each. An entry begins with the
//! number of its last message, so a message keeps its number when an entry is cut in two.

use super::RedisEngine;
use super::blob;
use super::error_mapping::odd_answer;
use super::reply_decoding::{Parts, StepSubject};
use super::scripts::SCRIPTS;
use crate::error::Result;
use crate::facet::{DelayedAction, DelayedContent, DelayedOutcome, DelayedPage, DelayedState, ReadLimit};
use crate::id::RecordId;
use crate::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use crate::name::Partition;
use crate::record::Content;
use bytes::Bytes;

impl RedisEngine {
    pub(super) async fn list_delayed(
        &self,
        at: &Partition,
        after: RecordId,
        max: ReadLimit,
    ) -> Result<DelayedPage> {
        let keys = self.keys.partition(at);
        let (ms, number) = match after {
            RecordId::ZERO => (String::new(), String::new()),
            after => (after.ms.to_string(), printed(after.seq.saturating_add(1))),
        };
        let wanted = max.records.clamp(1, MAX_BATCH);
        let call = SCRIPTS.delayed.keys([&keys.meta, &keys.delayed]).arg(ms).arg(number);
        // One more tells whether there is a next page.
        let call = call.arg(wanted + 1).arg(max.bytes.clamp(1, MAX_BATCH_BYTES));
        let answer = StepSubject::partition(at).accept(self.steps.quick(call).await?)?;
        let mut parts = Parts::of(answer.value());
        let mut has_more = parts.number()? == 1;
        let mut list = Parts::of(parts.value()?);
        let mut page = DelayedPage::default();
        while !list.is_empty() {
            let ripe_in = list.duration()?.unwrap_or_default();
            let ms = list.text()?;
            let ms: u64 = ms.parse().map_err(|_| odd_answer())?;
            let (last, packed) = split_entry(list.bytes()?).ok_or_else(odd_answer)?;
            for (packed, behind) in packed.iter().zip((0..packed.len() as u64).rev()) {
                let id = RecordId::new(ms, last.checked_sub(behind).ok_or_else(odd_answer)?);
                if id <= after {
                    continue;
                }
                if page.messages.len() == wanted {
                    has_more = true;
                    break;
                }
                page.messages.push(DelayedContent { id, ripe_in, content: Content::unpack(packed.clone())? });
            }
        }
        page.next = page.messages.last().filter(|_| has_more).map(|message| message.id);
        Ok(page)
    }

    pub(super) async fn decide_delayed(
        &self,
        at: &Partition,
        id: RecordId,
        action: DelayedAction,
    ) -> Result<DelayedOutcome> {
        let keys = self.keys.partition(at);
        let (script, word) = match action {
            DelayedAction::Cancel => (&SCRIPTS.cancel_delayed, "cancel"),
            DelayedAction::Deliver => (&SCRIPTS.deliver_delayed, "deliver"),
        };
        let call = script.keys([&keys.meta, &keys.stream, &keys.delayed]);
        let call = call.arg(id.ms).arg(printed(id.seq)).arg(word);
        let (call, sent) = keys.clock.timed(call);
        let answer = StepSubject::partition(at).accept(self.steps.durable(script, call).await?)?;
        let mut parts = keys.clock.heard(sent, answer.value())?;
        let changed = parts.number()? == 1;
        let state = match parts.text()? {
            "cancelled" => DelayedState::Cancelled,
            "delivered" => DelayedState::Delivered,
            "missing" => DelayedState::Missing,
            _ => return Err(odd_answer()),
        };
        let record = parts.text()?;
        let record = if record.is_empty() { None } else { Some(record.parse().map_err(|_| odd_answer())?) };
        Ok(DelayedOutcome { state, changed, record })
    }
}

/// A number as entries begin with it; larger ones are never given.
fn printed(number: u64) -> String {
    format!("{:016}", number.min(9_999_999_999_999_999))
}

/// An entry as the number of its last message and the packed contents.
fn split_entry(entry: Bytes) -> Option<(u64, Vec<Bytes>)> {
    let number = std::str::from_utf8(entry.get(..16)?).ok()?.parse().ok()?;
    Some((number, blob::unpack(entry.slice(16..))?))
}
