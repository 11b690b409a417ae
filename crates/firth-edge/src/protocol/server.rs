//! What the gateway says. `at` always means: where the client stands once it has this message.
//!
//! Messages are written straight into a buffer; the text of an event is shared ([`Frame`](crate::frame::Frame)).

use super::{Refusal, VERSION};
use crate::journal::Missing;
use crate::outbox::{Farewell, Gap, Mark, Parcel};
use crate::position::Position;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Message<'a> {
    Hello {
        version: u32,
        heartbeat_ms: u64,
        limits: HelloLimits,
    },
    Subscribed {
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        subscriptions: Vec<&'a str>,
        at: Position,
        resumed: bool,
    },
    Unsubscribed {
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        subscriptions: &'a [String],
        at: Position,
    },
    ResyncRequired {
        reason: &'static str,
        at: Position,
    },
    Heartbeat {
        at: Position,
    },
    Error {
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        code: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        field: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
        message: &'a str,
    },
    Bye {
        code: u16,
        reason: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_ms: Option<u64>,
    },
}

/// The limits that a client should know.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct HelloLimits {
    pub(crate) subscriptions: usize,
    pub(crate) message_bytes: usize,
    pub(crate) messages_per_second: u32,
}

pub(crate) fn hello(heartbeat: Duration, limits: HelloLimits) -> Arc<str> {
    text(&Message::Hello { version: VERSION, heartbeat_ms: millis(heartbeat), limits })
}

pub(crate) fn subscribed(reference: Option<u64>, names: Vec<&str>, at: Position, resumed: bool) -> Arc<str> {
    text(&Message::Subscribed { reference, subscriptions: names, at, resumed })
}

pub(crate) fn unsubscribed(reference: Option<u64>, names: &[String], at: Position) -> Arc<str> {
    text(&Message::Unsubscribed { reference, subscriptions: names, at })
}

pub(crate) fn resync_required(missing: Missing, at: Position) -> Arc<str> {
    text(&Message::ResyncRequired { reason: missing.as_str(), at })
}

pub(crate) fn heartbeat(at: Position) -> Arc<str> {
    text(&Message::Heartbeat { at })
}

pub(crate) fn error(refusal: &Refusal, reference: Option<u64>) -> Arc<str> {
    let Refusal { code, field, limit, message } = refusal;
    let (code, field, limit) = (code.as_str(), field.as_deref(), *limit);
    text(&Message::Error { reference, code, field, limit, message })
}

pub(crate) fn bye(farewell: &Farewell) -> Arc<str> {
    let Farewell { code, reason, retry } = *farewell;
    text(&Message::Bye { code, reason, retry_ms: retry.map(millis) })
}

/// The part of a presence message that all who watch share.
pub(crate) fn presence_tail(count: usize, members: &[&str]) -> Arc<str> {
    #[derive(Serialize)]
    struct Tail<'a> {
        count: usize,
        members: &'a [&'a str],
    }
    text(&Tail { count, members })
}

pub(crate) fn presence(out: &mut String, name: &str, tail: &str) {
    out.push_str(r#"{"type":"presence","sub":"#);
    out.push_str(name);
    out.push(',');
    out.push_str(tail.strip_prefix('{').unwrap_or(tail));
}

pub(crate) fn event(out: &mut String, parcel: &Parcel) {
    let shared = parcel.frame.text();
    out.reserve(shared.len() + 96);
    let _ = write!(out, r#"{{"type":"event","at":"{}","#, parcel.frame.at);
    names(out, "subs", parcel.marks.iter().filter(|mark| !mark.leaves));
    names(out, "leaves", parcel.marks.iter().filter(|mark| mark.leaves));
    if parcel.replaced > 0 {
        let _ = write!(out, r#""replaced":{},"#, parcel.replaced);
    }
    out.push_str(shared);
}

pub(crate) fn gap(out: &mut String, gap: &Gap) {
    let Gap { after, until, events } = gap;
    let _ = write!(out, r#"{{"type":"gap","after":"{after}","at":"{until}","events":{events}}}"#);
}

/// `"field":["a","b"],` unless there is none.
fn names<'a>(out: &mut String, field: &str, mut marks: impl Iterator<Item = &'a Mark>) {
    let Some(first) = marks.next() else { return };
    let _ = write!(out, r#""{field}":[{}"#, first.name);
    for mark in marks {
        out.push(',');
        out.push_str(&mark.name);
    }
    out.push_str("],");
}

fn text(message: &impl Serialize) -> Arc<str> {
    serde_json::to_string(message).expect("texts and numbers can always be written").into()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
