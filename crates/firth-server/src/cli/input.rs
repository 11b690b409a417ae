//! What `firth produce` reads: lines, JSON values or whole messages, on a thread of its own.
//!
//! Everything that was read is handed over before more is waited for, so a live pipe is never held
//! back, and a file goes in large batches. Bounded: two batches wait, each of at most [`BATCH`]
//! messages and [`BATCH_BYTES`] (one message may be larger).

use crate::wire::{Outgoing, Shown, invalid};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use firth::{Error, ErrorKind, Result};
use indicatif::ProgressBar;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::rc::Rc;
use tokio::sync::mpsc;

/// The most messages of one request.
pub(crate) const BATCH: usize = 500;
/// A batch is sent when it has this many bytes.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// The longest line.
const MAX_LINE: u64 = 32 * 1024 * 1024;
const BUFFER: usize = 256 * 1024;

/// What one piece of the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputForm {
    /// Each line, or each argument, is a payload
    Text,
    /// Each JSON value is a payload; they may stand on lines of their own (NDJSON) or not
    Json,
    /// Each JSON object is a whole message with payload or json, key, headers, after_ms, partition;
    /// or a record as consume --json prints it
    Messages,
}

/// What all messages of a run share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mould {
    pub(crate) base: Template,
    /// Splits each line into its key and its payload.
    pub(crate) key_by: Option<String>,
}

/// Set on every message that does not say otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Template {
    pub(crate) key: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) after_ms: Option<u64>,
    pub(crate) partition: Option<u32>,
}

impl Mould {
    /// The message made of one piece of text.
    pub(crate) fn text(&self, line: &[u8]) -> Result<Outgoing> {
        let (key, payload) = match &self.key_by {
            None => (None, line),
            Some(by) => {
                let at = line.windows(by.len()).position(|part| part == by.as_bytes());
                let at = at.ok_or_else(|| invalid(format!("no {by:?} after a key: see --key-by")))?;
                let key = std::str::from_utf8(&line[..at]);
                let key = key.map_err(|error| invalid("a key is not text").with_source(error))?;
                (Some(key.to_owned()), &line[at + by.len()..])
            }
        };
        let mut message = Outgoing { key, ..Outgoing::default() };
        match std::str::from_utf8(payload) {
            Ok(text) => message.payload = Some(text.to_owned()),
            Err(_) => message.payload_base64 = Some(STANDARD.encode(payload)),
        }
        Ok(self.fill(message))
    }

    /// The messages made of one JSON value.
    pub(crate) fn json(&self, form: InputForm, value: Box<RawValue>) -> Result<Vec<Outgoing>> {
        if form != InputForm::Messages {
            return Ok(vec![self.fill(Outgoing { json: Some(value), ..Outgoing::default() })]);
        }
        let text = value.get();
        let parsed = match text.starts_with('[') {
            true => serde_json::from_str::<Vec<InputRecord>>(text),
            false => serde_json::from_str::<InputRecord>(text).map(|one| vec![one]),
        };
        let pieces = parsed.map_err(|error| invalid("this is no message").with_source(error))?;
        Ok(pieces.into_iter().map(|piece| self.fill(piece.into_message())).collect())
    }

    fn fill(&self, mut message: Outgoing) -> Outgoing {
        let Template { key, headers, after_ms, partition } = &self.base;
        message.key = message.key.or_else(|| key.clone());
        message.after_ms = message.after_ms.or(*after_ms);
        message.partition = message.partition.or(*partition);
        for (name, value) in headers {
            let value = crate::wire::Values::One(value.clone());
            message.headers.entry(name.clone()).or_insert(value);
        }
        message
    }
}

/// A message, or a record as `firth consume --json` and `firth topic browse --json` print it.
enum InputRecord {
    Message(Outgoing),
    Record(Shown),
}

impl<'de> Deserialize<'de> for InputRecord {
    /// A record has an id; a message has none, and what is wrong with it is told.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Probe {
            id: Option<IgnoredAny>,
        }
        let text = <&RawValue>::deserialize(from)?.get();
        let probe: Probe = serde_json::from_str(text).map_err(D::Error::custom)?;
        match probe.id {
            Some(_) => serde_json::from_str(text).map(Self::Record),
            None => serde_json::from_str(text).map(Self::Message),
        }
        .map_err(D::Error::custom)
    }
}

impl InputRecord {
    /// A copy of a record keeps key, headers and payload; its partition follows from the key.
    fn into_message(self) -> Outgoing {
        match self {
            Self::Message(message) => message,
            Self::Record(mut record) => {
                if record.json.is_some() {
                    // The header comes with the JSON again.
                    record.headers.remove("content-type");
                }
                Outgoing {
                    key: record.key,
                    key_base64: record.key_base64,
                    payload: record.payload,
                    payload_base64: record.payload_base64,
                    json: record.json,
                    headers: record.headers,
                    ..Outgoing::default()
                }
            }
        }
    }
}

/// Reads to the end on a thread of its own; an error is the last that comes.
pub(crate) fn read(
    from: impl Read + Send + 'static,
    form: InputForm,
    mould: Mould,
    bar: ProgressBar,
) -> mpsc::Receiver<Result<Vec<Outgoing>>> {
    let (to, batches) = mpsc::channel(2);
    std::thread::spawn(move || {
        let pending = Rc::new(RefCell::new(Pending { batch: Vec::new(), bytes: 0, to: to.clone() }));
        let source = Source { from, bar, pending: pending.clone() };
        let reader = BufReader::with_capacity(BUFFER, source);
        let outcome = match form {
            InputForm::Text => lines(reader, &mould, &pending),
            InputForm::Json | InputForm::Messages => values(reader, form, &mould, &pending),
        };
        let outcome = outcome.and_then(|()| pending.borrow_mut().hand_over());
        if let Err(error) = outcome {
            // If the receiver is gone, it stopped reading and knows why.
            let _ = to.blocking_send(Err(error));
        }
    });
    batches
}

