//! Histories with planted mistakes: each law catches its own, and a faultless history, with every
//! failure that is allowed, passes.

use super::{Entry, Fault, Promise, Violation, What, check};
use crate::protocol::{Command, Event, Input, sha_of};

/// Builds a timeline line by line.
#[derive(Default)]
struct Plot(Vec<Entry>);

impl Plot {
    fn add(mut self, source: &str, group: Option<&str>, what: What) -> Self {
        self.0.push(Entry { source: source.to_owned(), group: group.map(str::to_owned), what });
        self
    }

    fn told(self, source: &str, event: Event) -> Self {
        self.add(source, Some("g"), What::Told(event))
    }

    fn input(self, id: &str) -> Self {
        let input =
            Input { id: id.into(), key: Some("k".into()), body: id.into(), sha: sha_of(id.as_bytes()) };
        self.add("p", None, What::Input(input))
    }

    fn sent(self, ids: &[&str]) -> Self {
        ids.iter().fold(self, |plot, id| {
            plot.input(id).add("p", None, What::Told(Event::SentOk { id: (*id).into() }))
        })
    }

    fn delivered(self, source: &str, id: &str, (epoch, token): (u64, u64)) -> Self {
        let sha = sha_of(id.as_bytes());
        self.arrived(source, id, (epoch, token), sha)
    }

    fn arrived(self, source: &str, id: &str, (epoch, token): (u64, u64), sha: String) -> Self {
        let id = id.to_owned();
        let key = Some("k".to_owned());
        self.told(source, Event::Delivered { id, key, partition: 0, epoch, sha, attempt: 1, token })
    }

    fn ask(self, source: &str, id: &str, token: u64) -> Self {
        self.add(source, Some("g"), What::Asked(Command::Ack { id: id.into(), epoch: None, token }))
    }

    fn ok(self, source: &str, id: &str) -> Self {
        self.told(source, Event::AckOk { id: id.into() })
    }

    fn refused(self, source: &str, id: &str) -> Self {
        self.told(source, Event::AckErr { id: id.into(), definite: true, reason: "fenced".into() })
    }

    /// Delivered and settled.
    fn handled(self, source: &str, id: &str, at: (u64, u64)) -> Self {
        self.delivered(source, id, at).ask(source, id, at.1).ok(source, id)
    }

    fn killed(self, source: &str) -> Self {
        self.add(source, None, What::Fault(Fault::Process))
    }

    fn end(self, lag: u64, dead: &[&str]) -> Vec<Violation> {
        self.end_of(Promise::default(), lag, dead)
    }

    fn end_of(self, promise: Promise, lag: u64, dead: &[&str]) -> Vec<Violation> {
        let dead = dead.iter().map(|id| (*id).to_owned()).collect();
        check(&self.told("f", Event::Final { pending: lag, due: 0, lag, dead }).0, promise)
    }
}

fn plot() -> Plot {
    Plot::default()
}

fn g() -> String {
    "g".into()
}

#[test]
fn a_run_with_allowed_failures_keeps_every_promise() {
    let found = plot()
        .sent(&["a", "b", "c", "d"])
        .handled("m1", "a", (1, 1))
        .delivered("m1", "b", (1, 2))
        .killed("m1")
        .handled("m2", "b", (2, 1)) // taken over
        .delivered("m2", "c", (2, 2))
        .add("m2", Some("g"), What::Asked(Command::Nack { id: "c".into(), token: 2, after_ms: None }))
        .ok("m2", "c")
        .handled("m2", "c", (2, 3)) // tried again
        .delivered("m2", "d", (2, 4))
        .end(0, &["d"]);
    assert_eq!(found, []);
}

#[test]
fn a_lost_message_is_found() {
    let found = plot().sent(&["a", "b"]).handled("m", "a", (1, 1)).end(0, &[]);
    assert_eq!(found, [Violation::Lost { id: "b".into(), group: g() }]);
}

