//! [`DeadLetters`]: the filtered view and what can be done with it.

use super::follow::Follow;
use super::letter::{DeadId, DeadLetter, DeadPage};
use crate::broker::Broker;
use crate::error::{Error, ErrorKind, Result, invalid};
use crate::message::Message;
use crate::metrics;
use crate::payload;
use bytes::Bytes;
use firth_engine::facet::{self, Edit, Replay};
use firth_engine::limits::{MAX_BATCH_BYTES, MAX_VERDICTS};
use firth_engine::{Engine, GroupName, Partition, RecordId, TopicName};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How many letters are looked at per step.
const PAGE: usize = 200;

/// The dead letters of a topic, as far as the filter lets them through.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # let broker = firth::Broker::memory(); broker.create_topic("orders").await?;
/// let letters = broker.dead_letters("orders").group("billing").reason("timeout");
/// println!("{} waiting", letters.count().await?);
/// letters.replay_all(firth::Replay::Group).await?;
/// # broker.close().await }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a view does nothing until it is asked"]
pub struct DeadLetters {
    broker: Broker,
    topic: String,
    group: Option<String>,
    partition: Option<u32>,
    key: Option<Bytes>,
    reason: Option<String>,
    older_than: Duration,
}

impl DeadLetters {
    pub(crate) fn new(broker: Broker, topic: &str) -> Self {
        let topic = topic.to_owned();
        let older_than = Duration::ZERO;
        Self { broker, topic, group: None, partition: None, key: None, reason: None, older_than }
    }

    /// Only those that this group gave up.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Only those of this partition.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Only those with this key.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only those whose reason contains this text.
    pub fn reason(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(text.into());
        self
    }

    /// Only those that died at least this long ago.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// Up to `max` letters after `after`, sorted by group, partition and place; no more than 8 MiB
    /// of them as they are shown, compressed ones opened, but at least one if there is any.
    pub async fn list(&self, after: Option<&DeadId>, max: usize) -> Result<DeadPage> {
        let mut page = DeadPage::default();
        let max = max.max(1);
        let mut walk = self.walk(after).await?;
        let mut bytes = 0;
        // One more than fits shows whether anything follows.
        while let Some(found) = self.step(&mut walk, max + 1 - page.letters.len()).await? {
            for letter in found {
                bytes += payload::opened_len(&letter.content);
                let is_full = page.letters.len() == max || bytes > MAX_BATCH_BYTES;
                if let Some(last) = page.letters.last().filter(|_| is_full) {
                    page.next = Some(last.id.clone());
                    return Ok(page);
                }
                page.letters.push(DeadLetter::new(letter));
            }
        }
        Ok(page)
    }

    /// One letter, or `NotFound`.
    pub async fn get(&self, id: &DeadId) -> Result<DeadLetter> {
        let at = self.at(id)?;
        let before = RecordId::new(id.id.ms, id.id.seq.saturating_sub(1));
        let found = self.engine().dead(&at, &id.group, before, 1).await?;
        let letter = found.into_iter().find(|letter| letter.id == id.id);
        letter.map(DeadLetter::new).ok_or_else(|| self.missing(id))
    }

    /// How many letters there are.
    pub async fn count(&self) -> Result<u64> {
        if self.key.is_none() && self.reason.is_none() && self.older_than.is_zero() {
            let mut count = 0;
            for (at, group) in self.places().await? {
                let status = unless_gone(self.engine().status(&at, &group).await)?;
                count += status.map_or(0, |status| status.dead);
            }
            return Ok(count);
        }
        let mut count = 0;
        let mut walk = self.walk(None).await?;
        while let Some(found) = self.step(&mut walk, PAGE).await? {
            count += found.len() as u64;
        }
        Ok(count)
    }

    /// Replays these letters; answers how many there were.
    pub async fn replay(&self, ids: &[DeadId], to: Replay) -> Result<u64> {
        let taken = self.replay_each(ids, to).await;
        metrics::replayed(&TopicName::new(&self.topic)?, &taken);
        taken
    }

