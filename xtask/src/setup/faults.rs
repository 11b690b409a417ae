//! Tools of tests that inject faults: libfaketime for clocks that jump, packet filters for networks
//! that break, strace for disks that fail; and what documents show: systemd, openssl, curl.
//!
//! A machine where they cannot be installed is told, not refused: the tests that need them say so,
//! and fail under CI.

use super::apt;
use crate::shell::on_path;
use std::path::Path;

/// Packages and the programs that they bring.
const PROGRAMS: [(&str, &str); 6] = [
    ("nftables", "nft"),
    ("iproute2", "ip"),
    ("strace", "strace"),
    ("systemd", "systemd-analyze"),
    ("openssl", "openssl"),
    ("curl", "curl"),
];

/// Installs what is missing, where we may.
pub(super) fn ensure() {
    let absent = PROGRAMS.iter().filter(|(_, program)| !found(program)).map(|(package, _)| *package);
    let missing: Vec<&str> = absent.chain((!has_faketime()).then_some("libfaketime")).collect();
    if missing.is_empty() {
        return;
    }
    if let Err(error) = apt::install(&missing) {
        eprintln!("{error}\n\nWithout them some tests of faults cannot run.");
    }
}

fn has_faketime() -> bool {
    let lib = |architecture: &str| format!("/usr/lib/{architecture}-linux-gnu/faketime/libfaketimeMT.so.1");
    ["x86_64", "aarch64"].iter().any(|name| Path::new(&lib(name)).is_file())
}

/// Also where only root's PATH leads.
fn found(program: &str) -> bool {
    on_path(program).is_some() || Path::new("/usr/sbin").join(program).is_file()
}
