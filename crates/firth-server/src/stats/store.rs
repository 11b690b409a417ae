//! All samples that the server keeps (pure: figures and the time come in, series go out).
//!
//! **Bounds.** Everything together takes at most [`MAX_BYTES`]. The server's own series and the
//! newest figures of [`MAX_GROUPS`] groups and [`MAX_TOPICS`] topics are kept, and series of the
//! busiest [`TRACKED`] of each. A busier one takes the place of the least busy.

use super::day::DayCount;
use super::ring::SampleRing;
use std::collections::HashMap;
use std::time::Duration;

/// What all samples together may take.
#[cfg(test)]
pub(super) const MAX_BYTES: usize = 8 << 20;
/// How many topics and groups have series of their own.
pub(super) const TRACKED: usize = 96;
/// How many topics and groups are kept with their newest figures.
const MAX_TOPICS: usize = 256;
pub(super) const MAX_GROUPS: usize = 1000;
/// Steps of the short and of the long window.
const FINE: (u64, usize) = (1000, 15 * 60);
const COARSE: (u64, usize) = (60_000, 24 * 60);
/// Two looks that are closer than this are one: their rates would be noise.
const APART_MS: u64 = 500;
/// How much of the old activity counts at the next sample.
const MEMORY: f32 = 0.95;
/// A newcomer takes a place if it is busier by this factor.
const BUSIER: f32 = 1.5;

/// A topic as it was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicFigures {
    pub(crate) topic: String,
    pub(crate) partitions: u32,
    /// Records ever appended.
    pub(crate) appended: u64,
    pub(crate) records: u64,
    pub(crate) delayed: u64,
}

/// A group as it was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupFigures {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) lag: u64,
    pub(crate) due: u64,
    pub(crate) dead: u64,
    pub(crate) oldest_ms: Option<u64>,
    pub(crate) members: usize,
    /// The first of the members that own partitions, how many there are, and partitions without.
    pub(crate) owners: Vec<String>,
    pub(crate) owner_count: usize,
    pub(crate) unowned: usize,
    /// Deliveries that clients of this server have settled, and how long they had them.
    pub(crate) handled: (u64, Duration),
    /// How long a delivery took in the last interval, in milliseconds; the store finds it out.
    pub(crate) handling_ms: Option<f32>,
}

/// Everything that one look saw.
#[derive(Debug, Default)]
pub(crate) struct StatsFigures {
    pub(crate) topics: Vec<TopicFigures>,
    pub(crate) groups: Vec<GroupFigures>,
    /// How many topics there are, watched or not.
    pub(crate) all_topics: usize,
    /// Resident memory of the server, and bytes used and free on its disk.
    pub(crate) memory: u64,
    pub(crate) disk: Option<(u64, u64)>,
}

/// Which window of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Window {
    /// 15 minutes, a second each.
    #[default]
    Fine,
    /// 24 hours, a minute each.
    Coarse,
}

impl Window {
    pub(crate) fn step_ms(self) -> u64 {
        match self {
            Self::Fine => FINE.0,
            Self::Coarse => COARSE.0,
        }
    }
}

/// One thing over time, in both windows.
struct Track<const N: usize> {
    fine: SampleRing<N>,
    coarse: SampleRing<N>,
}

impl<const N: usize> Track<N> {
    fn new() -> Self {
        Self { fine: SampleRing::new(FINE.0, FINE.1), coarse: SampleRing::new(COARSE.0, COARSE.1) }
    }

    fn put(&mut self, at_ms: u64, sample: [f32; N]) {
        self.fine.put(at_ms, sample);
        self.coarse.put(at_ms, sample);
    }

    fn since(&self, window: Window, after_ms: u64) -> Samples<N> {
        let ring = if window == Window::Fine { &self.fine } else { &self.coarse };
        let (from_ms, rows) = ring.since(after_ms);
        Samples { from_ms, rows }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.fine.bytes() + self.coarse.bytes()
    }
}

/// Samples of one thing, oldest first; NaN where there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples<const N: usize> {
    pub(crate) from_ms: u64,
    pub(crate) rows: Vec<[f32; N]>,
}

/// A topic or a group: its newest figures, its rate, and its samples if it is one of the busiest.
struct KeptSeries<F, const N: usize> {
    figures: F,
    /// Records per second in the last interval.
    rate: f32,
    /// The running total that rates come from.
    total: u64,
    /// Activity of the last minute, more or less.
    activity: f32,
    track: Option<Box<Track<N>>>,
}

/// What is shown of a topic or a group.
pub(crate) struct View<F, const N: usize> {
    pub(crate) figures: F,
    pub(crate) rate: f32,
    pub(crate) samples: Option<Samples<N>>,
}

/// Everything over time: produced and settled per second, lag, dead letters, memory, disk used and
/// free, milliseconds per delivery.
pub(crate) const TOTAL: usize = 8;
/// A group over time: settled per second, lag, dead letters, milliseconds per delivery.
pub(crate) const GROUP: usize = 4;