#[test]
fn a_message_that_vanished_after_a_refused_verdict_is_found() {
    let found =
        plot().sent(&["a"]).delivered("m", "a", (1, 1)).ask("m", "a", 1).refused("m", "a").end(0, &[]);
    assert_eq!(found, [Violation::Unsettled { id: "a".into(), group: g() }]);
}

#[test]
fn a_run_that_did_not_end_proves_nothing() {
    let found = plot().sent(&["a"]).handled("m", "a", (1, 1)).end(1, &[]);
    assert_eq!(found, [Violation::Unfinished { group: g(), lag: Some(1) }]);
    let without = plot().sent(&["a"]).handled("m", "a", (1, 1));
    assert_eq!(check(&without.0, Promise::default()), [Violation::Unfinished { group: g(), lag: None }]);
}

#[test]
fn a_message_that_was_certainly_not_stored_must_not_arrive() {
    let refusal = What::Told(Event::SentErr { id: "a".into(), definite: true });
    let found = plot().input("a").add("p", None, refusal).handled("m", "a", (1, 1)).end(0, &[]);
    assert_eq!(found, [Violation::Ghost { id: "a".into(), group: g() }]);
    let doubt = What::Told(Event::SentErr { id: "a".into(), definite: false });
    let found = plot().input("a").add("p", None, doubt).handled("m", "a", (1, 1)).end(0, &[]);
    assert_eq!(found, []);
}

#[test]
fn a_wrong_digest_is_found() {
    let found =
        plot().sent(&["a"]).arrived("m", "a", (1, 1), sha_of(b"b")).ask("m", "a", 1).ok("m", "a").end(0, &[]);
    assert_eq!(found, [Violation::Altered { id: "a".into(), group: g() }]);
}

#[test]
fn a_key_out_of_order_is_found_across_owners_and_within_one() {
    let order = Violation::Order { key: "k".into(), first: "a".into(), second: "b".into(), group: g() };
    let across = plot()
        .sent(&["a", "b"])
        .handled("m1", "b", (1, 1))
        .killed("m1")
        .handled("m2", "a", (2, 1))
        .end(0, &[]);
    assert_eq!(across, std::slice::from_ref(&order));
    // The first one's verdict is not even asked for when the second one comes.
    let both = plot().sent(&["a", "b"]).delivered("m", "a", (1, 1)).delivered("m", "b", (1, 2));
    let both = both.ask("m", "a", 1).ok("m", "a").ask("m", "b", 2).ok("m", "b").end(0, &[]);
    assert_eq!(both, std::slice::from_ref(&order));
    let back =
        plot().sent(&["a", "b"]).delivered("m", "a", (1, 1)).ask("m", "a", 1).delivered("m", "b", (1, 2));
    let back = back
        .add("s", None, What::Fault(Fault::Server))
        .handled("m", "a", (1, 3))
        .ask("m", "b", 2)
        .ok("m", "b");
    assert_eq!(back.end(0, &[]), [order]);
}

#[test]
fn what_a_failed_server_lost_before_it_was_acknowledged_may_come_again_in_order() {
    let ok = |id: &str| What::Told(Event::SentOk { id: id.into() });
    let run = |broken: bool, acknowledged: bool| {
        let mut plot = plot().input("a").input("b");
        if acknowledged {
            plot = plot.add("p", None, ok("a")).add("p", None, ok("b"));
        }
        plot = plot.delivered("m", "a", (1, 1)).ask("m", "a", 1).delivered("m", "b", (1, 2)).ask("m", "b", 2);
        if broken {
            plot = plot.add("s", None, What::Fault(Fault::Server));
        }
        plot = plot.add("p", None, ok("a")).add("p", None, ok("b"));
        plot = plot.delivered("m", "a", (1, 3)).ask("m", "a", 3).delivered("m", "b", (1, 4)).ask("m", "b", 4);
        plot.end(0, &[])
    };
    assert_eq!(run(true, false), []);
    let order = Violation::Order { key: "k".into(), first: "a".into(), second: "b".into(), group: g() };
    assert_eq!(run(true, true), std::slice::from_ref(&order), "what is acknowledged is never lost");
    assert!(run(false, false).contains(&order), "a whole server loses nothing");
}

