//! The catalog facet: entries of a space in a hash, their names in a sorted set, versions from one
//! counter.

use super::RedisEngine;
use super::error_mapping::{odd_answer, of_call};
use super::reply_decoding::Parts;
use super::scripts::SCRIPTS;
use crate::checks;
use crate::error::Result;
use crate::facet::{Catalog, Entry, EntryKey, Expect, Put, Reply};
use crate::limits::{MAX_BATCH_BYTES, MAX_READ};
use crate::name::SpaceName;
use bytes::Bytes;
use firth_redis::resp::Frame;
use firth_redis::{Script, cmd};

/// Entries that one script lists.
const STEP: usize = 512;

impl Catalog for RedisEngine {
    fn get<'a>(&'a self, key: &'a EntryKey) -> Reply<'a, Option<Entry>> {
        Box::pin(async move {
            let get = cmd("HGET").key(self.keys.space(key.space()).entries).arg(key.name());
            let stored: Option<Bytes> = self.steps.client.call(get).await.map_err(of_call)?;
            stored.map(|stored| entry(key.name(), stored)).transpose()
        })
    }

    fn put<'a>(&'a self, key: &'a EntryKey, value: Bytes, expect: Expect) -> Reply<'a, Put> {
        Box::pin(async move {
            checks::entry(&value)?;
            self.change(&SCRIPTS.put_entry, key, Some(value), expect).await
        })
    }

    fn remove<'a>(&'a self, key: &'a EntryKey, expect: Expect) -> Reply<'a, Put> {
        Box::pin(self.change(&SCRIPTS.remove_entry, key, None, expect))
    }

    fn list<'a>(
        &'a self,
        space: &'a SpaceName,
        prefix: &'a str,
        after: &'a str,
        max: usize,
    ) -> Reply<'a, Vec<Entry>> {
        Box::pin(async move {
            let Some(end) = after_prefix(prefix) else { return Ok(Vec::new()) };
            let mut found = Vec::new();
            let max = max.clamp(1, MAX_READ);
            let mut from =
                if after >= prefix && !after.is_empty() { format!("({after}") } else { format!("[{prefix}") };
            while found.len() < max {
                let page = self.page(space, &from, &end, STEP.min(max - found.len())).await?;
                let Some(last) = page.last() else { break };
                from = format!("({}", last.name);
                found.extend(page);
            }
            Ok(found)
        })
    }
}

impl RedisEngine {
    async fn change(
        &self,
        script: &Script,
        key: &EntryKey,
        value: Option<Bytes>,
        expect: Expect,
    ) -> Result<Put> {
        let keys = self.keys.space(key.space());
        let expected = match expect {
            Expect::Any => "any".to_owned(),
            Expect::Absent => "absent".to_owned(),
            Expect::Version(version) => version.to_string(),
        };
        let call = script.keys([&keys.entries, &keys.index, &keys.version]).arg(key.name()).arg(expected);
        let answer = self.steps.durable(script, call.args(value)).await?;
        let mut parts = Parts::of(answer.value());
        if parts.number()? == 1 {
            return Ok(Put::Done(parts.number()?));
        }
        if parts.is_empty() {
            return Ok(Put::Conflict(None));
        }
        entry(key.name(), parts.bytes()?).map(|current| Put::Conflict(Some(current)))
    }

    async fn page(&self, space: &SpaceName, from: &str, end: &str, max: usize) -> Result<Vec<Entry>> {
        let keys = self.keys.space(space);
        let call = SCRIPTS
            .list_entries
            .keys([&keys.entries, &keys.index])
            .arg(from)
            .arg(end)
            .arg(max)
            .arg(MAX_BATCH_BYTES);
        let answer: Frame = self.steps.quick(call).await?;
        let mut list = Parts::of(answer.value());
        let mut found = Vec::new();
        while !list.is_empty() {
            let name = list.text()?;
            found.push(entry(name, list.bytes()?)?);
        }
        Ok(found)
    }
}

/// The end of all names that start with `prefix`, as ZRANGEBYLEX takes it; `None` if no name can.
fn after_prefix(prefix: &str) -> Option<String> {
    if prefix.is_empty() {
        return Some("+".to_owned());
    }
    // Names are visible ASCII, so that adding one to the last byte stays ASCII.
    let (last, head) = prefix.as_bytes().split_last()?;
    let head = std::str::from_utf8(head).ok()?;
    last.is_ascii_graphic().then(|| format!("({head}{}", char::from(last + 1)))
}

/// `version value`.
fn entry(name: &str, mut stored: Bytes) -> Result<Entry> {
    let space = stored.iter().take(32).position(|byte| *byte == b' ').ok_or_else(odd_answer)?;
    let version = std::str::from_utf8(&stored[..space]).ok().and_then(|text| text.parse().ok());
    let value = stored.split_off(space + 1);
    Ok(Entry { name: name.to_owned(), value, version: version.ok_or_else(odd_answer)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_text() {
        assert_eq!(after_prefix("").as_deref(), Some("+"));
        assert_eq!(after_prefix("b/").as_deref(), Some("(b0"));
        assert_eq!(after_prefix("~").as_deref(), Some("(\u{7f}"));
        assert_eq!(after_prefix("ä"), None);
    }
}
