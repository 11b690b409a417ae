//! The scripts: one per step, put together from the texts in `lua/` and the parts they share, each
//! with its flags.
//!
//! Every script checks everything before its first write, because scripts do not roll back. A
//! refusal is a plain string, success is a number or a list. `ALLOW_OOM` marks scripts that must go
//! on when the server's memory is full: those that settle, renew, give back or free. Scripts touch
//! keys of one slot only.

use crate::facet::CANCELLED_WINDOW;
use crate::limits::{MAX_DUE, MAX_PRODUCERS, MAX_SOURCES, PRODUCER_WINDOW};
use firth_redis::Script;
use std::sync::LazyLock;

/// Records of one batch of retries have numbers from one page of this many (see `lua/lib/due.lua`).
pub(super) const PAGE: u64 = 4096;
/// Due records that a script takes, lists or drops at a time: no call blocks the server long.
pub(super) const STEP: usize = 512;

const WRITES: &str = "#!lua\n";
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";
const READS: &str = "#!lua flags=no-writes\n";

/// Instead of parts: the script uses nothing that others share.
const ALONE: &str = "";
const BASE: &str = include_str!("lua/lib/base.lua");
const CLOCK: &str = include_str!("lua/lib/clock.lua");
/// What a script needs that is told what the client expects; see `unit_clock.rs`.
const TIMED: &str = concat!(include_str!("lua/lib/clock.lua"), include_str!("lua/lib/timed.lua"));
const LEASE: &str = include_str!("lua/lib/lease.lua");
const AHEAD: &str = include_str!("lua/lib/ahead.lua");
const BLOB: &str = include_str!("lua/lib/blob.lua");
const LOCATE: &str = include_str!("lua/lib/locate.lua");
const FLOOR: &str = include_str!("lua/lib/floor.lua");
const DUE: &str = include_str!("lua/lib/due.lua");
const RETRY_BATCH: &str = include_str!("lua/lib/retry_batch.lua");
const FAILURES: &str = include_str!("lua/lib/failures.lua");
const DELAYED: &str = include_str!("lua/lib/delayed.lua");
const WRITE: &str = include_str!("lua/lib/write.lua");
const PROGRESS: &str = include_str!("lua/lib/progress.lua");
const WIPE: &str = include_str!("lua/lib/wipe.lua");
const POOL: &str = include_str!("lua/lib/pool.lua");
const CLAIM_SHARD: &str = include_str!("lua/lib/claim_shard.lua");
const HANDOVER: &str = include_str!("lua/lib/handover.lua");

fn script(flags: &str, parts: &[&str], body: &str) -> Script {
    let limits = format!(
        "local WINDOW, PRODUCERS, SOURCES, MAX_DUE, PAGE, AT_ONCE, CANCELLED = \
         {PRODUCER_WINDOW}, {MAX_PRODUCERS}, {MAX_SOURCES}, {MAX_DUE}, {PAGE}, {STEP}, \
         {CANCELLED_WINDOW}\n"
    );
    let shared = if parts == [ALONE] { String::new() } else { limits + BASE + &parts.concat() };
    Script::new([flags, &shared, body].concat())
}

macro_rules! scripts {
    ($($name:ident = $file:literal, $flags:ident, [$($part:ident),*];)*) => {
        /// All scripts of the engine.
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        /// Made once per process.
        pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
            $($name: script($flags, &[$($part),*], include_str!(concat!("lua/", $file, ".lua"))),)*
        });

        #[cfg(test)]
        impl Scripts {
            fn all(&self) -> Vec<(&'static str, &Script)> {
                vec![$(($file, &self.$name)),*]
            }
        }
    };
}