#[test]
fn a_duplicate_is_found_unless_a_failure_allows_it() {
    let settled =
        plot().sent(&["a"]).handled("m1", "a", (1, 1)).killed("m1").handled("m2", "a", (2, 1)).end(0, &[]);
    assert_eq!(settled, [Violation::Duplicate { id: "a".into(), group: g(), settled: true }]);
    let twice = plot().sent(&["a"]).delivered("m1", "a", (1, 1)).handled("m2", "a", (2, 1)).end(0, &[]);
    assert_eq!(twice, [Violation::Duplicate { id: "a".into(), group: g(), settled: false }]);
    let handed_over = plot().sent(&["a"]).delivered("m1", "a", (1, 1));
    let handed_over =
        handed_over.told("m1", Event::Revoked { partition: 0, epoch: 1 }).handled("m2", "a", (2, 1));
    assert_eq!(handed_over.end(0, &[]), []);
}

#[test]
fn a_settlement_by_a_fenced_owner_is_found() {
    let stale = plot().sent(&["a", "b"]).delivered("m1", "a", (1, 1)).killed("m1");
    let stale = stale.told("m2", Event::Assigned { partition: 0, epoch: 2 }).ask("m1", "a", 1).ok("m1", "a");
    let found = stale.handled("m2", "b", (2, 1)).end(0, &[]);
    assert_eq!(found, [Violation::Fenced { id: "a".into(), group: g(), epoch: 1, newer: 2 }]);
}

#[test]
fn an_owner_that_slept_may_have_gone_on_after_a_verdict_that_is_refused_later() {
    let slept = |plot: Plot| {
        let begun = plot.sent(&["a", "b"]).delivered("m1", "a", (1, 1)).ask("m1", "a", 1);
        let begun = begun.delivered("m1", "b", (1, 2)).refused("m1", "a");
        begun.handled("m2", "a", (2, 1)).handled("m2", "b", (2, 2)).end(0, &[])
    };
    assert_eq!(slept(plot().killed("m1")), []);
    assert!(!slept(plot()).is_empty(), "without a failure nothing is refused");
    let other = plot().killed("m1").sent(&["a", "b"]).delivered("m1", "a", (1, 1)).ask("m1", "a", 1);
    let other = other.handled("m2", "b", (2, 1)).refused("m1", "a").handled("m2", "a", (2, 2));
    assert!(!other.end(0, &[]).is_empty(), "somebody else knew nothing of the verdict");
}

#[test]
fn an_epoch_with_two_owners_is_found() {
    let found = plot()
        .told("m1", Event::Assigned { partition: 0, epoch: 1 })
        .told("m2", Event::Assigned { partition: 0, epoch: 1 })
        .end(0, &[]);
    assert_eq!(found, [Violation::TwoOwners { partition: 0, group: g(), epoch: 1 }]);
}

#[test]
fn clients_of_one_owner_share_its_epoch_and_one_that_slept_may_tell_late() {
    let shared = Promise { exclusive: false, ..Promise::default() };
    let late = |plot: Plot| plot.delivered("m2", "a", (1, 1)).ask("m2", "a", 1);
    let begun = || plot().sent(&["a"]).handled("m1", "a", (1, 1));
    let slept = late(begun().killed("m2")).refused("m2", "a").end_of(shared, 0, &[]);
    assert_eq!(slept, []);
    let duplicate = Violation::Duplicate { id: "a".into(), group: g(), settled: true };
    let awake = late(begun()).refused("m2", "a").end_of(shared, 0, &[]);
    assert_eq!(awake, std::slice::from_ref(&duplicate));
    let settled = late(begun().killed("m2")).ok("m2", "a").end_of(shared, 0, &[]);
    assert_eq!(settled, [duplicate]);
}

#[test]
fn a_timeline_reads_as_it_was_written() {
    let timeline = plot().sent(&["a"]).handled("m", "a", (1, 1)).killed("m").0;
    for entry in timeline {
        let line = serde_json::to_string(&entry).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry, "{line}");
    }
}
