//! Requests to a server: one [`Command`], or a [`Pipe`] of several.
//!
//! Arguments are written in wire form as they are added, in place for small commands. Sending a
//! command is then one copy into the connection's output, without an allocation. A command knows
//! its key, hence its slot, and whether the server may block on it.

mod pipe;

use std::ops::Range;

pub use self::pipe::Pipe;
pub(crate) use self::pipe::{Atomicity, PipedCommand};
use crate::error_origin::ErrorOrigin;
use crate::inline_buffer::InlineBuffer;
use crate::resp::{ByteSink, ToArg, put_array_header, put_bulk};

/// Starts a command: `cmd("SET").key("greeting").arg("hello")`.
///
/// The name is one word; further words are arguments: `cmd("CLIENT").arg("ID")`.
#[inline]
pub fn cmd(name: &str) -> Command {
    Command::new(name)
}

/// Starts an empty pipeline: commands that go out together and whose answers come back together.
pub fn pipe() -> Pipe {
    Pipe::default()
}

/// How a command is sent, by its name. A pipeline has the last class of its commands, in the order
/// of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CommandClass {
    /// One reply, soon.
    Plain,
    /// Blocks if one of its arguments is BLOCK (XREAD, XREADGROUP).
    MayBlock,
    /// CLIENT or SCRIPT: some of their subcommands change the connection.
    BySubcommand,
    /// Changes the next command of its connection (CLIENT CACHING). Alone, it would change the
    /// command of another caller.
    AffectsNext,
    /// Blocks, and counts the writes of its own connection (WAIT). Without writes it counts
    /// nothing.
    Wait,
    /// May be answered late. It never goes over a shared connection.
    Blocking,
    /// Changes the server's state of the connection (WATCH, SELECT). It never goes over a shared
    /// connection.
    Stateful,
    /// Changes the protocol of the connection. It is never sent as a request.
    Session,
}

impl CommandClass {
    #[inline]
    fn of(name: &str) -> Self {
        if name.bytes().any(|b| b.is_ascii_lowercase()) {
            Self::of_upper(&name.to_ascii_uppercase())
        } else {
            Self::of_upper(name)
        }
    }

    fn of_upper(name: &str) -> Self {
        match name {
            "XREAD" | "XREADGROUP" => Self::MayBlock,
            "BLPOP" | "BRPOP" | "BLMOVE" | "BLMPOP" | "BRPOPLPUSH" | "BZPOPMIN" | "BZPOPMAX" | "BZMPOP" => {
                Self::Blocking
            }
            "WAIT" | "WAITAOF" => Self::Wait,
            "CLIENT" | "SCRIPT" => Self::BySubcommand,
            "MULTI" | "EXEC" | "DISCARD" | "WATCH" | "UNWATCH" | "SELECT" | "AUTH" | "READONLY"
            | "READWRITE" | "ASKING" => Self::Stateful,
            "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE"
            | "MONITOR" | "SYNC" | "PSYNC" | "RESET" | "QUIT" | "HELLO" => Self::Session,
            _ => Self::Plain,
        }
    }

    /// Class after one more argument, in wire form.
    fn with_arg(self, arg: &[u8]) -> Self {
        match self {
            Self::MayBlock if arg.eq_ignore_ascii_case(b"$5\r\nBLOCK\r\n") => Self::Blocking,
            Self::BySubcommand => Self::of_subcommand(arg),
            other => other,
        }
    }

    fn of_subcommand(arg: &[u8]) -> Self {
        let is = |wire: &[u8]| arg.eq_ignore_ascii_case(wire);
        match () {
            // Ends the pairing of requests and replies.
            () if is(b"$5\r\nREPLY\r\n") => Self::Session,
            () if is(b"$7\r\nCACHING\r\n") => Self::AffectsNext,
            () if is(b"$8\r\nNO-TOUCH\r\n") || is(b"$5\r\nDEBUG\r\n") => Self::Stateful,
            () => Self::Plain,
        }
    }

    /// Class of a pipeline that holds this command.
    fn in_pipe(self) -> Self {
        match self {
            Self::MayBlock | Self::BySubcommand | Self::AffectsNext => Self::Plain,
            Self::Wait => Self::Blocking,
            other => other,
        }
    }

    /// Whether the server may answer late, so that silence is no sign of a dead connection.
    pub(crate) fn is_blocking(self) -> bool {
        matches!(self, Self::Wait | Self::Blocking)
    }
}

/// One command with its arguments, already in wire form.
#[derive(Clone)]
pub struct Command {
    /// The arguments, the name first, without the array header.
    body: InlineBuffer,
    args: u32,
    /// Where the first key stands in `body`; there is none if it starts at 0, where only the name
    /// can stand.
    key: Range<u32>,
    class: CommandClass,
    /// Whether it only reads. The caller says so; the client never guesses.
    reads: bool,
    /// Where an error in answer to it may come from.
    origin: ErrorOrigin,
}

