//! Requests that go to one node: a command, a transaction, or commands that stay together.
//!
//! Decides by the replies whether the node refused all of it before anything ran, so that it may be
//! sent again. Pure.

use super::redirect::RetryDecision;
use super::slot::slot;
use crate::command::{Atomicity, Pipe, PipedCommand, pipe};
use crate::connection::{Replies, Request};
use crate::error::CallError;
use crate::error_origin::ErrorOrigin;
use crate::resp::Frame;
use std::borrow::Cow;

/// Slot that all keys of the request share, or `None` without keys.
pub(crate) fn common_slot(request: &Request<'_>) -> Result<Option<u16>, CallError> {
    let Request::Many(pipe) = request else { return Ok(first_key(request).map(slot)) };
    let mut slots = pipe.commands().filter_map(|command| command.key).map(slot);
    let first = slots.next();
    if slots.any(|other| Some(other) != first) {
        let (what, reason) = match pipe.atomicity() {
            Atomicity::Transaction => ("a transaction", ""),
            _ if pipe.waits() => ("a pipeline with WAIT", ": it counts the writes of one node only"),
            _ => ("commands bound together", ""),
        };
        return Err(CallError::Invalid(format!(
            "CROSSSLOT: the keys of {what} must share a slot in a cluster{reason}; give them a common {{tag}}"
        )));
    }
    Ok(first)
}

/// The key of a single command.
pub(crate) fn first_key<'a>(request: &'a Request<'_>) -> Option<&'a [u8]> {
    match request {
        Request::One(command) => command.first_key(),
        Request::Many(_) => None,
    }
}

/// Decision by the replies. Anything but [`RetryDecision::Finish`] means that no part of the
/// request ran.
pub(crate) fn decide(request: &Request<'_>, replies: &Replies) -> RetryDecision {
    let frames = frames(replies);
    match request {
        Request::One(command) => {
            let decision = |frame| decide_reply(frame, command.origin(), command.first_key());
            frames.first().map_or(RetryDecision::Finish, decision)
        }
        Request::Many(pipe) if pipe.atomicity() == Atomicity::Transaction => decide_transaction(frames),
        Request::Many(pipe) => decide_together(pipe.commands(), frames),
    }
}

/// A refused EXEC means that nothing ran, if MULTI had begun and every command was only queued.
fn decide_transaction(frames: &[Frame]) -> RetryDecision {
    let [multi, queued @ .., exec] = frames else { return RetryDecision::Finish };
    let nothing_ran = exec.kind().is_error()
        && queued.iter().all(|frame| frame.kind().is_error() || frame.value().as_str() == Some("QUEUED"));
    if !nothing_ran {
        return RetryDecision::Finish;
    }
    let mut all = std::iter::once(multi).chain(queued).chain([exec]);
    // Scripts were only queued, so every refusal here comes from the server.
    all.find(|frame| frame.kind().is_error())
        .map_or(RetryDecision::Finish, |frame| decide_reply(frame, ErrorOrigin::Server, None))
}

fn decide_together<'a>(commands: impl Iterator<Item = PipedCommand<'a>>, frames: &[Frame]) -> RetryDecision {
    let mut first = RetryDecision::Finish;
    for (command, frame) in commands.zip(frames) {
        match decide_reply(frame, command.origin, command.key) {
            RetryDecision::Finish if command.key.is_none() && command.has_no_effect() => {}
            RetryDecision::Finish => return RetryDecision::Finish,
            decision if first == RetryDecision::Finish => first = decision,
            _ => {}
        }
    }
    first
}

