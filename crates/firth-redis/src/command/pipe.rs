//! Pipelines: the wire form of several commands in one buffer.
//!
//! The pipeline knows where each command stands in the buffer, so that a cluster client can split
//! it by node.

use super::{Command, CommandClass, cmd, pipe};
use crate::error_origin::ErrorOrigin;
use crate::resp::put_bulk;
use std::borrow::Cow;
use std::ops::Range;

/// Where one command of a pipeline stands in its wire form.
#[derive(Debug, Clone)]
struct CommandSpan {
    end: usize,
    key: Option<Range<usize>>,
    reads: bool,
    origin: ErrorOrigin,
}

/// How far a cluster client may split a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Atomicity {
    /// Each command goes to the node of its own key.
    #[default]
    PerKey,
    /// All commands go to one node, in one request.
    OneNode,
    /// All commands run at one node, or none does.
    Transaction,
}

/// One command of a pipeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PipedCommand<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) reads: bool,
    /// Where an error in answer to it may come from.
    pub(crate) origin: ErrorOrigin,
    /// Its wire form.
    pub(crate) bytes: &'a [u8],
}

impl PipedCommand<'_> {
    /// Whether running the command once more, or in vain, changes nothing.
    pub(crate) fn has_no_effect(&self) -> bool {
        ["WAIT", "WAITAOF", "PING", "MULTI", "INFO", "CONFIG GET"].iter().any(|name| {
            let mut head = Vec::with_capacity(32);
            name.split(' ').for_each(|word| put_bulk(&mut head, word.as_bytes()));
            let line = memchr::memchr(b'\n', self.bytes).map_or(0, |at| at + 1);
            self.bytes[line..].get(..head.len()).is_some_and(|start| start.eq_ignore_ascii_case(&head))
        })
    }
}

/// Commands that are sent in one request, in order, without any other command between them.
#[derive(Clone, Default)]
pub struct Pipe {
    wire: Vec<u8>,
    spans: Vec<CommandSpan>,
    class: Option<CommandClass>,
    blocking: bool,
    /// Whether the pipeline holds a WAIT, which counts the writes of one node.
    waits: bool,
    /// The command that cannot be sent in a pipeline on a shared connection, if there is one.
    culprit: Option<Box<str>>,
    atomicity: Atomicity,
}

impl Pipe {
    /// Adds a command.
    #[must_use]
    pub fn then(mut self, command: Command) -> Self {
        self.push(&command);
        self
    }

    /// Adds a command in place, for pipelines built in a loop.
    pub fn push(&mut self, command: &Command) {
        command.encode(&mut self.wire);
        let end = self.wire.len();
        let body = end - command.body.len();
        let key = command.first_key().map(|_| {
            let key = &command.key;
            body + key.start as usize..body + key.end as usize
        });
        self.spans.push(CommandSpan { end, key, reads: command.reads, origin: command.origin });
        self.waits |= command.class == CommandClass::Wait;
        let class = command.class.in_pipe();
        self.blocking |= class.is_blocking();
        if class >= CommandClass::Stateful && self.class < Some(class) {
            self.culprit = Some(command.name().into());
        }
        self.class = self.class.max(Some(class));
    }

    /// Adds all commands of another pipeline.
    pub fn append(&mut self, other: &Self) {
        let shift = self.wire.len();
        self.wire.extend_from_slice(&other.wire);
        let moved = |span: &CommandSpan| CommandSpan {
            end: span.end + shift,
            key: span.key.as_ref().map(|key| key.start + shift..key.end + shift),
            reads: span.reads,
            origin: span.origin,
        };
        self.spans.extend(other.spans.iter().map(moved));
        self.blocking |= other.blocking;
        self.waits |= other.waits;
        if other.culprit.is_some() && self.class < other.class {
            self.culprit.clone_from(&other.culprit);
        }
        self.class = self.class.max(other.class);
    }

