//! `firth dead`: look at dead letters, replay them as they are or edited, delete them.

use super::output::{ask, json, line, plain, table};
use super::units;
use crate::client::{Client, escape, topic_path};
use crate::wire::{
    Count, DeadTopic, DeadTopics, Edit, Letter, Letters, Outgoing, PastAttempt, Pick, Values, invalid,
};
use axum::http::Method;
use clap::{Args, Subcommand};
use firth::{DeadId, Error, ErrorKind, RecordId, Result};
use serde_json::value::RawValue;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
Examples:
  firth dead list orders --group billing --reason timeout
  firth dead show orders billing/3/1700000000000-42
  firth dead replay orders --all --group billing
  firth dead edit orders billing/3/1700000000000-42";

#[derive(Subcommand)]
pub(crate) enum DeadCommand {
    /// List the topics that have dead letters, with reasons counted
    #[command(after_help = "Example:\n  firth dead topics")]
    Topics,
    /// List dead letters
    #[command(after_help = "Example:\n  firth dead list orders --group billing --reason timeout")]
    List {
        /// The topic
        topic: String,
        #[command(flatten)]
        filter: LetterFilter,
        /// At most this many
        #[arg(long, value_name = "N")]
        max: Option<u64>,
        /// Go on with letters as they come, one JSON object per line
        #[arg(long, conflicts_with = "max")]
        follow: bool,
    },
    /// Count dead letters
    #[command(after_help = "Example:\n  firth dead count orders --group billing")]
    Count {
        /// The topic
        topic: String,
        #[command(flatten)]
        filter: LetterFilter,
    },
    /// Show one letter with its attempts, headers and payload
    #[command(after_help = "Example:\n  firth dead show orders billing/3/1700000000000-42")]
    Show {
        /// The topic
        topic: String,
        /// The letter, as `dead list` shows it
        id: String,
    },
    /// Hand dead letters to their group again
    #[command(
        after_help = "Examples:\n  firth dead replay orders billing/3/1700000000000-42\n  firth dead replay orders --all --reason timeout"
    )]
    Replay {
        #[command(flatten)]
        which: WhichLetters,
        /// Append for every group, not just the one that gave up
        #[arg(long)]
        everyone: bool,
    },
    /// Change a letter's payload and replay it
    #[command(
        after_help = "Examples:\n  firth dead edit orders billing/3/1700000000000-42          # opens $EDITOR\n  firth dead edit orders billing/3/1700000000000-42 --payload '{\"total\": 3}'\n  firth dead edit orders billing/3/1700000000000-42 --file fixed.json"
    )]
    Edit {
        /// The topic
        topic: String,
        /// The letter, as `dead list` shows it
        id: String,
        /// The new payload, instead of opening $EDITOR
        #[arg(long, value_name = "TEXT", conflicts_with = "file")]
        payload: Option<String>,
        /// Take the new payload from this file
        #[arg(long, value_name = "FILE")]
        file: Option<std::path::PathBuf>,
        /// Append for every group, not just the one that gave up
        #[arg(long)]
        everyone: bool,
    },
    /// Delete dead letters for good
    #[command(
        after_help = "Examples:\n  firth dead delete orders billing/3/1700000000000-42\n  firth dead delete orders --all --group billing"
    )]
    Delete {
        #[command(flatten)]
        which: WhichLetters,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// All topics with dead letters, page by page.
async fn topics(client: &Client, as_json: bool) -> Result<()> {
    let mut rows = Vec::new();
    let mut after = String::new();
    loop {
        let page: DeadTopics = client.get(&format!("/v1/dead{after}")).await?;
        if as_json {
            page.topics.iter().try_for_each(json)?;
        }
        rows.extend(page.topics.iter().map(topic_row));
        let Some(next) = page.next else { break };
        after = format!("?after={}", escape(&next));
    }
    if as_json { Ok(()) } else { table(["TOPIC", "DEAD", "GROUPS", "MOST FREQUENT REASON"], rows) }
}

fn topic_row(topic: &DeadTopic) -> [String; 4] {
    let reason = topic.reasons.first().map_or("-".to_owned(), |reason| plain(&reason.reason));
    let groups: Vec<_> = topic.groups.iter().map(|group| group.group.as_str()).collect();
    [topic.topic.clone(), units::count(topic.count), groups.join(" "), reason]
}

/// Which letters are looked at.
#[derive(Args, Default)]
pub(crate) struct LetterFilter {
    /// Only those that this group gave up
    #[arg(long)]
    pub(super) group: Option<String>,
    /// Only those whose reason contains this
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    /// Only those of this partition
    #[arg(long, value_name = "P")]
    pub(super) partition: Option<u32>,
    /// Only those with this key
    #[arg(long)]
    pub(super) key: Option<String>,
    /// Only those that died at least so long ago
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(super) older_than: Option<Duration>,
}

impl LetterFilter {
    fn query(&self) -> String {
        let part = |name: &str, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!("&{name}={}", escape(value)))
        };
        let partition = self.partition.map(|partition| partition.to_string());
        let older_than = self.older_than.map(|age| units::millis(age).to_string());
        [
            part("group", &self.group),
            part("reason", &self.reason),
            part("partition", &partition),
            part("key", &self.key),
            part("older_than_ms", &older_than),
        ]
        .concat()
    }
}

