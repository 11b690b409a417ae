//! The catalog of topics: read, create, grow, delete. Called by the broker, producers and consumers.
//!
//! Order of steps, so that a crash between any two leaves something that the next call finishes:
//! create = partitions, then entry, then what the entry says of following · grow = partitions and the groups on them, then entry ·
//! delete = mark the entry, partitions, then remove the entry. A marked entry counts as missing; creating over it finishes the
//! deletion first, so that an old record never comes back to life.

use super::{Adopted, TopicConfig, TopicInfo, now_ms, time_of};
use crate::error::{Error, ErrorKind, Result, invalid};
use bytes::Bytes;
use firth_engine::facet::{Adopt, EntryKey, Expect, From, Put};
use firth_engine::{Engine, Hint, HintKey, Partition, SpaceName, TopicName};
use serde::{Deserialize, Serialize};

/// How often a lost race for an entry is run again.
const RACES: usize = 16;

#[derive(Serialize, Deserialize)]
struct Stored {
    config: TopicConfig,
    created: u64,
    updated: u64,
    #[serde(default)]
    deleting: bool,
}

/// A topic and the version of its entry.
pub(crate) struct Known {
    pub(crate) info: TopicInfo,
    version: u64,
    deleting: bool,
}

/// The topics of an engine.
#[derive(Clone)]
pub(crate) struct Topics {
    engine: Engine,
    space: SpaceName,
}