scripts! {
    create_partition = "create_partition", WRITES, [WIPE];
    delete_partition = "delete_partition", ALLOW_OOM, [WIPE];
    append = "append", WRITES, [TIMED, WRITE];
    append_plain = "append_plain", WRITES, [ALONE];
    append_marked = "append_marked", WRITES, [TIMED, WRITE];
    mark = "mark", READS, [];
    forget_source = "forget_source", ALLOW_OOM, [];
    head = "head", READS, [];
    promote_due = "promote_due", WRITES, [TIMED, BLOB, WRITE];
    adopt = "adopt", ALLOW_OOM, [];
    follow = "follow", WRITES, [CLOCK, WRITE];
    bounds = "bounds", READS, [CLOCK];
    delayed = "delayed", READS, [CLOCK, DELAYED];
    cancel_delayed = "change_delayed", ALLOW_OOM, [TIMED, BLOB, WRITE, DELAYED];
    deliver_delayed = "change_delayed", WRITES, [TIMED, BLOB, WRITE, DELAYED];
    read = "read", READS, [];
    trim = "trim", ALLOW_OOM, [CLOCK, AHEAD, LOCATE, FLOOR];
    trim_size = "trim_size", ALLOW_OOM, [AHEAD, BLOB, FLOOR];
    create_group = "create_group", WRITES, [CLOCK, LEASE, LOCATE];
    open = "open", ALLOW_OOM, [TIMED, LEASE, AHEAD, LOCATE, DUE, RETRY_BATCH];
    advance = "advance", ALLOW_OOM, [CLOCK, LEASE, AHEAD, DUE, PROGRESS];
    commit = "commit", ALLOW_OOM, [TIMED, LEASE, AHEAD, DUE, RETRY_BATCH, FAILURES, PROGRESS];
    due = "due", ALLOW_OOM, [TIMED, LEASE, BLOB, LOCATE, DUE, RETRY_BATCH];
    status = "status", READS, [CLOCK, AHEAD, LOCATE, DUE];
    pending = "pending", READS, [CLOCK, DUE, RETRY_BATCH];
    reset = "reset", ALLOW_OOM, [CLOCK, LEASE, AHEAD, LOCATE, DUE, RETRY_BATCH];
    delete_group = "delete_group", ALLOW_OOM, [CLOCK, LEASE];
    dead = "dead", READS, [CLOCK];
    revive = "revive", WRITES, [CLOCK, AHEAD, DUE, RETRY_BATCH];
    append_again = "append_again", WRITES, [CLOCK, WRITE];
    forget_dead = "forget_dead", ALLOW_OOM, [CLOCK];
    acquire_group = "acquire_group", ALLOW_OOM, [TIMED, LEASE];
    renew_groups = "renew_groups", ALLOW_OOM, [TIMED, LEASE];
    release_group = "release_group", ALLOW_OOM, [LEASE];
    revoke_group = "revoke_group", ALLOW_OOM, [LEASE];
    look_groups = "look_groups", READS, [CLOCK];
    acquire_pool = "acquire_pool", ALLOW_OOM, [TIMED, LEASE, POOL];
    renew_pool = "renew_pool", ALLOW_OOM, [TIMED];
    release_pool = "release_pool", ALLOW_OOM, [LEASE, POOL];
    look_pool = "look_pool", READS, [CLOCK];
    claim_shard_offer = "claim_shard_offer", WRITES, [TIMED, CLAIM_SHARD];
    claim_shard_withdraw = "claim_shard_withdraw", ALLOW_OOM, [CLOCK, CLAIM_SHARD];
    claim_shard_join = "claim_shard_join", ALLOW_OOM, [TIMED, CLAIM_SHARD];
    claim_shard_leave = "claim_shard_leave", ALLOW_OOM, [CLOCK, CLAIM_SHARD];
    claim_shard_expel = "claim_shard_expel", ALLOW_OOM, [CLOCK, CLAIM_SHARD];
    claim_shard_beat = "claim_shard_beat", ALLOW_OOM, [TIMED, CLAIM_SHARD];
    claim_shard_grant = "claim_shard_grant", ALLOW_OOM, [TIMED, CLAIM_SHARD, HANDOVER];
    claim_shard_take = "claim_shard_take", ALLOW_OOM, [TIMED, CLAIM_SHARD, HANDOVER];
    claim_shard_settle = "claim_shard_settle", ALLOW_OOM, [TIMED, CLAIM_SHARD];
    claim_shard_checkpoint = "claim_shard_checkpoint", WRITES, [CLOCK, CLAIM_SHARD];
    claim_shard_force = "claim_shard_force", ALLOW_OOM, [CLOCK, CLAIM_SHARD];
    claim_shard_owned = "claim_shard_owned", READS, [CLOCK, CLAIM_SHARD];
    claim_shard_list = "claim_shard_list", READS, [CLOCK, CLAIM_SHARD];
    claim_shard_members = "claim_shard_members", READS, [CLOCK, CLAIM_SHARD];
    put_entry = "change_entry", WRITES, [];
    remove_entry = "change_entry", ALLOW_OOM, [];
    list_entries = "list_entries", READS, [];
    probe = "probe", ALLOW_OOM, [];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_searches_the_keyspace_or_configures_the_server() {
        for (name, script) in SCRIPTS.all() {
            for word in
                ["'KEYS'", "'SCAN'", "'CONFIG'", "'FLUSHALL'", "'FLUSHDB'", "'SORT'", "'HGETALL', KEYS[1]"]
            {
                assert!(!script.source().contains(&format!("call({word}")), "{name} uses {word}");
            }
        }
    }

    #[test]
    fn every_script_has_its_own_digest() {
        let mut digests: Vec<_> =
            SCRIPTS.all().iter().map(|(_, script)| script.digest().to_owned()).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), SCRIPTS.all().len());
    }
}
