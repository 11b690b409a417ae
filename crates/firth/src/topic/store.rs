//! The catalog of topics: read, create, grow, delete. Called by the broker, producers and
//! consumers.
//!
//! Order of steps, so that a crash between any two leaves something that the next call finishes:
//! create = an entry that says so, partitions, then entry, then what the entry says of following ·
//! grow = note in the entry how far, partitions and the groups on them, then entry · delete = mark
//! the entry, partitions, then remove the entry. A marked entry, and one of a topic that is being
//! made, counts as missing; creating over it finishes the deletion first, or goes on with the
//! making, so that neither an old record nor an old group comes back to life.
//!
//! A process makes partitions under the rank of the entry's version that announces them, and
//! deletes them under the rank of the mark. Versions only grow. So a process that slept while the
//! topic was deleted and made anew changes nothing about the new topic's partitions. Nor does a
//! partition that it makes for the former topic count as one of the new topic.
//!
//! If several processes make a topic of one name at once, the entry decides which one wins. The
//! maker tells the first partition what to follow, under the rank of the entry's version. Every
//! process that opens the topic tells it too, since the maker may have died. A loser leaves at most
//! empty partitions behind, which are as good as new.

use super::{Adopted, TopicConfig, TopicInfo, now_ms, time_of};
use crate::consumer::forget_members;
use crate::error::{Error, ErrorKind, Result, invalid};
use bytes::Bytes;
use firth_engine::facet::{Entry, EntryKey, Expect, Put, StartPosition};
use firth_engine::{Engine, GroupName, Hint, HintKey, Partition, SpaceName, TopicName};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Space of the catalog that names the topics.
pub(crate) const SPACE: &str = "topics";
/// How often a lost race for an entry is run again.
const RACES: usize = 16;
/// On how many partitions a group is made at a time.
const GROUPS_AT_ONCE: usize = 64;

#[derive(Serialize, Deserialize)]
struct Stored {
    config: TopicConfig,
    created: u64,
    updated: u64,
    #[serde(default)]
    deleting: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    making: bool,
    /// How many partitions there may be, while there may be more than the topic has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    growing_to: Option<u32>,
}

impl Stored {
    /// A topic that is new.
    fn new(config: TopicConfig) -> Self {
        let created = now_ms();
        Self { config, created, updated: created, deleting: false, making: false, growing_to: None }
    }
}

/// A topic and its entry.
struct KnownTopic {
    info: TopicInfo,
    version: u64,
    deleting: bool,
    making: bool,
    growing_to: Option<u32>,
}

impl KnownTopic {
    /// Everything that a crash may have left, too.
    fn partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        let (name, count) =
            (self.info.name.clone(), self.info.config.partitions.max(self.growing_to.unwrap_or(0)));
        (0..count).map(move |index| Partition::new(name.clone(), index))
    }

    /// The entry with other content.
    fn with(&self, config: TopicConfig) -> Stored {
        let growing_to = self.growing_to.filter(|count| *count > config.partitions);
        let deleting = false;
        let making = false;
        Stored { config, created: ms_of(self.info.created), updated: now_ms(), deleting, making, growing_to }
    }

    /// Whether it counts.
    fn is_live(&self) -> bool {
        !self.deleting && !self.making
    }
}

/// The topics of an engine.
#[derive(Clone)]
pub(crate) struct Topics {
    engine: Engine,
    space: SpaceName,
}

