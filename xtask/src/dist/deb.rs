//! The Debian package: program, unit, settings, manual pages, completions, and a user of its own.

use super::{Release, copy_folder};
use crate::shell::{self, Outcome, program};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Packs the program and returns the package.
pub(super) fn pack(release: &Release) -> Outcome<PathBuf> {
    let stage = release.out.join("deb");
    lay_out(release, &stage)?;
    let file = release.out.join(format!("firth_{}_{}.deb", release.version, architecture()?));
    let words = ["--build", "--root-owner-group", "-Zxz"];
    shell::run(program("dpkg-deb", &words).arg(&stage).arg(&file))?;
    fs::remove_dir_all(&stage)?;
    Ok(file)
}

fn architecture() -> Outcome<String> {
    Ok(shell::read(&mut program("dpkg", &["--print-architecture"]))?.trim().to_owned())
}

fn lay_out(release: &Release, stage: &Path) -> Outcome {
    let scripts = shell::root().join("packaging/debian");
    let unit = fs::read_to_string(shell::root().join("packaging/systemd/firth.service"))?;
    put(&fs::read(&release.binary)?, &stage.join("usr/bin/firth"), 0o755)?;
    put(unit_of(&unit)?.as_bytes(), &stage.join("lib/systemd/system/firth.service"), 0o644)?;
    let settings = fs::read(shell::root().join("packaging/systemd/firth.env"))?;
    put(&settings, &stage.join("etc/firth/firth.env"), 0o640)?;
    let completions = [
        ("firth.bash", "usr/share/bash-completion/completions/firth"),
        ("_firth", "usr/share/zsh/vendor-completions/_firth"),
        ("firth.fish", "usr/share/fish/vendor_completions.d/firth.fish"),
    ];
    for (from, to) in completions {
        put(&fs::read(release.generated.join(from))?, &stage.join(to), 0o644)?;
    }
    let man = stage.join("usr/share/man/man1");
    copy_folder(&release.generated.join("man"), &man)?;
    put(&fs::read(scripts.join("copyright"))?, &stage.join("usr/share/doc/firth/copyright"), 0o644)?;
    let changes = stage.join("usr/share/doc/firth/changelog");
    put(&fs::read(shell::root().join("CHANGELOG.md"))?, &changes, 0o644)?;
    compress(&[man, changes])?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&fs::read(scripts.join(script))?, &stage.join("DEBIAN").join(script), 0o755)?;
    }
    put(b"/etc/firth/firth.env\n", &stage.join("DEBIAN/conffiles"), 0o644)?;
    let control = control(release, size_of(stage)?)?;
    put(control.as_bytes(), &stage.join("DEBIAN/control"), 0o644)
}

fn put(content: &[u8], to: &Path, mode: u32) -> Outcome {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, content)?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Manual pages and changelogs are compressed on Debian; without a time, so that builds agree.
fn compress(paths: &[PathBuf]) -> Outcome {
    shell::run(program("gzip", &["-9", "--no-name", "--recursive"]).args(paths))
}

/// The unit as a package has it: the program's place, and a lasting user that owns the data.
fn unit_of(unit: &str) -> Outcome<String> {
    let place = "ExecStart=/usr/local/bin/firth";
    let user = "DynamicUser=yes";
    if !unit.contains(place) || !unit.contains(user) {
        return Err(format!("packaging/systemd/firth.service has no `{place}` or no `{user}`").into());
    }
    let unit = unit.replace(place, "ExecStart=/usr/bin/firth");
    Ok(unit.replace(user, "User=firth\nGroup=firth"))
}

/// KiB of the installed files.
fn size_of(stage: &Path) -> Outcome<String> {
    let told = shell::read(program("du", &["--summarize", "--apparent-size", "-k"]).arg(stage))?;
    Ok(told.split_whitespace().next().unwrap_or("0").to_owned())
}

fn control(release: &Release, size: String) -> Outcome<String> {
    let symbols = shell::read(program("objdump", &["--dynamic-syms"]).arg(&release.binary))?;
    Ok(format!(
        "Package: firth\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The firth developers <firth@localhost>\n\
         Installed-Size: {size}\n\
         Depends: adduser, libc6 (>= {}), libgcc-s1\n\
         Recommends: ca-certificates\n\
         Section: net\n\
         Priority: optional\n\
         Description: event server: topics, claims, live pub/sub, change routing\n \
         Durable partitioned topics with consumer groups, retries and dead letters;\n \
         work claims with takeover; live events for gateways and browsers; a web\n \
         console. It stores in files, or on Redis and Valkey.\n",
        release.version,
        architecture()?,
        newest_glibc(&symbols).ok_or("the program needs no symbol of glibc")?,
    ))
}

/// The newest glibc that a symbol of the program asks for.
fn newest_glibc(symbols: &str) -> Option<String> {
    let asked = symbols.split("GLIBC_").skip(1);
    let versions = asked.filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].split('.').map(|part| part.parse::<u32>().ok()).collect::<Option<Vec<_>>>()
    });
    let newest = versions.max()?;
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_asks_for_the_newest_glibc_that_it_uses() {
        let symbols = "\
0000 DF *UND* 0000 (GLIBC_2.2.5) read
0000 DF *UND* 0000 (GLIBC_2.34) pthread_create
0000 DF *UND* 0000 (GLIBC_2.9) pipe2
";
        assert_eq!(newest_glibc(symbols).unwrap(), "2.34");
        assert_eq!(newest_glibc("nothing"), None);
    }

    #[test]
    fn a_packaged_unit_names_the_packages_program_and_user() {
        let file = shell::root().join("packaging/systemd/firth.service");
        let unit = unit_of(&fs::read_to_string(file).unwrap()).unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/firth serve\n") && unit.contains("User=firth\n"));
        assert!(!unit.contains("DynamicUser"));
        assert!(unit_of("[Unit]\n").is_err());
    }
}
