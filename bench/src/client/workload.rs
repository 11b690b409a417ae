//! The client workloads by their names in the JSON lines, and the data they run on.
//!
//! A workload is a kind of step, a number of tasks that repeat it over one connection, and a
//! runtime: `st` = current-thread, `mt` = multi-thread with two workers.

use crate::server::Admin;
use anyhow::Result;
use bytes::Bytes;

/// What one step of a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// GET of 64 bytes.
    Get,
    /// SET of 64 bytes.
    Set,
    /// One explicit pipeline of 100 GETs; an op is one GET.
    Pipeline,
    /// GET of 64 KiB.
    Get64k,
    /// XADD of one field of 64 bytes.
    Xadd,
    /// XREADGROUP COUNT 100, then XACK of what came; an op is one record.
    XreadGroup,
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) tasks: usize,
    pub(crate) multi_thread: bool,
}

const fn st(name: &'static str, kind: Kind, tasks: usize) -> Workload {
    Workload { name, kind, tasks, multi_thread: false }
}

const fn mt(name: &'static str, kind: Kind, tasks: usize) -> Workload {
    Workload { name, kind, tasks, multi_thread: true }
}

/// All of them, in the order of the table in the project's targets.
pub(crate) const ALL: [Workload; 11] = [
    st("get/1/st", Kind::Get, 1),
    st("get/64/st", Kind::Get, 64),
    st("get/1024/st", Kind::Get, 1024),
    st("set/64/st", Kind::Set, 64),
    st("set/1024/st", Kind::Set, 1024),
    st("pipeline/100/st", Kind::Pipeline, 1),
    st("get64k/16/st", Kind::Get64k, 16),
    st("xadd/64/st", Kind::Xadd, 64),
    st("xreadgroup/100/st", Kind::XreadGroup, 1),
    mt("get/64/mt", Kind::Get, 64),
    mt("get/1024/mt", Kind::Get, 1024),
];

/// Commands per explicit pipeline, and records per XREADGROUP.
pub(crate) const BATCH: usize = 100;
/// Length of a small value.
pub(crate) const SMALL: usize = 64;
/// Length of a large value.
pub(crate) const LARGE: usize = 64 * 1024;

/// Powers of two, which the driver relies on.
const SMALL_KEYS: usize = 1 << 10;
const LARGE_KEYS: usize = 1 << 4;
/// Records that the XREADGROUP loop reads over and over.
const RECORDS: usize = 20_000;

/// The stream that XADD appends to.
pub(crate) const APPENDED: &str = "bench:appended";
/// The stream that XREADGROUP reads.
pub(crate) const READ: &str = "bench:read";
/// The consumer group on [`READ`].
pub(crate) const GROUP: &str = "readers";
/// The one consumer in [`GROUP`].
pub(crate) const CONSUMER: &str = "reader";
/// The one field of every record.
pub(crate) const FIELD: &str = "d";

/// A key in the forms that the subjects take without a conversion.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) bytes: Bytes,
}

/// Keys and value of a run, the same for every subject.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) small: Vec<Key>,
    pub(crate) large: Vec<Key>,
    pub(crate) value: Bytes,
}

impl Data {
    pub(crate) fn new() -> Self {
        let keys = |prefix: &str, count: usize| {
            let text = (0..count).map(|n| format!("bench:{prefix}:{n:04}"));
            text.map(|text| Key { bytes: Bytes::from(text.clone()), text }).collect()
        };
        Self {
            small: keys("small", SMALL_KEYS),
            large: keys("large", LARGE_KEYS),
            value: Bytes::from(vec![b'v'; SMALL]),
        }
    }

    /// Replaces the server's keys by those that `kind` needs.
    pub(crate) fn prepare(&self, kind: Kind, admin: &mut Admin) -> Result<()> {
        match kind {
            Kind::Get | Kind::Set | Kind::Pipeline => fill(&self.small, SMALL, admin),
            Kind::Get64k => fill(&self.large, LARGE, admin),
            Kind::Xadd => admin.run(&["DEL", APPENDED]),
            Kind::XreadGroup => self.prepare_stream(admin),
        }
    }

    fn prepare_stream(&self, admin: &mut Admin) -> Result<()> {
        admin.run(&["DEL", READ])?;
        let mut commands = redis::Pipeline::new();
        for _ in 0..RECORDS {
            commands.cmd("XADD").arg(READ).arg("*").arg(FIELD).arg(&self.value[..]);
        }
        admin.run_all(commands)?;
        admin.run(&["XGROUP", "CREATE", READ, GROUP, "0"])
    }
}

fn fill(keys: &[Key], length: usize, admin: &mut Admin) -> Result<()> {
    let value = vec![b'v'; length];
    let mut commands = redis::Pipeline::new();
    for key in keys {
        commands.cmd("SET").arg(&key.text).arg(&value[..]);
    }
    admin.run_all(commands)
}

/// Lets [`GROUP`] read the stream from its beginning again.
pub(crate) fn rewind(admin: &mut Admin) -> Result<()> {
    admin.run(&["XGROUP", "SETID", READ, GROUP, "0"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_tasks_or_batch_and_runtime() {
        for workload in ALL {
            let parts: Vec<_> = workload.name.split('/').collect();
            let size: usize = parts[1].parse().unwrap();
            let batched = matches!(workload.kind, Kind::Pipeline | Kind::XreadGroup);
            assert_eq!(size, if batched { BATCH } else { workload.tasks }, "{}", workload.name);
            assert_eq!(parts[2] == "mt", workload.multi_thread, "{}", workload.name);
        }
    }
}
