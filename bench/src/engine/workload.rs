//! The engine workloads by their names in the JSON lines, and the data they run on.

use anyhow::{Context, Result};
use bytes::Bytes;

/// What one step of a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Append a batch of [`APPENDED`] records.
    Append,
    /// Append a batch that is delayed by an hour.
    Delay,
    /// Read [`READ`] records and commit them.
    Settle,
    /// Read [`READ`] records, commit them to be tried again, take them, commit them as done.
    Retry,
    /// Read [`READ`] records and give them up.
    Dead,
    /// Renew [`LEASES`] leases of one pool in one call.
    Renew,
    /// Open a directory with ten million records.
    Restart,
}

/// Where it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    Memory,
    /// `file:` without and with a sync before each answer.
    FileFast,
    File,
    /// Without persistence, and with an append-only file that is synced every second.
    Redis,
    RedisEverysec,
}

impl Site {
    pub(crate) fn is_redis(self) -> bool {
        matches!(self, Self::Redis | Self::RedisEverysec)
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) place: Site,
}

const fn at(name: &'static str, kind: Kind, place: Site) -> Workload {
    Workload { name, kind, place }
}

/// All of them.
pub(crate) const ALL: [Workload; 29] = [
    at("append/memory", Kind::Append, Site::Memory),
    at("append/file-fast", Kind::Append, Site::FileFast),
    at("append/file", Kind::Append, Site::File),
    at("append/redis", Kind::Append, Site::Redis),
    at("append/redis-everysec", Kind::Append, Site::RedisEverysec),
    at("settle/memory", Kind::Settle, Site::Memory),
    at("settle/file-fast", Kind::Settle, Site::FileFast),
    at("settle/file", Kind::Settle, Site::File),
    at("settle/redis", Kind::Settle, Site::Redis),
    at("settle/redis-everysec", Kind::Settle, Site::RedisEverysec),
    at("retry/memory", Kind::Retry, Site::Memory),
    at("retry/file-fast", Kind::Retry, Site::FileFast),
    at("retry/file", Kind::Retry, Site::File),
    at("retry/redis", Kind::Retry, Site::Redis),
    at("retry/redis-everysec", Kind::Retry, Site::RedisEverysec),
    at("dead/memory", Kind::Dead, Site::Memory),
    at("dead/file-fast", Kind::Dead, Site::FileFast),
    at("dead/file", Kind::Dead, Site::File),
    at("dead/redis", Kind::Dead, Site::Redis),
    at("dead/redis-everysec", Kind::Dead, Site::RedisEverysec),
    at("renew/10000/memory", Kind::Renew, Site::Memory),
    at("renew/10000/file-fast", Kind::Renew, Site::FileFast),
    at("renew/10000/file", Kind::Renew, Site::File),
    at("renew/10000/redis", Kind::Renew, Site::Redis),
    at("renew/10000/redis-everysec", Kind::Renew, Site::RedisEverysec),
    at("delay/memory", Kind::Delay, Site::Memory),
    at("delay/file", Kind::Delay, Site::File),
    at("delay/redis", Kind::Delay, Site::Redis),
    at("restart/file", Kind::Restart, Site::FileFast),
];

impl Workload {
    pub(crate) fn named(name: &str) -> Result<Self> {
        let known = ALL.iter().find(|workload| workload.name == name);
        known.copied().with_context(|| format!("no workload {name}"))
    }

    /// Whether there is such a thing as this subject here.
    pub(crate) fn has(self, subject: &str) -> bool {
        let is_stored = self.place != Site::Memory;
        match subject {
            "raw" => is_stored && matches!(self.kind, Kind::Append | Kind::Settle),
            "raw-group" => self.place.is_redis() && self.kind == Kind::Settle,
            _ => true,
        }
    }
}

/// Records per append: what a pipeline of the raw limit carries.
pub(crate) const APPENDED: usize = 128;
/// Records per read and commit.
pub(crate) const READ: usize = 100;
/// Leases per renewal.
pub(crate) const LEASES: usize = 10_000;
/// Records that reading workloads go through, again and again.
pub(crate) const RECORDS: usize = 50_000;
/// Length of a payload.
pub(crate) const PAYLOAD: usize = 256;

/// Payloads that do not compress, taken in turn.
pub(crate) struct Payloads {
    all: Vec<Bytes>,
    next: usize,
}

impl Payloads {
    pub(crate) fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut noise = || {
            let words = (0..PAYLOAD / 8).flat_map(|_| {
                // xorshift: good enough for bytes that no compressor shortens
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            });
            words.collect::<Bytes>()
        };
        Self { all: (0..4096).map(|_| noise()).collect(), next: 0 }
    }

    pub(crate) fn next(&mut self) -> Bytes {
        self.next = (self.next + 1) % self.all.len();
        self.all[self.next].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_with_its_operation_and_ends_with_its_place() {
        for workload in ALL {
            let (first, last) =
                (workload.name.split('/').next().unwrap(), workload.name.rsplit('/').next().unwrap());
            let kind = format!("{:?}", workload.kind).to_lowercase();
            let place = format!("{:?}", workload.place).to_lowercase();
            assert_eq!(first, kind);
            assert!(last.replace('-', "") == place || workload.kind == Kind::Restart, "{}", workload.name);
            assert!(workload.has("firth"));
        }
    }
}
