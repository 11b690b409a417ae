//! The audit log: who changed what and when, refused attempts included, and topics that were made
//! by asking for them. Never payloads, keys or tokens.
//!
//! Each entry goes to the log under the target `audit`, and as a line of JSON to a file if one is
//! named. The file is opened anew on SIGHUP, so that it can be rotated.

use super::Caller;
use crate::wire::{invalid, unix_ms};
use firth::{Result, TopicName};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::SystemTime;

/// Where entries go.
#[derive(Default)]
pub(crate) struct Audit {
    path: Option<PathBuf>,
    file: Mutex<Option<File>>,
}

/// One action.
#[derive(Serialize)]
pub(crate) struct Entry<'a> {
    pub(crate) who: &'a str,
    pub(crate) from: Option<String>,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) status: u16,
}

/// The longest path that is kept.
const MAX_PATH: usize = 1024;
/// All that a path shows as it is.
const PLAIN: percent_encoding::AsciiSet =
    percent_encoding::NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'~');

/// A path as it is meant, however the client encoded it, within [`MAX_PATH`].
fn normal(path: &str) -> String {
    let segment = |segment: &str| {
        let meant: Vec<u8> = percent_encoding::percent_decode_str(segment).collect();
        percent_encoding::percent_encode(&meant, &PLAIN).to_string()
    };
    let mut path = path.split('/').map(segment).collect::<Vec<_>>().join("/");
    path.truncate(MAX_PATH);
    path
}

tokio::task_local! {
    static ACTOR: (Caller, Option<IpAddr>);
}

/// Runs a request in the name of who asks for it, for what it does by the way.
pub(crate) async fn acting<F: Future>(caller: Caller, from: Option<IpAddr>, request: F) -> F::Output {
    ACTOR.scope((caller, from), request).await
}

impl Audit {
    /// Notes that asking for a topic made it.
    pub(crate) fn made(&self, topic: &TopicName) {
        let actor = ACTOR.try_with(Clone::clone).ok();
        self.write(&Entry {
            who: actor.as_ref().map_or("server", |(caller, _)| caller.name()),
            from: actor.as_ref().and_then(|(_, from)| from.map(|from| from.to_string())),
            method: "AUTO",
            path: &format!("/v1/topics/{topic}"),
            status: 201,
        });
    }

    /// Opens the file for appending, readable by its owner only.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self> {
        let audit = Self { path, file: Mutex::new(None) };
        audit.reopen()?;
        Ok(audit)
    }

    /// Opens the file anew.
    pub(crate) fn reopen(&self) -> Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let Some(path) = &self.path else { return Ok(()) };
        let file = File::options().create(true).append(true).mode(0o600).open(path).map_err(|error| {
            invalid(format!("auth.audit_file {} cannot be opened", path.display())).with_source(error)
        })?;
        *self.lock() = Some(file);
        Ok(())
    }

    pub(crate) fn write(&self, entry: &Entry<'_>) {
        let path = normal(entry.path);
        let entry = &Entry { path: &path, from: entry.from.clone(), ..*entry };
        let Entry { who, from, method, status, .. } = entry;
        let from = from.as_deref().unwrap_or("inside");
        match status {
            401 | 403 | 429 => tracing::warn!(target: "audit", who, from, method, path, status, "refused"),
            _ => tracing::info!(target: "audit", who, from, method, path, status, "admin action"),
        }
        let mut file = self.lock();
        let Some(file) = file.as_mut() else { return };
        #[derive(Serialize)]
        struct Line<'a> {
            time_ms: u64,
            #[serde(flatten)]
            entry: &'a Entry<'a>,
        }
        let line = Line { time_ms: unix_ms(SystemTime::now()), entry };
        let mut text = serde_json::to_vec(&line).expect("text and numbers are always JSON");
        text.push(b'\n');
        if let Err(error) = file.write_all(&text) {
            tracing::error!(%error, "the audit file cannot be written");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<File>> {
        self.file.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u12_a_path_is_shown_as_it_is_meant() {
        for (asked, meant) in [
            ("/v1/topics/%6frders", "/v1/topics/orders"),
            ("/v1/topics/a%2e%5F-b", "/v1/topics/a._-b"),
            ("/v1/topics/a%2fb", "/v1/topics/a%2Fb"),
            ("/v1/topics/a%0ab%25", "/v1/topics/a%0Ab%25"),
            ("/v1/topics/%c3%a4", "/v1/topics/%C3%A4"),
        ] {
            assert_eq!(normal(asked), meant);
        }
        assert_eq!(normal(&"/%00".repeat(1000)).len(), MAX_PATH);
    }
}