impl Topics {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, space: SpaceName::new(SPACE).expect("a valid name") }
    }

    /// Fires when any topic changes.
    pub(crate) fn hint(&self) -> Hint {
        self.engine.hint(HintKey::Space(self.space.clone()))
    }

    fn key(&self, name: &TopicName) -> EntryKey {
        EntryKey::new(self.space.clone(), name.as_str()).expect("topic names are catalog names")
    }

    async fn look(&self, name: &TopicName) -> Result<Option<KnownTopic>> {
        match self.engine.get(&self.key(name)).await? {
            Some(entry) => read(name.clone(), &entry).map(Some),
            None => Ok(None),
        }
    }

    /// The topic, or `NotFound`.
    pub(crate) async fn get(&self, name: &TopicName) -> Result<TopicInfo> {
        Ok(self.live(name).await?.info)
    }

    /// As [`get`](Self::get) for a caller that is about to use the topic: from now on the topic
    /// follows what its entry says.
    pub(crate) async fn open(&self, name: &TopicName) -> Result<TopicInfo> {
        let known = self.live(name).await?;
        self.tell(&known).await?;
        Ok(known.info)
    }

    /// All topics, sorted by name.
    pub(crate) async fn list(&self) -> Result<Vec<TopicInfo>> {
        self.list_each().await?.into_iter().collect()
    }

    /// As [`list`](Self::list), with an error in the place of each entry that cannot be read.
    pub(crate) async fn list_each(&self) -> Result<Vec<Result<TopicInfo>>> {
        let entries = self.engine.list_all(&self.space, "").await?;
        let known = entries.iter().map(|entry| read(TopicName::new(&entry.name)?, entry));
        let live = known.filter(|known| known.as_ref().map_or(true, KnownTopic::is_live));
        Ok(live.map(|known| Ok(known?.info)).collect())
    }

    /// Asks the engine for an entry that need not exist: any answer is a sign of life.
    pub(crate) async fn check(&self) -> Result<()> {
        let nobody = EntryKey::new(self.space.clone(), "check").expect("a valid name");
        self.engine.get(&nobody).await.map(drop)
    }

    /// How many topics there are, with those that are being made or deleted.
    pub(crate) async fn count(&self) -> Result<usize> {
        Ok(self.engine.list_all(&self.space, "").await?.len())
    }

    /// Makes a topic; `AlreadyExists` if there is one.
    pub(crate) async fn create(&self, name: &TopicName, config: &TopicConfig) -> Result<TopicInfo> {
        if config.adopted.is_some() {
            return Err(invalid("a stream is adopted with adopt_stream"));
        }
        self.make(name, config).await
    }

    /// Makes a topic that follows a stream; `AlreadyExists` if there is a topic.
    pub(crate) async fn adopt(
        &self,
        name: &TopicName,
        mut config: TopicConfig,
        from: StartPosition,
    ) -> Result<TopicInfo> {
        config.check()?;
        if let Some(adopted) = &mut config.adopted {
            adopted.after = self.engine.stream_mark(&adopted.stream, from).await?.to_string();
        }
        self.make(name, &config).await
    }

    async fn make(&self, name: &TopicName, config: &TopicConfig) -> Result<TopicInfo> {
        config.check()?;
        for _ in 0..RACES {
            let Some(rank) = self.begin(name, config).await? else { continue };
            self.make_partitions(name, 0..config.partitions, rank).await?;
            let stored = Stored::new(config.clone());
            if let Some(version) = self.put(name, &stored, Expect::Version(rank)).await? {
                return self.made(known(name.clone(), stored, version)).await;
            }
        }
        Err(contended(name))
    }

    /// The rank under which the partitions of a new topic are made, the same for all processes that
    /// make it at once. `None` if the caller must look again: another process made an entry first,
    /// or a deletion had to be finished.
    async fn begin(&self, name: &TopicName, config: &TopicConfig) -> Result<Option<u64>> {
        match self.look(name).await? {
            Some(known) if known.deleting => {
                self.finish_delete(&known).await?;
                Ok(None)
            }
            Some(known) if known.making => Ok(Some(known.version)),
            Some(_) => Err(Error::new(ErrorKind::AlreadyExists, format!("topic {name} already exists"))),
            None => {
                let stored = Stored { making: true, ..Stored::new(config.clone()) };
                self.put(name, &stored, Expect::Absent).await
            }
        }
    }

    /// The entry stands: its partition must follow what it says.
    async fn made(&self, known: KnownTopic) -> Result<TopicInfo> {
        if self.tell(&known).await? || known.info.config.adopted.is_none() {
            return Ok(known.info);
        }
        let name = &known.info.name;
        self.engine.remove(&self.key(name), Expect::Version(known.version)).await?;
        let context = format!(
            "topic {name} was made by somebody else, or holds records: adopt the stream under another name"
        );
        Err(Error::new(ErrorKind::AlreadyExists, context))
    }

    /// Tells the first partition what to follow; false if a newer entry said otherwise, or if it
    /// holds records of its own.
    async fn tell(&self, known: &KnownTopic) -> Result<bool> {
        let adopt = known.info.config.adopted.as_ref().map(Adopted::request).transpose()?;
        self.engine.adopt(&Partition::new(known.info.name.clone(), 0), adopt, known.version).await
    }

    /// Adds partitions, each with the groups that the topic has.
    pub(crate) async fn grow(&self, name: &TopicName, partitions: u32) -> Result<TopicInfo> {
        for _ in 0..RACES {
            let mut known = self.live(name).await?;
            let mut config = known.info.config.clone();
            if partitions < config.partitions {
                return Err(invalid(format!(
                    "topic {name} has {} partitions and cannot shrink to {partitions}",
                    config.partitions
                )));
            }
            let added = config.partitions..partitions;
            config.partitions = partitions;
            config.check()?;
            if !added.is_empty() {
                known.growing_to = known.growing_to.max(Some(partitions));
                let noted = known.with(known.info.config.clone());
                match self.put(name, &noted, Expect::Version(known.version)).await? {
                    Some(version) => known.version = version,
                    None => continue,
                }
            }
            self.make_partitions(name, added.clone(), known.version).await?;
            self.copy_groups(name, added).await?;
            if let Some(info) = self.replace(&known, config).await? {
                return Ok(info);
            }
        }
        Err(contended(name))
    }

    /// Changes everything but the partitions and the mapping of keys.
    pub(crate) async fn alter(
        &self,
        name: &TopicName,
        change: impl Fn(&mut TopicConfig),
    ) -> Result<TopicInfo> {
        for _ in 0..RACES {
            let known = self.live(name).await?;
            let before = &known.info.config;
            let mut config = before.clone();
            change(&mut config);
            if (config.partitions, config.mapping) != (before.partitions, before.mapping) {
                return Err(invalid("partitions change by growing, and the mapping of keys never changes"));
            }
            if config.adopted != before.adopted {
                return Err(invalid(
                    "what a topic follows never changes: adopt the stream under another name",
                ));
            }
            config.check()?;
            if let Some(info) = self.replace(&known, config).await? {
                return Ok(info);
            }
        }
        Err(contended(name))
    }

    /// Deletes a topic with all its data; false if there was none.
    pub(crate) async fn delete(&self, name: &TopicName) -> Result<bool> {
        for _ in 0..RACES {
            let Some(mut known) = self.look(name).await? else {
                return Ok(false);
            };
            if !known.deleting {
                let stored = Stored { deleting: true, ..known.with(known.info.config.clone()) };
                let Some(version) = self.put(name, &stored, Expect::Version(known.version)).await? else {
                    continue;
                };
                known.version = version;
            }
            self.finish_delete(&known).await?;
            return Ok(true);
        }
        Err(contended(name))
    }

    async fn live(&self, name: &TopicName) -> Result<KnownTopic> {
        match self.look(name).await? {
            Some(known) if known.is_live() => Ok(known),
            _ => {
                Err(Error::new(ErrorKind::NotFound, format!("topic {name} does not exist: create it first")))
            }
        }
    }

    async fn finish_delete(&self, known: &KnownTopic) -> Result<()> {
        let name = &known.info.name;
        // A deletion that was begun before may have taken the first partition already.
        let groups = self.engine.groups(&Partition::new(name.clone(), 0)).await;
        for group in groups.or_else(none_if_missing)? {
            forget_members(&self.engine, name, &group).await?;
        }
        for at in known.partitions() {
            self.engine.delete_partition_as(&at, known.version).await?;
        }
        self.engine.remove(&self.key(&known.info.name), Expect::Version(known.version)).await?;
        Ok(())
    }

    async fn make_partitions(
        &self,
        name: &TopicName,
        indices: std::ops::Range<u32>,
        rank: u64,
    ) -> Result<()> {
        for index in indices {
            self.engine.create_partition_as(&Partition::new(name.clone(), index), rank).await?;
        }
        Ok(())
    }

    /// Makes the groups of the topic on its new partitions, so that no group misses what enters
    /// one before a consumer opens it.
    async fn copy_groups(&self, name: &TopicName, added: std::ops::Range<u32>) -> Result<()> {
        for group in self.engine.groups(&Partition::new(name.clone(), 0)).await? {
            let added = added.clone().map(|index| Partition::new(name.clone(), index));
            self.make_group_on(added, &group, StartPosition::Start).await?;
        }
        Ok(())
    }

    /// Makes a group at `start` on the partitions that `info` names, or on those of them that are
    /// `pinned`. Where the group exists, it stays as it is.
    ///
    /// **Growth at the same time.** `start` counts only for the partitions of `info`. Partitions
    /// that a growth has announced or added since then are read from their start. The growth makes
    /// partitions first and copies groups then: a partition that is still missing here gets the
    /// group by that copy. So the group is on every partition that the topic's entry ever names.
    pub(crate) async fn make_group(
        &self,
        info: &TopicInfo,
        group: &GroupName,
        start: StartPosition,
        pinned: &BTreeSet<u32>,
    ) -> Result<()> {
        let named = info.partitions().filter(|at| pinned.is_empty() || pinned.contains(&at.index));
        self.make_group_on(named, group, start).await?;
        if !pinned.is_empty() || start == StartPosition::Existing {
            return Ok(());
        }
        let known = self.live(&info.name).await?;
        let before = info.config.partitions;
        let named = known.info.config.partitions;
        let (added, announced): (Vec<_>, Vec<_>) =
            known.partitions().skip(before as usize).partition(|at| at.index < named);
        self.make_group_on(added, group, StartPosition::Start).await?;
        match self.make_group_on(announced, group, StartPosition::Start).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    async fn make_group_on(
        &self,
        partitions: impl IntoIterator<Item = Partition>,
        group: &GroupName,
        start: StartPosition,
    ) -> Result<()> {
        let make =
            |at: Partition| async move { self.engine.create_group(&at, group, start, None).await.map(drop) };
        stream::iter(partitions).map(make).buffer_unordered(GROUPS_AT_ONCE).try_collect().await
    }

    async fn replace(&self, known: &KnownTopic, config: TopicConfig) -> Result<Option<TopicInfo>> {
        let stored = known.with(config);
        let done = self.put(&known.info.name, &stored, Expect::Version(known.version)).await?;
        Ok(done.map(|_| info(known.info.name.clone(), stored)))
    }

    /// The new version, or `None` if the entry is not as expected.
    async fn put(&self, name: &TopicName, stored: &Stored, expect: Expect) -> Result<Option<u64>> {
        let value = serde_json::to_vec(stored).expect("plain data can be written as JSON");
        match self.engine.put(&self.key(name), Bytes::from(value), expect).await? {
            Put::Done(version) => Ok(Some(version)),
            Put::Conflict(_) => Ok(None),
        }
    }
}

fn read(name: TopicName, entry: &Entry) -> Result<KnownTopic> {
    let stored: Stored = serde_json::from_slice(&entry.value).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("the entry of topic {name} cannot be read")).with_source(error)
    })?;
    Ok(known(name, stored, entry.version))
}

fn known(name: TopicName, stored: Stored, version: u64) -> KnownTopic {
    let deleting = stored.deleting;
    let making = stored.making;
    let growing_to = stored.growing_to;
    KnownTopic { version, deleting, making, growing_to, info: info(name, stored) }
}

fn info(name: TopicName, stored: Stored) -> TopicInfo {
    TopicInfo {
        name,
        config: stored.config,
        created: time_of(stored.created),
        updated: time_of(stored.updated),
    }
}

fn ms_of(time: std::time::SystemTime) -> u64 {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn none_if_missing<T>(error: Error) -> Result<Vec<T>> {
    if error.kind() == ErrorKind::NotFound { Ok(Vec::new()) } else { Err(error) }
}

fn contended(name: &TopicName) -> Error {
    Error::new(ErrorKind::Overloaded, format!("too many changes of topic {name} at the same time: try again"))
}
