//! Tries a package as a stranger would: a clean Debian root, install, serve, use, purge.

use super::Release;
use crate::setup::apt;
use crate::shell::{self, Outcome, on_path, program};
use std::fs;
use std::path::Path;

/// Fails if any step of `packaging/debian/try.sh` does. Needs root and Debian's packages.
pub(super) fn run(package: &Path, release: &Release) -> Outcome {
    if on_path("mmdebstrap").is_none() {
        apt::install(&["mmdebstrap"])?;
    }
    let root = shell::target().join("debian-root");
    let _ = fs::remove_dir_all(&root); // an earlier one that was cut off
    let words = ["--variant=minbase", "--include=adduser", "bookworm"];
    shell::run(program("mmdebstrap", &words).arg(&root))?;
    fs::copy(package, root.join("firth.deb"))?;
    fs::copy(shell::root().join("packaging/debian/try.sh"), root.join("try.sh"))?;
    // Mounts and processes of the root end with the command.
    let inside = "mount -t proc proc \"$1/proc\" && exec chroot \"$1\" /bin/bash /try.sh \"$2\"";
    let words = ["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside, "sh"];
    let tried = shell::run(program("unshare", &words).arg(&root).arg(&release.version));
    fs::remove_dir_all(&root)?;
    tried
}