/// All samples.
pub(super) struct StatsStore {
    seen_ms: Option<u64>,
    total: Track<TOTAL>,
    topics: HashMap<String, KeptSeries<TopicFigures, 2>>,
    groups: HashMap<(String, String), KeptSeries<GroupFigures, GROUP>>,
    all_topics: usize,
    /// Records that were given up.
    died: DayCount,
    /// Whether the last look saw every topic and group.
    saw_all: bool,
}

impl StatsStore {
    pub(super) fn new() -> Self {
        let topics = HashMap::new();
        let groups = HashMap::new();
        let died = DayCount::default();
        Self { seen_ms: None, total: Track::new(), topics, groups, all_topics: 0, died, saw_all: false }
    }

    pub(super) fn seen_ms(&self) -> Option<u64> {
        self.seen_ms
    }

    /// How many topics there are.
    pub(super) fn all_topics(&self) -> usize {
        self.all_topics
    }

    /// How many records were given up in the last 24 hours, as far as was seen.
    pub(super) fn died(&self) -> u64 {
        self.died.sum()
    }

    /// Takes in a look.
    pub(super) fn note(&mut self, at_ms: u64, mut seen: StatsFigures) {
        let passed = self.seen_ms.map(|before| at_ms.saturating_sub(before));
        if passed.is_some_and(|passed| passed < APART_MS) {
            return;
        }
        let per_second = |grown: u64| match passed {
            Some(passed) => grown as f32 * 1000.0 / passed as f32,
            None => 0.0,
        };
        let handling = self.compare(at_ms, &mut seen);
        self.seen_ms = Some(at_ms);
        self.all_topics = seen.all_topics;
        let appended: HashMap<_, _> =
            seen.topics.iter().map(|topic| (topic.topic.clone(), topic.appended)).collect();
        let sum = |column: fn(&GroupFigures) -> u64| seen.groups.iter().map(column).sum::<u64>() as f32;
        let lag = sum(|group| group.lag);
        let dead = sum(|group| group.dead);
        let topics = busiest(seen.topics, MAX_TOPICS, |topic| topic.appended);
        let groups = busiest(seen.groups, MAX_GROUPS, |group| group.lag);
        let of_topics = topics.into_iter().map(|topic| (topic.topic.clone(), topic.appended, topic));
        let produced = take_in(&mut self.topics, of_topics.collect(), &per_second);
        let of_groups = groups.into_iter().map(|group| {
            let appended = appended.get(&group.topic).copied().unwrap_or_default();
            ((group.topic.clone(), group.group.clone()), appended.saturating_sub(group.lag), group)
        });
        let settled = take_in(&mut self.groups, of_groups.collect(), &per_second);
        track_busiest(&mut self.topics);
        track_busiest(&mut self.groups);
        for kept in self.topics.values_mut() {
            let sample = [kept.rate, kept.figures.records as f32];
            kept.put(at_ms, sample);
        }
        for kept in self.groups.values_mut() {
            let GroupFigures { lag, dead, handling_ms, .. } = &kept.figures;
            let sample = [kept.rate, *lag as f32, *dead as f32, handling_ms.unwrap_or(f32::NAN)];
            kept.put(at_ms, sample);
        }
        let (used, free) = match seen.disk {
            Some((used, free)) => (used as f32, free as f32),
            None => (f32::NAN, f32::NAN),
        };
        self.total.put(at_ms, [produced, settled, lag, dead, seen.memory as f32, used, free, handling]);
    }

    /// What happened to groups since the last look: counts what they gave up, and notes how long
    /// their deliveries took. Answers that of all together.
    fn compare(&mut self, at_ms: u64, seen: &mut StatsFigures) -> f32 {
        let none = GroupFigures::default();
        // A group that was not there before has given up its letters since, if all were seen.
        let saw_all = self.saw_all;
        let mut died = 0;
        let mut all = (0, Duration::ZERO);
        for group in &mut seen.groups {
            let key = (group.topic.clone(), group.group.clone());
            let before = match self.groups.get(&key) {
                Some(kept) => &kept.figures,
                None if saw_all => &none,
                None => continue,
            };
            died += group.dead.saturating_sub(before.dead);
            let count = group.handled.0.saturating_sub(before.handled.0);
            let took = group.handled.1.saturating_sub(before.handled.1);
            group.handling_ms = (count > 0).then(|| per_delivery(count, took));
            all = (all.0 + count, all.1 + took);
        }
        self.died.add(at_ms, died);
        self.saw_all = seen.all_topics <= seen.topics.len() && seen.groups.len() <= MAX_GROUPS;
        if all.0 > 0 { per_delivery(all.0, all.1) } else { f32::NAN }
    }

    pub(super) fn total(&self, window: Window, after_ms: u64) -> Samples<TOTAL> {
        self.total.since(window, after_ms)
    }

    /// All kept topics, the busiest first; samples of those that `wants` names.
    pub(super) fn topics(
        &self,
        (window, after_ms): (Window, u64),
        wants: impl Fn(&TopicFigures) -> bool,
    ) -> Vec<View<TopicFigures, 2>> {
        views(&self.topics, window, after_ms, wants)
    }

