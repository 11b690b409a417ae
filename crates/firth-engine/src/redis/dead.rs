//! The dead letters facet.

use super::error_mapping::{odd_answer, of_call};
use super::reply_decoding::{Parts, StepSubject};
use super::scripts::SCRIPTS;
use super::{RedisEngine, blob, micros};
use crate::checks;
use crate::error::{Error, Result};
use crate::facet::{DeadLetter, DeadLetters, Edit, Replay, Reply};
use crate::failures::Failures;
use crate::id::RecordId;
use crate::limits::{MAX_BATCH_BYTES, MAX_READ};
use crate::name::{GroupName, Partition};
use crate::record::{Content, Origin};
use bytes::Bytes;
use firth_redis::cmd;
use firth_redis::resp::Frame;
use std::collections::BTreeSet;
use std::time::Duration;

/// Dead letters that one script lists.
const STEP: usize = 256;
/// Dead letters that one expiry removes.
const EXPIRE: usize = 1000;

impl DeadLetters for RedisEngine {
    fn dead<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<DeadLetter>> {
        Box::pin(async move {
            let mut found = Vec::new();
            let max = max.clamp(1, MAX_READ);
            let mut position = super::scan_from(after);
            let mut bytes = 0;
            while found.len() < max && bytes < MAX_BATCH_BYTES {
                let page = self.dead_page(at, group, position, STEP.min(max - found.len())).await?;
                let Some(last) = page.last() else { break };
                position = last.id;
                let page = page.into_iter().filter(|letter| letter.id > after);
                found.extend(page.inspect(|letter| bytes += letter.content.packed_len()));
            }
            Ok(found)
        })
    }

    fn dead_ids<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<RecordId>> {
        Box::pin(async move {
            let (_, own) = self.group_keys(at, group);
            let mut found = Vec::new();
            let max = max.clamp(1, MAX_READ);
            let mut position = super::scan_from(after);
            while found.len() < max {
                let look = cmd("ZRANGEBYSCORE").key(&own.dead).arg(format!("({}", position.seq));
                let look = look.arg("+inf").arg("LIMIT").arg(0).arg(max);
                let page = self.steps.client.call::<Vec<String>>(look).await.map_err(of_call)?;
                let Some(last) = page.last() else { break };
                position = last.parse().map_err(|_| odd_answer())?;
                for id in &page {
                    let id: RecordId = id.parse().map_err(|_| odd_answer())?;
                    found.extend(Some(id).filter(|id| *id > after));
                }
            }
            found.truncate(max);
            Ok(found)
        })
    }

    fn replay<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        ids: &'a [RecordId],
        to: Replay,
    ) -> Reply<'a, usize> {
        Box::pin(async move {
            checks::dead_letters(ids)?;
            let ids: BTreeSet<RecordId> = ids.iter().copied().collect();
            if ids.is_empty() {
                return self.dead_page(at, group, RecordId::MAX, 1).await.map(|_| 0);
            }
            match to {
                Replay::Group => self.revive(at, group, &ids, None).await,
                Replay::Everyone => self.append_again(at, group, &ids).await,
            }
        })
    }

    fn replay_edited<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        edit: Edit,
        to: Replay,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let Edit { id, content } = edit;
            content.check()?;
            let taken = match to {
                Replay::Group => self.revive(at, group, &BTreeSet::from([id]), Some(content.packed())).await,
                Replay::Everyone => self.append_letters(at, group, vec![(id, content)]).await,
            };
            Ok(taken? > 0)
        })
    }

    fn delete_dead<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        ids: &'a [RecordId],
    ) -> Reply<'a, usize> {
        Box::pin(async move {
            checks::dead_letters(ids)?;
            let ids = ids.iter().map(RecordId::to_string);
            self.forget(at, group, std::iter::once(String::new()).chain(ids).collect()).await
        })
    }

    fn expire_dead<'a>(&'a self, at: &'a Partition, group: &'a GroupName, age: Duration) -> Reply<'a, usize> {
        Box::pin(
            async move { self.forget(at, group, vec![micros(age).to_string(), EXPIRE.to_string()]).await },
        )
    }
}

impl RedisEngine {
    async fn dead_page(
        &self,
        at: &Partition,
        group: &GroupName,
        after: RecordId,
        max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let (keys, own) = self.group_keys(at, group);
        let call = SCRIPTS
            .dead
            .keys([&keys.meta, &own.meta, &own.dead, &own.bodies])
            .arg(after.seq)
            .arg(max)
            .arg(MAX_BATCH_BYTES);
        let answer = StepSubject::group(at, group).accept(self.steps.quick(call).await?)?;
        let mut parts = Parts::of(answer.value());
        let now = parts.number()?;
        let mut list = Parts::of(parts.value()?);
        let mut found = Vec::new();
        while !list.is_empty() {
            let id = list.id()?;
            let body = list.bytes()?;
            let body = LetterBody::parse(body)
                .ok_or_else(|| Error::corrupt(format!("the dead letter {id} is damaged")))?;
            let age = Duration::from_micros(now.saturating_sub(body.ms.saturating_mul(1000)));
            let content = Content::unpack(body.content)?;
            let at = at.clone();
            let group = group.clone();
            let attempts = body.attempts;
            let crashes = body.crashes;
            let Failures { reason, attempts: history } = Failures::read(&body.failures, now / 1000);
            found.push(DeadLetter { at, group, id, content, attempts, crashes, reason, history, age });
        }
        Ok(found)
    }

