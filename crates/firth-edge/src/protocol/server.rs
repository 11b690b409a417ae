//! What the gateway says. `at` always means: where the client stands once it has this message.
//!
//! The text of an event is made once ([`Frame`]), and so is the whole message for all connections
//! with the same names of subscriptions.

use super::{EdgeError, VERSION};
use crate::frame::Frame;
use crate::journal::Missing;
use crate::outbox::{CloseReason, Gap, Mark};
use crate::packet::Packet;
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
        at: &'a Position,
        resumed: bool,
    },
    Unsubscribed {
        #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        subscriptions: &'a [String],
        at: &'a Position,
    },
    ResyncRequired {
        reason: &'static str,
        at: &'a Position,
    },
    Heartbeat {
        at: &'a Position,
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

pub(crate) fn subscribed(reference: Option<u64>, names: Vec<&str>, at: &Position, resumed: bool) -> Arc<str> {
    text(&Message::Subscribed { reference, subscriptions: names, at, resumed })
}

pub(crate) fn unsubscribed(reference: Option<u64>, names: &[String], at: &Position) -> Arc<str> {
    text(&Message::Unsubscribed { reference, subscriptions: names, at })
}

pub(crate) fn resync_required(missing: Missing, at: &Position) -> Arc<str> {
    text(&Message::ResyncRequired { reason: missing.as_str(), at })
}

pub(crate) fn heartbeat(at: &Position) -> Arc<str> {
    text(&Message::Heartbeat { at })
}

pub(crate) fn error(error: &EdgeError, reference: Option<u64>) -> Arc<str> {
    let EdgeError { code, field, limit, message } = error;
    let code = code.as_str();
    let field = field.as_deref();
    let limit = *limit;
    text(&Message::Error { reference, code, field, limit, message })
}

pub(crate) fn bye(close_reason: &CloseReason) -> Arc<str> {
    let CloseReason { code, reason, retry } = *close_reason;
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

pub(crate) fn presence(name: &str, tail: &str) -> Packet {
    Packet::new(&[r#"{"type":"presence","sub":"#, name, ",", tail.strip_prefix('{').unwrap_or(tail)])
}

/// An event for these subscriptions of a client that stands at `at` then; it stands for this many
/// older ones as well. A control is the order to load their collection again: to a client that does
/// not know the field `subs` there, everything.
pub(crate) fn event(frame: &Frame, at: &Position, marks: &[Mark], replaced: u32) -> Packet {
    let mut head = String::with_capacity(96);
    let kind = if frame.control_reason().is_some() { "resync-required" } else { "event" };
    let _ = write!(head, r#"{{"type":"{kind}","at":"{at}","#);
    names(&mut head, "subs", marks.iter().filter(|mark| !mark.leaves));
    names(&mut head, "leaves", marks.iter().filter(|mark| mark.leaves));
    if replaced > 0 {
        let _ = write!(head, r#""replaced":{replaced},"#);
    }
    Packet::new(&[&head, frame.text()])
}

pub(crate) fn gap(gap: &Gap) -> Packet {
    let Gap { after, until, events } = gap;
    Packet::new(&[&format!(r#"{{"type":"gap","after":"{after}","at":"{until}","events":{events}}}"#)])
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