impl Command {
    /// See [`cmd`].
    #[inline]
    pub fn new(name: &str) -> Self {
        let mut body = InlineBuffer::new();
        put_bulk(&mut body, name.as_bytes());
        Self {
            body,
            args: 1,
            key: 0..0,
            class: CommandClass::of(name),
            reads: false,
            origin: ErrorOrigin::of(name),
        }
    }

    /// Adds an argument.
    #[inline]
    #[must_use]
    pub fn arg(mut self, value: impl ToArg) -> Self {
        self.push(value);
        self
    }

    /// Adds an argument that is a key. The first key decides the slot in a cluster.
    #[inline]
    #[must_use]
    pub fn key(mut self, key: impl ToArg) -> Self {
        let before = self.body.len();
        self.push(key);
        if self.key.start == 0 {
            // The key's bytes end before the closing CRLF and begin after the length line.
            let written = &self.body.as_slice()[before..];
            let line = written.iter().position(|&b| b == b'\n').expect("a bulk string has a length line");
            self.key = narrow(before + line + 1)..narrow(before + written.len() - 2);
        }
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn args<T: ToArg>(mut self, values: impl IntoIterator<Item = T>) -> Self {
        for value in values {
            self.push(value);
        }
        self
    }

    /// Adds several keys. The first one decides the slot in a cluster.
    #[must_use]
    pub fn keys<T: ToArg>(mut self, keys: impl IntoIterator<Item = T>) -> Self {
        for key in keys {
            self = self.key(key);
        }
        self
    }

    /// Adds a name and its value, as in a stream entry or a hash.
    #[must_use]
    pub fn field(self, name: impl ToArg, value: impl ToArg) -> Self {
        self.arg(name).arg(value)
    }

    /// Says that the server may hold the answer back for long, so that the command gets a
    /// connection of its own. Known blocking commands (BLPOP, XREAD with BLOCK, WAIT…) are
    /// recognised without it.
    #[must_use]
    pub fn blocking(mut self) -> Self {
        self.class = CommandClass::Blocking;
        self
    }

    /// Says that the command only reads and may be answered by a replica, which can be a little
    /// behind its master. Whether it is depends on
    /// [`ClusterOptions::reads`](crate::config::ClusterOptions::reads).
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.reads = true;
        self
    }

    #[inline]
    fn push(&mut self, value: impl ToArg) {
        let before = self.body.len();
        value.write_arg(&mut self.body);
        self.args += 1;
        if matches!(self.class, CommandClass::MayBlock | CommandClass::BySubcommand) {
            self.class = self.class.with_arg(&self.body.as_slice()[before..]);
        }
    }

    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.body.reserve(bytes);
    }

    /// The name, in the case in which it was given.
    pub fn name(&self) -> &str {
        let body = self.body.as_slice();
        let line = memchr::memchr(b'\n', body).expect("a bulk string has a length line");
        let rest = &body[line + 1..];
        let end = memchr::memchr(b'\r', rest).unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).unwrap_or("?")
    }

    /// The first key, if one was added with [`key`](Self::key).
    pub fn first_key(&self) -> Option<&[u8]> {
        (self.key.start != 0).then(|| &self.body.as_slice()[self.key.start as usize..self.key.end as usize])
    }

    #[inline]
    pub(crate) fn class(&self) -> CommandClass {
        self.class
    }

    pub(crate) fn reads(&self) -> bool {
        self.reads
    }

    /// Where an error in answer to it may come from: a script may answer with any error after any
    /// write.
    #[inline]
    pub(crate) fn origin(&self) -> ErrorOrigin {
        self.origin
    }

    /// The same command as a call of a script with this source.
    pub(crate) fn of_script(mut self, source: &str) -> Self {
        self.origin = ErrorOrigin::of_script(source);
        self
    }

    /// An `EVALSHA digest …` as `EVAL source …`.
    pub(crate) fn with_script_source(&self, source: &str) -> Self {
        const HEAD: usize = "$7\r\nEVALSHA\r\n$40\r\n".len() + 40 + "\r\n".len();
        debug_assert_eq!(self.name(), "EVALSHA");
        let mut body = InlineBuffer::new();
        put_bulk(&mut body, b"EVAL");
        put_bulk(&mut body, source.as_bytes());
        let moved = |at: u32| if self.key.start == 0 { 0 } else { narrow(at as usize - HEAD + body.len()) };
        let key = moved(self.key.start)..moved(self.key.end);
        body.put(&self.body.as_slice()[HEAD..]);
        Self { body, args: self.args, key, class: self.class, reads: self.reads, origin: self.origin }
    }

    /// Bytes on the wire, at most.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.body.len() + 16
    }

    #[inline]
    pub(crate) fn encode(&self, out: &mut impl ByteSink) {
        put_array_header(out, self.args as usize);
        out.put(self.body.as_slice());
    }
}

