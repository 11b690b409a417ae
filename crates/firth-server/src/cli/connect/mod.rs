//! `firth connect`: the databases whose changes become events.

mod copies;
mod show;

use super::output::{ask, json, line, note};
use crate::client::{Client, escape};
use crate::wire::{Examined, NewSnapshot, SourceShown, Sources};
use axum::http::Method;
use clap::Subcommand;
use copies::Copies;
use firth::{Error, ErrorKind, Result};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth connect list
  firth connect status shop
  firth connect doctor shop
  firth connect snapshot shop --table orders --where 'total > 100' --until-done
  firth connect pause shop";

/// How often a followed source is looked at.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Subcommand)]
pub(crate) enum ConnectCommand {
    /// List the sources, who reads them and how they are
    #[command(after_help = "Example:\n  firth connect list --json")]
    List,
    /// Show one source in all figures, or all of them
    #[command(after_help = "Examples:\n  firth connect status shop\n  firth connect status --follow")]
    Status {
        /// Its name; all sources unless given
        source: Option<String>,
        /// Go on until interrupted: a line for each change of state, and a bar for each copy of a
        /// table
        #[arg(long, short)]
        follow: bool,
    },
    /// Copy what a table holds now into the topic, beside its changes
    #[command(
        after_help = "Examples:\n  firth connect snapshot shop\n  firth connect snapshot shop --table orders --where \"state = 'open'\" --until-done"
    )]
    Snapshot {
        /// The source's name
        source: String,
        /// Which table; all tables of the source unless given
        #[arg(long, value_name = "SCHEMA.TABLE")]
        table: Option<String>,
        /// Which rows, as the condition of a WHERE in the database's own words
        #[arg(long = "where", value_name = "SQL", requires = "table")]
        condition: Option<String>,
        /// Wait until the copy is in the topic
        #[arg(long)]
        until_done: bool,
    },
    /// Look whether the database of a source is fit, and print the SQL that is missing
    ///
    /// Nothing is changed. Exits with 2 if the source cannot work.
    #[command(after_help = "Examples:\n  firth connect doctor shop\n  firth connect doctor --json")]
    Doctor {
        /// The source's name; all that the server is configured for unless given
        source: Option<String>,
    },
    /// Let the reader of a source rest; the database keeps its log for it
    #[command(after_help = "Example:\n  firth connect pause shop")]
    Pause {
        /// The source's name
        source: String,
    },
    /// Let a source that was paused or removed be read again
    #[command(after_help = "Example:\n  firth connect resume shop")]
    Resume {
        /// The source's name
        source: String,
    },
    /// Let the reader of a source begin anew, where it stopped
    #[command(after_help = "Example:\n  firth connect restart shop")]
    Restart {
        /// The source's name
        source: String,
    },
    /// Take a paused source down: its slot and publication in the database, its marks in the topic
    #[command(
        after_help = "Examples:\n  firth connect pause shop && firth connect remove shop\n  firth connect remove shop --forget   # its database is gone"
    )]
    Remove {
        /// The source's name
        source: String,
        /// Leave the database alone: only forget the source here
        #[arg(long)]
        forget: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) async fn run(client: &Client, command: ConnectCommand, as_json: bool) -> Result<()> {
    match command {
        ConnectCommand::List => {
            let Sources { sources } = client.get("/v1/sources").await?;
            if as_json { json(&sources) } else { show::list(&sources) }
        }
        ConnectCommand::Status { source, follow: true } => follow(client, source.as_deref(), as_json).await,
        ConnectCommand::Status { source, follow: false } => {
            for source in looked_at(client, source.as_deref()).await? {
                if as_json { json(&source)? } else { show::whole(&source)? }
            }
            Ok(())
        }
        ConnectCommand::Snapshot { source, table, condition, until_done } => {
            let request = NewSnapshot { table, condition };
            let shown: SourceShown = client.send(Method::POST, &path(&source, "/snapshot"), &request).await?;
            let asked = shown.wanted_snapshots.iter().map(|wanted| wanted.id).max();
            match asked.filter(|_| until_done) {
                Some(id) => copied(client, &source, id, as_json).await,
                None if as_json => json(&shown),
                None => {
                    line(&format!("asked for: `firth connect status {source} --follow` shows how far it is"))
                }
            }
        }
        ConnectCommand::Doctor { source } => doctor(client, source, as_json).await,
        ConnectCommand::Pause { source } => ordered(client, &source, "pause", as_json).await,
        ConnectCommand::Resume { source } => ordered(client, &source, "resume", as_json).await,
        ConnectCommand::Restart { source } => ordered(client, &source, "restart", as_json).await,
        ConnectCommand::Remove { source, forget, yes } => remove(client, &source, forget, yes).await,
    }
}

