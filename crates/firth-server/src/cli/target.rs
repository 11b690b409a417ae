//! Where a command goes, and how it answers.

use crate::client::Client;
use clap::Args;
use firth::{Error, ErrorKind, Result};
use std::path::Path;

/// A server, or an engine of its own.
#[derive(Args)]
#[command(next_help_heading = "Where and how")]
pub(crate) struct ApiTarget {
    /// The server to speak to; FIRTH_TOKEN is its token, FIRTH_CA_FILE a file of certificates to
    /// trust
    #[arg(
        long,
        global = true,
        env = "FIRTH_SERVER",
        default_value = "http://127.0.0.1:7171",
        value_name = "URL"
    )]
    server: String,
    /// Open this engine instead of speaking to a server: file:./DIR, redis://HOST, …
    #[arg(long, global = true, value_name = "URL")]
    engine: Option<String>,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl ApiTarget {
    pub(crate) async fn open(&self) -> Result<Client> {
        match &self.engine {
            Some(engine) => Client::local(engine).await,
            None => Client::remote(&self.server, std::env::var("FIRTH_TOKEN").ok()),
        }
    }

    /// As [`with`](Self::with), for commands that make nothing: a directory without a store is
    /// refused.
    pub(crate) async fn with_existing(&self, command: impl AsyncFnOnce(&Client) -> Result<()>) -> Result<()> {
        if let Some(dir) = self.directory().filter(|dir| !dir.join("FORMAT").is_file()) {
            let why = format!(
                "there is no store in {}: check the path, or make one with `firth topic create`",
                dir.display()
            );
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        self.with(command).await
    }

    /// Opens a client there and runs a command with it; closes the client also if the command
    /// fails.
    pub(crate) async fn with(&self, command: impl AsyncFnOnce(&Client) -> Result<()>) -> Result<()> {
        let client = self.open().await?;
        let outcome = command(&client).await;
        let closed = client.close().await;
        outcome.and(closed)
    }

    pub(crate) fn engine(&self) -> Option<&str> {
        self.engine.as_deref()
    }

    /// The directory of an engine on files.
    pub(crate) fn directory(&self) -> Option<&Path> {
        let rest = self.engine()?.strip_prefix("file:")?;
        let path = rest.split_once('?').map_or(rest, |(path, _)| path);
        Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
    }

    /// For people, without secrets.
    pub(crate) fn describe(&self) -> String {
        match &self.engine {
            Some(engine) => format!("an engine of its own, {}", without_secrets(engine)),
            None => {
                let token = if std::env::var_os("FIRTH_TOKEN").is_some() { "with" } else { "without" };
                format!("the server {}, {token} a token", without_secrets(&self.server))
            }
        }
    }
}

/// A URL without what stands before the `@`.
fn without_secrets(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        assert_eq!(without_secrets("redis://me:p@ss@h:1/0"), "redis://h:1/0");
        assert_eq!(without_secrets("http://h:1"), "http://h:1");
    }
}
