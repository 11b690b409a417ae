//! Compares what was published with what a subject heard. Pure: two books in, figures out.
//!
//! A message is lost if the owner of its slot accepted it and the subject never heard it. It is
//! lost silently if no gap was told around it, that is between the last message heard before it and
//! the first one heard after it.

use super::Change;
use super::publisher::{PER_CHANNEL, Sent};
use super::stage::{AFTERMATH, Story};
use super::subject::Heard;
use crate::measure::precise;
use std::collections::HashMap;
use std::time::Duration;

/// The result of a change for one subject. Times are those of the worst channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Figures {
    /// Channels that the change concerns.
    pub(crate) affected: usize,
    /// Messages accepted on them since the change began (migration) or was done (promotion).
    pub(crate) published: usize,
    /// Those of them that were never heard.
    pub(crate) lost: usize,
    /// Messages lost on the other channels since the change began.
    pub(crate) others_lost: usize,
    /// Lost messages, on all channels, that no signalled gap surrounds.
    pub(crate) lost_silently: usize,
    /// Affected channels on which a gap was told.
    pub(crate) gaps_signalled: usize,
    /// Affected channels on which nothing of the new owner was heard.
    pub(crate) never_resumed: usize,
    /// The longest time without a message, from the same moment on as `published` until a second
    /// after the channel is back. Where the publisher paused, only its pace counts: there is
    /// nothing to hear.
    pub(crate) silence: Duration,
    /// The longest time without an accepted message.
    pub(crate) publish_gap: Duration,
    /// From the promotion, or from the first message that the new owner took, to the first one of
    /// the new owner that was heard; to the end of the watch if there is none.
    pub(crate) live_again: Duration,
}

