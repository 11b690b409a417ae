//! What `synced` needs of a server: a sync of its append-only file before every answer.
//!
//! The answer to a step is believed only with the server's settings right behind it, on the same
//! connection. So a failover to a server with other settings, or a change while it runs, is seen by
//! the very next step.
//!
//! **Why not WAITAOF.** Valkey 9.1.2 with `appendfsync everysec` confirms writes that no fsync has
//! reached: eight calls were confirmed after one `fdatasync`.

use super::error_mapping::of_call;
use super::keys::KeyNames;
use super::restart_guard::ask;
use super::start;
use super::streams::field;
use crate::error::{Error, ErrorKind, Result};
use firth_redis::resp::{Frame, Value};
use firth_redis::{CallError, Client, Command, cmd};

/// Each setting that `synced` rests on, its value, and why.
const NEEDED: [(&str, &str, &str); 3] = [
    ("appendonly", "yes", "an append-only file is all that survives a crash"),
    ("appendfsync", "always", "with everysec or no the server acknowledges what is not on its disk"),
    ("no-appendfsync-on-rewrite", "no", "with yes nothing is synced while the file is rewritten"),
];

/// Asks the server for its settings.
pub(super) fn question() -> Command {
    NEEDED.iter().fold(cmd("CONFIG").arg("GET"), |question, (name, ..)| question.arg(*name))
}

/// Judges the answer to the [`question`]; `Unsupported` says what to set.
pub(super) fn judge(answer: Result<&Frame, CallError>) -> Result<()> {
    let answer = match answer {
        Err(CallError::Server(error)) => {
            let context = "durability=synced must see the server's settings: permit +config|get \
                           (see docs/acl.md); a server that hides them cannot promise it";
            return Err(Error::new(ErrorKind::Unsupported, context).with_source(CallError::Server(error)));
        }
        answer => answer.map_err(of_call)?,
    };
    let is_wrong = |(name, value, _): &&(&str, &str, &str)| {
        field(answer.value(), name).and_then(Value::as_str) != Some(*value)
    };
    let Some((name, value, why)) = NEEDED.iter().find(is_wrong) else { return Ok(()) };
    let context = format!("durability=synced needs {name} {value} on the server: {why}");
    Err(Error::new(ErrorKind::Unsupported, context))
}

/// Whether every master keeps `synced` now.
pub(super) async fn check(client: &Client, keys: &KeyNames) -> Result<()> {
    for probe in start::probes(client, &keys.probe(), keys.prefix()) {
        let answer = ask(client, probe.as_bytes(), question()).await;
        judge(answer.as_ref().map_err(Clone::clone))?;
    }
    Ok(())
}
