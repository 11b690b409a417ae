//! The part of a session that makes records of what the stream tells, and gives each its partition.

use super::assembler::{PARTS, Record, Told, key_hash};
use super::emitted::Emitted;
use super::position::{Lsn, Position};
use super::stream::Session;
use crate::dead_letter::DeadLetter;
use crate::error::{Error, Result};
use crate::pump::Change;
use crate::record::{message, size_of};
use crate::sink::Sink;
use crate::state::{Keep, Resync};
use firth::Message;
use firth_router::event::{Event, Operation};
use std::time::Instant;

/// What an event takes beside its documents, at most about.
const NAMES: usize = 128 << 10;
/// The largest message of an outbox.
const MAX_MESSAGE: usize = 8 << 20;

type Headers = Vec<(&'static str, String)>;

impl<S: Sink, K: Keep> Session<'_, S, K> {
    /// After a loss every partition is told, in front of all that follows.
    pub(super) fn tell_resync(&mut self) -> Result<()> {
        let Some(Resync { reason, at: Some(at) }) = self.state.resync.clone() else { return Ok(()) };
        let commit = Lsn(Resync::commit(at));
        self.pump.begin();
        for (index, (tenant, collection)) in (0..).zip(self.config.scopes()?) {
            let event = Event::control(Operation::Resync, tenant, collection).with_reason(reason.clone());
            let position = Position { commit, index, ..self.origin };
            let headers =
                [("firth-source", self.config.name.clone()), ("firth-position", position.to_string())];
            self.progress.read(&event);
            self.push_everywhere(position, &message(&event, None, headers));
        }
        self.telling = Some(self.pump.commit(Lsn(at)));
        Ok(())
    }

    pub(super) fn record(&mut self, record: Record) -> Result<()> {
        let headers = record.headers(&self.config.name);
        let (row, position) = (record.row(), record.position);
        match record.told {
            Told::Event(event) if event.is_control() => {
                // The names of tables that are copied and those of collections differ.
                record.truncated.iter().for_each(|table| self.copying.copier.truncate(table));
                self.progress.read(&event);
                self.push_everywhere(position, &message(&event, None, headers));
            }
            Told::Event(mut event) => {
                self.copying.copier.touch(row, &mut event)?;
                self.event(&event, position, record.relation, headers)?;
            }
            Told::Emitted(emitted) => self.emitted(position, emitted, headers)?,
            Told::Dead(letter) => self.dead(position, &letter, headers)?,
        }
        self.progress.buffered(self.pump.buffered_bytes(), self.pump.is_full());
        Ok(())
    }

    /// An event of a document.
    fn event(&mut self, event: &Event, position: Position, relation: u32, headers: Headers) -> Result<()> {
        let key = event.message_key();
        let partition = self.sink.partition_for(key.as_bytes());
        if let Err(error) = self.fits(event) {
            let row = position.index / PARTS;
            if self.config.policy.dead_topic.is_none() {
                let key = key_hash(&event.key);
                return Err(Error::poison(format!("{error} (at {}.{row}, key {key})", position.commit)));
            }
            let letter = DeadLetter {
                table: self.assembler.table(relation).unwrap_or_default().to_owned(),
                op: event.operation.as_str().to_owned(),
                key: Some(event.key.to_string()),
                reason: error.to_string(),
                committed_ms: event.committed_ms,
            };
            return self.dead(position, &letter, headers);
        }
        self.progress.read(event);
        self.push(partition as usize, position, message(event, Some(key), headers));
        Ok(())
    }

    /// Whether the topic takes an event.
    pub(super) fn fits(&self, event: &Event) -> Result<()> {
        let limit = self.sink.max_payload();
        let documents = [&event.before, &event.after].into_iter().flatten();
        let about: usize = documents.map(|document| document.text().len()).sum();
        // Only of one that comes near the limit it is worth to know more.
        let size = if about + NAMES > limit { event.to_compact().len() } else { about };
        if size <= limit {
            return Ok(());
        }
        let text = format!(
            "the event of a row of collection {} has {size} bytes; topic {} takes {limit} (max_payload)",
            event.collection, self.config.topic
        );
        Err(Error::poison(text))
    }

    /// A message for another topic.
    fn emitted(&mut self, position: Position, emitted: Emitted, headers: Headers) -> Result<()> {
        let Emitted { topic, key, payload, length } = emitted;
        let outlet = self.sink.outlet(&topic, key.as_ref().map(String::as_bytes));
        let limit = outlet.map_or(0, |partition| self.sink.max_payload_of(partition)).min(MAX_MESSAGE);
        let Some(partition) = outlet.filter(|_| length <= limit) else {
            let reason = match outlet {
                Some(_) => format!("a message for topic {topic} has {length} bytes; at most {limit}"),
                None => format!("a message is for topic {topic:?}, which `outbox` does not name"),
            };
            if self.config.policy.dead_topic.is_none() {
                return Err(Error::poison(format!(
                    "{reason} (at {}.{})",
                    position.commit,
                    position.index / PARTS
                )));
            }
            let op = "message".to_owned();
            let letter = DeadLetter { table: String::new(), op, key: None, reason, committed_ms: 0 };
            return self.dead(position, &letter, headers);
        };
        let message = key.into_iter().fold(Message::new(payload), Message::key);
        self.push(partition as usize, position, with_headers(message, headers));
        Ok(())
    }

    /// A change that cannot be an event.
    fn dead(&mut self, position: Position, letter: &DeadLetter, headers: Headers) -> Result<()> {
        let topic = self.config.policy.dead_topic.clone().unwrap_or_default();
        let partition = self.sink.outlet(&topic, None);
        let partition = partition.ok_or_else(|| Error::invalid(format!("there is no topic {topic}")))?;
        tracing::warn!(source = self.config.name, %position, ?letter, "a change became a dead letter");
        self.progress.died(&Error::poison(&*letter.reason));
        let message = with_headers(Message::new(letter.to_bytes()), headers);
        self.push(partition as usize, position, message);
        Ok(())
    }

    /// A control stands in order with the events of all documents.
    fn push_everywhere(&mut self, position: Position, message: &Message) {
        let sink = self.sink.clone();
        for partition in (0..sink.partitions()).filter(|number| sink.takes_events(*number)) {
            self.push(partition as usize, position, message.clone());
        }
    }

    fn push(&mut self, partition: usize, position: Position, message: Message) {
        let position = Position { group: self.copying.copier.mark(partition), ..position };
        let size = size_of(&message);
        self.last = Some(position);
        self.pump.push(Instant::now(), Change { partition, position, message, size });
    }
}

fn with_headers(message: Message, headers: impl IntoIterator<Item = (&'static str, String)>) -> Message {
    headers.into_iter().fold(message, |message, (name, value)| message.header(name, value))
}
