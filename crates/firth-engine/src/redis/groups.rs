//! The groups facet: progress, commits, due records.

use super::RedisEngine;
use super::error_mapping::{odd_answer, of_call};
use super::keys::GROUP_KINDS;
use super::leases::lease_info;
use super::micros;
use super::reply_decoding::{Parts, StepSubject, print_ahead};
use super::scripts::{PAGE, SCRIPTS, STEP};
use crate::checks;
use crate::commit::{Commit, Retry, cut_reason};
use crate::error::Result;
use crate::facet::{
    Committed, Due, DueRecord, GroupStatus, Groups, Pending, Reply, Reset, StartPosition, TakeDue,
};
use crate::failures::{Failures, stored_reason};
use crate::hold::{Hold, LeaseName};
use crate::id::RecordId;
use crate::limits::{MAX_BATCH_BYTES, MAX_READ};
use crate::name::{GroupName, Partition};
use crate::progress::Progress;
use crate::record::{Content, Record};
use bytes::Bytes;
use firth_redis::resp::Frame;
use firth_redis::{ScriptCall, cmd, pipe};
use std::time::Duration;

impl Groups for RedisEngine {
    fn create_group<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        from: StartPosition,
        by: Option<&'a Hold>,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let (keys, own) = self.group_keys(at, group);
            let holder = self.holder(at, group, by)?;
            let script = &SCRIPTS.create_group;
            let (kind, value) = start(from);
            let call = script
                .keys([&keys.meta, &keys.stream, &own.meta, &keys.groups, &holder])
                .arg(group.as_str())
                .arg(kind)
                .arg(value);
            let call = by.into_iter().fold(call, proof);
            let about = StepSubject { hold: by, ..StepSubject::group(at, group) };
            let answer = about.accept(self.steps.durable(script, call).await?)?;
            answer.value().as_i64().map(|made| made == 1).ok_or_else(odd_answer)
        })
    }

    fn open<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        from: StartPosition,
        hold: &'a Hold,
    ) -> Reply<'a, Progress> {
        Box::pin(async move {
            checks::is_for(hold, &LeaseName::group(at, group))?;
            let (keys, own) = self.group_keys(at, group);
            let script = &SCRIPTS.open;
            let (kind, value) = start(from);
            let call = script
                .keys([&keys.meta, &keys.stream, &own.meta, &own.due, &own.entries, &keys.groups])
                .arg(group.as_str());
            let (call, sent) = keys.clock.timed(proof(call, hold).arg(kind).arg(value));
            let answer =
                StepSubject::held(at, group, hold).accept(self.steps.durable(script, call).await?)?;
            let mut parts = keys.clock.heard(sent, answer.value())?;
            Ok(Progress {
                frontier: parts.id()?,
                ahead: parts.ahead()?,
                crashes: small(parts.number()?)?,
                due: parts.number()?,
                next_due: parts.duration()?,
                last: parts.id()?,
                reach: parts.count()?,
            })
        })
    }

    fn commit<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        hold: &'a Hold,
        commit: Commit,
    ) -> Reply<'a, Committed> {
        Box::pin(async move {
            self.commit_batch(at, group, hold, &commit)
                .await
                .map_err(|error| error.during(format_args!("commit of {group} on {at}")))
        })
    }

    fn due<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        hold: &'a Hold,
        take: TakeDue<'a>,
    ) -> Reply<'a, Due> {
        Box::pin(async move {
            checks::is_for(hold, &LeaseName::group(at, group))?;
            let (keys, own) = self.group_keys(at, group);
            let call = SCRIPTS.due.keys([
                &keys.meta,
                &keys.stream,
                &own.meta,
                &own.due,
                &own.entries,
                &own.index,
                &own.kept,
            ]);
            let mut known = take.known.to_vec();
            known.sort_unstable();
            let call = proof(call, hold).arg(take.max.clamp(1, STEP)).arg(MAX_BATCH_BYTES).arg(join(known));
            let (call, sent) = keys.clock.timed(call);
            // Losing the mark of who has it only hands the record out again after a takeover.
            let answer = StepSubject::held(at, group, hold).accept(self.steps.quick(call).await?)?;
            let mut parts = keys.clock.heard(sent, answer.value())?;
            let lost = parts.number()?;
            let next = parts.duration()?;
            let mut list = Parts::of(parts.value()?);
            let mut records = Vec::with_capacity(take.known.len().min(STEP));
            while !list.is_empty() {
                let (attempt, crashes) = history(list.text()?)?;
                let ids = list.text()?;
                let contents = list.number()?;
                for id in ids.split(' ') {
                    let id = id.parse().map_err(|_| odd_answer())?;
                    let packed = if contents == 0 { Bytes::new() } else { list.bytes()? };
                    // No record is packed into nothing.
                    let content = if packed.is_empty() { None } else { Some(Content::unpack(packed)?) };
                    records.push(DueRecord { id, attempt, crashes, content });
                }
            }
            Ok(Due { records, lost, next })
        })
    }

    fn status<'a>(&'a self, at: &'a Partition, group: &'a GroupName) -> Reply<'a, GroupStatus> {
        Box::pin(async move {
            let (keys, own) = self.group_keys(at, group);
            let call = SCRIPTS.status.keys([&keys.meta, &keys.stream, &own.meta, &own.due, &own.dead]);
            let answer = StepSubject::group(at, group).accept(self.steps.quick(call).await?)?;
            let mut parts = Parts::of(answer.value());
            Ok(GroupStatus {
                frontier: parts.id()?,
                ahead: parts.ahead()?.len(),
                waiting: parts.number()?,
                due: parts.number()?,
                next_due: parts.duration()?,
                dead: parts.number()?,
                crashes: small(parts.number()?)?,
                oldest: parts.duration()?,
                owner: lease_info(&LeaseName::group(at, group), parts.value()?)?,
            })
        })
    }

    fn groups<'a>(&'a self, at: &'a Partition) -> Reply<'a, Vec<GroupName>> {
        Box::pin(async move {
            let keys = self.keys.partition(at);
            let both =
                pipe().then(cmd("EXISTS").key(&keys.meta)).then(cmd("HGETALL").key(&keys.groups)).together();
            let (exists, groups) = self.steps.client.pipeline::<(i64, Frame)>(both).await.map_err(of_call)?;
            if exists.map_err(of_call)? == 0 {
                return Err(StepSubject::partition(at).missing());
            }
            let groups = groups.map_err(of_call)?;
            let mut names = Vec::new();
            for (name, kind) in groups.value().pairs().ok_or_else(odd_answer)? {
                if kind.as_i64() == Some(1) {
                    names.push(GroupName::new(name.as_str().ok_or_else(odd_answer)?)?);
                }
            }
            names.sort();
            Ok(names)
        })
    }

    fn pending<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        after: RecordId,
        max: usize,
    ) -> Reply<'a, Vec<Pending>> {
        Box::pin(async move {
            let mut found = Vec::new();
            let max = max.clamp(1, MAX_READ);
            let mut position = super::scan_from(after);
            while found.len() < max {
                let page = self.pending_page(at, group, position, STEP.min(max - found.len())).await?;
                let Some(last) = page.last() else { break };
                position = last.id;
                found.extend(page.into_iter().filter(|pending| pending.id > after));
            }
            Ok(found)
        })
    }

    fn reset<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        reset: Reset,
        by: Option<&'a Hold>,
    ) -> Reply<'a, RecordId> {
        Box::pin(async move {
            checks::place(reset.to)?;
            let (keys, own) = self.group_keys(at, group);
            let holder = self.holder(at, group, by)?;
            let script = &SCRIPTS.reset;
            let (kind, value) = start(reset.to);
            let all = [&keys.meta, &keys.stream, &own.meta, &own.due, &own.entries, &own.index, &own.kept];
            let call = script
                .keys(all.into_iter().chain([&keys.lease_version, &holder]))
                .arg(kind)
                .arg(value)
                .arg(u8::from(reset.drop_due));
            let call = by.into_iter().fold(call, proof);
            let about = StepSubject { hold: by, ..StepSubject::group(at, group) };
            // Past many due records it takes several steps, each of which leaves the group whole.
            loop {
                let answer = about.accept(self.steps.durable(script, call.clone()).await?)?;
                let mut parts = Parts::of(answer.value());
                let frontier = parts.id()?;
                if parts.number()? == 0 {
                    return Ok(frontier);
                }
            }
        })
    }

    fn delete_group<'a>(
        &'a self,
        at: &'a Partition,
        group: &'a GroupName,
        by: Option<&'a Hold>,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let keys = self.keys.partition(at);
            let others = GROUP_KINDS.iter().filter(|kind| **kind != 'g');
            let others = others.map(|kind| keys.group_stem(*kind) + group.as_str());
            let holder = self.holder(at, group, by)?;
            let own = keys.group(group).meta;
            let groups = keys.groups.clone();
            let first = [keys.meta.clone(), own, groups, keys.lease_version.clone(), holder];
            let script = &SCRIPTS.delete_group;
            let call = script.keys(first.into_iter().chain(others)).arg(group.as_str());
            let call = by.into_iter().fold(call, proof);
            let about = StepSubject { hold: by, ..StepSubject::group(at, group) };
            let answer = about.accept(self.steps.durable(script, call).await?)?;
            answer.value().as_i64().map(|was_there| was_there == 1).ok_or_else(odd_answer)
        })
    }
}

