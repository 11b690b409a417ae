//! Commands that go out together: the wire form of all of them in one buffer, and where each of them stands in it, so
//! that a cluster client can take them apart by node.

use std::{borrow::Cow, ops::Range};

use super::{Command, Nature, cmd, pipe};
use crate::{refusal::Author, resp::put_bulk};

/// Where one command of a pipeline stands in its wire form.
#[derive(Debug, Clone)]
struct Part {
    end: usize,
    key: Option<Range<usize>>,
    reads: bool,
    author: Author,
}

/// What holds the commands of a pipeline together in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Bond {
    /// Each goes to the node of its own key.
    #[default]
    Loose,
    /// All go to one node, in one piece.
    Together,
    /// All run at one node, or none does.
    Transaction,
}

/// One command of a pipeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) reads: bool,
    /// Who may make an error of it.
    pub(crate) author: Author,
    /// Its wire form.
    pub(crate) bytes: &'a [u8],
}

impl Piece<'_> {
    /// Whether running it once more, or for nothing, changes nothing.
    pub(crate) fn is_inert(&self) -> bool {
        ["WAIT", "WAITAOF", "PING", "MULTI", "INFO", "CONFIG GET"].iter().any(|name| {
            let mut head = Vec::with_capacity(32);
            name.split(' ').for_each(|word| put_bulk(&mut head, word.as_bytes()));
            let line = memchr::memchr(b'\n', self.bytes).map_or(0, |at| at + 1);
            self.bytes[line..].get(..head.len()).is_some_and(|start| start.eq_ignore_ascii_case(&head))
        })
    }
}