impl Figures {
    /// By their names in the JSON lines.
    pub(crate) fn named(&self) -> [(&'static str, f64); 10] {
        let count = |number: usize| precise(number as u64);
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        [
            ("affected", count(self.affected)),
            ("published", count(self.published)),
            ("lost", count(self.lost)),
            ("others_lost", count(self.others_lost)),
            ("lost_silently", count(self.lost_silently)),
            ("gaps_signalled", count(self.gaps_signalled)),
            ("never_resumed", count(self.never_resumed)),
            ("silence_ms", millis(self.silence)),
            ("publish_gap_ms", millis(self.publish_gap)),
            ("live_again_ms", millis(self.live_again)),
        ]
    }
}

/// What a subject heard, in order.
pub(crate) type Log = Vec<(Duration, Heard)>;

/// Settles the accounts.
pub(crate) fn figures(story: &Story, log: &Log) -> Figures {
    let mut figures = Figures::default();
    for (channel, ear) in ears(story.published.len(), log).iter().enumerate() {
        let sent = &story.published[channel];
        if story.affected[channel] {
            settle_affected(&mut figures, story, sent, ear);
        } else {
            let lost = sent.iter().filter(|one| one.at >= story.began && !ear.has(one));
            figures.others_lost += lost.clone().count();
            figures.lost_silently += lost.filter(|one| !ear.covers(one.number)).count();
        }
    }
    figures
}

fn settle_affected(figures: &mut Figures, story: &Story, sent: &[Sent], ear: &Ear) {
    let since = story.since();
    let window: Vec<&Sent> = sent.iter().filter(|one| one.at >= since).collect();
    let lost: Vec<&&Sent> = window.iter().filter(|one| !ear.has(one)).collect();
    figures.affected += 1;
    figures.published += window.len();
    figures.lost += lost.len();
    figures.lost_silently += lost.iter().filter(|one| !ear.covers(one.number)).count();
    figures.gaps_signalled += usize::from(ear.holes.iter().any(|hole| hole.told >= story.began));

    let pauses = pauses(window.iter().map(|one| one.at), since, story.ended);
    figures.publish_gap = pauses.map(|(from, to)| to - from).fold(figures.publish_gap, Duration::max);
    let renewed = window.iter().find(|one| one.by != story.victim);
    let from = match story.change {
        Change::Migrate => renewed.map_or(story.changed, |one| one.at),
        Change::Failover => story.changed,
    };
    let back = ear.order.iter().find(|(number, _)| renewed.is_some_and(|one| *number >= one.number));
    figures.never_resumed += usize::from(back.is_none());
    let until = back.map_or(story.ended, |(_, at)| *at);
    figures.live_again = figures.live_again.max(until.saturating_sub(from));
    // Later pauses have other reasons.
    let end = story.ended.min(until.max(story.changed) + AFTERMATH);
    figures.silence = figures.silence.max(silence(&window, ear, since, end));
}

impl Story {
    /// From when on messages on the affected channels count.
    fn since(&self) -> Duration {
        match self.change {
            Change::Migrate => self.began,
            Change::Failover => self.changed,
        }
    }
}

/// The longest time without a message between `since` and `end`, less what the publisher paused: a
/// message was there to be heard when it was heard, or else when its server said that it had taken
/// it.
fn silence(window: &[&Sent], ear: &Ear, since: Duration, end: Duration) -> Duration {
    let there = |one: &&Sent| ear.heard.get(&one.number).map_or(one.taken, |heard| one.taken.min(*heard));
    let mut offered: Vec<Duration> = window.iter().map(there).collect();
    offered.sort_unstable();
    let mut longest = Duration::ZERO;
    for (from, to) in pauses(ear.order.iter().map(|(_, at)| *at), since, end) {
        if to - from > longest {
            longest = longest.max(to - from - paused(&offered, from, to));
        }
    }
    longest
}

/// How much longer than its pace the publisher paused between two moments; being a little late is
/// no pause.
fn paused(offered: &[Duration], start: Duration, end: Duration) -> Duration {
    let within =
        &offered[offered.partition_point(|at| *at <= start)..offered.partition_point(|at| *at <= end)];
    let last = within.last().copied().unwrap_or(start);
    let lengths = pauses(within.iter().copied(), start, last).map(|(from, to)| to - from);
    lengths.filter(|length| *length > 2 * PER_CHANNEL).map(|length| length - PER_CHANNEL).sum()
}

/// The stretches into which `times`, which are in order, cut the time from `start` to `end`.
fn pauses(
    times: impl Iterator<Item = Duration>,
    start: Duration,
    end: Duration,
) -> impl Iterator<Item = (Duration, Duration)> {
    let mut before = start;
    times.filter(move |at| *at > start && *at < end).chain([end]).map(move |at| {
        let pause = (before, at.max(before));
        before = pause.1;
        pause
    })
}

/// What was heard on one channel.
#[derive(Debug, Default)]
struct Ear {
    /// Numbers in the order in which they came.
    order: Vec<(u64, Duration)>,
    /// When each was heard.
    heard: HashMap<u64, Duration>,
    newest: u64,
    holes: Vec<Hole>,
}

/// A stretch in which messages were said to be missing.
#[derive(Debug)]
struct Hole {
    told: Duration,
    /// The newest message before it.
    after: u64,
    resumed: bool,
    /// The first message after its end.
    before: Option<u64>,
}

fn ears(channels: usize, log: &Log) -> Vec<Ear> {
    let mut ears: Vec<Ear> = (0..channels).map(|_| Ear::default()).collect();
    for (at, heard) in log {
        match heard {
            Heard::Message(channel, number) => ears[*channel].message(*number, *at),
            Heard::Gap(channels) => channels.iter().for_each(|channel| ears[*channel].gap(*at)),
            Heard::Resumed(channels) => channels.iter().for_each(|channel| ears[*channel].resumed()),
            Heard::Else => {}
        }
    }
    ears
}

impl Ear {
    fn message(&mut self, number: u64, at: Duration) {
        if let Some(hole) = self.holes.last_mut()
            && hole.resumed
        {
            hole.before.get_or_insert(number);
        }
        self.order.push((number, at));
        self.heard.entry(number).or_insert(at);
        self.newest = self.newest.max(number);
    }

    fn gap(&mut self, told: Duration) {
        match self.holes.last_mut() {
            // It goes on: nothing was heard since it ended.
            Some(hole) if hole.before.is_none() => hole.resumed = false,
            _ => self.holes.push(Hole { told, after: self.newest, resumed: false, before: None }),
        }
    }

    fn resumed(&mut self) {
        if let Some(hole) = self.holes.last_mut() {
            hole.resumed = true;
        }
    }

    fn has(&self, sent: &Sent) -> bool {
        self.heard.contains_key(&sent.number)
    }

    fn covers(&self, number: u64) -> bool {
        self.holes.iter().any(|hole| number > hole.after && hole.before.is_none_or(|before| number < before))
    }
}

/// How long each message took that was heard.
pub(crate) fn latencies<'a>(story: &'a Story, log: &'a Log) -> impl Iterator<Item = Duration> + 'a {
    log.iter().filter_map(|(heard_at, heard)| {
        let Heard::Message(channel, number) = heard else { return None };
        let sent = &story.published[*channel];
        let at = sent.binary_search_by_key(number, |one| one.number).ok()?;
        Some(heard_at.saturating_sub(sent[at].at))
    })
}

#[cfg(test)]
mod tests;
