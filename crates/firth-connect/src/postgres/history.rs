//! Whether a server's history holds what the topic has: its cluster and its timelines.

use super::position::{Lsn, Position};
use super::prepare::Primary;
use crate::error::{Error, ErrorKind, Result};
use crate::state::State;
use bytes::Bytes;

/// Checks that this server's history holds what the topic has. Answers the marks as this server's
/// stream names them.
pub(crate) async fn check(
    primary: &mut Primary,
    state: &State,
    marks: &[Option<Bytes>],
) -> Result<Vec<Option<Position>>> {
    let marks = marks.iter().map(|mark| mark.as_ref().map(|mark| Position::from_bytes(mark)).transpose());
    let marks = marks.collect::<Result<Vec<_>>>()?;
    let known = marks.iter().flatten().map(|mark| mark.system).chain(state.system);
    if known.into_iter().any(|system| system != primary.system) {
        return Err(Error::refused(
            "this is another database cluster than the one that was read before: give the source another name, \
             or let the URL name the former one",
        ));
    }
    let read = marks.iter().flatten().map(|mark| mark.timeline);
    let newest = read.chain(state.allowed.map(|allowed| allowed.timeline)).max();
    if let Some(newest) = newest.filter(|newest| *newest > primary.timeline) {
        return Err(Error::refused(format!(
            "the server is on timeline {}, but timeline {newest} was read before: it is a former primary",
            primary.timeline
        )));
    }
    if state.renew || marks.iter().flatten().all(|mark| mark.timeline == primary.timeline) {
        // All marks lie before a new slot.
        return Ok(marks);
    }
    let history = timelines(primary).await?;
    if state.resync.is_none() {
        check_last(&marks, primary.timeline, &history)?;
    }
    Ok(marks.into_iter().map(|mark| Some(renamed(mark?, primary.timeline, &history))).collect())
}

/// The topic must have nothing that this history lost.
fn check_last(marks: &[Option<Position>], timeline: u32, history: &str) -> Result<()> {
    let Some(last) = marks.iter().flatten().max().filter(|last| last.timeline < timeline) else {
        return Ok(());
    };
    let left = left_at(history, last.timeline)?;
    if last.commit < left {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Lost,
        format!(
            "a failover lost changes that the topic has: timeline {} ended at {left}, the topic has {}",
            last.timeline, last.commit
        ),
    ))
}

/// A mark as this server's stream names it: what its history shares with a former timeline is read
/// again under the new one. A mark beyond that stands before all that is read.
fn renamed(mark: Position, timeline: u32, history: &str) -> Position {
    match switch_point(history, mark.timeline) {
        Some(left) if mark.commit < left => Position { timeline, ..mark },
        _ => mark,
    }
}

/// The file in which the server tells its former timelines.
async fn timelines(primary: &mut Primary) -> Result<String> {
    let rows = primary.stream.query(&format!("TIMELINE_HISTORY {}", primary.timeline)).await?;
    let text = rows.first().and_then(|row| row.get(1).cloned().flatten()).unwrap_or_default();
    // The content comes as bytes in hexadecimal form from some versions.
    Ok(match text.strip_prefix("\\x") {
        Some(digits) => {
            let digit = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
            let bytes = (0..digits.len()).step_by(2).map_while(digit).collect();
            String::from_utf8(bytes).unwrap_or_default()
        }
        None => text,
    })
}

/// The place behind which the slot cannot stand unless it was made anew; none if that is not known.
/// Must be asked before the stream starts.
pub(crate) async fn limit(
    primary: &mut Primary,
    state: &State,
    marks: &[Option<Position>],
) -> Result<Option<Lsn>> {
    let last = marks.iter().flatten().max();
    let known = match state.allowed {
        _ if state.renew => None,
        Some(allowed) => Some((allowed.timeline, Lsn(allowed.lsn))),
        // The build before this stored no limit.
        None if state.has_slot => None,
        // The state is gone, but a new slot stands behind everything that was committed.
        None => last.map(|mark| (mark.timeline, mark.commit)),
    };
    match known {
        Some((timeline, lsn)) if timeline < primary.timeline => {
            let history = timelines(primary).await?;
            Ok(Some(lsn.min(left_at(&history, timeline)?)))
        }
        known => Ok(known.map(|(_, lsn)| lsn)),
    }
}

/// Where a history left the timeline.
fn left_at(history: &str, timeline: u32) -> Result<Lsn> {
    switch_point(history, timeline).ok_or_else(|| {
        let text =
            format!("the server's history does not contain timeline {timeline}, which was read before");
        Error::new(ErrorKind::Lost, text)
    })
}

/// Where a history file says that the timeline ended.
fn switch_point(history: &str, timeline: u32) -> Option<Lsn> {
    history.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.next()?.parse::<u32>() == Ok(timeline);
        is_it.then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: &str = "1\t0/3000060\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01\n";

    fn mark(timeline: u32, commit: u64) -> Position {
        Position { system: 9, timeline, commit: Lsn(commit), index: 4, group: 2 }
    }

    #[test]
    fn a_history_says_where_each_timeline_ended() {
        assert_eq!(switch_point(HISTORY, 1), Some(Lsn(0x0300_0060)));
        assert_eq!(switch_point(HISTORY, 2), Some(Lsn(0x1_0000_00A0)));
        assert_eq!(switch_point(HISTORY, 3), None);
    }

    #[test]
    fn only_the_newest_mark_decides_whether_history_was_lost() {
        let check = |marks: &[Position]| {
            let marks: Vec<_> = marks.iter().copied().map(Some).chain([None]).collect();
            check_last(&marks, 3, HISTORY).map_err(|error| (error.kind(), error.to_string()))
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[mark(1, 0x0300_0000), mark(2, 0x1_0000_0000)]), Ok(()));
        let (kind, text) = check(&[mark(2, 0x1_0000_00A0)]).unwrap_err();
        assert!(kind == ErrorKind::Lost && text.contains("timeline 2 ended at 1/A0"), "{text}");
        // A source that began anew has marks of the history that was lost.
        assert_eq!(check(&[mark(2, 0x1_0000_00A0), mark(3, 7)]), Ok(()));
    }

    #[test]
    fn a_mark_is_renamed_only_if_the_history_shares_it() {
        assert_eq!(renamed(mark(1, 0x0300_0000), 3, HISTORY), mark(3, 0x0300_0000));
        assert_eq!(renamed(mark(1, 0x0300_0060), 3, HISTORY), mark(1, 0x0300_0060));
        assert_eq!(renamed(mark(3, 7), 3, HISTORY), mark(3, 7));
    }
}
