//! One request as the connection sees it: bytes to send and a number of replies to expect.

use crate::command::{Command, CommandClass, Pipe, pipe};
use std::borrow::Cow;

/// A command, or a pipeline; borrowed where the caller may need it again.
#[derive(Debug)]
pub(crate) enum Request<'a> {
    One(Cow<'a, Command>),
    Many(Cow<'a, Pipe>),
}

impl From<Command> for Request<'_> {
    #[inline(always)]
    fn from(command: Command) -> Self {
        Self::One(Cow::Owned(command))
    }
}

impl<'a> From<&'a Command> for Request<'a> {
    fn from(command: &'a Command) -> Self {
        Self::One(Cow::Borrowed(command))
    }
}

impl<'a> Request<'a> {
    pub(crate) fn into_pipe(self) -> Cow<'a, Pipe> {
        match self {
            Self::One(command) => Cow::Owned(pipe().then(command.into_owned())),
            Self::Many(pipe) => pipe,
        }
    }
}

impl Request<'_> {
    #[inline]
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::One(command) => command.encode(out),
            Self::Many(pipe) => out.extend_from_slice(pipe.wire()),
        }
    }

    /// Bytes on the wire, at most.
    #[inline]
    pub(crate) fn wire_len(&self) -> usize {
        match self {
            Self::One(command) => command.wire_len(),
            Self::Many(pipe) => pipe.wire().len(),
        }
    }

    #[inline]
    pub(crate) fn replies(&self) -> u32 {
        match self {
            Self::One(_) => 1,
            Self::Many(pipe) => u32::try_from(pipe.len()).expect("a pipeline holds fewer than 2^32 commands"),
        }
    }

    #[inline]
    pub(crate) fn class(&self) -> CommandClass {
        match self {
            Self::One(command) => command.class(),
            Self::Many(pipe) => pipe.class(),
        }
    }

    /// Whether silence is no sign of a dead connection while this is in flight.
    #[inline]
    pub(crate) fn is_blocking(&self) -> bool {
        match self {
            Self::One(command) => command.class().is_blocking(),
            Self::Many(pipe) => pipe.is_blocking(),
        }
    }

    /// The command that keeps the request from being sent over a shared connection, or the only
    /// one.
    pub(crate) fn culprit(&self) -> &str {
        match self {
            Self::One(command) => command.name(),
            Self::Many(pipe) => pipe.culprit().unwrap_or("a pipeline"),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::One(command) => command.name(),
            Self::Many(_) => "pipeline",
        }
    }
}
