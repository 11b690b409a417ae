//! `cargo xtask dist`: what a release ships, made by one command into `target/artefacts/`.
//!
//! The program is built once, split into a stripped binary and its debug information, and packed
//! as an archive and as a Debian package. A list of its crates and checksums go beside them.

mod deb;
mod sbom;
mod trial;

use crate::shell::{self, Outcome, cargo, program};
use std::fs;
use std::path::{Path, PathBuf};

/// Builds and packs; `--profile NAME` builds otherwise, `--try` installs the package in a clean
/// Debian root, uses it and removes it.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::read(args)?;
    let release = Release::build(&options.profile)?;
    release.archive()?;
    let package = deb::pack(&release)?;
    sbom::write(&release)?;
    release.sums()?;
    println!("artefacts are in {}", release.out.display());
    if options.tries { trial::run(&package, &release) } else { Ok(()) }
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    profile: String,
    tries: bool,
}

impl Options {
    fn read(args: &[String]) -> Outcome<Self> {
        let mut options = Self { profile: "dist".to_owned(), tries: false };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--profile" => options.profile = words.next().ok_or("--profile needs a name")?.clone(),
                "--try" => options.tries = true,
                other => return Err(format!("unknown option `{other}`: --profile NAME, --try").into()),
            }
        }
        Ok(options)
    }
}

/// A built program on its way into packages.
struct Release {
    version: String,
    /// The compiler's name of the machine, such as `x86_64-unknown-linux-gnu`.
    host: String,
    /// The folder that holds the artefacts.
    out: PathBuf,
    /// The stripped program.
    binary: PathBuf,
    /// Manual pages and completions, written by the program itself.
    generated: PathBuf,
}

impl Release {
    fn build(profile: &str) -> Outcome<Self> {
        shell::run(&mut cargo(&["build", "--profile", profile, "--locked", "--package", "firth-server"]))?;
        let out = shell::target().join("artefacts");
        let _ = fs::remove_dir_all(&out); // those of an earlier version
        let generated = out.join("generated");
        fs::create_dir_all(&generated)?;
        // Cargo puts the profiles `dev` and `test` into one folder.
        let folder = if profile == "dev" { "debug" } else { profile };
        let built = shell::target().join(folder).join("firth");
        let rustc = shell::read(&mut program("rustc", &["-vV"]))?;
        let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?;
        let version = shell::read(&mut program(&built, &["--version"]))?;
        let version = version.trim().strip_prefix("firth ").ok_or("the program names no version")?;
        let release = Self {
            version: version.to_owned(),
            host: host.to_owned(),
            binary: out.join("firth"),
            generated,
            out,
        };
        release.split(&built)?;
        release.generate()?;
        Ok(release)
    }

    /// Base of the artefacts' names.
    fn name(&self) -> String {
        format!("firth-{}-{}", self.version, self.host)
    }

    /// Separates the debug information; the stripped program names its file.
    fn split(&self, built: &Path) -> Outcome {
        let debug = self.out.join(format!("{}.debug", self.name()));
        let copy = |option: &str, from: &Path, to: &Path| {
            shell::run(program("objcopy", &[option, "--compress-debug-sections"]).arg(from).arg(to))
        };
        copy("--only-keep-debug", built, &debug)?;
        shell::run(program("objcopy", &["--strip-all"]).arg(built).arg(&self.binary))?;
        let link = format!("--add-gnu-debuglink={}", debug.display());
        shell::run(program("objcopy", &[&link]).arg(&self.binary))
    }

    fn generate(&self) -> Outcome {
        let man = self.generated.join("man");
        fs::create_dir_all(&man)?;
        shell::run(program(&self.binary, &["man", "--dir"]).arg(&man))?;
        for (shell_name, file) in [("bash", "firth.bash"), ("zsh", "_firth"), ("fish", "firth.fish")] {
            let text = shell::read(&mut program(&self.binary, &["completions", shell_name]))?;
            fs::write(self.generated.join(file), text)?;
        }
        Ok(())
    }

    /// The archive for every Linux: unpack it anywhere and run it.
    fn archive(&self) -> Outcome {
        let stage = self.out.join(self.name());
        fs::create_dir_all(stage.join("completions"))?;
        fs::copy(&self.binary, stage.join("firth"))?;
        for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            fs::copy(shell::root().join(file), stage.join(file))?;
        }
        for file in ["firth.bash", "_firth", "firth.fish"] {
            fs::copy(self.generated.join(file), stage.join("completions").join(file))?;
        }
        copy_folder(&self.generated.join("man"), &stage.join("man"))?;
        copy_folder(&shell::root().join("packaging/systemd"), &stage.join("systemd"))?;
        let file = self.out.join(format!("{}.tar.gz", self.name()));
        let words = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-czf"];
        let mut tar = program("tar", &words);
        shell::run(tar.arg(&file).arg("-C").arg(&self.out).arg(self.name()))?;
        Ok(fs::remove_dir_all(stage)?)
    }

    /// One line per artefact for `sha256sum --check`.
    fn sums(&self) -> Outcome {
        fs::remove_dir_all(&self.generated)?;
        fs::remove_file(&self.binary)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.out)? {
            names.push(entry?.file_name().into_string().map_err(|_| "an artefact's name is no text")?);
        }
        names.sort();
        let sums = shell::read(program("sha256sum", &[]).args(&names).current_dir(&self.out))?;
        print!("{sums}");
        Ok(fs::write(self.out.join("SHA256SUMS"), sums)?)
    }
}

/// Copies the files of a folder that has no folders of its own.
fn copy_folder(from: &Path, to: &Path) -> Outcome {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Outcome<Options> {
        Options::read(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_release_is_built_as_shipped_unless_told_otherwise() {
        assert_eq!(read(&[]).unwrap(), Options { profile: "dist".into(), tries: false });
        let chosen = read(&["--try", "--profile", "dev"]).unwrap();
        assert_eq!(chosen, Options { profile: "dev".into(), tries: true });
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(read(&["--sign"]).unwrap_err().to_string().contains("--sign"));
        assert!(read(&["--profile"]).is_err());
    }
}