/// Decision by one reply. A script's error counts only if the server refused the script before it
/// ran. Proofs are a redirection of its keys' slot, and a text that no command inside a script can
/// cause.
pub(crate) fn decide_reply(frame: &Frame, origin: ErrorOrigin, key: Option<&[u8]>) -> RetryDecision {
    if !frame.kind().is_error() {
        return RetryDecision::Finish;
    }
    let Some((code, rest)) = frame.value().error() else { return RetryDecision::Finish };
    let believed = origin == ErrorOrigin::Server
        || match code {
            "MOVED" | "ASK" => rest.split(' ').next().and_then(|slot| slot.parse().ok()) == key.map(slot),
            _ => origin.was_refused(code, rest),
        };
    if believed { RetryDecision::of_error(code, rest) } else { RetryDecision::Finish }
}

/// Whether every reply is final.
pub(crate) fn is_answered(request: &Request<'_>, replies: &Replies) -> bool {
    let done = |index: usize, frame: &Frame| match request {
        Request::One(command) => {
            decide_reply(frame, command.origin(), command.first_key()) == RetryDecision::Finish
        }
        Request::Many(pipe) => decide_command(frame, pipe, index) == RetryDecision::Finish,
    };
    frames(replies).iter().enumerate().all(|(index, frame)| !frame.kind().is_error() || done(index, frame))
}

/// Decision by the reply to one command of a pipeline.
pub(crate) fn decide_command(frame: &Frame, pipe: &Pipe, index: usize) -> RetryDecision {
    let command = pipe.command(index);
    decide_reply(frame, command.origin, command.key)
}

pub(crate) fn frames(replies: &Replies) -> &[Frame] {
    match replies {
        Replies::One(frame) => std::slice::from_ref(frame),
        Replies::Many(frames) => frames,
    }
}

/// A request in the form in which it follows an ASK redirection, and which replies are its own.
pub(crate) struct AskingRequest {
    pub(crate) pipe: Pipe,
    own: Vec<bool>,
}

impl AskingRequest {
    /// Puts ASKING in front. It counts for the next command only, or for the whole transaction.
    pub(crate) fn new(request: &Request<'_>) -> Self {
        let mut asking = Self { pipe: pipe(), own: Vec::new() };
        match request {
            Request::One(command) => {
                asking.ask();
                asking.pipe.push(command);
                asking.own.push(true);
                asking
            }
            Request::Many(pipe) => {
                let transaction = pipe.atomicity() == Atomicity::Transaction;
                for (index, command) in pipe.commands().enumerate() {
                    asking.add(&command, if transaction { index == 0 } else { command.key.is_some() });
                }
                asking.of(pipe)
            }
        }
    }

    /// Some commands of a pipeline, each behind an ASKING.
    pub(crate) fn of_commands<'a>(commands: impl Iterator<Item = PipedCommand<'a>>, all: &Pipe) -> Self {
        let mut asking = Self { pipe: pipe(), own: Vec::new() };
        commands.for_each(|command| asking.add(&command, true));
        asking.of(all)
    }

    fn of(mut self, all: &Pipe) -> Self {
        self.pipe = self.pipe.with_class_of(all);
        self
    }

    fn add(&mut self, command: &PipedCommand<'_>, ask: bool) {
        if ask {
            self.ask();
        }
        self.pipe.push_wire(command.bytes);
        self.own.push(true);
    }

    /// Adds ASKING in wire form, which leaves the class of the request unchanged.
    fn ask(&mut self) {
        self.pipe.push_wire(b"*1\r\n$6\r\nASKING\r\n");
        self.own.push(false);
    }

    /// The request to send.
    pub(crate) fn request(&self) -> Request<'_> {
        Request::Many(Cow::Borrowed(&self.pipe))
    }

    /// The replies without those to ASKING.
    pub(crate) fn strip(&self, replies: Replies) -> Replies {
        let Replies::Many(frames) = replies else { return replies };
        let mut own: Vec<Frame> =
            frames.into_iter().zip(&self.own).filter_map(|(frame, own)| own.then_some(frame)).collect();
        if own.len() == 1 { Replies::One(own.remove(0)) } else { Replies::Many(own) }
    }
}

#[cfg(test)]
mod tests;
