//! Groups, deliveries and verdicts on the wire.

use super::lenient::{given_whole, maybe_whole, objects, whole};
use super::{Shown, millis};
use firth::{GroupInfo, MemberInfo, PendingPage, PendingRecord, StartAt};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fetch {
    /// At most this many deliveries; 1 unless set.
    #[schema(minimum = 1, maximum = 500)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) max: Option<usize>,
    /// How long to wait for the first one; 0 unless set.
    #[schema(maximum = 30_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) wait_ms: Option<u64>,
    /// How long they may take; 30 s unless set.
    #[schema(minimum = 100, maximum = 43_200_000)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) lease_ms: Option<u64>,
}

/// A record that must be settled by `delivery` before `deadline_ms` (Unix time), else it comes
/// again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Delivered {
    /// Its handle, good for this ownership of the partition only.
    pub(crate) delivery: String,
    pub(crate) deadline_ms: u64,
    /// Grows with each change of the partition's owner.
    #[serde(default)]
    pub(crate) epoch: u64,
    pub(crate) record: Shown,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Fetched {
    pub(crate) deliveries: Vec<Delivered>,
}

/// Verdicts by delivery, 1 to 500 in all.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settle {
    /// Done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    pub(crate) ack: Vec<String>,
    /// Not done: try again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    #[serde(deserialize_with = "objects")]
    pub(crate) nack: Vec<Failure>,
    /// Hopeless: make it a dead letter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    #[serde(deserialize_with = "objects")]
    pub(crate) reject: Vec<Failure>,
    /// Not started: another consumer may have it, and no attempt is counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    pub(crate) release: Vec<String>,
    /// Not done yet: more time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 500)]
    #[serde(deserialize_with = "objects")]
    pub(crate) extend: Vec<Extension>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failure {
    pub(crate) delivery: String,
    /// Kept with the record; longer ones are cut after 1024 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Only for nack: how long to wait instead of what the retry policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 31_622_400_000_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) after_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Extension {
    pub(crate) delivery: String,
    /// How long it may take from now on.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 100, maximum = 43_200_000)]
    pub(crate) lease_ms: u64,
}

/// How many verdicts are stored, and which are not and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SettledReport {
    pub(crate) settled: usize,
    pub(crate) failed: Vec<NotSettled>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct NotSettled {
    pub(crate) delivery: String,
    pub(crate) kind: String,
    pub(crate) detail: String,
    /// Whether it may be stored all the same.
    #[serde(default)]
    pub(crate) may_have_happened: bool,
}

/// A group in figures.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Group {
    pub(crate) topic: String,
    pub(crate) group: String,
    /// Records that are not settled: waiting, in flight or due.
    pub(crate) lag: u64,
    /// Records that wait for another attempt.
    pub(crate) due: u64,
    pub(crate) dead: u64,
    pub(crate) members: usize,
    /// The age of the oldest record that was never settled nor tried.
    pub(crate) oldest_ms: Option<u64>,
    pub(crate) partitions: Vec<GroupPart>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupPart {
    pub(crate) partition: u32,
    pub(crate) waiting: u64,
    pub(crate) due: u64,
    pub(crate) dead: u64,
    pub(crate) owner: Option<String>,
    /// Everything up to this record is done, due or dead.
    #[serde(default)]
    pub(crate) frontier: String,
    /// The owner's epoch.
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
}

impl From<GroupInfo> for Group {
    fn from(info: GroupInfo) -> Self {
        let parts = info.partitions.iter().map(|part| GroupPart {
            partition: part.index,
            waiting: part.waiting,
            due: part.due,
            dead: part.dead,
            owner: part.owner.as_ref().map(|owner| owner.member.clone()),
            frontier: part.frontier.to_string(),
            epoch: part.owner.as_ref().map(|owner| owner.epoch.0),
        });
        Self {
            topic: info.topic.to_string(),
            group: info.group.to_string(),
            lag: info.lag(),
            due: info.due(),
            dead: info.dead(),
            members: info.members.len(),
            oldest_ms: info.oldest().map(millis),
            partitions: parts.collect(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Groups {
    pub(crate) groups: Vec<Group>,
}

/// Everyone who is a member now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Members {
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// The partitions that it owns.
    pub(crate) owns: Vec<u32>,
    /// The partitions that it pinned.
    pub(crate) pins: Vec<u32>,
    /// The most partitions that it takes; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_partitions: Option<u32>,
    /// How long it stays a member without another heartbeat.
    pub(crate) remaining_ms: u64,
    pub(crate) beats: u64,
    /// `server`: it stands for clients over HTTP; `cli`: a command with `--engine`; `library`: a
    /// program that consumes by itself; or what that program calls itself.
    #[serde(default)]
    pub(crate) kind: String,
    /// The machine on which it runs, as it says.
    #[serde(default)]
    pub(crate) host: Option<String>,
    /// The number of its process there.
    #[serde(default)]
    pub(crate) pid: Option<u32>,
    /// Who consumes through it, if it is the server that answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) clients: Vec<ClientShown>,
}

/// A client that consumes over HTTP.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ClientShown {
    /// What it calls itself by `Firth-Client`.
    pub(crate) name: Option<String>,
    /// Where it comes from; null inside the server's process.
    pub(crate) address: Option<String>,
    /// `fetch` or `stream`.
    pub(crate) kind: String,
    /// Deliveries that it has not settled.
    pub(crate) unsettled: usize,
    /// How long ago its last call ended; 0 while one runs.
    pub(crate) idle_ms: u64,
}

/// How members of servers are called.
pub(crate) const SERVER_MEMBER: &str = "http";

impl From<MemberInfo> for Member {
    fn from(info: MemberInfo) -> Self {
        let MemberInfo { name, owns, pins, max_partitions, remaining, beats, kind, host, pid, .. } = info;
        let owns = owns.into_iter().collect();
        let pins = pins.into_iter().collect();
        // Members of older versions say nothing; servers are known by their names.
        let is_server = name.strip_prefix(SERVER_MEMBER).is_some_and(|rest| rest.starts_with('-'));
        let kind = kind.unwrap_or_else(|| if is_server { "server" } else { "library" }.to_owned());
        let remaining_ms = millis(remaining);
        let clients = Vec::new();
        Self { name, owns, pins, max_partitions, remaining_ms, beats, kind, host, pid, clients }
    }
}

/// Where a group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Start {
    /// At the oldest record.
    #[default]
    Oldest,
    /// With what is sent from now on.
    Newest,
}

/// A group to create.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewGroup {
    /// At the oldest record unless set.
    pub(crate) start: Start,
    /// Instead of `start`: with records that are not older than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "maybe_whole")]
    pub(crate) age_ms: Option<u64>,
}

