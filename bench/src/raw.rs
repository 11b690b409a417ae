//! The limit: RESP written and read by hand over one blocking socket, with nothing in between.
//!
//! What a library can reach at best on this machine: appends are one prepared run of bytes per 128
//! records, reads are walked without copying. Shared by the benches that compare with it.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Commands that travel together.
pub(crate) const PIPELINE: usize = 128;
/// Records of one read.
pub(crate) const BATCH: usize = 100;

/// One connection.
pub(crate) struct Raw {
    socket: TcpStream,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    read: Vec<u8>,
}

impl Raw {
    pub(crate) fn connect(port: u16) -> Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port)).context("connect")?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: vec![0; 256 * 1024], start: 0, end: 0, read: Vec::new() })
    }

    /// Sends prepared commands and takes `replies` answers, none of which may be an error.
    pub(crate) fn run(&mut self, commands: &[u8], replies: usize) -> Result<()> {
        self.socket.write_all(commands)?;
        for _ in 0..replies {
            self.skip()?;
        }
        Ok(())
    }

    /// Reads on in `streams` after their positions, storing `commits` (positions of the last turn)
    /// in the same round trip; calls `each` for every record with its stream's index and payload.
    /// Returns how many there were.
    pub(crate) fn read(
        &mut self,
        streams: &mut [Cursor],
        block_ms: Option<u64>,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<usize> {
        let commits = self.write_read(streams, block_ms)?;
        for _ in 0..commits {
            self.skip()?;
        }
        let count = self.header(b'*')?;
        let mut records = 0;
        for _ in 0..count.max(0) {
            ensure!(self.header(b'*')? == 2, "a stream is a name and its entries");
            let name = self.bulk()?;
            let name = &self.buffer[name.0..name.1];
            let at = streams
                .iter()
                .position(|cursor| cursor.name == name)
                .context("a stream that was asked for")?;
            for _ in 0..self.header(b'*')? {
                ensure!(self.header(b'*')? == 2, "an entry is an id and its fields");
                let id = self.bulk()?;
                streams[at].take(&self.buffer[id.0..id.1]);
                ensure!(self.header(b'*')? == 2, "an entry has one field");
                self.bulk()?;
                let payload = self.bulk()?;
                each(at, &self.buffer[payload.0..payload.1]);
                records += 1;
            }
        }
        Ok(records)
    }

    /// Reads on as the one consumer of a group, and acknowledges what came; calls `each` for every
    /// payload. Returns how many there were.
    pub(crate) fn read_group(
        &mut self,
        stream: &str,
        group: &str,
        mut each: impl FnMut(&[u8]),
    ) -> Result<usize> {
        let count = BATCH.to_string();
        self.read.clear();
        let parts = ["XREADGROUP", "GROUP", group, "one", "COUNT", &count, "STREAMS", stream, ">"];
        put_command(&mut self.read, &parts.map(str::as_bytes));
        self.socket.write_all(&self.read)?;
        if self.header(b'*')? < 1 {
            return Ok(0);
        }
        ensure!(self.header(b'*')? == 2, "a stream is a name and its entries");
        self.bulk()?;
        let entries = usize::try_from(self.header(b'*')?)?;
        self.read.clear();
        self.read.extend_from_slice(format!("*{}\r\n", 3 + entries).as_bytes());
        for part in ["XACK", stream, group] {
            put_part(&mut self.read, part.as_bytes());
        }
        for _ in 0..entries {
            ensure!(self.header(b'*')? == 2, "an entry is an id and its fields");
            let (from, to) = self.bulk()?;
            put_part(&mut self.read, &self.buffer[from..to]);
            ensure!(self.header(b'*')? == 2, "an entry has one field");
            self.bulk()?;
            let (from, to) = self.bulk()?;
            each(&self.buffer[from..to]);
        }
        self.socket.write_all(&self.read)?;
        self.skip()?;
        Ok(entries)
    }

    /// Stores the positions of the last turn.
    pub(crate) fn commit(&mut self, streams: &mut [Cursor]) -> Result<()> {
        self.read.clear();
        let commits = write_commits(&mut self.read, streams);
        self.socket.write_all(&self.read)?;
        for _ in 0..commits {
            self.skip()?;
        }
        Ok(())
    }

    fn write_read(&mut self, streams: &mut [Cursor], block_ms: Option<u64>) -> Result<usize> {
        self.read.clear();
        let commits = write_commits(&mut self.read, streams);
        let count = BATCH.to_string();
        let block = block_ms.map(|ms| ms.to_string());
        let mut parts: Vec<&[u8]> = vec![b"XREAD", b"COUNT", count.as_bytes()];
        if let Some(block) = &block {
            parts.extend([&b"BLOCK"[..], block.as_bytes()]);
        }
        parts.push(b"STREAMS");
        parts.extend(streams.iter().map(|cursor| &cursor.name[..]));
        parts.extend(streams.iter().map(|cursor| &cursor.position[..]));
        put_command(&mut self.read, &parts);
        self.socket.write_all(&self.read)?;
        Ok(commits)
    }

    /// Reads one answer and forgets it.
    fn skip(&mut self) -> Result<()> {
        let kind = self.peek()?;
        match kind {
            b'+' | b':' | b'_' => self.line().map(drop),
            b'$' => self.bulk().map(drop),
            b'*' => {
                for _ in 0..self.header(b'*')?.max(0) {
                    self.skip()?;
                }
                Ok(())
            }
            _ => {
                let (from, to) = self.line()?;
                bail!("the server answered {}", String::from_utf8_lossy(&self.buffer[from..to]))
            }
        }
    }

    fn peek(&mut self) -> Result<u8> {
        while self.start == self.end {
            self.fill()?;
        }
        Ok(self.buffer[self.start])
    }

    /// The bounds of the next line, without its end.
    fn line(&mut self) -> Result<(usize, usize)> {
        let mut looked = 0;
        loop {
            let found = self.buffer[self.start + looked..self.end].iter().position(|byte| *byte == b'\n');
            if let Some(at) = found {
                let from = self.start;
                let to = self.start + looked + at - 1;
                self.start = to + 2;
                return Ok((from, to));
            }
            looked = self.end - self.start;
            self.fill()?;
        }
    }

    /// The number behind `kind`; -1 for nothing.
    fn header(&mut self, kind: u8) -> Result<i64> {
        let (from, to) = self.line()?;
        let line = &self.buffer[from..to];
        if line[0] != kind {
            bail!("expected {}, got {}", char::from(kind), String::from_utf8_lossy(line));
        }
        let negative = line.get(1) == Some(&b'-');
        let digits = &line[1 + usize::from(negative)..];
        let number = digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        Ok(if negative { -number } else { number })
    }

    /// The bounds of the next string. Valid until the next read.
    fn bulk(&mut self) -> Result<(usize, usize)> {
        let length = usize::try_from(self.header(b'$')?).unwrap_or(0);
        while self.end - self.start < length + 2 {
            self.fill()?;
        }
        let from = self.start;
        self.start += length + 2;
        Ok((from, from + length))
    }

    fn fill(&mut self) -> Result<()> {
        if self.start > 0 && self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let length = self.socket.read(&mut self.buffer[self.end..]).context("read")?;
        ensure!(length > 0, "the server closed the connection");
        self.end += length;
        Ok(())
    }
}

