//! Laws of the pub/sub multiplexer, checked against real servers and clusters.

mod accounting;
mod basics;
mod callbacks;
mod chaos;
mod churn;
mod clusters;
mod failover;
mod keyspace;
mod lifecycle;
mod metering;
mod migration;
mod overflow;
mod placement;
mod rollback;
mod signals;
mod storm;
mod transports;

use firth_redis::mux::{Event, Message, Signal, Subscription, SubscriptionKind};
use firth_redis::{Client, cmd};
use firth_testkit::RedisServer;
use std::collections::BTreeSet;
use std::time::Duration;

/// Long enough for anything that happens at all.
const SOON: Duration = Duration::from_secs(20);

const KINDS: [SubscriptionKind; 3] =
    [SubscriptionKind::Channel, SubscriptionKind::Pattern, SubscriptionKind::Sharded];

async fn client(server: &RedisServer) -> Client {
    Client::connect(server.tcp_url()).await.unwrap()
}

/// The next event.
async fn event(subscription: &mut Subscription) -> Event {
    tokio::time::timeout(SOON, subscription.next()).await.expect("an event in time").expect("open")
}

/// The next message; signals are passed over.
async fn message(subscription: &mut Subscription) -> Message {
    loop {
        if let Event::Message(message) = event(subscription).await {
            return message;
        }
    }
}

/// The next signal; messages are passed over.
async fn signal(subscription: &mut Subscription) -> Signal {
    loop {
        if let Event::Signal(signal) = event(subscription).await {
            return signal;
        }
    }
}

/// The number that a message carries.
fn number(message: &Message) -> u64 {
    std::str::from_utf8(&message.payload).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// An event in one word: a message's number, or a signal's name.
fn word(event: &Event) -> String {
    match event {
        Event::Message(message) => number(message).to_string(),
        Event::Signal(signal) => name(signal).to_owned(),
    }
}

fn name(signal: &Signal) -> &'static str {
    match signal {
        Signal::Moved { .. } => "moved",
        Signal::NodeLost { .. } => "lost",
        Signal::Gap { .. } => "gap",
        Signal::Resumed { .. } => "resumed",
        Signal::Stalled { .. } => "stalled",
        Signal::TimedOut { .. } => "timed-out",
        Signal::Lagged { .. } => "lagged",
        other => panic!("a new signal: {other:?}"),
    }
}

async fn publish(client: &Client, channel: &str, payload: &str) -> i64 {
    client.call(cmd("PUBLISH").arg(channel).arg(payload)).await.unwrap()
}

async fn spublish(client: &Client, channel: &str, payload: &str) -> i64 {
    client.call(cmd("SPUBLISH").key(channel).arg(payload)).await.unwrap()
}

/// Publishes to a name of this kind.
async fn tell(client: &Client, kind: SubscriptionKind, name: &str, payload: &str) -> i64 {
    match kind {
        SubscriptionKind::Channel | SubscriptionKind::Pattern => publish(client, name, payload).await,
        SubscriptionKind::Sharded => spublish(client, name, payload).await,
    }
}

/// What a server says is subscribed: channels and sharded channels by name, patterns by number.
#[derive(Debug, Default, PartialEq, Eq)]
struct ServerSubscriptions {
    channels: BTreeSet<String>,
    patterns: i64,
    sharded: BTreeSet<String>,
}

impl ServerSubscriptions {
    async fn of(server: &RedisServer) -> Self {
        let names = async |what| {
            let reply = server.order(&["PUBSUB", what]).await;
            reply.items().iter().map(firth_testkit::Reply::text).collect()
        };
        Self {
            channels: names("CHANNELS").await,
            patterns: server.order(&["PUBSUB", "NUMPAT"]).await.int(),
            sharded: names("SHARDCHANNELS").await,
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Connections with subscriptions, as a server sees them.
async fn subscriber_connections(server: &RedisServer) -> usize {
    server.order(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.text().lines().count()
}

/// How often a server was given this command, refused ones included.
async fn asked(server: &RedisServer, command: &str) -> u64 {
    let stats = server.info("commandstats").await;
    let Some(line) = stats.get(&format!("cmdstat_{command}")) else { return 0 };
    let field = |name: &str| {
        let mut fields = line.split(',').filter_map(|field| field.split_once('='));
        fields.find(|(n, _)| *n == name).map_or(0, |(_, value)| value.parse().unwrap())
    };
    field("calls") + field("rejected_calls")
}