    async fn replay_each(&self, ids: &[DeadId], to: Replay) -> Result<u64> {
        let mut taken = 0;
        for ((group, partition), ids) in by_place(ids) {
            let at = self.partition_at(partition)?;
            for ids in ids.chunks(MAX_VERDICTS) {
                taken += self.engine().replay(&at, &group, ids, to).await? as u64;
            }
        }
        Ok(taken)
    }

    /// Replays every letter of this view, each once; answers how many.
    pub async fn replay_all(&self, to: Replay) -> Result<u64> {
        let mut taken = 0;
        let mut walk = self.walk(None).await?;
        while let Some(found) = self.step(&mut walk, PAGE).await? {
            taken += self.replay(&addresses(found), to).await?;
        }
        Ok(taken)
    }

    /// Replays a letter with `message` in its place, in one step: to the group that gave it up
    /// (same record, attempt 1), or appended to its partition for everyone. `NotFound` if the
    /// letter is gone; it comes back at once, so a delay is refused.
    pub async fn edit_and_replay(&self, id: &DeadId, message: impl Into<Message>, to: Replay) -> Result<()> {
        let at = self.at(id)?;
        let message = message.into();
        let limit = self.broker.topic(&self.topic).await?.config.max_payload;
        let size = message.payload().len();
        if size > limit {
            let context = format!("payload has {size} bytes; topic {} takes at most {limit}", self.topic);
            return Err(invalid(context).with_field("payload").with_limit(limit as u64));
        }
        if message.partition().is_some_and(|partition| partition != at.index) {
            let context = format!("a dead letter of partition {} stays there", at.index);
            return Err(invalid(context).with_field("partition"));
        }
        let (after, content) = message.into_content()?;
        if !after.is_zero() {
            return Err(invalid("an edited dead letter comes back at once: send a delayed message instead"));
        }
        if !self.engine().replay_edited(&at, &id.group, Edit { id: id.id, content }, to).await? {
            return Err(self.missing(id));
        }
        metrics::replayed(&at.topic, &Ok(1));
        Ok(())
    }

    /// Deletes these letters; answers how many there were.
    pub async fn delete(&self, ids: &[DeadId]) -> Result<u64> {
        let mut gone = 0;
        for ((group, partition), ids) in by_place(ids) {
            let at = self.partition_at(partition)?;
            for ids in ids.chunks(MAX_VERDICTS) {
                gone += self.engine().delete_dead(&at, &group, ids).await? as u64;
            }
        }
        metrics::buried(&TopicName::new(&self.topic)?, gone);
        Ok(gone)
    }

    /// Deletes every letter of this view; answers how many.
    pub async fn delete_all(&self) -> Result<u64> {
        let mut gone = 0;
        let mut walk = self.walk(None).await?;
        while let Some(found) = self.step(&mut walk, PAGE).await? {
            gone += self.delete(&addresses(found)).await?;
        }
        Ok(gone)
    }

    /// The letters as a stream that waits for new ones; see [`Follow`].
    pub fn follow(self) -> Follow {
        Follow::new(self)
    }

    fn missing(&self, id: &DeadId) -> Error {
        Error::new(ErrorKind::NotFound, format!("there is no dead letter {id} in topic {}", self.topic))
    }

    pub(super) fn engine(&self) -> &Engine {
        self.broker.engine()
    }

    /// Whether the view has this letter, or will have it when it is old enough.
    pub(super) fn wants(&self, letter: &facet::DeadLetter) -> bool {
        let key = self.key.as_ref().is_none_or(|key| letter.content.key.as_ref() == Some(key));
        key && self.reason.as_ref().is_none_or(|text| letter.reason.contains(text.as_str()))
    }

    /// How long until a letter is old enough for the view.
    pub(super) fn too_young(&self, letter: &facet::DeadLetter) -> Option<Duration> {
        self.older_than.checked_sub(letter.age).filter(|wait| !wait.is_zero())
    }

    fn partition_at(&self, index: u32) -> Result<Partition> {
        Ok(Partition::new(TopicName::new(&self.topic)?, index))
    }

    fn at(&self, id: &DeadId) -> Result<Partition> {
        self.partition_at(id.partition)
    }

