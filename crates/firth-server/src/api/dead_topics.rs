//! `/v1/dead`: which topics have dead letters, and why.
//!
//! Bounded: a call looks at [`TOPICS`] topics, and reads at most [`LETTERS`] letters of each and
//! [`BUDGET`] in all to count reasons. `next` goes on.

use super::GROUPS_AT_ONCE;
use super::body::{Json, Query, within};
use crate::app::App;
use crate::auth::{Caller, Need, Scope};
use crate::problem::{Answer, Problem};
use crate::wire::{DeadGroup, DeadReason, DeadTopic, DeadTopics};
use axum::Extension;
use axum::extract::State;
use firth::{DeadId, ErrorKind, Result, TopicName};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;
use std::collections::HashMap;
use utoipa::IntoParams;

/// How many topics one call looks at, at most.
const TOPICS: u64 = 1000;
/// How many are asked about at a time.
const TOPICS_AT_ONCE: usize = 8;
/// How many letters of a topic are read for their reasons, how many in all, and how many at a time.
const LETTERS: usize = 1000;
const BUDGET: usize = 5000;
const PAGE: usize = 250;
/// How many reasons are told, and how much of each.
const REASONS: usize = 20;
const REASON_CHARS: usize = 200;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadQuery {
    /// Go on after this topic: `next` of the answer before.
    #[param(min_length = 1, max_length = 128, pattern = "^\\.?[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*\\.?$")]
    after: Option<String>,
    /// How many topics to look at; 256 unless set.
    #[param(minimum = 1, maximum = 1000)]
    max: Option<u64>,
    /// Whether to count reasons; true unless set.
    reasons: Option<bool>,
}

/// Topics that have dead letters, with their groups and with reasons counted
#[utoipa::path(get, path = "/v1/dead", tag = "dead letters", params(DeadQuery),
    responses((status = 200, body = DeadTopics)))]
pub(crate) async fn topics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<DeadQuery>,
) -> Answer<Json<DeadTopics>> {
    let max = usize::try_from(within("max", asked.max.unwrap_or(256), 1, TOPICS)?).unwrap_or(256);
    let after = asked.after.map(TopicName::new).transpose();
    let after = after.map_err(|error| Problem::from(error).at("after"))?;
    let after = after.as_ref().map(TopicName::as_str);
    let all = app.broker().list_topics().await?;
    let mut names: Vec<_> = all.into_iter().map(|info| info.name.to_string()).collect();
    names.retain(|name| caller.covers(name) && after.is_none_or(|after| name.as_str() > after));
    names.sort();
    let next = names.get(max - 1).filter(|_| names.len() > max).cloned();
    names.truncate(max);
    let found = stream::iter(names).map(|name| look(&app, name)).buffered(TOPICS_AT_ONCE);
    let found: Vec<Option<DeadTopic>> = found.try_collect().await?;
    let mut topics: Vec<DeadTopic> = found.into_iter().flatten().collect();
    let mut budget = if asked.reasons.unwrap_or(true) { BUDGET } else { 0 };
    for topic in &mut topics {
        if budget > 0 && caller.check(Need::Scope(Scope::Consume), Some(&topic.topic)).is_ok() {
            count_reasons(&app, topic, &mut budget).await?;
        }
    }
    Ok(Json(DeadTopics { topics, next }))
}

/// A topic's letters by group; nothing if it has none, or went away since. An engine that
/// cannot tell is an error: no letters would be a wrong answer.
async fn look(app: &App, topic: String) -> Result<Option<DeadTopic>> {
    let admin = &app.broker().admin();
    let name = topic.as_str();
    let Some(groups) = unless_gone(admin.groups(name).await)? else { return Ok(None) };
    let groups = stream::iter(groups).map(|group| async move {
        let info = unless_gone(admin.group(name, group.as_str()).await)?;
        let count = info.map_or(0, |info| info.dead());
        Ok::<_, firth::Error>(DeadGroup { group: group.to_string(), count })
    });
    let groups: Vec<DeadGroup> = groups.buffered(GROUPS_AT_ONCE).try_collect().await?;
    let groups: Vec<_> = groups.into_iter().filter(|group| group.count > 0).collect();
    let count = groups.iter().map(|group| group.count).sum();
    Ok((count > 0).then(|| DeadTopic { topic, count, groups, counted: 0, reasons: Vec::new() }))
}

/// Nothing instead of an error for what was deleted since it was listed.
fn unless_gone<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

async fn count_reasons(app: &App, topic: &mut DeadTopic, budget: &mut usize) -> Answer<()> {
    let letters = app.broker().dead_letters(&topic.topic);
    let mut counts = HashMap::<String, u64>::new();
    let mut after = None::<DeadId>;
    let mut read = 0;
    while read < LETTERS && *budget > 0 {
        let page = match letters.list(after.as_ref(), PAGE.min(LETTERS - read).min(*budget)).await {
            Ok(page) => page,
            // The topic was deleted since it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error.into()),
        };
        read += page.letters.len();
        *budget = budget.saturating_sub(page.letters.len().max(1));
        for letter in page.letters {
            let reason = letter.reason.chars().take(REASON_CHARS).collect();
            *counts.entry(reason).or_default() += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut reasons: Vec<_> =
        counts.into_iter().map(|(reason, count)| DeadReason { reason, count }).collect();
    reasons.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.reason.cmp(&b.reason)));
    reasons.truncate(REASONS);
    (topic.counted, topic.reasons) = (read as u64, reasons);
    Ok(())
}