#[derive(Args, Default)]
pub(crate) struct WhichLetters {
    /// The topic
    pub(super) topic: String,
    /// The letters, as `dead list` shows them
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(super) ids: Vec<String>,
    /// All of them
    #[arg(long)]
    pub(super) all: bool,
    /// With --all: only those of this group
    #[arg(long, requires = "all")]
    pub(super) group: Option<String>,
    /// With --all: only those whose reason contains this
    #[arg(long, value_name = "TEXT", requires = "all")]
    pub(super) reason: Option<String>,
    /// With --all: only those of this partition
    #[arg(long, value_name = "P", requires = "all")]
    pub(super) partition: Option<u32>,
    /// With --all: only those with this key
    #[arg(long, requires = "all")]
    pub(super) key: Option<String>,
    /// With --all: only those that died at least so long ago
    #[arg(long, value_name = "DURATION", requires = "all", value_parser = units::duration)]
    pub(super) older_than: Option<Duration>,
}

impl WhichLetters {
    /// For a question.
    fn describe(&self) -> String {
        let topic = &self.topic;
        let is_narrowed = self.group.is_some()
            || self.reason.is_some()
            || self.partition.is_some()
            || self.key.is_some()
            || self.older_than.is_some();
        match (self.all, is_narrowed) {
            (false, _) => format!("{} dead letters of {topic}", self.ids.len()),
            (true, false) => format!("all dead letters of {topic}"),
            (true, true) => format!("all dead letters of {topic} that match"),
        }
    }
}

pub(crate) async fn run(client: &Client, command: DeadCommand, as_json: bool) -> Result<()> {
    let (done, verb) = match command {
        DeadCommand::Topics => return topics(client, as_json).await,
        DeadCommand::List { topic, filter, follow: true, .. } => {
            let query = filter.query();
            let query = query.strip_prefix('&').unwrap_or_default();
            return follow(client, &format!("{}/dead/stream?{query}", topic_path(&topic))).await;
        }
        DeadCommand::List { topic, filter, max, .. } => {
            return list(client, &topic, &[filter], max.unwrap_or(u64::MAX), as_json).await;
        }
        DeadCommand::Count { topic, filter } => {
            let query = filter.query();
            let query = query.strip_prefix('&').unwrap_or_default();
            let count = client.get::<Count>(&format!("{}/dead/count?{query}", topic_path(&topic))).await?;
            return if as_json { json(&count) } else { line(&count.count.to_string()) };
        }
        DeadCommand::Show { topic, id } => {
            let letter = get(client, &topic, &id).await?;
            return if as_json { json(&letter) } else { show(&letter) };
        }
        DeadCommand::Edit { topic, id, payload, file, everyone } => {
            let message = edit(&get(client, &topic, &id).await?, payload, file.as_deref()).await?;
            let path = format!("{}/dead/edit", topic_path(&topic));
            let edit = Edit { id, message, everyone };
            (client.send::<Count>(Method::POST, &path, &edit).await?, "edited and replayed")
        }
        DeadCommand::Replay { which, everyone } => {
            (pick(client, "replay", which, everyone).await?, "replayed")
        }
        DeadCommand::Delete { which, yes } => {
            ask(yes, || format!("Delete {} for good?", which.describe()))?;
            (pick(client, "delete", which, false).await?, "deleted")
        }
    };
    if as_json {
        return json(&done);
    }
    let letters = if done.count == 1 { "dead letter" } else { "dead letters" };
    line(&format!("{verb} {} {letters}", units::count(done.count)))
}