impl RedisEngine {
    /// The key of the lease under which a group is changed.
    fn holder(&self, at: &Partition, group: &GroupName, by: Option<&Hold>) -> Result<String> {
        let by = by.map(|hold| checks::group_on(hold, at)).transpose()?;
        Ok(self.keys.partition(at).group(by.unwrap_or(group)).meta)
    }

    async fn commit_batch(
        &self,
        at: &Partition,
        group: &GroupName,
        hold: &Hold,
        commit: &Commit,
    ) -> Result<Committed> {
        commit.check()?;
        checks::is_for(hold, &LeaseName::group(at, group))?;
        let (keys, own) = self.group_keys(at, group);
        let about = StepSubject { seen: commit.seen, ..StepSubject::held(at, group, hold) };
        let told = |call: ScriptCall| {
            let call = proof(call, hold).arg(commit.frontier.to_string()).arg(print_ahead(&commit.ahead));
            call.arg(commit.seen.to_string())
        };
        if commit.verdicts() == 0 {
            let script = &SCRIPTS.advance;
            let call = told(script.keys([&keys.meta, &own.meta, &own.due, &keys.stream])).arg(commit.reach);
            let answer = about.accept(self.steps.durable(script, call).await?)?;
            return committed(Parts::of(answer.value()));
        }
        let script = &SCRIPTS.commit;
        let all = [&keys.meta, &own.meta, &own.due, &own.entries, &own.index, &own.kept];
        let all = all.into_iter().chain([&own.dead, &own.dead_times, &own.bodies, &keys.stream]);
        let call = verdicts(told(script.keys(all)), commit).arg(commit.reach);
        let (call, sent) = keys.clock.timed(call);
        let answer = about.accept(self.steps.durable(script, call).await?)?;
        committed(keys.clock.heard(sent, answer.value())?)
    }

