//! What a group has in flight: asked on the bus, answered by each member.
//!
//! A first delivery stands in no engine: only its member knows it. An operator's question goes out
//! on a channel of the group, with a channel for the answers. Each coordinator listens, asks its
//! lanes and answers. A group that no operator asks about costs one subscription per member.
//!
//! Bounded: an answer names the [`MAX_TOLD`] oldest deliveries, and a member has at most
//! [`MAX_ANSWERS`] answers under way; it leaves out further questions.

use super::lane::Out;
use crate::error::Result;
use firth_engine::facet::{Signal, Subscription};
use firth_engine::{ChannelName, Engine, PoolName};
use serde::{Deserialize, Serialize};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The most deliveries of one answer.
pub(crate) const MAX_TOLD: usize = 500;
/// The most answers under way at a time.
const MAX_ANSWERS: usize = 4;
/// How long a lane may take to tell; one that takes longer is left out.
const PATIENCE: Duration = Duration::from_millis(250);
/// Before a subscription that failed is tried again.
const REST: Duration = Duration::from_secs(30);

/// Asks a lane what it has out.
pub(crate) type AskLane = mpsc::Sender<oneshot::Sender<Vec<Out>>>;

/// An operator's question to all members of a group.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Question {
    /// The channel for the answers.
    pub(crate) reply: String,
    /// How many deliveries an answer may name.
    pub(crate) max: usize,
}

/// A member's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MemberAnswer {
    pub(crate) member: String,
    /// How many deliveries it has in all.
    pub(crate) total: usize,
    /// The oldest of them.
    pub(crate) deliveries: Vec<Told>,
}

/// A delivery in an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) partition: u32,
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) age_ms: u64,
}

/// The channel on which the members of a pool are asked.
pub(crate) fn channel(pool: &PoolName) -> ChannelName {
    // A pool is named as its group is, so the channel has one name per group, too.
    ChannelName::new(pool.as_str()).expect("names of pools and channels follow the same rules")
}

/// A member's ear for questions.
pub(crate) struct Questions {
    engine: Engine,
    channel: ChannelName,
    state: ListenGuard,
    answers: JoinSet<()>,
}

enum ListenGuard {
    /// An engine that allows no channels (by its rules of access) leaves the member without
    /// answers, and changes nothing else.
    Resting(Instant),
    Subscribing(Pin<Box<dyn Future<Output = Result<Subscription>> + Send>>),
    Heard(Subscription),
}

impl Questions {
    pub(crate) fn new(engine: Engine, pool: &PoolName) -> Self {
        let state = ListenGuard::Resting(Instant::now());
        let answers = JoinSet::new();
        Self { engine, channel: channel(pool), state, answers }
    }

    /// The next question. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Question {
        while self.answers.try_join_next().is_some() {}
        loop {
            self.state = match &mut self.state {
                ListenGuard::Resting(until) => {
                    tokio::time::sleep_until(*until).await;
                    let engine = self.engine.clone();
                    let channel = self.channel.clone();
                    ListenGuard::Subscribing(Box::pin(async move { engine.subscribe(&channel).await }))
                }
                ListenGuard::Subscribing(subscribing) => match subscribing.await {
                    Ok(heard) => ListenGuard::Heard(heard),
                    Err(error) => {
                        tracing::debug!(%error, "questions about deliveries in flight are not heard");
                        ListenGuard::Resting(Instant::now() + REST)
                    }
                },
                ListenGuard::Heard(heard) => match heard.next().await {
                    Ok(Signal::Message(payload)) => match serde_json::from_slice(&payload) {
                        Ok(question) => return question,
                        Err(_) => continue,
                    },
                    // An operator whose question was lost asks again.
                    Ok(Signal::Gap) => continue,
                    Err(_) => ListenGuard::Resting(Instant::now() + REST),
                },
            }
        }
    }

    /// Answers beside the coordinator's own work.
    pub(crate) fn answer(&mut self, question: Question, member: &str, lanes: Vec<(u32, AskLane)>) {
        if self.answers.len() < MAX_ANSWERS {
            let engine = self.engine.clone();
            let member = member.to_owned();
            self.answers.spawn(answer(engine, question, member, lanes));
        }
    }

    /// Ends what is under way; nothing of it runs afterwards.
    pub(crate) async fn close(&mut self) {
        self.state = ListenGuard::Resting(Instant::now());
        self.answers.shutdown().await;
    }
}

async fn answer(engine: Engine, question: Question, member: String, lanes: Vec<(u32, AskLane)>) {
    let Ok(reply) = ChannelName::new(&question.reply) else { return };
    let mut found: Vec<(u32, Out)> = Vec::new();
    for (partition, lane) in lanes {
        let (tell, told) = oneshot::channel();
        if lane.try_send(tell).is_ok()
            && let Ok(Ok(out)) = tokio::time::timeout(PATIENCE, told).await
        {
            found.extend(out.into_iter().map(|one| (partition, one)));
        }
    }
    let answer = MemberAnswer::new(member, found, question.max);
    let answer = serde_json::to_vec(&answer).expect("names and numbers can be written as JSON");
    if let Err(error) = engine.publish(&reply, answer.into()).await {
        tracing::debug!(%error, "a question about deliveries in flight was not answered");
    }
}

impl MemberAnswer {
    fn new(member: String, mut found: Vec<(u32, Out)>, max: usize) -> Self {
        let total = found.len();
        found.sort_by_key(|(partition, out)| (std::cmp::Reverse(out.age), *partition, out.id));
        found.truncate(max.min(MAX_TOLD));
        let told = found.into_iter().map(|(partition, out)| Told {
            partition,
            id: out.id.to_string(),
            attempt: out.attempt,
            age_ms: u64::try_from(out.age.as_millis()).unwrap_or(u64::MAX),
        });
        Self { member, total, deliveries: told.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firth_engine::RecordId;
    use firth_engine::limits::MAX_SIGNAL;

    #[test]
    fn mq46_the_largest_answer_fits_the_bus_and_names_the_oldest() {
        let out = |seq: u64| {
            let id = RecordId::new(999_999_999_999_999, 999_999_999_999_000 + seq);
            (u32::MAX, Out { id, attempt: u32::MAX, age: Duration::from_millis(u64::MAX - seq) })
        };
        let answer = MemberAnswer::new("m".repeat(128), (0..2000).map(out).collect(), usize::MAX);
        assert_eq!((answer.total, answer.deliveries.len()), (2000, MAX_TOLD));
        assert_eq!(answer.deliveries[0].age_ms, u64::MAX);
        let bytes = serde_json::to_vec(&answer).unwrap().len();
        assert!(bytes <= MAX_SIGNAL, "{bytes}");
    }
}
