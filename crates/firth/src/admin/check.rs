//! Reading everything that a partition holds, through the engine that serves it.

use super::Admin;
use crate::error::{Error, ErrorKind, Result};
use firth_engine::facet::ReadLimit;
use firth_engine::limits::MAX_READ;
use firth_engine::{GroupName, Partition, RecordId, TopicName};

/// How many records or dead letters one look asks for.
const PAGE: usize = 500;

/// What a check of one partition found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionCheck {
    /// Records that were read.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Groups, all of whose dead letters and retries were read.
    pub groups: u64,
    /// What is wrong; nothing if the partition is sound.
    pub findings: Vec<String>,
}

impl Admin {
    /// Reads every record of a partition, its delayed messages, and the retries and dead letters of
    /// its groups. Damage becomes a finding; an engine that is away is an error. A partition that
    /// is deleted before it was read is sound.
    pub async fn check_partition(&self, topic: &str, partition: u32) -> Result<PartitionCheck> {
        let at = Partition::new(TopicName::new(topic)?, partition);
        let mut check = PartitionCheck::default();
        let read = self.check_records(&at, &mut check).await;
        note(&mut check, read)?;
        let read = self.check_delayed(&at).await;
        note(&mut check, read)?;
        let groups = match self.engine().groups(&at).await {
            Ok(groups) => groups,
            Err(error) => {
                note(&mut check, Err(error))?;
                return Ok(check);
            }
        };
        for group in groups {
            let read = self.check_group(&at, &group, &mut check).await;
            note(&mut check, read)?;
            check.groups += 1;
        }
        Ok(check)
    }

    async fn check_records(&self, at: &Partition, check: &mut PartitionCheck) -> Result<()> {
        let bounds = self.engine().bounds(at).await?;
        let mut last = bounds.trimmed;
        while last.seq < bounds.last.seq {
            let page = self.engine().read(at, last, ReadLimit::records(PAGE)).await;
            let page = page.map_err(|error| match error.kind() {
                ErrorKind::Corrupt => {
                    let context = format!("it cannot be read behind record {}", last.seq);
                    Error::new(ErrorKind::Corrupt, context).with_source(error)
                }
                _ => error,
            })?;
            let Some(first) = page.first().map(|record| record.id) else { break };
            if first.seq != last.seq + 1 && self.engine().bounds(at).await?.trimmed.seq + 1 < first.seq {
                check.findings.push(format!("records {} to {} are missing", last.seq + 1, first.seq - 1));
            }
            for record in &page {
                if record.id.seq > first.seq && record.id.seq != last.seq + 1 {
                    check.findings.push(format!(
                        "records {} to {} are missing",
                        last.seq + 1,
                        record.id.seq - 1
                    ));
                }
                last = record.id;
                check.records += 1;
                check.bytes += record.content.payload.len() as u64;
            }
        }
        Ok(())
    }

    async fn check_delayed(&self, at: &Partition) -> Result<()> {
        let mut after = RecordId::ZERO;
        loop {
            let page = self.engine().delayed(at, after, ReadLimit::records(PAGE)).await?;
            match page.next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    async fn check_group(&self, at: &Partition, group: &GroupName, check: &mut PartitionCheck) -> Result<()> {
        let status = self.engine().status(at, group).await?;
        let last = self.engine().bounds(at).await?.last;
        if status.frontier.seq > last.seq {
            let settled = status.frontier.seq;
            check.findings.push(format!("group {group} has settled record {settled}, which is not there"));
        }
        let mut after = RecordId::ZERO;
        loop {
            let letters = self.engine().dead(at, group, after, PAGE).await?;
            let Some(last) = letters.last() else { break };
            after = last.id;
        }
        self.engine().pending(at, group, RecordId::ZERO, MAX_READ).await.map(drop)
    }
}

/// Damage is a finding; what is gone is sound; everything else is an error.
fn note(check: &mut PartitionCheck, read: Result<()>) -> Result<()> {
    match read {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            check.findings.push(error.context().to_owned());
            Ok(())
        }
        Err(error) => Err(error),
    }
}
