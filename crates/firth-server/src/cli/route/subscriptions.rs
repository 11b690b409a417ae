//! `firth route subscriptions`.

use crate::cli::output::{json, line, plain, table};
use crate::cli::units;
use crate::client::{Client, escape};
use crate::wire::{NewSubscription, SubscriptionShown, Subscriptions, invalid};
use axum::http::Method;
use clap::{Args, Subcommand};
use firth::Result;
use serde::de::DeserializeOwned;
use std::time::Duration;

pub(super) const EXAMPLES: &str = "\
Examples:
  firth route subscriptions list --tenant acme
  firth route subscriptions add acme s1 --collection orders --filter 'doc.total > 100' --gateway edge-1
  firth route subscriptions remove acme s1";

#[derive(Subcommand)]
pub(crate) enum SubscriptionsCommand {
    /// List subscriptions
    #[command(after_help = "Example:\n  firth route subscriptions list --gateway edge-1 --max 20")]
    List(List),
    /// Register a subscription, or replace the tenant's one with this id
    #[command(
        after_help = "Examples:\n  firth route subscriptions add acme s1 --collection orders --gateway edge-1\n  firth route subscriptions add acme s2 --collection orders --document 42 --mode hash --priority high"
    )]
    Add(Box<Add>),
    /// Remove a subscription
    #[command(after_help = "Example:\n  firth route subscriptions remove acme s1")]
    Remove {
        /// Whose it is
        tenant: String,
        /// Its id
        id: String,
    },
}

#[derive(Args, Default)]
pub(crate) struct List {
    /// Only this tenant's
    #[arg(long)]
    tenant: Option<String>,
    /// Only those that name this gateway
    #[arg(long)]
    gateway: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Add {
    /// Whose it is
    tenant: String,
    /// Its id
    id: String,
    /// Which collection it is about
    #[arg(long)]
    collection: String,
    /// Only this document
    #[arg(long, value_name = "KEY")]
    document: Option<String>,
    /// Only documents for which this CEL expression is true
    #[arg(long, value_name = "CEL")]
    filter: Option<String>,
    /// The gateway that holds it
    #[arg(long, conflicts_with = "mode")]
    gateway: Option<String>,
    /// Instead of a gateway: hash or broadcast
    #[arg(long)]
    mode: Option<String>,
    /// high, normal or low
    #[arg(long)]
    priority: Option<String>,
    /// What may be left out at low priority under pressure: conflate, shed or keep
    #[arg(long)]
    overflow: Option<String>,
    /// How long it lives without a heartbeat, 1m to 1h
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    ttl: Option<Duration>,
}

pub(super) async fn run(client: &Client, command: Option<SubscriptionsCommand>, as_json: bool) -> Result<()> {
    match command.unwrap_or_else(|| SubscriptionsCommand::List(List::default())) {
        SubscriptionsCommand::List(list) => show(client, &list, as_json).await,
        SubscriptionsCommand::Add(add) => {
            let path = path(&add.tenant, &add.id);
            let shown: SubscriptionShown = client.send(Method::PUT, &path, &add.request()?).await?;
            if as_json { json(&shown) } else { line(&format!("registered {}/{}", shown.tenant, shown.id)) }
        }
        SubscriptionsCommand::Remove { tenant, id } => {
            client.delete(&path(&tenant, &id)).await?;
            if as_json { Ok(()) } else { line(&format!("removed {tenant}/{id}")) }
        }
    }
}

impl Add {
    fn request(&self) -> Result<NewSubscription> {
        Ok(NewSubscription {
            collection: self.collection.clone(),
            document: self.document.clone(),
            filter: self.filter.clone(),
            conditions: Vec::new(),
            gateway: self.gateway.clone(),
            mode: self.mode.clone(),
            priority: choice("--priority: give high, normal or low", self.priority.as_deref())?,
            overflow: choice("--overflow: give conflate, shed or keep", self.overflow.as_deref())?,
            ttl_seconds: self.ttl.map(|ttl| ttl.as_secs()),
        })
    }
}

fn choice<T: DeserializeOwned>(wanted: &'static str, word: Option<&str>) -> Result<Option<T>> {
    word.map(|word| serde_json::from_value(word.into())).transpose().map_err(|_| invalid(wanted))
}

fn path(tenant: &str, id: &str) -> String {
    format!("/v1/routing/subscriptions/{}/{}", escape(tenant), escape(id))
}

/// Page after page; people get one table per page.
async fn show(client: &Client, list: &List, as_json: bool) -> Result<()> {
    let part = |name: &str, value: Option<&str>| {
        value.map_or(String::new(), |value| format!("&{name}={}", escape(value)))
    };
    let filter =
        format!("{}{}", part("tenant", list.tenant.as_deref()), part("gateway", list.gateway.as_deref()));
    let mut left = list.max.unwrap_or(u64::MAX);
    let mut after = String::new();
    loop {
        let max = left.clamp(1, 1000);
        let page: Subscriptions =
            client.get(&format!("/v1/routing/subscriptions?max={max}{filter}{after}")).await?;
        left = left.saturating_sub(page.subscriptions.len() as u64);
        match as_json {
            true => page.subscriptions.iter().try_for_each(json)?,
            false => rows(&page.subscriptions)?,
        }
        match page.next {
            Some(next) if left > 0 => after = part("after", Some(&next)),
            _ => return Ok(()),
        }
    }
}

fn rows(subscriptions: &[SubscriptionShown]) -> Result<()> {
    let row = |one: &SubscriptionShown| {
        let what = match (&one.document, &one.filter, one.conditions.len()) {
            (Some(key), _, _) => format!("document {}", plain(key)),
            (None, Some(filter), _) => plain(filter),
            (None, None, 0) => "everything".to_owned(),
            (None, None, count) => format!("{count} conditions"),
        };
        let to = one.gateway.clone().unwrap_or_else(|| format!("({})", one.mode));
        [one.tenant.clone(), one.id.clone(), plain(&one.collection), what, to, units::age(one.remaining_ms)]
    };
    table(["TENANT", "ID", "COLLECTION", "WHAT", "TO", "LIVES FOR"], subscriptions.iter().map(row).collect())
}