/// One letter: the first of the page after the place before it.
async fn get(client: &Client, topic: &str, id: &str) -> Result<Letter> {
    let wanted: DeadId = id.parse()?;
    let before = RecordId::new(wanted.id.ms, wanted.id.seq.saturating_sub(1));
    let after = DeadId { id: before, ..wanted.clone() }.to_string();
    let path = topic_path(topic);
    let group = escape(wanted.group.as_str());
    let page: Letters =
        client.get(&format!("{path}/dead?max=1&group={group}&after={}", escape(&after))).await?;
    let found = page.letters.into_iter().find(|letter| letter.id == wanted.to_string());
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("topic {topic} has no dead letter {id}")))
}

pub(super) async fn pick(client: &Client, what: &str, which: WhichLetters, everyone: bool) -> Result<Count> {
    let WhichLetters { topic, ids, all, group, reason, partition, key, older_than } = which;
    let older_than_ms = older_than.map(units::millis);
    let pick = Pick { ids, all, group, reason, partition, key, older_than_ms, everyone };
    client.send(Method::POST, &format!("{}/dead/{what}", topic_path(&topic)), &pick).await
}

/// Filter after filter and page after page; people get one table per page, and none for a further
/// filter that nothing passes.
pub(super) async fn list(
    client: &Client,
    topic: &str,
    filters: &[LetterFilter],
    mut left: u64,
    as_json: bool,
) -> Result<()> {
    for (number, filter) in filters.iter().enumerate() {
        let query = filter.query();
        let mut after = Some(String::new());
        while let Some(place) = after
            && (left > 0 || number == 0)
        {
            let path = format!("{}/dead?max={}{query}{place}", topic_path(topic), left.clamp(1, 500));
            let page: Letters = client.get(&path).await?;
            left = left.saturating_sub(page.letters.len() as u64);
            after = page.next.filter(|_| left > 0).map(|next| format!("&after={}", escape(&next)));
            if as_json {
                page.letters.iter().try_for_each(json)?;
            } else if number == 0 || !page.letters.is_empty() {
                let rows = page.letters.into_iter().map(|letter| {
                    let key = letter.record.key.as_deref().map_or("-".to_owned(), plain);
                    let age = units::age(letter.age_ms);
                    [letter.id, key, letter.attempts.to_string(), age, plain(&letter.reason)]
                });
                table(["ID", "KEY", "ATTEMPTS", "AGE", "REASON"], rows.collect())?;
            }
        }
    }
    Ok(())
}

/// Letters without end, as they come.
async fn follow(client: &Client, path: &str) -> Result<()> {
    let mut letters = client.lines(path).await?;
    let mut signals = super::signals::Signals::listen()?;
    loop {
        tokio::select! {
            letter = letters.next::<Letter>() => match letter? {
                Some(letter) => json(&letter)?,
                None => return Ok(()),
            },
            () = signals.next() => return Ok(()),
        }
    }
}