/// Commands that are sent in one piece, in order, without any other command between them.
#[derive(Clone, Default)]
pub struct Pipe {
    wire: Vec<u8>,
    parts: Vec<Part>,
    nature: Option<Nature>,
    patient: bool,
    /// Whether a WAIT is among them, which speaks of the writes of one node.
    waits: bool,
    /// The command that cannot be sent in a pipeline on a shared connection, if there is one.
    culprit: Option<Box<str>>,
    bond: Bond,
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
        self.parts.push(Part { end, key, reads: command.reads, author: command.author });
        self.waits |= command.nature == Nature::Waiting;
        let nature = command.nature.in_pipe();
        self.patient |= nature.is_patient();
        if nature >= Nature::Stateful && self.nature < Some(nature) {
            self.culprit = Some(command.name().into());
        }
        self.nature = self.nature.max(Some(nature));
    }

    /// Adds all commands of another pipeline.
    pub fn append(&mut self, other: &Self) {
        let shift = self.wire.len();
        self.wire.extend_from_slice(&other.wire);
        let moved = |part: &Part| Part {
            end: part.end + shift,
            key: part.key.as_ref().map(|key| key.start + shift..key.end + shift),
            reads: part.reads,
            author: part.author,
        };
        self.parts.extend(other.parts.iter().map(moved));
        self.patient |= other.patient;
        self.waits |= other.waits;
        if other.culprit.is_some() && self.nature < other.nature {
            self.culprit.clone_from(&other.culprit);
        }
        self.nature = self.nature.max(other.nature);
    }

    /// Says that in a cluster all commands go to one node, that of the first key, in one piece: for commands that
    /// belong together without being a transaction, such as a write and the WAIT behind it. All keys must share a slot.
    ///
    /// A pipeline with a WAIT or WAITAOF is always sent so: these count the writes of one
    /// connection to one node, and would say nothing of writes at other nodes. Behind keys of
    /// several slots they are refused.
    #[must_use]
    pub fn together(mut self) -> Self {
        self.bond = Bond::Together;
        self
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there is no command yet.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The same commands between MULTI and EXEC.
    pub(crate) fn in_transaction(self) -> Self {
        let mut all = pipe().then(cmd("MULTI"));
        let shift = all.wire.len();
        all.wire.extend_from_slice(&self.wire);
        all.parts.extend(self.parts.into_iter().map(|part| Part {
            end: part.end + shift,
            key: part.key.map(|key| key.start + shift..key.end + shift),
            reads: false,
            author: part.author,
        }));
        all.push(&cmd("EXEC"));
        (all.nature, all.patient, all.culprit) = (self.nature, self.patient, self.culprit);
        all.waits = self.waits;
        all.bond = Bond::Transaction;
        all
    }

    pub(crate) fn bond(&self) -> Bond {
        if self.waits && self.bond == Bond::Loose { Bond::Together } else { self.bond }
    }

    /// Whether a WAIT or WAITAOF is among the commands.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Who may make an error of each command; empty if only the server may.
    pub(crate) fn authors(&self) -> Box<[Author]> {
        let any = self.parts.iter().any(|part| part.author != Author::Server);
        self.parts.iter().filter(|_| any).map(|part| part.author).collect()
    }

    pub(crate) fn nature(&self) -> Nature {
        self.nature.unwrap_or(Nature::Plain)
    }

    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    pub(crate) fn culprit(&self) -> Option<&str> {
        self.culprit.as_deref()
    }

    pub(crate) fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// The commands one by one.
    pub(crate) fn pieces(&self) -> impl ExactSizeIterator<Item = Piece<'_>> {
        (0..self.parts.len()).map(|index| self.piece(index))
    }

    /// One of the commands.
    pub(crate) fn piece(&self, index: usize) -> Piece<'_> {
        let start = index.checked_sub(1).map_or(0, |before| self.parts[before].end);
        let part = &self.parts[index];
        let key = part.key.clone().map(|key| &self.wire[key]);
        Piece { key, reads: part.reads, author: part.author, bytes: &self.wire[start..part.end] }
    }

    /// To be sent in the way of the pipeline that its commands come from.
    pub(crate) fn with_nature_of(mut self, other: &Self) -> Self {
        (self.nature, self.patient, self.culprit) = (other.nature, other.patient, other.culprit.clone());
        self.waits = other.waits;
        self
    }

    /// Adds one command that is already in wire form.
    pub(crate) fn push_wire(&mut self, bytes: &[u8]) {
        self.wire.extend_from_slice(bytes);
        let end = self.wire.len();
        self.parts.push(Part { end, key: None, reads: false, author: Author::Server });
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
        let inert: Vec<bool> = p.pieces().map(|piece| piece.is_inert()).collect();
        assert_eq!(inert, [true, true, true, true, true, false, false, false]);
    }

    #[test]
    fn one_pipeline_behind_another_is_the_same_as_all_their_commands() {
        let commands =
            || [cmd("SET").key("a").arg(1), cmd("WATCH").key("b"), cmd("GET").key("c").read_only()];
        for split in 0..=3 {
            let [mut first, second] =
                [0..split, split..3].map(|part| commands()[part].iter().cloned().collect::<Pipe>());
            first.append(&second);
            let whole: Pipe = commands().into_iter().collect();
            let piece = |p: Piece<'_>| (p.key.map(<[u8]>::to_vec), p.reads, p.bytes.to_vec());
            let pieces = |pipe: &Pipe| pipe.pieces().map(piece).collect::<Vec<_>>();
            assert_eq!(pieces(&first), pieces(&whole));
            assert_eq!((first.nature(), first.culprit()), (whole.nature(), whole.culprit()));
        }
    }

    #[test]
    fn a_transaction_wraps_its_commands_and_keeps_their_keys() {
        let p = pipe().then(cmd("INCR").key("n")).then(cmd("PING")).in_transaction();
        let keys: Vec<Option<&[u8]>> = p.pieces().map(|piece| piece.key).collect();
        assert_eq!(keys, [None, Some(&b"n"[..]), None, None]);
        let joined: Vec<u8> = p.pieces().flat_map(|piece| piece.bytes.to_vec()).collect();
        assert_eq!(joined, p.wire());
    }
}