    async fn pending_page(
        &self,
        at: &Partition,
        group: &GroupName,
        after: RecordId,
        max: usize,
    ) -> Result<Vec<Pending>> {
        let (keys, own) = self.group_keys(at, group);
        let call = SCRIPTS
            .pending
            .keys([&keys.meta, &own.meta, &own.due, &own.entries, &own.index])
            .arg(after.seq)
            .arg(max);
        let answer = StepSubject::group(at, group).accept(self.steps.quick(call).await?)?;
        let mut list = Parts::of(answer.value());
        let mut found = Vec::new();
        while !list.is_empty() {
            let id = list.id()?;
            let due_in = list.duration()?;
            let entry = list.text()?;
            let kept = list.number()? == 1;
            let age = Duration::from_micros(list.number()?);
            let idle = list.duration()?;
            let past =
                entry.match_indices(':').nth(1).map(|(at, _)| entry.split_at(at)).ok_or_else(odd_answer)?;
            let (attempt, crashes) = history(past.0)?;
            let Failures { reason, .. } = Failures::read(&past.1[1..], id.ms);
            found.push(Pending { id, attempt, crashes, due_in, age, idle, reason, kept });
        }
        found.sort_by_key(|pending| pending.id);
        found.truncate(max);
        Ok(found)
    }
}

