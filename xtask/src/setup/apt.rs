//! Installing Debian packages, where we may.

use crate::shell::{self, Outcome, on_path, program};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Asked by Debian's package scripts before they start a service; 101 means "do not".
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs packages without starting the services that they bring.
pub(crate) fn install(packages: &[&str]) -> Outcome {
    if on_path("apt-get").is_none() || !is_root() {
        return Err(format!(
            "missing: {0}\n\
             It can only be installed for you as root on Debian or Ubuntu. Please run\n\n    \
             apt-get install {0}\n\n\
             as root (or install the like by other means), then try again.",
            packages.join(" ")
        )
        .into());
    }
    let _quiet = NoServices::ask()?;
    shell::run(program("apt-get", &["update", "-q"]).env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut command = program("apt-get", &["install", "-q", "-y", "--no-install-recommends"]);
    shell::run(command.args(packages).env("DEBIAN_FRONTEND", "noninteractive"))
}

fn is_root() -> bool {
    shell::read(&mut program("id", &["-u"])).is_ok_and(|id| id.trim() == "0")
}

/// Forbids the start of services while it lives, unless the machine has a policy of its own.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn ask() -> Outcome<Self> {
        if Path::new(POLICY).exists() {
            return Ok(Self { ours: false });
        }
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(Self { ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(POLICY); // nothing better can be done in a destructor
        }
    }
}