struct Pending {
    batch: Vec<Outgoing>,
    bytes: usize,
    to: mpsc::Sender<Result<Vec<Outgoing>>>,
}

impl Pending {
    fn add(&mut self, message: Outgoing, bytes: usize) -> Result<()> {
        self.batch.push(message);
        self.bytes += bytes;
        if self.batch.len() < BATCH && self.bytes < BATCH_BYTES { Ok(()) } else { self.hand_over() }
    }

    fn hand_over(&mut self) -> Result<()> {
        self.bytes = 0;
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.to.blocking_send(Ok(batch)).map_err(|_| Error::new(ErrorKind::Closed, "sending has ended"))
    }
}

/// The input itself: hands over what is pending before it waits.
struct Source<R> {
    from: R,
    bar: ProgressBar,
    pending: Rc<RefCell<Pending>>,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.pending.borrow_mut().hand_over().map_err(std::io::Error::other)?;
        let read = self.from.read(buffer)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

fn lines(mut reader: impl BufRead, mould: &Mould, pending: &RefCell<Pending>) -> Result<()> {
    let mut number = 0_u64;
    loop {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        if read as u64 > MAX_LINE {
            return Err(invalid(format!("line {number} is longer than {MAX_LINE} bytes")));
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if !text.is_empty() {
            let message = mould.text(text).map_err(|error| error.during(format!("line {number}")))?;
            pending.borrow_mut().add(message, read)?;
        }
    }
}

fn values(reader: impl BufRead, form: InputForm, mould: &Mould, pending: &RefCell<Pending>) -> Result<()> {
    let values = serde_json::Deserializer::from_reader(reader).into_iter::<Box<RawValue>>();
    for (index, value) in values.enumerate() {
        let value = value.map_err(|error| {
            if error.is_io() {
                unreadable(error.into())
            } else {
                invalid("the input is not JSON").with_source(error)
            }
        })?;
        let bytes = value.get().len();
        let messages =
            mould.json(form, value).map_err(|error| error.during(format!("value {}", index + 1)))?;
        let each = bytes / messages.len().max(1);
        messages.into_iter().try_for_each(|message| pending.borrow_mut().add(message, each))?;
    }
    Ok(())
}

fn unreadable(error: std::io::Error) -> Error {
    invalid("the input cannot be read").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &'static str, form: InputForm, mould: Mould) -> Result<Vec<Outgoing>> {
        let mut batches = read(text.as_bytes(), form, mould, ProgressBar::hidden());
        let mut all = Vec::new();
        while let Some(batch) = batches.blocking_recv() {
            all.extend(batch?);
        }
        Ok(all)
    }

    #[test]
    fn lines_are_payloads_and_empty_ones_are_none() {
        let sent = all("one\r\n\ntwo", InputForm::Text, Mould::default()).unwrap();
        let payloads: Vec<_> = sent.iter().map(|message| message.payload.as_deref().unwrap()).collect();
        assert_eq!(payloads, ["one", "two"]);
    }

    #[test]
    fn a_separator_splits_keys_off() {
        let mould = Mould { key_by: Some(":".to_owned()), ..Mould::default() };
        let sent = all("ada:tea: green\n", InputForm::Text, mould.clone()).unwrap();
        assert_eq!((sent[0].key.as_deref(), sent[0].payload.as_deref()), (Some("ada"), Some("tea: green")));
        let error = all("fine:1\nwithout\n", InputForm::Text, mould).unwrap_err();
        assert!(error.to_string().contains("line 2") || error.context().contains("--key-by"), "{error:?}");
    }

    #[test]
    fn json_values_need_no_lines_of_their_own() {
        let sent = all("{\"a\":\n 1} 2\n\"x\"", InputForm::Json, Mould::default()).unwrap();
        assert_eq!(sent.len(), 3);
        assert_eq!(all("{\"a\":", InputForm::Json, Mould::default()).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn whole_messages_keep_what_they_say_and_get_the_rest() {
        let base = Template { key: Some("k".to_owned()), partition: Some(3), ..Template::default() };
        let mould = Mould { base, key_by: None };
        let sent =
            all(r#"{"payload":"x","key":"own"} [{"json":1},{"payload":"y"}]"#, InputForm::Messages, mould)
                .unwrap();
        let keys: Vec<_> = sent.iter().map(|message| message.key.as_deref().unwrap()).collect();
        assert_eq!(keys, ["own", "k", "k"]);
        assert!(sent.iter().all(|message| message.partition == Some(3)));
        let error =
            all(r#"{"payload":"x"} {"color":"red"}"#, InputForm::Messages, Mould::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn what_was_read_is_handed_over_before_more_is_waited_for() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut batches = read(reader, InputForm::Text, Mould::default(), ProgressBar::hidden());
        std::io::Write::write_all(&mut writer, b"now\n").unwrap();
        assert_eq!(batches.blocking_recv().unwrap().unwrap().len(), 1);
        drop(writer);
        assert!(batches.blocking_recv().is_none());
    }
}
