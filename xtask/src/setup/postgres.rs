//! PostgreSQL, whose change stream `firth-connect` reads.

use super::apt;
use crate::shell::{Outcome, on_path};
use std::fs;
use std::path::Path;

/// Makes sure that the fixtures find `initdb` and `postgres`. The package would make and start a
/// cluster of its own; a setting that it reads first forbids that.
pub(super) fn ensure() -> Outcome {
    if is_there() {
        return Ok(());
    }
    let settings = Path::new("/etc/postgresql-common/createcluster.conf");
    if !settings.exists() && settings.parent().is_some_and(|dir| fs::create_dir_all(dir).is_ok()) {
        // Where this is not allowed, the installation says what is missing.
        let _ = fs::write(settings, "create_main_cluster = false\n");
    }
    apt::install(&["postgresql"])?;
    if is_there() { Ok(()) } else { Err("postgresql was installed but its programs are not found".into()) }
}

fn is_there() -> bool {
    let packaged = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    std::env::var_os("FIRTH_POSTGRES_BIN").is_some()
        || packaged.into_iter().any(|version| version.path().join("bin/initdb").is_file())
        || on_path("initdb").is_some()
}