async fn doctor(client: &Client, source: Option<String>, as_json: bool) -> Result<()> {
    let sources = match source {
        Some(source) => vec![source],
        None => {
            let Sources { sources } = client.get("/v1/sources").await?;
            sources.into_iter().filter(|shown| shown.configured).map(|shown| shown.name).collect()
        }
    };
    let mut unfit = Vec::new();
    for source in sources {
        let examined: Examined = client.get(&path(&source, "/doctor")).await?;
        if as_json {
            json(&examined)?;
        } else {
            show::examined(&source, &examined)?;
        }
        if examined.findings.iter().any(|finding| finding.level == "error") {
            unfit.push(source);
        }
    }
    match unfit.is_empty() {
        true => Ok(()),
        false => {
            let context = format!("not fit: {}", unfit.join(", "));
            Err(Error::new(ErrorKind::Invalid, context))
        }
    }
}

async fn remove(client: &Client, source: &str, forget: bool, yes: bool) -> Result<()> {
    ask(yes, || match forget {
        true => format!("Forget source {source}? A slot that it left in its database keeps the log there."),
        false => format!("Take down source {source}: drop its slot and publication, forget how far it is?"),
    })?;
    client.delete(&path(source, if forget { "?forget=true" } else { "" })).await
}

fn path(source: &str, rest: &str) -> String {
    format!("/v1/sources/{}{rest}", escape(source))
}

async fn ordered(client: &Client, source: &str, order: &str, as_json: bool) -> Result<()> {
    let nothing = serde_json::json!({});
    let shown: SourceShown = client.send(Method::POST, &path(source, &format!("/{order}")), &nothing).await?;
    if as_json { json(&shown) } else { line(&format!("{source}: {}", shown.state)) }
}

async fn looked_at(client: &Client, source: Option<&str>) -> Result<Vec<SourceShown>> {
    match source {
        Some(source) => Ok(vec![client.get(&path(source, "")).await?]),
        None => client.get("/v1/sources").await.map(|Sources { sources }| sources),
    }
}

/// Tells each change of state, and draws how far copies are; ends with an interrupt.
async fn follow(client: &Client, source: Option<&str>, as_json: bool) -> Result<()> {
    let mut copies = Copies::default();
    let mut told: Vec<SourceShown> = Vec::new();
    loop {
        let now = looked_at(client, source).await?;
        for shown in &now {
            let before = told.iter().find(|before| before.name == shown.name);
            let is_new = before.is_none_or(|before| show::says_more(before, shown));
            copies.update(shown);
            match (is_new, as_json) {
                (true, true) => json(shown)?,
                (true, false) => copies.beside(|| line(&show::brief(shown)))?,
                (false, _) => {}
            }
        }
        told = now;
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until a copy that was asked for is in the topic.
async fn copied(client: &Client, source: &str, id: u64, as_json: bool) -> Result<()> {
    let mut copies = Copies::default();
    let mut state = String::new();
    loop {
        let shown: SourceShown = client.get(&path(source, "")).await?;
        copies.update(&shown);
        if !shown.wanted_snapshots.iter().any(|wanted| wanted.id == id) {
            return if as_json { json(&shown) } else { line(&format!("{source}: the copy is in the topic")) };
        }
        if matches!(&*shown.state, "lost" | "paused" | "removed") {
            let context = format!("the copy waits: {}", show::brief(&shown));
            return Err(Error::new(ErrorKind::Unavailable, context));
        }
        if shown.state != state && shown.state != "streaming" {
            note(&show::brief(&shown));
        }
        state = shown.state;
        tokio::time::sleep(LOOK).await;
    }
}
