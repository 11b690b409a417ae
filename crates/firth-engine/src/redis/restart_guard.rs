//! A fresh append-only file for a server that was started again, before the first step is written
//! into it.
//!
//! **The fault.** If a server dies while it writes a step, a part of the step stays at the end of
//! its file. The next start leaves that step out of memory. But most servers cut the file only
//! behind the last whole command of the step. The next write then ends the torn step, or becomes a
//! part of it. The start after that applies the beginning of a step that never was, or leaves out
//! acknowledged writes. This concerns Redis up to now, and Valkey before 9.1.2
//! (<https://github.com/valkey-io/valkey/pull/4342>).
//!
//! **The remedy.** No order of writes inside a step can prevent that. So the engine lets the server
//! rewrite its file before the engine writes anything behind the tear. It suffices that the rewrite
//! has begun: from then on the server writes to a new file. When the rewrite ends, the server
//! deletes the old file. If the server dies before that end, its next start refuses the old file as
//! cut short. But that start cuts the file before the torn step, and the start after it comes up
//! with everything.
//!
//! **When the engine checks.** A server that was started again knows no scripts. The engine writes
//! only by scripts, by sessions that began with one (`optimistic_append.rs`), and by trims, which
//! may be lost. So the check costs nothing until a server answers NOSCRIPT. Then the caller calls
//! [`FreshFile::ensure_for`] before it sends the script in full. `aof_rewrites` counts since the
//! start, so one rewrite serves all clients that come later.

use super::error_mapping::of_call;
use super::start::Info;
use crate::error::{Error, ErrorKind};
use firth_redis::resp::{Frame, Ignore};
use firth_redis::{CallError, Client, Command, ScriptCall, cmd, pipe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server may take to begin; it waits for the end of a snapshot that it is writing.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// The first version of Valkey that is known to cut its file before a torn step.
const SOUND_VALKEY: [u32; 3] = [9, 1, 2];

/// Whether a script did not run because the server does not know it.
pub(super) fn is_unknown<T>(answer: &Result<T, CallError>) -> bool {
    matches!(answer, Err(CallError::Server(error)) if &*error.code == "NOSCRIPT")
}

/// Sees to it that servers began their append-only files anew since they were started.
pub(super) struct FreshFile {
    client: Client,
    /// Key that selects the server if there is no call yet, or if the call has no key.
    probe: String,
    /// It cannot be done, and that was told.
    gave_up: AtomicBool,
}

/// Why a server writes into the file that it was started with.
#[derive(Clone, Debug)]
pub(super) enum NotFresh {
    /// It could not be asked.
    Call(CallError),
    /// The user may not call this.
    Refused(&'static str),
    /// The rewrite did not begin in time; the cause is unknown.
    Late,
}

impl FreshFile {
    pub(super) fn new(client: Client, probe: String) -> Self {
        Self { client, probe, gave_up: AtomicBool::new(false) }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// As [`ensure_for`](Self::ensure_for), before there is a call.
    pub(super) async fn ensure(&self, must: bool) -> Result<(), NotFresh> {
        self.ensure_at(self.probe.as_bytes(), must).await
    }

    /// Returns when this step may be sent in full to the server that owns its keys. If the server
    /// does not do its part, that is an error where it must, and a warning elsewhere.
    pub(super) async fn ensure_for(&self, call: &ScriptCall, must: bool) -> Result<(), NotFresh> {
        self.ensure_at(call.command().first_key().unwrap_or(self.probe.as_bytes()), must).await
    }

    async fn ensure_at(&self, key: &[u8], must: bool) -> Result<(), NotFresh> {
        let gave_up = self.gave_up.load(Ordering::Relaxed);
        let patience = if gave_up && !must { PAUSE } else { PATIENCE };
        let begun = tokio::time::timeout(patience, begin(&self.client, key)).await;
        match begun.unwrap_or(Err(NotFresh::Late)) {
            Err(error @ (NotFresh::Refused(_) | NotFresh::Late)) if !must => {
                if !self.gave_up.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{error}");
                }
                Ok(())
            }
            begun => {
                self.gave_up.fetch_and(begun.is_err(), Ordering::Relaxed);
                begun
            }
        }
    }
}

/// Orders a rewrite unless one was begun, and waits until it is.
async fn begin(client: &Client, key: &[u8]) -> Result<(), NotFresh> {
    let mut pause = Duration::ZERO;
    loop {
        let info = match ask(client, key, cmd("INFO").arg("server").arg("persistence")).await {
            Ok(info) => Info::parse(&info),
            Err(error) => return Err(refused("+info", error)),
        };
        if is_fresh(&info) {
            return Ok(());
        }
        match ask(client, key, cmd("BGREWRITEAOF")).await.map_err(|error| refused("+bgrewriteaof", error)) {
            // Others may have ordered it, too, or it waits; the next look tells.
            Ok(_) | Err(NotFresh::Call(CallError::Server(_))) => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause).await;
        pause = PAUSE;
    }
}

/// Asks the server that owns a key.
pub(super) async fn ask(client: &Client, key: &[u8], what: Command) -> Result<Frame, CallError> {
    let pipe = pipe().then(what).then(cmd("EXISTS").key(key)).together();
    let (answer, _) = client.pipeline::<(Frame, Ignore)>(pipe).await?;
    answer
}

fn refused(rule: &'static str, error: CallError) -> NotFresh {
    match &error {
        CallError::Server(server)
            if &*server.code == "NOPERM" || server.message.starts_with("unknown command") =>
        {
            NotFresh::Refused(rule)
        }
        _ => NotFresh::Call(error),
    }
}

/// Whether nothing that is written from now on stands behind a tear.
fn is_fresh(info: &Info) -> bool {
    let cuts_well = info.get("valkey_version").is_some_and(|version| numbers(version) >= SOUND_VALKEY);
    !info.has_aof() || cuts_well || info.get("aof_rewrites") != Some("0")
}

fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

impl std::fmt::Display for NotFresh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = "a server that was started again may apply half of a torn step at its next start, unless it rewrites its append-only file";
        match self {
            Self::Call(_) => write!(f, "the server's append-only file could not be looked at"),
            Self::Refused(rule) => {
                write!(f, "the server's user lacks the rule {rule} (see docs/acl.md): {why}")
            }
            Self::Late => {
                write!(f, "the server has not begun to rewrite its append-only file: {why}; look at its log")
            }
        }
    }
}

/// The step did not run.
impl From<NotFresh> for Error {
    fn from(error: NotFresh) -> Self {
        let context = error.to_string();
        match error {
            NotFresh::Call(error) => Self::new(of_call(error.clone()).kind(), context).with_source(error),
            NotFresh::Refused(_) => Self::new(ErrorKind::Unauthorized, context),
            NotFresh::Late => Self::new(ErrorKind::Unavailable, context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        assert!(numbers("9.1.2") >= SOUND_VALKEY && numbers("10.0") >= SOUND_VALKEY);
        assert!(numbers("9.1.1") < SOUND_VALKEY && numbers("8.10.9") < SOUND_VALKEY);
    }
}