impl From<&NewGroup> for StartAt {
    fn from(request: &NewGroup) -> Self {
        match (request.age_ms, request.start) {
            (Some(age), _) => Self::Age(Duration::from_millis(age)),
            (None, Start::Oldest) => Self::Oldest,
            (None, Start::Newest) => Self::Newest,
        }
    }
}

/// Where a group shall go on, on every partition.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ResetGroup {
    /// At the oldest record unless set.
    pub(crate) to: Start,
    /// Instead of `to`: with records that are not older than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 3_155_760_000_000_u64)]
    #[serde(deserialize_with = "given_whole")]
    pub(crate) age_ms: Option<u64>,
    /// Instead of `to`: with records appended at this time (Unix) or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_u64)]
    #[serde(deserialize_with = "given_whole")]
    pub(crate) time_ms: Option<u64>,
    /// Forget records that wait for another attempt.
    pub(crate) drop_due: bool,
}

/// A page of records that wait for another attempt.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PendingList {
    pub(crate) records: Vec<Waiting>,
    /// How many match in all.
    pub(crate) total: usize,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Waiting {
    pub(crate) partition: u32,
    pub(crate) id: String,
    /// The attempt that comes next, or runs.
    pub(crate) attempt: u32,
    /// How many consumers vanished while they had it.
    pub(crate) crashes: u32,
    /// When it is due; null while its owner has it.
    pub(crate) due_ms: Option<u64>,
    /// How long ago it was sent.
    #[serde(default)]
    pub(crate) age_ms: u64,
    /// For how long its owner has had it; null while it waits.
    #[serde(default)]
    pub(crate) idle_ms: Option<u64>,
    pub(crate) reason: String,
}

impl From<PendingPage> for PendingList {
    fn from(page: PendingPage) -> Self {
        Self { total: page.total, records: page.records.into_iter().map(Waiting::from).collect() }
    }
}

impl From<PendingRecord> for Waiting {
    fn from(record: PendingRecord) -> Self {
        let PendingRecord { partition, id, attempt, crashes, due_in, age, idle, reason, .. } = record;
        let due_ms = due_in.map(millis);
        let age_ms = millis(age);
        let idle_ms = idle.map(millis);
        Self { partition, id: id.to_string(), attempt, crashes, due_ms, age_ms, idle_ms, reason }
    }
}

/// Deliveries that members of a group have and have not settled, the oldest first.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct InFlightList {
    pub(crate) deliveries: Vec<InFlightShown>,
    /// How many there are in all, of the members that answered.
    pub(crate) total: usize,
    /// Members that did not tell within half a second: they hang, are gone, or are of an older
    /// version.
    #[serde(default)]
    pub(crate) silent: Vec<String>,
}

/// A delivery in the hands of a member, or of a client over HTTP.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct InFlightShown {
    pub(crate) partition: u32,
    pub(crate) id: String,
    /// 1 for the first delivery.
    pub(crate) attempt: u32,
    /// How long ago the client, or the member's handler, got it.
    pub(crate) age_ms: u64,
    /// How long it has left before the server delivers it again; null if it is no client of the
    /// server that answers.
    #[serde(default)]
    pub(crate) remaining_ms: Option<u64>,
    /// The member of the group that has it, or stands for the client.
    pub(crate) member: Option<String>,
    /// The client, as it names itself by `Firth-Client`.
    pub(crate) client: Option<String>,
    /// The client's address, or the member's machine; null inside the server's process.
    pub(crate) address: Option<String>,
    /// `fetch` or `stream` for a client of the server that answers, else the kind of the member.
    pub(crate) kind: String,
}

/// What a reset would do.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ResetPreview {
    /// Records that the group would get again.
    pub(crate) repeats: u64,
    /// Records that it would never get.
    pub(crate) skips: u64,
    /// Records that wait for another attempt and would be forgotten.
    pub(crate) dropped: u64,
    pub(crate) partitions: Vec<ResetPart>,
}

/// What a reset would do on one partition.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ResetPart {
    pub(crate) partition: u32,
    pub(crate) repeats: u64,
    pub(crate) skips: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_without_a_time_is_never_a_reset_to_the_oldest() {
        let read = |text: &str| serde_json::from_str::<ResetGroup>(text);
        assert_eq!(read(r#"{"time_ms":5}"#).unwrap().time_ms, Some(5));
        assert_eq!(read(r#"{"age_ms":5.0}"#).unwrap().age_ms, Some(5));
        for wrong in [r#"{"time_ms":null}"#, r#"{"age_ms":null}"#, r#"{"age_ms":-1}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