    /// Every partition and group that can hold letters of this view, sorted by group and partition.
    pub(super) async fn places(&self) -> Result<Vec<(Partition, GroupName)>> {
        let info = self.broker.topic(&self.topic).await?;
        let mut places = BTreeSet::new();
        for at in info.partitions().filter(|at| self.partition.is_none_or(|wanted| wanted == at.index)) {
            for group in self.engine().groups(&at).await? {
                if self.group.as_ref().is_none_or(|wanted| wanted == group.as_str()) {
                    places.insert((group, at.index));
                }
            }
        }
        Ok(places
            .into_iter()
            .map(|(group, index)| (Partition::new(info.name.clone(), index), group))
            .collect())
    }

    /// A walk through the view, after this letter.
    async fn walk(&self, after: Option<&DeadId>) -> Result<LetterWalk> {
        let mut places = VecDeque::from(self.places().await?);
        let mut from = RecordId::ZERO;
        if let Some(after) = after {
            let mark = (&after.group, after.partition);
            places.retain(|(at, group)| (group, at.index) >= mark);
            if places.front().is_some_and(|(at, group)| (group, at.index) == mark) {
                from = after.id;
            }
        }
        Ok(LetterWalk { places, from })
    }

    /// The next letters of a walk, as they are stored, from at most `max` of one place and about 8
    /// MiB; `None` at its end. Letters may vanish on the way: addresses only grow.
    ///
    /// No closure takes the letters: its future could not be sent to another thread.
    async fn step(&self, walk: &mut LetterWalk, max: usize) -> Result<Option<Vec<facet::DeadLetter>>> {
        while let Some((at, group)) = walk.places.front() {
            let found = self.engine().dead(at, group, walk.from, max.min(PAGE)).await;
            let mut found = unless_gone(found)?.unwrap_or_default();
            let Some(last) = found.last() else {
                walk.places.pop_front();
                walk.from = RecordId::ZERO;
                continue;
            };
            walk.from = last.id;
            found.retain(|letter| self.wants(letter) && self.too_young(letter).is_none());
            if !found.is_empty() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// How far a walk through a view has come.
struct LetterWalk {
    /// Where letters may lie that it has not seen, in order.
    places: VecDeque<(Partition, GroupName)>,
    /// The last letter that it saw in the first of them.
    from: RecordId,
}

/// What a listed group answers; `None` if the group was deleted since it was listed.
fn unless_gone<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn addresses(letters: Vec<facet::DeadLetter>) -> Vec<DeadId> {
    letters.iter().map(DeadId::of).collect()
}

fn by_place(ids: &[DeadId]) -> BTreeMap<(GroupName, u32), Vec<RecordId>> {
    let mut places: BTreeMap<_, Vec<RecordId>> = BTreeMap::new();
    for id in ids {
        places.entry((id.group.clone(), id.partition)).or_default().push(id.id);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_awaited_on_another_thread() {
        fn sendable<T: Send>(_: T) {}
        let view = Broker::memory().dead_letters("orders");
        sendable(view.list(None, 1));
        sendable(view.count());
        sendable(view.replay(&[], Replay::Group));
        sendable(view.replay_all(Replay::Group));
        sendable(view.delete(&[]));
        sendable(view.delete_all());
    }

    #[tokio::test]
    async fn a_group_that_is_deleted_while_letters_are_listed_has_none() {
        let broker = Broker::memory();
        broker.create_topic("orders").partitions(2).await.unwrap();
        broker.producer("orders").await.unwrap().send("tea").await.unwrap();
        broker.consumer("orders", "bar").await.unwrap().close().await.unwrap();
        let view = broker.dead_letters("orders");
        let mut walk = view.walk(None).await.unwrap();
        let (at, group) = walk.places.front().cloned().unwrap();
        broker.admin().delete_group("orders", "bar").await.unwrap();
        assert!(view.step(&mut walk, PAGE).await.unwrap().is_none());
        let status = view.engine().status(&at, &group).await;
        assert!(unless_gone(status).unwrap().is_none());
    }
}