impl std::fmt::Debug for Command {
    /// Name and number of arguments only: arguments may be secrets or payloads (invariant 10).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} arguments)", self.name(), self.args - 1)
    }
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("a command is smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(command: &Command) -> String {
        let mut out = Vec::new();
        command.encode(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let c = cmd("SET").key("k").arg(42).arg(b"\0\xff");
        assert_eq!((c.name(), c.first_key()), ("SET", Some(&b"k"[..])));
        assert_eq!(cmd("GET").arg("a").first_key(), None);
        assert_eq!(cmd("GET").key("").first_key(), Some(&b""[..]), "an empty key is a key");
        assert_eq!(pipe().then(cmd("GET").key("")).commands().next().unwrap().key, Some(&b""[..]));
        let mut out = Vec::new();
        c.encode(&mut out);
        assert_eq!(out, b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n42\r\n$2\r\n\0\xff\r\n");
        assert_eq!(wire(&cmd("MGET").keys(["a", "b"])), "*3\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n");
    }

    #[test]
    fn blocking_commands_are_recognised() {
        assert_eq!(cmd("BLPOP").class(), CommandClass::Blocking);
        assert_eq!(cmd("blpop").class(), CommandClass::Blocking);
        assert_eq!(cmd("XREAD").arg("COUNT").class(), CommandClass::MayBlock);
        assert_eq!(cmd("XREAD").arg("block").arg(0).class(), CommandClass::Blocking);
        assert_eq!(cmd("SET").key("BLOCK").class(), CommandClass::Plain);
        assert_eq!(
            pipe().then(cmd("GET")).then(cmd("WAIT")).then(cmd("GET")).class(),
            CommandClass::Blocking
        );
        assert_eq!(cmd("WAIT").arg(1).class(), CommandClass::Wait, "alone it speaks of nothing");
    }

    #[test]
    fn what_belongs_to_a_connection_is_recognised() {
        assert_eq!(cmd("subscribe").class(), CommandClass::Session);
        assert_eq!(cmd("CLIENT").arg("reply").arg("OFF").class(), CommandClass::Session);
        assert_eq!(cmd("CLIENT").arg("SETNAME").arg("REPLY").class(), CommandClass::Plain);
        assert_eq!(cmd("watch").key("k").class(), CommandClass::Stateful);
        let mixed = pipe().then(cmd("GET").key("k")).then(cmd("SELECT").arg(1)).then(cmd("BLPOP").key("l"));
        assert_eq!((mixed.class(), mixed.is_blocking()), (CommandClass::Stateful, true));
        assert_eq!(mixed.culprit(), Some("SELECT"));
        let transaction = pipe().then(cmd("INCR").key("n")).in_transaction();
        assert_eq!((transaction.class(), transaction.culprit()), (CommandClass::Plain, None));
    }

    #[test]
    fn c19_what_would_change_a_shared_connection_is_recognised() {
        for name in ["READONLY", "readwrite", "ASKING"] {
            assert_eq!(cmd(name).class(), CommandClass::Stateful, "{name}");
        }
        let client = |what: &str| cmd("CLIENT").arg(what).arg("YES").class();
        assert_eq!(
            [client("no-touch"), client("CACHING"), client("ID")],
            [CommandClass::Stateful, CommandClass::AffectsNext, CommandClass::Plain]
        );
        assert_eq!(cmd("SCRIPT").arg("debug").arg("YES").class(), CommandClass::Stateful);
        assert_eq!(cmd("SCRIPT").arg("LOAD").arg("DEBUG").class(), CommandClass::Plain);
        let caching = pipe().then(cmd("CLIENT").arg("CACHING").arg("YES")).then(cmd("GET").key("k"));
        assert_eq!(caching.class(), CommandClass::Plain, "in front of its command it is at its place");
    }

    #[test]
    fn a_script_call_in_full_keeps_keys_and_arguments() {
        let call = crate::Script::new("return KEYS[1]").key("k").arg("v");
        let full = call.in_full();
        assert_eq!(
            wire(&full),
            "*5\r\n$4\r\nEVAL\r\n$14\r\nreturn KEYS[1]\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\nv\r\n"
        );
        assert_eq!(full.first_key(), Some(&b"k"[..]));
    }

    #[test]
    fn debug_shows_no_argument() {
        let c = cmd("AUTH").arg("hunter2");
        assert_eq!(
            format!("{c:?} {:?}", pipe().then(c.clone())),
            "AUTH (1 arguments) pipeline of 1 commands"
        );
    }
}
