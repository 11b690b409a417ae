//! What the store of samples promises: rates, bounds, and who gets a series.

use super::*;

fn look(topics: &[(&str, u64)], groups: &[(&str, &str, u64, u64)]) -> StatsFigures {
    let topics = topics.iter().map(|(topic, appended)| TopicFigures {
        topic: (*topic).to_owned(),
        appended: *appended,
        records: *appended,
        ..TopicFigures::default()
    });
    let groups = groups.iter().map(|(topic, group, lag, dead)| GroupFigures {
        topic: (*topic).to_owned(),
        group: (*group).to_owned(),
        lag: *lag,
        dead: *dead,
        ..GroupFigures::default()
    });
    let topics: Vec<_> = topics.collect();
    let groups = groups.collect();
    StatsFigures { all_topics: topics.len(), topics, groups, memory: 7, disk: Some((11, 13)) }
}

#[test]
fn rates_are_differences_of_totals_over_the_time_that_passed() {
    const START: u64 = 1_800_000_000_000;
    let mut store = StatsStore::new();
    store.note(START, look(&[("orders", 100)], &[("orders", "bar", 40, 1)]));
    store.note(START + 2000, look(&[("orders", 300)], &[("orders", "bar", 100, 2)]));
    store.note(START + 2100, look(&[("orders", 999)], &[]));
    let total = store.total(Window::Fine, START + 1000);
    assert_eq!(total.from_ms, START + 2000);
    let [row] = total.rows[..] else { panic!("{:?}", total.rows) };
    assert_eq!(row[..7], [100.0, 70.0, 100.0, 2.0, 7.0, 11.0, 13.0]);
    assert!(row[7].is_nan(), "no client has settled anything");
    let groups = store.groups((Window::Fine, 0), |_| true);
    assert_eq!((groups.len(), groups[0].rate, groups[0].figures.lag), (1, 70.0, 100));
    assert!(groups[0].samples.as_ref().is_some_and(|samples| samples.rows.len() == 900));
}

#[test]
fn what_groups_gave_up_in_the_last_day_is_counted_whatever_is_replayed() {
    const HOUR: u64 = 3_600_000;
    let mut store = StatsStore::new();
    store.note(HOUR, look(&[("orders", 9)], &[("orders", "bar", 0, 100)]));
    assert_eq!(store.died(), 0, "it is not known when they died");
    store.note(HOUR + 1000, look(&[("orders", 9)], &[("orders", "bar", 0, 103)]));
    store.note(HOUR + 2000, look(&[("orders", 9)], &[("orders", "bar", 0, 1)]));
    store.note(HOUR + 3000, look(&[("orders", 9)], &[("orders", "bar", 0, 2), ("orders", "new", 0, 5)]));
    assert_eq!(store.died(), 9);
    let partial = StatsFigures { all_topics: 1000, ..look(&[("orders", 9)], &[]) };
    store.note(HOUR + 4000, partial);
    store.note(HOUR + 5000, look(&[("orders", 9)], &[("orders", "old", 0, 50)]));
    assert_eq!(store.died(), 9, "a group that was not watched before");
    store.note(26 * HOUR, look(&[("orders", 9)], &[("orders", "old", 0, 50)]));
    assert_eq!(store.died(), 0);
}

#[test]
fn deliveries_take_the_mean_of_what_was_settled_since_the_last_look() {
    let mut store = StatsStore::new();
    let look = |bar: (u64, u64), till: (u64, u64)| {
        let mut seen = look(&[("orders", 9)], &[("orders", "bar", 0, 0), ("orders", "till", 0, 0)]);
        for (group, (count, ms)) in seen.groups.iter_mut().zip([bar, till]) {
            group.handled = (count, Duration::from_millis(ms));
        }
        seen
    };
    store.note(1000, look((10, 500), (0, 0)));
    store.note(2000, look((14, 900), (1, 600)));
    store.note(3000, look((14, 900), (1, 600)));
    let total = store.total(Window::Fine, 1000).rows;
    assert_eq!(total[0][7], 200.0);
    assert!(total[1][7].is_nan());
    let groups = store.groups((Window::Fine, 1000), |figures| figures.group == "bar");
    let bar = groups.iter().find_map(|group| group.samples.as_ref()).unwrap();
    assert_eq!(bar.rows[0][3], 100.0);
    // The server has left the group and joined it again: its counts began anew.
    store.note(4000, look((1, 30), (1, 600)));
    assert!(store.total(Window::Fine, 3000).rows[0][7].is_nan());
}

#[test]
fn a_topic_that_is_gone_is_forgotten_and_one_made_anew_has_no_rate() {
    let mut store = StatsStore::new();
    store.note(1000, look(&[("a", 50), ("b", 5)], &[("a", "g", 0, 0)]));
    store.note(2000, look(&[("b", 2)], &[]));
    assert_eq!(store.total(Window::Fine, 1000).rows[0][0], 0.0);
    assert_eq!(store.topics((Window::Fine, 0), |_| false).len(), 1);
    assert!(store.groups((Window::Fine, 0), |_| false).is_empty());
}

#[test]
fn the_samples_of_1000_groups_take_at_most_8_mib() {
    let mut store = StatsStore::new();
    let name = |at: usize| format!("{at:0>128}");
    for second in 0..20_u64 {
        let groups = (0..2 * MAX_GROUPS).map(|at| GroupFigures {
            topic: name(at % 300),
            group: name(at),
            lag: at as u64 * (20 - second),
            owners: vec![name(at); 3],
            ..GroupFigures::default()
        });
        let topics = (0..300).map(|at| TopicFigures {
            topic: name(at),
            appended: second * at as u64,
            ..TopicFigures::default()
        });
        let seen = StatsFigures {
            groups: groups.collect(),
            topics: topics.collect(),
            all_topics: 300,
            ..StatsFigures::default()
        };
        store.note(second * 1000 + 500, seen);
    }
    assert_eq!(store.groups((Window::Fine, 0), |_| false).len(), MAX_GROUPS);
    let tracked = store.groups((Window::Fine, 0), |_| true);
    let tracked = tracked.iter().filter(|group| group.samples.is_some()).count();
    assert_eq!(tracked, TRACKED);
    assert!(store.bytes() <= MAX_BYTES, "{} bytes", store.bytes());
    assert!(store.bytes() > MAX_BYTES / 4, "the count counts the rings: {} bytes", store.bytes());
}

#[test]
fn a_busy_newcomer_takes_the_series_of_the_least_busy() {
    let mut store = StatsStore::new();
    let names: Vec<_> = (0..=TRACKED).map(|at| format!("t{at}")).collect();
    let quiet = |extra: u64, second: u64| {
        let all = names.iter().enumerate().map(|(at, name)| {
            let grown = if at == TRACKED { extra } else { second * (at as u64 + 1) };
            (name.as_str(), grown)
        });
        all.collect::<Vec<_>>()
    };
    for second in 0..10 {
        store.note(second * 1000, look(&quiet(0, second)[..TRACKED], &[]));
    }
    for second in 10..20 {
        store.note(second * 1000, look(&quiet(second * 100_000, second), &[]));
    }
    let all = store.topics((Window::Fine, 0), |_| true);
    assert_eq!(all[0].figures.topic, names[TRACKED]);
    assert!(all[0].samples.is_some(), "the busiest has a series");
    let without: Vec<_> = all.iter().filter(|topic| topic.samples.is_none()).collect();
    assert_eq!(without.len(), 1);
    assert_eq!(without[0].figures.topic, "t0");
}
