//! Deliveries in flight, first ones included, over all members of a group.

use super::{Admin, names};
use crate::consumer::{MemberAnswer, Question, member_pool, questions_of};
use crate::error::{Error, ErrorKind, Result};
use firth_engine::facet::{LeaseQuery, Signal, Subscription};
use firth_engine::{ChannelName, LeaseInfo, RecordId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How long members have to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// A record that a member's handler, or a caller of its `next`, has and has not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlightRecord {
    /// Its partition.
    pub partition: u32,
    /// Its place.
    pub id: RecordId,
    /// Which attempt runs; 1 for the first.
    pub attempt: u32,
    /// How long ago the member got it.
    pub age: Duration,
    /// Who has it.
    pub member: String,
}

/// What a group has in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlightPage {
    /// The oldest deliveries, the oldest first.
    pub records: Vec<InFlightRecord>,
    /// How many each member has that answered.
    pub members: BTreeMap<String, usize>,
    /// Members that did not answer within half a second: they hang, are gone, or are of a version
    /// that cannot.
    pub silent: Vec<String>,
}

impl Admin {
    /// What the members of a group have in flight now, at most `max` (up to 500 of each member).
    /// Asks the members over the engine's bus, and waits at most half a second for them.
    pub async fn in_flight(&self, topic: &str, group: &str, max: usize) -> Result<InFlightPage> {
        let (topic, group) = names(topic, group)?;
        let pool = member_pool(&topic, &group);
        let members = self.engine().leases(&LeaseQuery::Pool(pool.clone())).await?;
        let held = members.into_iter().filter(LeaseInfo::is_held).filter_map(|lease| lease.holder);
        let mut silent: BTreeSet<String> = held.map(|holder| holder.to_string()).collect();
        let mut page = InFlightPage::default();
        if silent.is_empty() {
            return Ok(page);
        }
        let reply = ChannelName::new(format!("in-flight-{:016x}", fastrand::u64(..)))?;
        let mut answers = self.engine().subscribe(&reply).await?;
        let question = Question { reply: reply.to_string(), max };
        let question = serde_json::to_vec(&question).expect("plain data can be written as JSON");
        self.engine().publish(&questions_of(&pool), question.into()).await?;
        let until = Instant::now() + PATIENCE;
        while !silent.is_empty() {
            let Ok(answer) = tokio::time::timeout_at(until, next(&mut answers)).await else { break };
            let Some(answer) = answer? else { continue };
            if silent.remove(&answer.member) {
                page.add(answer);
            }
        }
        page.records.sort_by_key(|record| (std::cmp::Reverse(record.age), record.partition, record.id));
        page.records.truncate(max);
        page.silent = silent.into_iter().collect();
        Ok(page)
    }
}

/// The next answer; `None` for anything else that came.
async fn next(answers: &mut Subscription) -> Result<Option<MemberAnswer>> {
    match answers.next().await? {
        Signal::Message(payload) => Ok(serde_json::from_slice(&payload).ok()),
        Signal::Gap => Err(Error::new(
            ErrorKind::Unavailable,
            "the connection broke while the members of the group answered: ask again",
        )),
    }
}

impl InFlightPage {
    /// How many there are in all, of the members that answered.
    pub fn total(&self) -> usize {
        self.members.values().sum()
    }

    fn add(&mut self, answer: MemberAnswer) {
        let MemberAnswer { member, total, deliveries } = answer;
        self.members.insert(member.clone(), total.max(deliveries.len()));
        self.records.extend(deliveries.into_iter().filter_map(|told| {
            let id = told.id.parse().ok()?;
            let age = Duration::from_millis(told.age_ms);
            let partition = told.partition;
            let attempt = told.attempt;
            Some(InFlightRecord { partition, id, attempt, age, member: member.clone() })
        }));
    }
}