fn show(letter: &Letter) -> Result<()> {
    let record = &letter.record;
    let field = |name: &str, value: &str| line(&format!("{name:<10} {}", plain(value)));
    field("id", &letter.id)?;
    field("group", &letter.group)?;
    field("reason", &letter.reason)?;
    field("attempts", &letter.attempts.to_string())?;
    field("died", &format!("{} ago", units::age(letter.age_ms)))?;
    letter.history.iter().try_for_each(|past| field("attempt", &told(past)))?;
    field("record", &format!("{}/{}", record.partition, record.id))?;
    if let Some(key) = record.key.as_deref().or(record.key_base64.as_deref()) {
        field("key", key)?;
    }
    for (name, values) in &record.headers {
        let value = match values {
            Values::One(value) => value.clone(),
            Values::Many(values) => values.join(", "),
        };
        field("header", &format!("{name}: {value}"))?;
    }
    line("")?;
    line(&plain(record.text()))
}

/// One attempt in a line.
fn told(past: &PastAttempt) -> String {
    let PastAttempt { attempt, reason, age_ms, member } = past;
    let age = age_ms.map(|age| format!(", {} ago", units::age(age))).unwrap_or_default();
    let by = member.as_ref().map(|member| format!(" by {member}")).unwrap_or_default();
    format!("{attempt}{by}{age}: {reason}")
}

/// The message that goes in the letter's place: everything of its record but the payload.
async fn edit(letter: &Letter, payload: Option<String>, file: Option<&Path>) -> Result<Outgoing> {
    let record = &letter.record;
    if record.key_base64.is_some() || (record.payload_base64.is_some() && payload.is_none() && file.is_none())
    {
        let context = "its key or payload is not text: edit it by a program, see docs/server.md";
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let text = match (payload, file) {
        (Some(text), _) => text,
        (None, Some(path)) => read(path)?,
        (None, None) => in_editor(record.text().to_owned()).await?,
    };
    let text = text.trim_end_matches('\n');
    let mut message =
        Outgoing { key: record.key.clone(), headers: record.headers.clone(), ..Outgoing::default() };
    if record.json.is_some() {
        // The header comes with the JSON again.
        message.headers.remove("content-type");
        let value = RawValue::from_string(text.to_owned());
        message.json =
            Some(value.map_err(|error| invalid("the new payload is not JSON").with_source(error))?);
    } else {
        message.payload = Some(text.to_owned());
    }
    Ok(message)
}

fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path);
    text.map_err(|error| invalid(format!("cannot read {}", path.display())).with_source(error))
}

/// Lets the person edit it; an unchanged text means that they changed their mind.
async fn in_editor(text: String) -> Result<String> {
    let editing = tokio::task::spawn_blocking(move || edit_file(&text));
    editing
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "the editor was lost").with_source(error))?
}

fn edit_file(text: &str) -> Result<String> {
    let broken = |error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, "the editor cannot be used: give --payload or --file")
            .with_source(error)
    };
    let editor =
        std::env::var("VISUAL").or_else(|_| std::env::var("EDITOR")).unwrap_or_else(|_| "vi".to_owned());
    let dir = std::env::temp_dir().join(format!("firth-edit-{:016x}", fastrand::u64(..)));
    let file = dir.join("payload");
    // Only this user can enter the directory: other users must not read the payload.
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&dir)
        .map_err(broken)?;
    let edited = std::fs::write(&file, text).and_then(|()| {
        let status =
            Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(&file).status()?;
        let edited = std::fs::read_to_string(&file)?;
        Ok((status.success(), edited))
    });
    let removed = std::fs::remove_dir_all(&dir);
    let (ended_well, edited) = edited.map_err(broken)?;
    removed.map_err(broken)?;
    if !ended_well || edited.trim_end_matches('\n') == text.trim_end_matches('\n') {
        return Err(invalid("nothing was changed, so nothing was sent"));
    }
    Ok(edited)
}