/// What a script answers to a commit.
fn committed(mut parts: Parts<'_>) -> Result<Committed> {
    Ok(Committed { due: parts.number()?, next_due: parts.duration()? })
}

/// Adds what proves the ownership.
fn proof(call: ScriptCall, hold: &Hold) -> ScriptCall {
    call.arg(hold.epoch.0).arg(super::leases::print_token(hold.token))
}

/// Adds the verdicts. Retries that are alike are told together and become batches of retries (see
/// `lua/lib/due.lua`): most of a batch fail for one reason and wait equally long.
fn verdicts(call: ScriptCall, commit: &Commit) -> ScriptCall {
    let mut done = commit.done.clone();
    done.sort_unstable();
    let mut retries: Vec<&Retry> = commit.retries.iter().collect();
    retries.sort_unstable_by_key(|retry| retry.id);
    // Texts cost much to compare, and most are equal: a stable sort passes once over what is in
    // order.
    retries.sort_by_key(|retry| (micros(retry.after), cut_reason(&retry.reason)));
    let bundles = || retries.chunk_by(|a, b| are_alike(a, b));
    let mut call = call.arg(join(done)).arg(bundles().count()).arg(commit.dead.len());
    for bundle in bundles() {
        let Some(Retry { after, reason, kept, .. }) = bundle.first() else { continue };
        let content = kept.as_deref().map(Content::packed).unwrap_or_default();
        let ids = bundle.iter().map(|retry| retry.id);
        let reason = stored_reason(reason);
        call = call.arg(micros(*after)).arg(&*reason).arg(content).arg(bundle.len()).arg(join(ids));
    }
    for dead in &commit.dead {
        let Record { id, crashes, content, .. } = &dead.record;
        let reason = stored_reason(&dead.reason);
        call = call.arg(id.to_string()).arg(*crashes).arg(&*reason).arg(content.packed());
    }
    call
}

/// Whether two retries, in order, can lie in one batch of retries.
fn are_alike(a: &Retry, b: &Retry) -> bool {
    let page = |retry: &Retry| retry.id.seq / PAGE;
    let is_kept = a.kept.is_some() || b.kept.is_some();
    !is_kept
        && micros(a.after) == micros(b.after)
        && page(a) == page(b)
        && cut_reason(&a.reason) == cut_reason(&b.reason)
}

/// Ids as the scripts take them: one text.
fn join(ids: impl IntoIterator<Item = RecordId>) -> String {
    let mut text = String::new();
    let mut number = itoa::Buffer::new();
    for RecordId { ms, seq } in ids {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(number.format(ms));
        text.push('-');
        text.push_str(number.format(seq));
    }
    text
}

/// A starting position as the scripts take it.
fn start(from: StartPosition) -> (&'static str, String) {
    match from {
        StartPosition::Start => ("start", String::new()),
        StartPosition::End => ("end", String::new()),
        StartPosition::After(id) => ("after", id.to_string()),
        StartPosition::Age(age) => ("age", age.as_millis().to_string()),
        StartPosition::Existing => ("existing", String::new()),
    }
}

/// `attempt:crashes`.
fn history(text: &str) -> Result<(u32, u32)> {
    let parts = text.split_once(':').and_then(|(a, c)| Some((a.parse().ok()?, c.parse().ok()?)));
    parts.ok_or_else(odd_answer)
}

fn small(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| odd_answer())
}
