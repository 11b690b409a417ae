//! Leases of pools: their two texts, and the listing of a whole pool.

use super::RedisEngine;
use super::error_mapping::{odd_answer, of_call};
use super::leases::holder;
use super::reply_decoding::Parts;
use super::unit_clock::read_clock;
use crate::error::Result;
use crate::hold::{LeaseInfo, LeaseName};
use crate::id::Epoch;
use crate::name::{MemberName, PoolName};
use bytes::Bytes;
use firth_redis::resp::{Frame, Value};
use firth_redis::{Unpack, cmd, pipe};
use std::collections::BTreeMap;
use std::time::Duration;

impl RedisEngine {
    /// All leases of a pool, in the order of their names.
    pub(super) async fn list_pool(&self, pool: &PoolName) -> Result<Vec<LeaseInfo>> {
        let keys = self.keys.pool(pool);
        let look = pipe()
            .then(cmd("HGETALL").key(&keys.leases))
            .then(cmd("HGETALL").key(&keys.notes))
            .then(cmd("HGET").key(&keys.meta).arg("c"))
            .then(cmd("TIME"));
        let answers = self
            .steps
            .client
            .transaction::<(Frame, Frame, Frame, (u64, u64))>(look)
            .await
            .map_err(of_call)?;
        let (leases, notes, clock, (seconds, micros)) = answers.unpack().map_err(of_call)?;
        let now = read_clock(clock.value()).now(seconds * 1_000_000 + micros, None);
        let mut holders = BTreeMap::new();
        for (name, note) in notes.value().pairs().ok_or_else(odd_answer)? {
            holders.insert(name.as_str().ok_or_else(odd_answer)?, note);
        }
        let mut found = Vec::new();
        for (name, lease) in leases.value().pairs().ok_or_else(odd_answer)? {
            let name = name.as_str().ok_or_else(odd_answer)?;
            let note = holders.get(name).copied().ok_or_else(odd_answer)?;
            let name = LeaseName::pool(pool, &MemberName::new(name)?);
            found.push(info(&name, now, lease, note)?);
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// Reads what the script answered for a lease of a pool; `None` if there is none.
pub(super) fn looked(name: &LeaseName, now: u64, parts: &mut Parts<'_>) -> Result<Option<LeaseInfo>> {
    let lease = parts.value()?;
    let note = parts.value()?;
    if lease.is_null() { Ok(None) } else { info(name, now, lease, note).map(Some) }
}

/// Who has a lease that was wished for.
pub(super) fn held(name: &LeaseName, parts: &mut Parts<'_>) -> Result<LeaseInfo> {
    let epoch = Epoch(parts.number()?);
    let remaining = parts.duration()?.unwrap_or_default();
    let beats = parts.number()?;
    let (holder_name, note) = split_note(parts.bytes()?)?;
    Ok(LeaseInfo { name: name.clone(), holder: holder(&holder_name)?, epoch, remaining, beats, note })
}

/// `epoch token deadline beats`, and `holder note`.
fn info(name: &LeaseName, now: u64, lease: Value<'_>, note: Value<'_>) -> Result<LeaseInfo> {
    let lease = lease.as_str().ok_or_else(odd_answer)?;
    let words: Vec<&str> = lease.split(' ').collect();
    let [epoch, _token, deadline, beats] = words[..] else { return Err(odd_answer()) };
    let parse = |text: &str| text.parse::<u64>().map_err(|_| odd_answer());
    let (holder_name, note) = split_note(note.bytes().ok_or_else(odd_answer)?)?;
    Ok(LeaseInfo {
        name: name.clone(),
        holder: holder(&holder_name)?,
        epoch: Epoch(parse(epoch)?),
        remaining: Duration::from_micros(parse(deadline)?.saturating_mul(1000).saturating_sub(now)),
        beats: parse(beats)?,
        note,
    })
}

fn split_note(text: Bytes) -> Result<(String, Bytes)> {
    let space = text.iter().position(|byte| *byte == b' ').ok_or_else(odd_answer)?;
    let holder = std::str::from_utf8(&text[..space]).map_err(|_| odd_answer())?;
    Ok((holder.to_owned(), text.slice(space + 1..)))
}
