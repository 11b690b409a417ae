//! The scripts: one per step, put together from the texts in `lua/` and the parts they share, each with its flags.
//!
//! Every script checks everything before its first write, because scripts do not roll back; a refusal is a plain string,
//! success is a number or a list. `ALLOW_OOM` marks those that must go on when the server's memory is full: whatever
//! settles, renews, gives back or frees. Scripts touch keys of one slot only.

use crate::limits::{MAX_DUE, MAX_PRODUCERS, PRODUCER_WINDOW};
use firth_redis::Script;
use std::sync::LazyLock;

/// Records of one parcel have numbers from one page of so many (see `lua/lib/due.lua`).
pub(super) const PAGE: u64 = 4096;

const WRITES: &str = "#!lua\n";
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";
const READS: &str = "#!lua flags=no-writes\n";

/// Instead of parts: the script uses nothing that others share.
const ALONE: &str = "";
const BASE: &str = include_str!("lua/lib/base.lua");
const LEASE: &str = include_str!("lua/lib/lease.lua");
const AHEAD: &str = include_str!("lua/lib/ahead.lua");
const BLOB: &str = include_str!("lua/lib/blob.lua");
const LOCATE: &str = include_str!("lua/lib/locate.lua");
const FLOOR: &str = include_str!("lua/lib/floor.lua");
const DUE: &str = include_str!("lua/lib/due.lua");
const PARCEL: &str = include_str!("lua/lib/parcel.lua");
const WRITE: &str = include_str!("lua/lib/write.lua");
const PROGRESS: &str = include_str!("lua/lib/progress.lua");
const WIPE: &str = include_str!("lua/lib/wipe.lua");
const POOL: &str = include_str!("lua/lib/pool.lua");
const BOARD: &str = include_str!("lua/lib/board.lua");
const HANDOVER: &str = include_str!("lua/lib/handover.lua");

fn script(flags: &str, parts: &[&str], body: &str) -> Script {
    let limits = format!(
        "local WINDOW, PRODUCERS, MAX_DUE, PAGE = {PRODUCER_WINDOW}, {MAX_PRODUCERS}, {MAX_DUE}, {PAGE}\n"
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
    append = "append", WRITES, [WRITE];
    append_plain = "append_plain", WRITES, [ALONE];
    head = "head", READS, [];
    ripen = "ripen", WRITES, [BLOB, WRITE];
    adopt = "adopt", ALLOW_OOM, [];
    follow = "follow", WRITES, [WRITE];
    bounds = "bounds", READS, [];
    read = "read", READS, [];
    trim = "trim", ALLOW_OOM, [AHEAD, LOCATE, FLOOR];
    trim_size = "trim_size", ALLOW_OOM, [AHEAD, BLOB, FLOOR];
    create_group = "create_group", WRITES, [LEASE, LOCATE];
    open = "open", ALLOW_OOM, [LEASE, AHEAD, LOCATE, DUE, PARCEL];
    advance = "advance", ALLOW_OOM, [LEASE, AHEAD, DUE, PROGRESS];
    commit = "commit", ALLOW_OOM, [LEASE, AHEAD, DUE, PARCEL, PROGRESS];
    due = "due", ALLOW_OOM, [LEASE, BLOB, LOCATE, DUE, PARCEL];
    status = "status", READS, [AHEAD, LOCATE, DUE];
    pending = "pending", READS, [DUE, PARCEL];
    reset = "reset", ALLOW_OOM, [LEASE, LOCATE, DUE, PARCEL];
    delete_group = "delete_group", ALLOW_OOM, [LEASE];
    dead = "dead", READS, [];
    revive = "revive", WRITES, [AHEAD, DUE, PARCEL];
    append_again = "append_again", WRITES, [WRITE];
    forget_dead = "forget_dead", ALLOW_OOM, [];
    acquire_group = "acquire_group", ALLOW_OOM, [LEASE];
    renew_groups = "renew_groups", ALLOW_OOM, [LEASE];
    release_group = "release_group", ALLOW_OOM, [LEASE];
    revoke_group = "revoke_group", ALLOW_OOM, [LEASE];
    look_groups = "look_groups", READS, [];
    acquire_pool = "acquire_pool", ALLOW_OOM, [LEASE, POOL];
    renew_pool = "renew_pool", ALLOW_OOM, [];
    release_pool = "release_pool", ALLOW_OOM, [LEASE, POOL];
    look_pool = "look_pool", READS, [];
    board_offer = "board_offer", WRITES, [BOARD];
    board_withdraw = "board_withdraw", ALLOW_OOM, [BOARD];
    board_join = "board_join", ALLOW_OOM, [BOARD];
    board_leave = "board_leave", ALLOW_OOM, [BOARD];
    board_expel = "board_expel", ALLOW_OOM, [BOARD];
    board_beat = "board_beat", ALLOW_OOM, [BOARD];
    board_grant = "board_grant", ALLOW_OOM, [BOARD, HANDOVER];
    board_take = "board_take", ALLOW_OOM, [BOARD, HANDOVER];
    board_settle = "board_settle", ALLOW_OOM, [BOARD];
    board_checkpoint = "board_checkpoint", WRITES, [BOARD];
    board_force = "board_force", ALLOW_OOM, [BOARD];
    board_owned = "board_owned", READS, [BOARD];
    board_list = "board_list", READS, [BOARD];
    board_members = "board_members", READS, [BOARD];
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
