//! A request that goes to one node in one piece: a command, a transaction, or commands bound together. Decides by its
//! replies whether all of it was refused before anything ran, and so may be sent again. Pure.

use std::borrow::Cow;

use super::{redirect::Step, slot::slot};
use crate::{
    command::{Bond, Piece, Pipe, pipe},
    connection::{Replies, Request},
    error::CallError,
    refusal::Author,
    resp::Frame,
};

/// The slot of a unit: that of all its keys, or `None` if it has none.
pub(crate) fn unit_slot(request: &Request<'_>) -> Result<Option<u16>, CallError> {
    let Request::Many(pipe) = request else { return Ok(first_key(request).map(slot)) };
    let mut slots = pipe.pieces().filter_map(|piece| piece.key).map(slot);
    let first = slots.next();
    if slots.any(|other| Some(other) != first) {
        let (what, why) = match pipe.bond() {
            Bond::Transaction => ("a transaction", ""),
            _ if pipe.waits() => ("a pipeline with WAIT", ": it counts the writes of one node only"),
            _ => ("commands bound together", ""),
        };
        return Err(CallError::Invalid(format!(
            "CROSSSLOT: the keys of {what} must share a slot in a cluster{why}; give them a common {{tag}}"
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

/// What the replies of a unit ask for. Anything but [`Step::Done`] means that no part of it ran.
pub(crate) fn judge(request: &Request<'_>, replies: &Replies) -> Step {
    let frames = frames(replies);
    match request {
        Request::One(command) => {
            let step = |frame| step_of(frame, command.author(), command.first_key());
            frames.first().map_or(Step::Done, step)
        }
        Request::Many(pipe) if pipe.bond() == Bond::Transaction => judge_transaction(frames),
        Request::Many(pipe) => judge_together(pipe.pieces(), frames),
    }
}

/// EXEC refused means that nothing ran, provided that MULTI had begun and every command was only queued.
fn judge_transaction(frames: &[Frame]) -> Step {
    let [multi, queued @ .., exec] = frames else { return Step::Done };
    let nothing_ran = exec.kind().is_error()
        && queued.iter().all(|frame| frame.kind().is_error() || frame.value().as_str() == Some("QUEUED"));
    if !nothing_ran {
        return Step::Done;
    }
    let mut all = std::iter::once(multi).chain(queued).chain([exec]);
    // Scripts were only queued: every refusal here is that of the server.
    all.find(|frame| frame.kind().is_error()).map_or(Step::Done, |frame| step_of(frame, Author::Server, None))
}

fn judge_together<'a>(pieces: impl Iterator<Item = Piece<'a>>, frames: &[Frame]) -> Step {
    let mut first = Step::Done;
    for (piece, frame) in pieces.zip(frames) {
        match step_of(frame, piece.author, piece.key) {
            Step::Done if piece.key.is_none() && piece.is_inert() => {}
            Step::Done => return Step::Done,
            step if first == Step::Done => first = step,
            _ => {}
        }
    }
    first
}

/// What one reply asks for. Of a script's errors only those count by which the server refused it
/// before it ran: a redirection of the slot of its keys, or words that no command inside a script
/// can cause.
pub(crate) fn step_of(frame: &Frame, author: Author, key: Option<&[u8]>) -> Step {
    if !frame.kind().is_error() {
        return Step::Done;
    }
    let Some((code, rest)) = frame.value().error() else { return Step::Done };
    let believed = author == Author::Server
        || match code {
            "MOVED" | "ASK" => rest.split(' ').next().and_then(|slot| slot.parse().ok()) == key.map(slot),
            _ => author.was_refused(code, rest),
        };
    if believed { Step::of_error(code, rest) } else { Step::Done }
}

/// Whether no reply asks for anything more.
pub(crate) fn is_answered(request: &Request<'_>, replies: &Replies) -> bool {
    let done = |index: usize, frame: &Frame| match request {
        Request::One(command) => step_of(frame, command.author(), command.first_key()) == Step::Done,
        Request::Many(pipe) => step_of_piece(frame, pipe, index) == Step::Done,
    };
    frames(replies).iter().enumerate().all(|(index, frame)| !frame.kind().is_error() || done(index, frame))
}

/// What the reply to one command of a pipeline asks for.
pub(crate) fn step_of_piece(frame: &Frame, pipe: &Pipe, index: usize) -> Step {
    let piece = pipe.piece(index);
    step_of(frame, piece.author, piece.key)
}

pub(crate) fn frames(replies: &Replies) -> &[Frame] {
    match replies {
        Replies::One(frame) => std::slice::from_ref(frame),
        Replies::Many(frames) => frames,
    }
}

/// A unit in the form in which it is sent where ASK points, and which of the replies are its own.
pub(crate) struct Asking {
    pub(crate) pipe: Pipe,
    own: Vec<bool>,
}

impl Asking {
    /// ASKING counts for the next command only, or for the whole transaction that follows it.
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
                let transaction = pipe.bond() == Bond::Transaction;
                for (index, piece) in pipe.pieces().enumerate() {
                    asking.add(&piece, if transaction { index == 0 } else { piece.key.is_some() });
                }
                asking.of(pipe)
            }
        }
    }

    /// Some pieces of a pipeline, each asked for.
    pub(crate) fn pieces<'a>(pieces: impl Iterator<Item = Piece<'a>>, all: &Pipe) -> Self {
        let mut asking = Self { pipe: pipe(), own: Vec::new() };
        pieces.for_each(|piece| asking.add(&piece, true));
        asking.of(all)
    }

    fn of(mut self, all: &Pipe) -> Self {
        self.pipe = self.pipe.with_nature_of(all);
        self
    }

    fn add(&mut self, piece: &Piece<'_>, ask: bool) {
        if ask {
            self.ask();
        }
        self.pipe.push_wire(piece.bytes);
        self.own.push(true);
    }

    /// In wire form, so that it leaves the nature of the request alone.
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