    /// Makes letters due again for their own group; `edited` stands in for their content.
    async fn revive(
        &self,
        at: &Partition,
        group: &GroupName,
        ids: &BTreeSet<RecordId>,
        edited: Option<Bytes>,
    ) -> Result<usize> {
        let (keys, own) = self.group_keys(at, group);
        let script = &SCRIPTS.revive;
        let all = [&keys.meta, &own.meta, &own.due, &own.entries, &own.index, &own.kept];
        let call = script
            .keys(all.into_iter().chain([&own.dead, &own.dead_times, &own.bodies]))
            .arg(edited.unwrap_or_default())
            .args(ids.iter().map(RecordId::to_string));
        counted(StepSubject::group(at, group).accept(self.steps.durable(script, call).await?)?)
    }

    /// Reads the letters, writes their origin into them, and appends those that are still there in
    /// the step that removes them.
    async fn append_again(
        &self,
        at: &Partition,
        group: &GroupName,
        ids: &BTreeSet<RecordId>,
    ) -> Result<usize> {
        let mut letters = Vec::new();
        let mut after = RecordId::new(0, ids.first().map_or(0, |id| id.seq.saturating_sub(1)));
        let last = ids.last().copied().unwrap_or_default();
        while after.seq < last.seq {
            let page = self.dead_page(at, group, after, STEP).await?;
            let Some(end) = page.last() else { break };
            after = end.id;
            letters.extend(page.into_iter().filter(|letter| ids.contains(&letter.id)));
        }
        let mut taken = 0;
        while !letters.is_empty() {
            let some = letters.drain(..batch_len(&letters)).map(|letter| (letter.id, letter.content));
            taken += self.append_letters(at, group, some.collect()).await?;
        }
        Ok(taken)
    }

    async fn append_letters(
        &self,
        at: &Partition,
        group: &GroupName,
        letters: Vec<(RecordId, Content)>,
    ) -> Result<usize> {
        let (keys, own) = self.group_keys(at, group);
        let script = &SCRIPTS.append_again;
        let mut call =
            script.keys([&keys.meta, &keys.stream, &own.meta, &own.dead, &own.dead_times, &own.bodies]);
        for (id, mut content) in letters {
            content
                .origin
                .get_or_insert_with(|| Box::new(Origin { at: at.clone(), id, group: group.clone() }));
            call = call.arg(id.to_string()).args(blob::pack([&content]));
        }
        counted(StepSubject::group(at, group).accept(self.steps.durable(script, call).await?)?)
    }

    async fn forget(&self, at: &Partition, group: &GroupName, args: Vec<String>) -> Result<usize> {
        let (keys, own) = self.group_keys(at, group);
        let script = &SCRIPTS.forget_dead;
        let call = script.keys([&keys.meta, &own.meta, &own.dead, &own.dead_times, &own.bodies]).args(args);
        counted(StepSubject::group(at, group).accept(self.steps.durable(script, call).await?)?)
    }
}

/// How many letters fit one step.
fn batch_len(letters: &[DeadLetter]) -> usize {
    let mut bytes = 0;
    let fit = letters.iter().take(STEP).take_while(|letter| {
        bytes += letter.content.packed_len();
        bytes <= MAX_BATCH_BYTES
    });
    fit.count().max(1)
}

fn counted(answer: Frame) -> Result<usize> {
    answer.value().as_i64().and_then(|count| usize::try_from(count).ok()).ok_or_else(odd_answer)
}

/// A dead letter as it is stored: `ms attempts crashes length failures content`.
struct LetterBody {
    ms: u64,
    attempts: u32,
    crashes: u32,
    /// The reason and the failures before it, see [`Failures`].
    failures: String,
    content: Bytes,
}

impl LetterBody {
    fn parse(mut body: Bytes) -> Option<Self> {
        let ms = word(&mut body)?.parse().ok()?;
        let attempts = word(&mut body)?.parse().ok()?;
        let crashes = word(&mut body)?.parse().ok()?;
        let len: usize = word(&mut body)?.parse().ok()?;
        let failures = (len <= body.len()).then(|| body.split_to(len))?;
        let failures = String::from_utf8(failures.into()).ok()?;
        Some(Self { ms, attempts, crashes, failures, content: body })
    }
}

/// Takes the text up to the next space.
fn word(body: &mut Bytes) -> Option<String> {
    let space = body.iter().take(32).position(|byte| *byte == b' ')?;
    let word = body.split_to(space + 1);
    std::str::from_utf8(&word[..space]).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_body_is_read_back() {
        let body = LetterBody::parse(Bytes::from_static(b"1700 3 1 8 too slow\x01\x00rest")).unwrap();
        assert_eq!((body.ms, body.attempts, body.crashes, body.failures.as_str()), (1700, 3, 1, "too slow"));
        assert_eq!(body.content, &b"\x01\x00rest"[..]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_body_or_nothing(bytes: Vec<u8>) {
            let _ = LetterBody::parse(bytes.into());
        }
    }
}
