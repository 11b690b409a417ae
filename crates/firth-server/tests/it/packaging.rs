//! What is shipped beside the program: as far as a machine without containers can check it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(packaging(file)).unwrap()
}

#[test]
fn the_systemd_unit_is_valid_and_hardened() {
    let unit = read("systemd/firth.service");
    for setting in
        ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=\n"]
    {
        assert!(unit.contains(setting), "{setting}");
    }
    // Verified with a program that is there; where systemd is not installed there is nothing to ask.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("firth.service");
    let program = format!("ExecStart={} serve", env!("CARGO_BIN_EXE_firth"));
    std::fs::write(&copy, unit.replace("ExecStart=/usr/local/bin/firth serve", &program)).unwrap();
    let Ok(checked) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() else {
        eprintln!("systemd-analyze is not installed: the unit was not verified");
        return;
    };
    let told = String::from_utf8_lossy(&checked.stderr);
    let about_us: Vec<_> = told.lines().filter(|line| line.contains("firth.service")).collect();
    assert!(about_us.is_empty(), "{told}");
}

#[test]
fn the_container_is_built_in_stages_and_runs_without_rights() {
    let file = read("Dockerfile");
    let last = file.rsplit("\nFROM ").next().unwrap();
    assert_eq!(file.matches("\nFROM ").count(), 2, "one stage builds, one runs");
    assert!(last.contains("COPY --from=build") && !last.contains("cargo"), "{last}");
    let user = last.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
    assert!(!user.starts_with("0") && !user.starts_with("root"), "{user}");
    assert!(file.contains("--locked") && !file.contains(":latest"));
}
