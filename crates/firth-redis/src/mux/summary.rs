//! What is told to a subscriber who has not read for so long that even its signals fill the memory: one gap around
//! everything, instead of hundreds. Pure; called by the mailbox.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::event::{Event, GapReason, Names, Signal};

/// What is known so far of one name.
struct Story {
    /// When its first gap began, and its last one.
    since: Instant,
    again: Instant,
    ended: Option<Instant>,
}

/// The shortest true account of these events: from here on messages may be missing, so many were dropped here, and from
/// here on nothing is missing, except for the names that are still in a gap. Also how many messages it leaves out.
pub(crate) fn summarise(events: VecDeque<Event>) -> (VecDeque<Event>, u64) {
    let mut stories: HashMap<Bytes, Story> = HashMap::new();
    let (mut cause, mut messages, mut lagged) = (GapReason::NodeLost, 0, 0);
    for event in events {
        match event {
            Event::Message(_) => messages += 1,
            Event::Signal(Signal::Lagged { dropped }) => lagged += dropped,
            Event::Signal(Signal::Gap { reason, since, channels }) => {
                cause = reason;
                for name in channels.iter() {
                    let new = Story { since, again: since, ended: None };
                    let story = stories.entry(name.clone()).or_insert(new);
                    (story.again, story.ended) = (since, None);
                }
            }
            Event::Signal(Signal::Resumed { after, channels }) => {
                for name in channels.iter() {
                    if let Some(story) = stories.get_mut(name) {
                        story.ended = Some(story.again + after);
                    }
                }
            }
            Event::Signal(_) => {}
        }
    }
    (retell(&stories, cause, messages + lagged), messages)
}

fn retell(stories: &HashMap<Bytes, Story>, reason: GapReason, dropped: u64) -> VecDeque<Event> {
    let names = |ended: bool| -> Names {
        let some = stories.iter().filter(|(_, story)| !ended || story.ended.is_some());
        some.map(|(name, _)| name.clone()).collect()
    };
    let mut summary = VecDeque::new();
    let since = stories.values().map(|story| story.since).min();
    if let Some(since) = since {
        summary.push_back(Signal::Gap { reason, since, channels: names(false) });
    }
    if dropped > 0 {
        summary.push_back(Signal::Lagged { dropped });
    }
    let last = stories.values().filter_map(|story| story.ended).max();
    if let (Some(since), Some(last)) = (since, last) {
        let after = last.checked_duration_since(since).unwrap_or(Duration::ZERO);
        summary.push_back(Signal::Resumed { after, channels: names(true) });
    }
    summary.into_iter().map(Event::Signal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mux::event::{Kind, Message};

    fn names(names: &[&'static str]) -> Names {
        names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect()
    }

    #[test]
    fn many_gaps_become_one_and_nobody_is_said_to_be_back_who_is_not() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let gap =
            |since, channels| Event::Signal(Signal::Gap { reason: GapReason::Migrated, since, channels });
        let resumed =
            |ms, channels| Event::Signal(Signal::Resumed { after: Duration::from_millis(ms), channels });
        let message = Message::new(Kind::Channel, Bytes::new(), None, Bytes::new(), start);
        let events = VecDeque::from([
            gap(at(0), names(&["a", "b"])),
            resumed(10, names(&["a"])),
            Event::Message(message),
            Event::Signal(Signal::Lagged { dropped: 5 }),
            gap(at(50), names(&["a"])),
            resumed(20, names(&["a"])),
            gap(at(60), names(&["c"])),
        ]);
        let (summary, dropped) = summarise(events);
        assert_eq!(dropped, 1, "the one that was not dropped before");
        let [Event::Signal(gap), Event::Signal(lagged), Event::Signal(resumed)] =
            &summary.into_iter().collect::<Vec<_>>()[..]
        else {
            panic!("three signals")
        };
        assert!(matches!(gap, Signal::Gap { since, channels, .. } if *since == at(0) && channels.len() == 3));
        assert!(matches!(lagged, Signal::Lagged { dropped: 6 }));
        let Signal::Resumed { after, channels } = resumed else { panic!("{resumed:?}") };
        assert_eq!((*after, channels), (Duration::from_millis(70), &names(&["a"])));
    }
}
