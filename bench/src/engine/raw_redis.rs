//! The raw limit on Redis: XADD in pipelines of 128, XREAD of 100 with a stored cursor, or
//! XREADGROUP of 100 and XACK; no fencing, no retries, nothing but the server and a socket.

use super::driver::Worker;
use super::place::Place;
use super::workload::{Kind, Payloads, RECORDS};
use crate::raw::{self, Cursor, PIPELINE, put_append, put_command};
use anyhow::{Result, bail};

const STREAM: &str = "raw:stream";
const GROUP: &str = "readers";

/// One connection with its position.
pub(crate) struct Raw {
    wire: raw::Raw,
    payloads: Payloads,
    action: Action,
    commands: Vec<u8>,
    cursor: Cursor,
}

#[derive(Clone, Copy)]
enum Action {
    Append,
    Cursor,
    Group,
}

impl Raw {
    pub(crate) fn prepare(kind: Kind, group: bool, place: &Place) -> Result<Self> {
        let Place::Server(server) = place else { bail!("the raw limit of Redis needs a server") };
        let action = match (kind, group) {
            (Kind::Append, _) => Action::Append,
            (_, false) => Action::Cursor,
            (_, true) => Action::Group,
        };
        let wire = raw::Raw::connect(server.port())?;
        let cursor = Cursor::start(STREAM);
        let mut raw = Self { wire, payloads: Payloads::new(), action, commands: vec![], cursor };
        if !matches!(action, Action::Append) {
            for _ in 0..RECORDS.div_ceil(PIPELINE) {
                raw.append()?;
            }
        }
        if matches!(action, Action::Group) {
            raw.order(&["XGROUP", "CREATE", STREAM, GROUP, "0"])?;
        }
        Ok(raw)
    }

    fn order(&mut self, parts: &[&str]) -> Result<()> {
        self.commands.clear();
        put_command(&mut self.commands, &parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>());
        self.wire.run(&self.commands, 1)
    }

    fn append(&mut self) -> Result<u64> {
        self.commands.clear();
        for _ in 0..PIPELINE {
            let payload = self.payloads.next();
            put_append(&mut self.commands, STREAM, &payload);
        }
        self.wire.run(&self.commands, PIPELINE)?;
        Ok(PIPELINE as u64)
    }

    /// Reads on, and stores the position of the turn before in the same round trip.
    fn by_cursor(&mut self) -> Result<u64> {
        let streams = std::slice::from_mut(&mut self.cursor);
        let count = self.wire.read(streams, None, |_, payload| {
            std::hint::black_box(payload);
        })?;
        if count == 0 {
            self.cursor = Cursor::start(STREAM);
        }
        Ok(count as u64)
    }

    fn by_group(&mut self) -> Result<u64> {
        let count = self.wire.read_group(STREAM, GROUP, |payload| {
            std::hint::black_box(payload);
        })?;
        if count == 0 {
            self.order(&["XGROUP", "SETID", STREAM, GROUP, "0"])?;
        }
        Ok(count as u64)
    }
}

impl Worker for Raw {
    async fn step(&mut self) -> Result<u64> {
        match self.action {
            Action::Append => self.append(),
            Action::Cursor => self.by_cursor(),
            Action::Group => self.by_group(),
        }
    }
}