    /// Sends all commands to one node in a cluster, that of the first key. This is for commands
    /// that belong together without being a transaction, such as a write and its WAIT. All keys
    /// must share a slot.
    ///
    /// A pipeline with a WAIT or WAITAOF always goes to one node. These commands count the writes
    /// of one connection, and would miss writes at other nodes. If the keys have several slots, the
    /// client refuses the pipeline.
    #[must_use]
    pub fn together(mut self) -> Self {
        self.atomicity = Atomicity::OneNode;
        self
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is no command yet.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The same commands between MULTI and EXEC.
    pub(crate) fn in_transaction(self) -> Self {
        let mut all = pipe().then(cmd("MULTI"));
        let shift = all.wire.len();
        all.wire.extend_from_slice(&self.wire);
        all.spans.extend(self.spans.into_iter().map(|span| CommandSpan {
            end: span.end + shift,
            key: span.key.map(|key| key.start + shift..key.end + shift),
            reads: false,
            origin: span.origin,
        }));
        all.push(&cmd("EXEC"));
        (all.class, all.blocking, all.culprit) = (self.class, self.blocking, self.culprit);
        all.waits = self.waits;
        all.atomicity = Atomicity::Transaction;
        all
    }

    pub(crate) fn atomicity(&self) -> Atomicity {
        if self.waits && self.atomicity == Atomicity::PerKey { Atomicity::OneNode } else { self.atomicity }
    }

    /// Whether a WAIT or WAITAOF is among the commands.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Where errors in answer to each command may come from; empty if only from the server.
    pub(crate) fn origins(&self) -> Box<[ErrorOrigin]> {
        let any = self.spans.iter().any(|span| span.origin != ErrorOrigin::Server);
        self.spans.iter().filter(|_| any).map(|span| span.origin).collect()
    }

    pub(crate) fn class(&self) -> CommandClass {
        self.class.unwrap_or(CommandClass::Plain)
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.blocking
    }

    pub(crate) fn culprit(&self) -> Option<&str> {
        self.culprit.as_deref()
    }

    pub(crate) fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// The commands one by one.
    pub(crate) fn commands(&self) -> impl ExactSizeIterator<Item = PipedCommand<'_>> {
        (0..self.spans.len()).map(|index| self.command(index))
    }

    /// One of the commands.
    pub(crate) fn command(&self, index: usize) -> PipedCommand<'_> {
        let start = index.checked_sub(1).map_or(0, |before| self.spans[before].end);
        let span = &self.spans[index];
        let key = span.key.clone().map(|key| &self.wire[key]);
        PipedCommand { key, reads: span.reads, origin: span.origin, bytes: &self.wire[start..span.end] }
    }

    /// The same commands with the class of the pipeline that they come from.
    pub(crate) fn with_class_of(mut self, other: &Self) -> Self {
        (self.class, self.blocking, self.culprit) = (other.class, other.blocking, other.culprit.clone());
        self.waits = other.waits;
        self
    }

    /// Adds one command that is already in wire form.
    pub(crate) fn push_wire(&mut self, bytes: &[u8]) {
        self.wire.extend_from_slice(bytes);
        let end = self.wire.len();
        self.spans.push(CommandSpan { end, key: None, reads: false, origin: ErrorOrigin::Server });
    }
}

impl FromIterator<Command> for Pipe {
    fn from_iter<I: IntoIterator<Item = Command>>(commands: I) -> Self {
        let mut all = Self::default();
        commands.into_iter().for_each(|c| all.push(&c));
        all
    }
}

impl From<Pipe> for Cow<'_, Pipe> {
    fn from(pipe: Pipe) -> Self {
        Self::Owned(pipe)
    }
}

impl<'a> From<&'a Pipe> for Cow<'a, Pipe> {
    fn from(pipe: &'a Pipe) -> Self {
        Self::Borrowed(pipe)
    }
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pipeline of {} commands", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_without_effect_are_inert() {
        let p = pipe()
            .then(cmd("wait").arg(1).arg(100))
            .then(cmd("WAITAOF").arg(1).arg(0).arg(0))
            .then(cmd("PING"))
            .then(cmd("INFO").arg("server"))
            .then(cmd("CONFIG").arg("GET").arg("save"))
            .then(cmd("CONFIG").arg("SET").arg("save").arg(""))
            .then(cmd("PUBLISH").arg("WAIT").arg("x"))
            .then(cmd("WAITING"));
        let inert: Vec<bool> = p.commands().map(|command| command.has_no_effect()).collect();
        assert_eq!(inert, [true, true, true, true, true, false, false, false]);
    }

    #[test]
    fn one_pipeline_behind_another_is_the_same_as_all_their_commands() {
        let commands =
            || [cmd("SET").key("a").arg(1), cmd("WATCH").key("b"), cmd("GET").key("c").read_only()];
        for split in 0..=3 {
            let [mut first, second] =
                [0..split, split..3].map(|span| commands()[span].iter().cloned().collect::<Pipe>());
            first.append(&second);
            let whole: Pipe = commands().into_iter().collect();
            let command = |p: PipedCommand<'_>| (p.key.map(<[u8]>::to_vec), p.reads, p.bytes.to_vec());
            let commands_of = |pipe: &Pipe| pipe.commands().map(command).collect::<Vec<_>>();
            assert_eq!(commands_of(&first), commands_of(&whole));
            assert_eq!((first.class(), first.culprit()), (whole.class(), whole.culprit()));
        }
    }

    #[test]
    fn a_transaction_wraps_its_commands_and_keeps_their_keys() {
        let p = pipe().then(cmd("INCR").key("n")).then(cmd("PING")).in_transaction();
        let keys: Vec<Option<&[u8]>> = p.commands().map(|command| command.key).collect();
        assert_eq!(keys, [None, Some(&b"n"[..]), None, None]);
        let joined: Vec<u8> = p.commands().flat_map(|command| command.bytes.to_vec()).collect();
        assert_eq!(joined, p.wire());
    }
}
