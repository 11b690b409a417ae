//! The nodes that match events, and whether this one may.
//!
//! Each such node keeps an entry in the catalog, renewed every second: it is a *member*. A
//! registration waits for every member (`confirm`), so that no event sent after the answer meets an
//! index without it. A member that fell silent is not waited for any longer once its entry stood
//! still for [`TTL`]; the member itself stops matching before that, by its own clock, and reads the
//! whole registry again before it goes on.

use super::catalog::{Member, Store};
use crate::error::{Error, Result};
use firth::catalog::{Expect, Put};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// How long a member counts as one without renewing its entry.
const TTL: Duration = Duration::from_secs(4);
/// How often it renews it.
const RENEW: Duration = Duration::from_secs(1);

/// How this node stands among the members.
#[derive(Default)]
pub(super) struct MemberState {
    /// `None`: this node is no member, and the other nodes do not wait for it.
    own: Mutex<Option<Own>>,
    /// The whole registry is to be read again.
    stale: Notify,
}

struct Own {
    /// Until then the others wait for it.
    until: Instant,
    /// Everything that was registered before `until` was last late is known.
    is_whole: bool,
    /// How often it was late.
    lapses: u64,
}

impl MemberState {
    /// Whether events may be matched: others wait for this node, and it has read what they did not
    /// wait for.
    pub(super) fn may_match(&self, now: Instant) -> bool {
        self.lock().as_ref().is_none_or(|own| own.is_whole && now < own.until)
    }

    pub(super) fn is_member(&self) -> bool {
        self.lock().is_some()
    }

    /// Everything must be read before it may match.
    pub(super) fn is_stale(&self) -> bool {
        self.lock().as_ref().is_some_and(|own| !own.is_whole)
    }

    /// Waits until everything is to be read.
    pub(super) async fn wants_reading(&self) {
        self.stale.notified().await;
    }

    /// Its entry was renewed by a call that began at `started`.
    fn renewed(&self, started: Instant, now: Instant) {
        let mut own = self.lock();
        let own = own.get_or_insert(Own { until: started, is_whole: false, lapses: 0 });
        if own.until <= now {
            own.is_whole = false;
            own.lapses += 1;
            self.stale.notify_one();
        }
        own.until = started + TTL;
    }

    /// What to tell [`has_read`](Self::has_read) after a reading that begins now.
    pub(super) fn begins_reading(&self) -> u64 {
        self.lock().as_ref().map_or(0, |own| own.lapses)
    }

    /// Everything was read; it counts unless the entry was late again during the reading.
    pub(super) fn has_read(&self, lapses: u64) {
        if let Some(own) = self.lock().as_mut().filter(|own| own.lapses == lapses) {
            own.is_whole = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Own>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Enters this node among the members.
pub(super) async fn enter(store: &Store, member: &Member, member_state: &MemberState) -> Result<()> {
    let started = Instant::now();
    store.put_member(member).await?;
    member_state.renewed(started, Instant::now());
    Ok(())
}

/// Refuses a second router on a topic: gateways would take both for one, and refuse what the one
/// with the lower epoch sends.
pub(super) async fn check(store: &Store, own: &Member) -> Result<()> {
    let is_rival = |other: &Member| other.topic == own.topic && other.group != own.group;
    let members = store.members().await?;
    let Some((_, other)) = members.into_iter().find(|(_, other)| !own.topic.is_empty() && is_rival(other))
    else {
        return Ok(());
    };
    store.remove_member(&own.id, Expect::Any).await?;
    Err(Error::invalid(format!(
        "routing.group is {}, but node {} routes the topic {} as {}: nodes of one topic share a group; use that one, or stop the other router and wait five seconds",
        own.group, other.node, own.topic, other.group
    )))
}

/// Renews the entry until `stop`, and takes it away then.
pub(super) async fn keep(
    store: Store,
    member: Member,
    member_state: Arc<MemberState>,
    stop: CancellationToken,
) {
    let mut turns = interval(RENEW);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let renewed = tokio::select! {
            () = stop.cancelled() => break,
            renewed = async {
                turns.tick().await;
                enter(&store, &member, &member_state).await
            } => renewed,
        };
        if let Err(error) = renewed {
            tracing::warn!(%error, "this node cannot say that it matches events; it stops if that goes on");
        }
    }
    if let Err(error) = store.remove_member(&member.id, Expect::Any).await {
        tracing::debug!(%error, "registrations wait for this node until the others notice that it is gone");
    }
}

/// What this node has seen of the members' entries: versions, and since when each.
#[derive(Default)]
pub(super) struct Watched(HashMap<String, (u64, Instant)>);

impl Watched {
    /// Takes note of the entries; answers those that stood still for too long.
    fn look(&mut self, members: &[(u64, Member)], now: Instant) -> Vec<(String, u64)> {
        self.0.retain(|id, _| members.iter().any(|(_, member)| member.id == *id));
        let mut silent = Vec::new();
        for (version, member) in members {
            let seen = self.0.entry(member.id.clone()).or_insert((*version, now));
            if seen.0 != *version {
                *seen = (*version, now);
            } else if seen.1 + TTL <= now {
                silent.push((member.id.clone(), *version));
            }
        }
        silent
    }

    /// Removes the entries of members that fell silent.
    pub(super) async fn sweep(&mut self, store: &Store) -> Result<()> {
        let members = store.members().await?;
        for (id, version) in self.look(&members, Instant::now()) {
            if let Put::Done(_) = store.remove_member(&id, Expect::Version(version)).await? {
                tracing::warn!(
                    member = id,
                    "a node fell silent; registrations do not wait for it any longer"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str) -> Member {
        Member { id: id.to_owned(), node: "n".to_owned(), ..Member::default() }
    }

    #[test]
    fn r01_a_member_whose_entry_is_late_does_not_match_until_it_has_read_everything() {
        let member_state = MemberState::default();
        let start = Instant::now();
        assert!(member_state.may_match(start), "it is no member");
        member_state.renewed(start, start);
        assert!(!member_state.may_match(start), "it has read nothing yet");
        member_state.has_read(member_state.begins_reading());
        assert!(member_state.may_match(start + TTL / 2) && !member_state.may_match(start + TTL));
        member_state.renewed(start + TTL / 2, start + TTL / 2);
        assert!(member_state.may_match(start + TTL), "it was renewed in time");
        let late = start + TTL * 2;
        member_state.renewed(late, late);
        assert!(!member_state.may_match(late), "nobody waited for it meanwhile");
        let reading = member_state.begins_reading();
        member_state.renewed(late + TTL, late + TTL);
        member_state.has_read(reading);
        assert!(!member_state.may_match(late + TTL), "it was late again while it read");
        member_state.has_read(member_state.begins_reading());
        assert!(member_state.may_match(late + TTL));
    }

    #[test]
    fn r01_a_member_is_given_up_only_after_it_has_stopped_matching() {
        let mut watched = Watched::default();
        let start = Instant::now();
        assert!(watched.look(&[(1, member("a"))], start).is_empty());
        assert!(watched.look(&[(1, member("a"))], start + TTL / 2).is_empty());
        assert!(watched.look(&[(2, member("a"))], start + TTL).is_empty(), "it gave a sign");
        assert!(watched.look(&[(2, member("a"))], start + TTL * 3 / 2).is_empty());
        assert_eq!(watched.look(&[(2, member("a"))], start + TTL * 2), [("a".to_owned(), 2)]);
        assert!(watched.look(&[], start + TTL * 3).is_empty() && watched.0.is_empty());
    }
}
