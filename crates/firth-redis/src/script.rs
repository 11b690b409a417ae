//! Lua scripts by their digest: sent as EVALSHA, and in full only when the server does not know
//! them (NOSCRIPT).

use crate::command::{Command, cmd};
use crate::resp::ToArg;

/// A script and its SHA-1 digest, computed once.
#[derive(Clone)]
pub struct Script {
    source: std::sync::Arc<str>,
    digest: std::sync::Arc<str>,
}

impl Script {
    /// Wraps a script's source.
    pub fn new(source: impl Into<String>) -> Self {
        let source: String = source.into();
        let digest = sha1_smol::Sha1::from(&source).digest().to_string();
        Self { source: source.into(), digest: digest.into() }
    }

    /// The digest under which servers know the script.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The script's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Starts a call with the keys that the script touches; in a cluster they must share a slot.
    pub fn keys<T: ToArg>(&self, keys: impl IntoIterator<Item = T>) -> ScriptCall {
        let keys: Vec<T> = keys.into_iter().collect();
        let by_digest = cmd("EVALSHA").of_script(&self.source).arg(&*self.digest).arg(keys.len()).keys(&keys);
        ScriptCall { by_digest, script: self.clone(), keys: keys.len() }
    }

    /// Starts a call with one key.
    pub fn key(&self, key: impl ToArg) -> ScriptCall {
        self.keys([key])
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "script {}", self.digest)
    }
}

/// A call of a script with its keys and arguments, ready to be given to
/// [`Client::eval`](crate::Client::eval).
#[derive(Debug, Clone)]
pub struct ScriptCall {
    by_digest: Command,
    script: Script,
    keys: usize,
}

impl ScriptCall {
    /// Adds an argument (`ARGV`).
    #[must_use]
    pub fn arg(mut self, value: impl ToArg) -> Self {
        self.by_digest = self.by_digest.arg(value);
        self
    }

    /// Adds several arguments (`ARGV`).
    #[must_use]
    pub fn args<T: ToArg>(mut self, values: impl IntoIterator<Item = T>) -> Self {
        self.by_digest = self.by_digest.args(values);
        self
    }

    /// Reserves room for arguments of this many bytes together, for callers that add large ones.
    #[must_use]
    pub fn with_room(mut self, bytes: usize) -> Self {
        self.by_digest.reserve(bytes);
        self
    }

    /// Number of keys.
    pub fn key_count(&self) -> usize {
        self.keys
    }

    /// The call by digest, for pipelines whose caller loads the script beforehand.
    pub fn command(&self) -> &Command {
        &self.by_digest
    }

    /// The same call with the whole source, which also makes the server remember it.
    pub(crate) fn in_full(&self) -> Command {
        self.by_digest.with_script_source(self.script.source())
    }
}