    /// All kept groups, the busiest first; samples of those that `wants` names.
    pub(super) fn groups(
        &self,
        (window, after_ms): (Window, u64),
        wants: impl Fn(&GroupFigures) -> bool,
    ) -> Vec<View<GroupFigures, GROUP>> {
        views(&self.groups, window, after_ms, wants)
    }

    /// Heap memory of all of it.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let topics = self.topics.iter().map(|(name, kept)| {
            size_of_val(name) + size_of_val(kept) + 2 * name.capacity() + kept.track_bytes()
        });
        let groups = self.groups.iter().map(|(name, kept)| {
            let owners: usize =
                kept.figures.owners.iter().map(|owner| size_of_val(owner) + owner.capacity()).sum();
            let names = 2 * (name.0.capacity() + name.1.capacity()) + owners;
            size_of_val(name) + size_of_val(kept) + names + kept.track_bytes()
        });
        // A table of the standard library has at most one free place for each taken one.
        self.total.bytes() + 2 * (topics.sum::<usize>() + groups.sum::<usize>())
    }
}

impl<F, const N: usize> KeptSeries<F, N> {
    fn put(&mut self, at_ms: u64, sample: [f32; N]) {
        if let Some(track) = &mut self.track {
            track.put(at_ms, sample);
        }
    }

    #[cfg(test)]
    fn track_bytes(&self) -> usize {
        // Halved, because the caller doubles what stands in the table.
        self.track.as_ref().map_or(0, |track| (track.bytes() + size_of::<Track<N>>()) / 2)
    }
}

/// Mean milliseconds of `count` deliveries.
fn per_delivery(count: u64, took: Duration) -> f32 {
    (took.as_secs_f64() * 1000.0 / count as f64) as f32
}

/// At most `max` of them, the largest first.
fn busiest<F>(mut all: Vec<F>, max: usize, size: fn(&F) -> u64) -> Vec<F> {
    if all.len() > max {
        all.sort_by_key(|figures| std::cmp::Reverse(size(figures)));
        all.truncate(max);
    }
    all
}

/// Takes over the newest figures, forgets what is gone, and answers the sum of all rates.
fn take_in<K: Eq + std::hash::Hash, F, const N: usize>(
    kept: &mut HashMap<K, KeptSeries<F, N>>,
    seen: Vec<(K, u64, F)>,
    per_second: &impl Fn(u64) -> f32,
) -> f32 {
    let mut before = std::mem::take(kept);
    let mut sum = 0.0;
    for (key, total, figures) in seen {
        let one = match before.remove(&key) {
            None => KeptSeries { figures, rate: 0.0, total, activity: 0.0, track: None },
            Some(old) => {
                // A total that shrank belongs to a topic that was made anew.
                let rate = per_second(total.saturating_sub(old.total));
                let activity = old.activity * MEMORY + rate * (1.0 - MEMORY);
                KeptSeries { figures, rate, total, activity, track: old.track }
            }
        };
        sum += one.rate;
        kept.insert(key, one);
    }
    sum
}

/// Gives the busiest a track; a busier newcomer takes that of the least busy.
fn track_busiest<K: Clone + Eq + std::hash::Hash, F, const N: usize>(
    kept: &mut HashMap<K, KeptSeries<F, N>>,
) {
    let mut tracked = kept.values().filter(|one| one.track.is_some()).count();
    let mut wanting: Vec<(f32, K)> = kept
        .iter()
        .filter(|(_, one)| one.track.is_none())
        .map(|(key, one)| (one.activity, key.clone()))
        .collect();
    wanting.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (activity, key) in wanting {
        if tracked >= TRACKED {
            let least = kept.iter().filter(|(_, one)| one.track.is_some());
            let least = least.min_by(|a, b| a.1.activity.total_cmp(&b.1.activity));
            let Some((place, at)) = least.map(|(key, one)| (key.clone(), one.activity)) else { return };
            if activity <= at * BUSIER {
                return;
            }
            kept.entry(place).and_modify(|one| one.track = None);
            tracked -= 1;
        }
        kept.entry(key).and_modify(|one| one.track = Some(Box::new(Track::new())));
        tracked += 1;
    }
}

fn views<K, F: Clone, const N: usize>(
    kept: &HashMap<K, KeptSeries<F, N>>,
    window: Window,
    after_ms: u64,
    wants: impl Fn(&F) -> bool,
) -> Vec<View<F, N>> {
    let mut all: Vec<_> = kept.values().collect();
    all.sort_by(|a, b| {
        (b.rate, b.activity).partial_cmp(&(a.rate, a.activity)).unwrap_or(std::cmp::Ordering::Equal)
    });
    let view = |one: &KeptSeries<F, N>| {
        let track = one.track.as_ref().filter(|_| wants(&one.figures));
        let samples = track.map(|track| track.since(window, after_ms));
        View { figures: one.figures.clone(), rate: one.rate, samples }
    };
    all.into_iter().map(view).collect()
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
