//! Tools that some tests of faults use: libfaketime for clocks that jump, packet filters for networks that break. Tests that lack
//! them say so and pass; so a machine where they cannot be installed is told, not refused.

use std::path::Path;

use super::apt;
use crate::shell::on_path;

/// Installs what is missing, where we may.
pub(super) fn ensure() {
    let lib = |architecture: &str| format!("/usr/lib/{architecture}-linux-gnu/faketime/libfaketimeMT.so.1");
    let has_faketime = ["x86_64", "aarch64"].iter().any(|name| Path::new(&lib(name)).is_file());
    let wanted = [("libfaketime", has_faketime), ("nftables", found("nft")), ("iproute2", found("ip"))];
    let missing: Vec<&str> = wanted.iter().filter(|(_, is_there)| !is_there).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return;
    }
    if let Err(error) = apt::install(&missing) {
        eprintln!("{error}\n\nWithout them some tests of faults are skipped.");
    }
}

/// Also where only root's PATH leads.
fn found(program: &str) -> bool {
    on_path(program).is_some() || Path::new("/usr/sbin").join(program).is_file()
}