impl Topics {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, space: SpaceName::new("topics").expect("a valid name") }
    }

    /// Fires when any topic changes.
    pub(crate) fn hint(&self) -> Hint {
        self.engine.hint(HintKey::Space(self.space.clone()))
    }

    fn key(&self, name: &TopicName) -> EntryKey {
        EntryKey::new(self.space.clone(), name.as_str()).expect("topic names are catalog names")
    }

    async fn look(&self, name: &TopicName) -> Result<Option<Known>> {
        match self.engine.get(&self.key(name)).await? {
            Some(entry) => known(name.clone(), &entry.value, entry.version).map(Some),
            None => Ok(None),
        }
    }

    /// The topic, or `NotFound`.
    pub(crate) async fn get(&self, name: &TopicName) -> Result<TopicInfo> {
        match self.look(name).await? {
            Some(known) if !known.deleting => Ok(known.info),
            _ => {
                Err(Error::new(ErrorKind::NotFound, format!("topic {name} does not exist: create it first")))
            }
        }
    }

    /// All topics, sorted by name.
    pub(crate) async fn list(&self) -> Result<Vec<TopicInfo>> {
        let mut found = Vec::new();
        for entry in self.engine.list_all(&self.space, "").await? {
            let name = TopicName::new(&entry.name)?;
            let known = known(name, &entry.value, entry.version)?;
            if !known.deleting {
                found.push(known.info);
            }
        }
        Ok(found)
    }

    /// Makes a topic; `AlreadyExists` if there is one.
    pub(crate) async fn create(&self, name: &TopicName, config: &TopicConfig) -> Result<TopicInfo> {
        if config.adopted.is_some() {
            return Err(invalid("a stream is adopted with adopt_stream"));
        }
        self.make(name, config, From::Start).await
    }

    /// Makes a topic that follows a stream; `AlreadyExists` if there is a topic.
    pub(crate) async fn adopt(
        &self,
        name: &TopicName,
        config: &TopicConfig,
        from: From,
    ) -> Result<TopicInfo> {
        self.make(name, config, from).await
    }

    async fn make(&self, name: &TopicName, config: &TopicConfig, from: From) -> Result<TopicInfo> {
        config.check()?;
        for _ in 0..RACES {
            match self.look(name).await? {
                Some(known) if known.deleting => self.finish_delete(&known).await?,
                Some(_) => {
                    return Err(Error::new(ErrorKind::AlreadyExists, format!("topic {name} already exists")));
                }
                None => {}
            }
            match &config.adopted {
                None => self.make_partitions(name, 0..config.partitions).await?,
                Some(adopted) => self.follow(name, adopted, from).await?,
            }
            let now = now_ms();
            let stored = Stored { config: config.clone(), created: now, updated: now, deleting: false };
            let is_made = self.put(name, &stored, Expect::Absent).await?.is_some();
            self.follow_as_told(name).await?;
            if is_made {
                return self.get(name).await;
            }
        }
        Err(contended(name))
    }

    /// Adds partitions, each with the groups that the topic has.
    pub(crate) async fn grow(&self, name: &TopicName, partitions: u32) -> Result<TopicInfo> {
        for _ in 0..RACES {
            let known = self.live(name).await?;
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
            self.make_partitions(name, added.clone()).await?;
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
                let info = &known.info;
                let stored = Stored {
                    config: info.config.clone(),
                    created: ms_of(info.created),
                    updated: now_ms(),
                    deleting: true,
                };
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

    async fn live(&self, name: &TopicName) -> Result<Known> {
        match self.look(name).await? {
            Some(known) if !known.deleting => Ok(known),
            _ => Err(Error::new(ErrorKind::NotFound, format!("topic {name} does not exist"))),
        }
    }

    async fn finish_delete(&self, known: &Known) -> Result<()> {
        for at in known.info.partitions() {
            self.engine.delete_partition(&at).await?;
        }
        self.engine.remove(&self.key(&known.info.name), Expect::Version(known.version)).await?;
        Ok(())
    }

    async fn make_partitions(&self, name: &TopicName, indices: std::ops::Range<u32>) -> Result<()> {
        for index in indices {
            self.engine.create_partition(&Partition::new(name.clone(), index)).await?;
        }
        Ok(())
    }

    /// The entry decides between two that make a topic at once, a plain one and one that follows a stream. Whoever was there looks back: what the
    /// loser had told the partition, or a crash had left to it, counts for nothing.
    async fn follow_as_told(&self, name: &TopicName) -> Result<()> {
        match self.look(name).await? {
            Some(known) if !known.deleting && known.info.config.adopted.is_none() => {
                Ok(self.engine.unfollow(&Partition::new(name.clone(), 0)).await?)
            }
            _ => Ok(()),
        }
    }

    async fn follow(&self, name: &TopicName, adopted: &Adopted, from: From) -> Result<()> {
        let Adopted { stream, key_field, payload_field, remove_entries: removing } = adopted.clone();
        let adopt = Adopt { stream, from, key_field, payload_field, removing };
        match self.engine.adopt(&Partition::new(name.clone(), 0), adopt).await? {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "topic {name} is being made by somebody else, or follows another stream or other fields"
                ),
            )),
        }
    }

    /// Whoever reads the topic must not miss what enters a new partition before a consumer opens it.
    async fn copy_groups(&self, name: &TopicName, added: std::ops::Range<u32>) -> Result<()> {
        let groups = self.engine.groups(&Partition::new(name.clone(), 0)).await?;
        for index in added {
            for group in &groups {
                self.engine.create_group(&Partition::new(name.clone(), index), group, From::Start).await?;
            }
        }
        Ok(())
    }

    async fn replace(&self, known: &Known, config: TopicConfig) -> Result<Option<TopicInfo>> {
        let created = ms_of(known.info.created);
        let stored = Stored { config, created, updated: now_ms(), deleting: false };
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

fn known(name: TopicName, value: &[u8], version: u64) -> Result<Known> {
    let stored: Stored = serde_json::from_slice(value).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("the entry of topic {name} cannot be read")).with_source(error)
    })?;
    Ok(Known { version, deleting: stored.deleting, info: info(name, stored) })
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

fn contended(name: &TopicName) -> Error {
    Error::new(ErrorKind::Overloaded, format!("too many changes of topic {name} at the same time: try again"))
}
