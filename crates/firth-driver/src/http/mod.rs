//! The same commands over the HTTP API of a running `firth serve`, which is written here from its
//! document alone: a driver that shared the server's types would never see that the wire changed.

mod client;
mod consume;
mod feed;
mod produce;

use crate::args::Args;
use crate::protocol::Event;
use crate::{patiently, tally};
use anyhow::Result;
use client::{Api, Shown, escape};
use firth::KeyOrdering;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

/// Dead letters per step.
const PAGE: usize = 500;

pub(crate) async fn run(url: &str, args: Args) -> Result<()> {
    let api = Api::new(url, std::env::var("FIRTH_TOKEN").ok());
    match args {
        Args::Setup { topic, partitions, groups, .. } => {
            patiently(async || setup(&api, &topic, partitions, &groups).await).await
        }
        Args::Produce { topic, durability, .. } => {
            if let Some(asked) = durability {
                tracing::warn!(?asked, "the server's engine decides what an acknowledgement means");
            }
            patiently(async || api.get::<serde_json::Value>(&topic_path(&topic)).await).await?;
            produce::run(&api, &topic).await
        }
        Args::Consume { consume, .. } => {
            if consume.ordering == KeyOrdering::Relaxed {
                tracing::warn!("a server's consumers are strict: a failed record holds back its key");
            }
            patiently(async || api.get::<Group>(&group_path(&consume.topic, &consume.group)).await).await?;
            consume::run(&api, &consume).await
        }
        Args::Final { topic, group, .. } => {
            tally::tell(patiently(async || take_tally(&api, &topic, &group).await).await?).await
        }
    }
}

fn topic_path(topic: &str) -> String {
    format!("/v1/topics/{}", escape(topic))
}

fn group_path(topic: &str, group: &str) -> String {
    format!("{}/groups/{}", topic_path(topic), escape(group))
}

async fn setup(api: &Api, topic: &str, partitions: u32, groups: &[String]) -> firth::Result<()> {
    api.send(Method::PUT, &topic_path(topic), &json!({ "partitions": partitions })).await?;
    for group in groups {
        api.send(Method::PUT, &group_path(topic, group), &json!({ "start": "oldest" })).await?;
    }
    Ok(())
}

/// How a group stands, as far as it matters here.
#[derive(Deserialize)]
struct Group {
    lag: u64,
    due: u64,
    partitions: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    partition: u32,
    epoch: Option<u64>,
}

#[derive(Deserialize)]
struct Letters {
    letters: Vec<Letter>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Letter {
    record: Shown,
}

async fn take_tally(api: &Api, topic: &str, group: &str) -> firth::Result<Event> {
    let Group { lag, due, .. } = api.get(&group_path(topic, group)).await?;
    let list = format!("{}/dead?group={}&max={PAGE}", topic_path(topic), escape(group));
    let mut dead = Vec::new();
    let mut after = String::new();
    loop {
        let page: Letters = api.get(&format!("{list}{after}")).await?;
        dead.extend(page.letters.iter().map(|letter| letter.record.id()));
        let Some(next) = page.next else { break };
        after = format!("&after={}", escape(&next));
    }
    dead.sort();
    Ok(Event::Final { pending: lag - due, due, lag, dead })
}
