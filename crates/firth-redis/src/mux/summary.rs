//! Summary for a subscriber whose unread signals fill the memory: one gap around everything,
//! instead of hundreds. Pure; called by the mailbox.

use super::event::{Event, GapReason, Names, Signal};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Gaps of one name so far.
struct NameGaps {
    /// When its first gap began, and its last one.
    since: Instant,
    again: Instant,
    ended: Option<Instant>,
}

/// Shortest correct summary of these events, and how many messages it leaves out. It has a gap, the
/// number of dropped messages, and the end of the gap for names that are served again.
pub(crate) fn summarise(events: VecDeque<Event>) -> (VecDeque<Event>, u64) {
    let mut gaps: HashMap<Bytes, NameGaps> = HashMap::new();
    let mut cause = GapReason::NodeLost;
    let mut messages = 0;
    let mut lagged = 0;
    for event in events {
        match event {
            Event::Message(_) => messages += 1,
            Event::Signal(Signal::Lagged { dropped }) => lagged += dropped,
            Event::Signal(Signal::Gap { reason, since, channels }) => {
                cause = reason;
                for name in channels.iter() {
                    let new = NameGaps { since, again: since, ended: None };
                    let gap = gaps.entry(name.clone()).or_insert(new);
                    (gap.again, gap.ended) = (since, None);
                }
            }
            Event::Signal(Signal::Resumed { after, channels }) => {
                for name in channels.iter() {
                    if let Some(gap) = gaps.get_mut(name) {
                        gap.ended = Some(gap.again + after);
                    }
                }
            }
            Event::Signal(_) => {}
        }
    }
    (signals(&gaps, cause, messages + lagged), messages)
}

fn signals(gaps: &HashMap<Bytes, NameGaps>, reason: GapReason, dropped: u64) -> VecDeque<Event> {
    let names = |ended: bool| -> Names {
        let some = gaps.iter().filter(|(_, gap)| !ended || gap.ended.is_some());
        some.map(|(name, _)| name.clone()).collect()
    };
    let mut summary = VecDeque::new();
    let since = gaps.values().map(|gap| gap.since).min();
    if let Some(since) = since {
        summary.push_back(Signal::Gap { reason, since, channels: names(false) });
    }
    if dropped > 0 {
        summary.push_back(Signal::Lagged { dropped });
    }
    let last = gaps.values().filter_map(|gap| gap.ended).max();
    if let (Some(since), Some(last)) = (since, last) {
        let after = last.checked_duration_since(since).unwrap_or(Duration::ZERO);
        summary.push_back(Signal::Resumed { after, channels: names(true) });
    }
    summary.into_iter().map(Event::Signal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mux::event::{Message, SubscriptionKind};

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
        let message = Message::new(SubscriptionKind::Channel, Bytes::new(), None, Bytes::new(), start);
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