/// Where a reader stands in one stream.
pub(crate) struct Cursor {
    name: Vec<u8>,
    position: Vec<u8>,
    is_new: bool,
}

impl Cursor {
    pub(crate) fn start(name: &str) -> Self {
        Self { name: name.as_bytes().to_vec(), position: b"0-0".to_vec(), is_new: false }
    }

    fn take(&mut self, id: &[u8]) {
        self.position.clear();
        self.position.extend_from_slice(id);
        self.is_new = true;
    }
}

fn write_commits(out: &mut Vec<u8>, streams: &mut [Cursor]) -> usize {
    let mut commits = 0;
    for cursor in streams.iter_mut().filter(|cursor| cursor.is_new) {
        put_command(out, &[b"HSET", &[&cursor.name[..], b":group"].concat(), b"f", &cursor.position]);
        cursor.is_new = false;
        commits += 1;
    }
    commits
}

/// A command as the server reads it.
pub(crate) fn put_command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    parts.iter().for_each(|part| put_part(out, part));
}

fn put_part(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
    out.extend_from_slice(part);
    out.extend_from_slice(b"\r\n");
}

/// XADD of one record of one field, the server choosing the id.
pub(crate) fn put_append(out: &mut Vec<u8>, stream: &str, payload: &[u8]) {
    put_command(out, &[b"XADD", stream.as_bytes(), b"*", b"p", payload]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server;
    use firth_testkit::Flavor;

    #[test]
    fn every_record_is_read_once_in_order_with_its_payload() {
        let server = server::start(Flavor::Redis).unwrap();
        let mut raw = Raw::connect(server.port()).unwrap();
        for number in 0..3 * PIPELINE {
            let mut command = Vec::new();
            put_append(&mut command, ["a", "b"][number % 2], &vec![b'x'; number * 7]);
            raw.run(&command, 1).unwrap();
        }
        let mut streams = [Cursor::start("a"), Cursor::start("b")];
        let mut seen = [0, 1];
        let mut read = 0;
        while read < 3 * PIPELINE {
            read += raw
                .read(&mut streams, None, |stream, payload| {
                    assert_eq!(payload.len(), seen[stream] * 7);
                    seen[stream] += 2;
                })
                .unwrap();
        }
        raw.commit(&mut streams).unwrap();
        assert_eq!(raw.read(&mut streams, None, |_, _| ()).unwrap(), 0);
        assert!(raw.run(b"*1\r\n$4\r\nNOPE\r\n", 1).is_err());
    }
}
