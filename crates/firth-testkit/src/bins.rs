//! Finds the server binaries that the fixtures run.
//!
//! Redis is looked up on `PATH`; Valkey in `FIRTH_VALKEY_SERVER`, then in the private folder
//! `.tools/valkey/` of the workspace, then on `PATH`. A missing binary panics and names the
//! command that installs it.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// Which of the two servers a fixture runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// `redis-server` as the distribution packages it (7.0 or newer).
    Redis,
    /// `valkey-server` (9 or newer).
    Valkey,
}

impl Flavor {
    /// Both flavors, for tests that loop over them.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    /// Path of the server binary.
    ///
    /// # Panics
    /// If it is not installed; the message says what to run.
    pub fn server_binary(self) -> PathBuf {
        self.find().unwrap_or_else(|| {
            panic!("no {self} server found ({}); run `cargo xtask setup` to install it", self.places())
        })
    }

    /// Whether the binary that we test with was built with TLS (the packaged Valkey is not).
    pub fn has_tls(self) -> bool {
        self == Self::Redis
    }

    fn find(self) -> Option<PathBuf> {
        match self {
            Self::Redis => on_path("redis-server"),
            Self::Valkey => env::var_os("FIRTH_VALKEY_SERVER")
                .map(PathBuf::from)
                .or_else(|| Some(private_valkey()).filter(|path| path.is_file()))
                .or_else(|| on_path("valkey-server")),
        }
    }

    fn places(self) -> &'static str {
        match self {
            Self::Redis => "looked for redis-server on PATH",
            Self::Valkey => {
                "looked at FIRTH_VALKEY_SERVER, .tools/valkey/valkey-server, valkey-server on PATH"
            }
        }
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        })
    }
}

fn private_valkey() -> PathBuf {
    private("valkey/valkey-server")
}

fn private(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools").join(path)
}

/// A program that `cargo xtask setup` puts under `.tools/`: the one that `variable` names, the
/// private one, or one on `PATH`.
///
/// # Panics
/// If there is none; the message says where it was looked for and what to run.
pub(crate) fn tool(variable: &str, path: &str, name: Option<&str>) -> PathBuf {
    let named = env::var_os(variable).map(PathBuf::from);
    let ours = Some(private(path)).filter(|path| path.is_file());
    named.or(ours).or_else(|| on_path(name?)).unwrap_or_else(|| {
        let elsewhere = name.map(|name| format!(", {name} on PATH")).unwrap_or_default();
        panic!("looked at {variable}, .tools/{path}{elsewhere}, and found nothing; run `cargo xtask setup` to install it")
    })
}

/// First executable of this name on `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
