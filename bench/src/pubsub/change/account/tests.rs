//! Accounts of small made-up changes.

use super::*;

const OLD: u16 = 1;
const NEW: u16 = 2;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One affected and one other channel with a message every 10 ms; the slot moves at 50 ms.
fn story(change: Change) -> Story {
    let lane = |new: u16| -> Vec<Sent> {
        (1..=10)
            .map(|number| {
                let at = ms(number * 10);
                Sent { number, at, taken: at + ms(1), by: if number < 5 { OLD } else { new } }
            })
            .collect()
    };
    Story {
        change,
        affected: vec![true, false],
        victim: OLD,
        began: ms(35),
        changed: ms(50),
        ended: ms(105),
        published: vec![lane(NEW), lane(OLD)],
    }
}

/// Hears all of both channels 1 ms after they were sent, but for `missed` on the first.
fn log(missed: &[u64], signals: &[(u64, Heard)]) -> Log {
    let both = (1..=10).flat_map(|number| [(0, number), (1, number)]);
    let mut log: Log = both
        .filter(|(channel, number)| *channel == 1 || !missed.contains(number))
        .map(|(channel, number)| (ms(number * 10 + 1), Heard::Message(channel, number)))
        .chain(signals.iter().map(|(at, heard)| (ms(*at), heard.clone())))
        .collect();
    log.sort_by_key(|(at, _)| *at);
    log
}

#[test]
fn who_hears_everything_has_lost_nothing() {
    let figures = figures(&story(Change::Migrate), &log(&[], &[]));
    assert_eq!((figures.affected, figures.published, figures.lost, figures.never_resumed), (1, 7, 0, 0));
    assert_eq!((figures.silence, figures.live_again), (ms(10), ms(1)));
}

#[test]
fn a_loss_without_a_word_is_silent_and_a_signalled_one_is_not() {
    let quiet = figures(&story(Change::Migrate), &log(&[5, 6], &[]));
    assert_eq!((quiet.lost, quiet.lost_silently, quiet.gaps_signalled), (2, 2, 0));
    assert_eq!((quiet.silence, quiet.live_again), (ms(30), ms(21)));
    let signals = [(45, Heard::Gap(vec![0])), (65, Heard::Resumed(vec![0]))];
    let told = figures(&story(Change::Migrate), &log(&[5, 6], &signals));
    assert_eq!((told.lost, told.lost_silently, told.gaps_signalled), (2, 0, 1));
}

#[test]
fn a_gap_covers_nothing_behind_the_first_message_after_its_end() {
    let signals = [(45, Heard::Gap(vec![0])), (55, Heard::Resumed(vec![0]))];
    let figures = figures(&story(Change::Migrate), &log(&[5, 8], &signals));
    assert_eq!((figures.lost, figures.lost_silently), (2, 1));
}

#[test]
fn two_gaps_without_a_message_between_them_are_one() {
    let signals = [
        (45, Heard::Gap(vec![0])),
        (46, Heard::Resumed(vec![0])),
        (47, Heard::Gap(vec![0])),
        (65, Heard::Resumed(vec![0])),
    ];
    let figures = figures(&story(Change::Migrate), &log(&[5, 6, 8], &signals));
    assert_eq!((figures.lost, figures.lost_silently), (3, 1));
}

#[test]
fn a_channel_that_hears_nothing_of_the_new_owner_never_resumed() {
    let figures = figures(&story(Change::Migrate), &log(&[5, 6, 7, 8, 9, 10], &[]));
    assert_eq!((figures.lost, figures.never_resumed), (6, 1));
    assert_eq!((figures.silence, figures.live_again), (ms(105 - 41), ms(105 - 50)));
}

#[test]
fn a_silence_is_not_the_subjects_while_nothing_is_published() {
    let mut story = story(Change::Migrate);
    for sent in story.published[0].iter_mut().filter(|sent| sent.number > 6) {
        sent.at += ms(500);
        sent.taken += ms(500);
    }
    story.ended += ms(500);
    let late = |(at, heard): (Duration, Heard)| match heard {
        Heard::Message(0, number) if number > 6 => (at + ms(500), heard),
        _ => (at, heard),
    };
    let figures = figures(&story, &log(&[], &[]).into_iter().map(late).collect());
    assert_eq!((figures.publish_gap, figures.lost), (ms(510), 0));
    assert_eq!(figures.silence, PER_CHANNEL);
}

#[test]
fn after_a_crash_only_what_was_published_after_the_promotion_counts() {
    let figures = figures(&story(Change::Failover), &log(&[4, 5], &[]));
    assert_eq!((figures.published, figures.lost, figures.live_again), (6, 1, ms(61 - 50)));
}

#[test]
fn losses_on_other_channels_are_counted_apart() {
    let mut log = log(&[], &[]);
    log.retain(|(_, heard)| *heard != Heard::Message(1, 9));
    let figures = figures(&story(Change::Migrate), &log);
    assert_eq!((figures.lost, figures.others_lost, figures.lost_silently), (0, 1, 1));
}

#[test]
fn latencies_are_those_of_accepted_messages() {
    let all: Vec<_> = latencies(&story(Change::Migrate), &log(&[3], &[])).collect();
    assert_eq!((all.len(), all.iter().max()), (19, Some(&ms(1))));
}
