//! Which topics a look takes in: the busiest, if there are more than it can (pure).
//!
//! A few more topics are scouted at each look, in turns: their ends of the log are seen in two
//! looks, one after the other, and so their rates. A scout that is busier than the calmest watched
//! topic takes its place. With 10 000 topics a turn takes about five minutes.
//!
//! Bounded: [`MAX_TOPICS`] watched topics and [`SCOUTS`] scouts, however many topics there are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// How many topics are watched.
pub(crate) const MAX_TOPICS: usize = 256;
/// How many further ones are scouted at each look; half of them are seen for the second time.
const SCOUTS: usize = 64;
/// How much of the old activity counts at the next look.
const MEMORY: f64 = 0.95;
/// A scout takes a place if it is busier by this factor.
const BUSIER: f64 = 1.5;

#[derive(Default)]
pub(crate) struct WatchedTopics {
    topics: BTreeMap<String, Seen>,
    /// Scouts of the last look, with what they had.
    scouts: BTreeMap<String, u64>,
    /// The last name that was scouted for the first time.
    cursor: String,
}

#[derive(Default)]
struct Seen {
    /// Records ever appended; `None` before the first look.
    appended: Option<u64>,
    /// Records per second, of the last looks.
    activity: f64,
}

impl Seen {
    fn note(&mut self, appended: u64, passed: Duration) {
        if let Some(before) = self.appended.replace(appended) {
            let rate = per_second(before, appended, passed);
            self.activity = self.activity * MEMORY + rate * (1.0 - MEMORY);
        }
    }
}

/// A count that shrank belongs to a topic that was made anew.
fn per_second(before: u64, now: u64, passed: Duration) -> f64 {
    now.saturating_sub(before) as f64 / passed.as_secs_f64().max(0.1)
}

impl WatchedTopics {
    /// The names to look at, all and those to scout only.
    pub(crate) fn choose(&mut self, all: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
        self.topics.retain(|name, _| all.contains(name));
        let free = MAX_TOPICS.saturating_sub(self.topics.len());
        let new: Vec<_> =
            all.iter().filter(|name| !self.topics.contains_key(*name)).take(free).cloned().collect();
        self.topics.extend(new.into_iter().map(|name| (name, Seen::default())));
        let watched: Vec<_> = self.topics.keys().cloned().collect();
        self.scouts.retain(|name, _| all.contains(name) && !self.topics.contains_key(name));
        let mut scouts: Vec<_> = self.scouts.keys().cloned().collect();
        if all.len() > self.topics.len() {
            let behind = all.range::<str, _>((Bound::Excluded(self.cursor.as_str()), Bound::Unbounded));
            let fresh = behind.chain(all.iter()).filter(|name| !self.topics.contains_key(*name));
            let fresh: Vec<_> = fresh.take(SCOUTS / 2).cloned().collect();
            self.cursor = fresh.last().cloned().unwrap_or_default();
            scouts.extend(fresh.into_iter().filter(|name| !self.scouts.contains_key(name)));
        }
        (watched, scouts)
    }

    /// Takes in what the look after [`choose`](Self::choose) saw: names with all records ever
    /// appended; `passed` since the look before.
    pub(crate) fn note<'a>(
        &mut self,
        passed: Duration,
        watched: impl Iterator<Item = (&'a str, u64)>,
        scouts: impl Iterator<Item = (&'a str, u64)>,
    ) {
        for (name, appended) in watched {
            if let Some(seen) = self.topics.get_mut(name) {
                seen.note(appended, passed);
            }
        }
        let before = std::mem::take(&mut self.scouts);
        let mut rated = Vec::new();
        for (name, appended) in scouts {
            match before.get(name) {
                Some(first) => rated.push((name, appended, per_second(*first, appended, passed))),
                None => drop(self.scouts.insert(name.to_owned(), appended)),
            }
        }
        rated.sort_by(|a, b| b.2.total_cmp(&a.2));
        for (name, appended, activity) in rated {
            let calmest = self.topics.iter().min_by(|a, b| a.1.activity.total_cmp(&b.1.activity));
            let Some((calmest, least)) = calmest.map(|(name, seen)| (name.clone(), seen.activity)) else {
                return;
            };
            if activity <= least * BUSIER {
                return;
            }
            self.topics.remove(&calmest);
            self.topics.insert(name.to_owned(), Seen { appended: Some(appended), activity });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks at topics of which each has `rate(name)` records more per second.
    fn look(watched: &mut WatchedTopics, all: &BTreeSet<String>, second: u64, rate: impl Fn(&str) -> u64) {
        let (names, scouts) = watched.choose(all);
        assert!(names.len() <= MAX_TOPICS && scouts.len() <= SCOUTS, "{} {}", names.len(), scouts.len());
        let seen = |names: &[String]| -> Vec<_> {
            names.iter().map(|name| (name.clone(), rate(name) * second)).collect()
        };
        let names = seen(&names);
        let scouts = seen(&scouts);
        let each = |(name, count): &(String, u64)| (name.clone(), *count);
        let (names, scouts): (Vec<_>, Vec<_>) =
            (names.iter().map(each).collect(), scouts.iter().map(each).collect());
        watched.note(
            SECOND,
            names.iter().map(|(name, count)| (name.as_str(), *count)),
            scouts.iter().map(|(name, count)| (name.as_str(), *count)),
        );
    }

    #[test]
    fn the_busiest_of_10_000_topics_are_found_wherever_their_names_stand() {
        let all: BTreeSet<String> = (0..10_000).map(|at| format!("t{at:05}")).collect();
        let busy = |name: &str| match name.ends_with("77") {
            true => 100,
            false => u64::from(name < "t00010"),
        };
        let mut watched = WatchedTopics::default();
        (0..400).for_each(|second| look(&mut watched, &all, second, busy));
        let found = watched.choose(&all).0.iter().filter(|name| name.ends_with("77")).count();
        assert_eq!(found, 100, "all that are busy");
        assert!(watched.choose(&all).0.contains(&"t00003".to_owned()), "no busy one had to give way");
    }

    #[test]
    fn as_long_as_all_fit_all_are_watched_and_none_is_scouted() {
        let all: BTreeSet<String> = (0..MAX_TOPICS).map(|at| at.to_string()).collect();
        let mut watched = WatchedTopics::default();
        look(&mut watched, &all, 1, |_| 1);
        let (names, scouts) = watched.choose(&all);
        assert_eq!((names.len(), scouts.len()), (MAX_TOPICS, 0));
        let fewer: BTreeSet<String> = ["1".to_owned()].into();
        assert_eq!(watched.choose(&fewer).0, ["1"]);
    }
}
