//! Every limit of the engine, once. All are checked before the first write, with errors that name
//! the limit.

/// The longest record key, in bytes.
pub const MAX_KEY: usize = 1024;
/// The most headers of one record.
pub const MAX_HEADERS: usize = 32;
/// The most bytes of all headers of one record, names and values together.
pub const MAX_HEADER_BYTES: usize = 8 * 1024;
/// The largest payload unless the topic allows more.
pub const DEFAULT_PAYLOAD: usize = 1024 * 1024;
/// The largest payload that any topic can allow.
pub const MAX_PAYLOAD: usize = 16 * 1024 * 1024;
/// The most records of one append.
pub const MAX_BATCH: usize = 1000;
/// The most bytes of one append, unless it is a single record.
pub const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
/// The most records that one read, page or due call returns.
pub const MAX_READ: usize = 10_000;
/// The most verdicts (acknowledged due records, retries, dead letters) of one commit.
pub const MAX_VERDICTS: usize = 1000;
/// The most separate runs of records settled ahead of the frontier.
pub const MAX_AHEAD: usize = 1024;
/// The most records of one group and partition that can wait for a retry.
pub const MAX_DUE: u64 = 100_000;
/// The longest reason of a retry or a dead letter, in bytes; longer ones are cut at a character.
pub const MAX_REASON: usize = 1024;
/// The most failed attempts of a record that are remembered, the last ones.
pub const MAX_FAILURES: usize = 8;
/// The longest reason of a remembered attempt but the last, in bytes.
pub const MAX_PAST_REASON: usize = 256;
/// The longest delay of a message or a retry.
pub const MAX_DELAY: std::time::Duration = std::time::Duration::from_secs(366 * 24 * 3600);
/// The most idempotent producers that a partition remembers; the one that was silent longest is
/// forgotten.
pub const MAX_PRODUCERS: u64 = 10_000;
/// How many of its last batches a producer can send again and get the ids of.
pub const PRODUCER_WINDOW: usize = 8;
/// The most bytes of a source mark.
pub const MAX_MARK: usize = 64;
/// The most sources that can have a mark in one partition.
pub const MAX_SOURCES: u64 = 64;
/// The most leases of one renewal.
pub const MAX_RENEW: usize = 10_000;
/// The longest note of a lease, in bytes.
pub const MAX_NOTE: usize = 4096;
/// The longest lease.
pub const MAX_TTL: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// The largest payload of an offer, in bytes.
pub const MAX_OFFER: usize = 64 * 1024;
/// The largest checkpoint of a claim, in bytes.
pub const MAX_CHECKPOINT: usize = 64 * 1024;
/// The most offers that one step on a claim shard works on.
pub const MAX_CLAIM_SHARD_BATCH: usize = 500;
/// The most bytes of payloads and checkpoints that one grant answers, unless it is a single offer.
pub const MAX_GRANT_BYTES: usize = 4 * 1024 * 1024;
/// The most members of one claim shard.
pub const MAX_MEMBERS: usize = 1000;
/// The largest capacity that a member of a claim shard can state.
pub const MAX_CAPACITY: u64 = 1_000_000_000;
/// The longest rest of an offer that was given back.
pub const MAX_REST: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// The longest name of a catalog entry, in bytes.
pub const MAX_ENTRY_NAME: usize = 512;
/// The largest value of a catalog entry, in bytes.
pub const MAX_ENTRY: usize = 1024 * 1024;
/// The largest payload on the bus, in bytes.
pub const MAX_SIGNAL: usize = 64 * 1024;
