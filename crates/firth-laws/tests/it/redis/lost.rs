//! Lost replies: the connection breaks between any two round trips, before or after the server did
//! its part.

use super::{block_on, until_ok};
use firth_engine::facet::{Append, ProducerSeq, ReadLimit, StartPosition, TakeDue};
use firth_engine::{Engine, ErrorKind, Hold, Offer, Partition, Verdict, Window};
use firth_laws::world::{self, LONG, acquire, group, numbered, partition, producer, read_all, status};
use firth_testkit::{Flavor, Proxy, RedisServer, on_both};
use std::collections::BTreeSet;
use std::time::Duration;

on_both!(an_idempotent_append_happens_once_whatever_is_lost, commits_survive_lost_replies_by_opening_again);

async fn behind_proxy(flavor: Flavor) -> (RedisServer, Proxy, Engine) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let engine = Engine::at(&proxy.url()).await.unwrap();
    (server, proxy, engine)
}

/// Sometimes lets only a few bytes of the next reply through.
fn maybe_cut(proxy: &Proxy) {
    if fastrand::bool() {
        proxy.truncate_after(fastrand::u64(0..24));
    }
}

async fn an_idempotent_append_happens_once_whatever_is_lost(flavor: Flavor) {
    let (_server, proxy, engine) = behind_proxy(flavor).await;
    let at = partition(&engine).await;
    let name = producer();
    let mut unknown = 0;
    for n in 0..25 {
        let batch = || Append {
            producer: Some(ProducerSeq { name: name.clone(), first: n * 3, keep: Duration::ZERO }),
            ..Append::new((n * 3..n * 3 + 3).map(numbered).collect::<Vec<_>>())
        };
        maybe_cut(&proxy);
        match engine.append(&at, batch()).await {
            Ok(_) => {}
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                unknown += u32::from(error.may_have_happened());
            }
        }
        proxy.heal().await;
        until_ok("the batch is sent again", || engine.append(&at, batch())).await;
    }
    assert!(unknown > 0, "some replies were lost");
    assert_eq!(world::numbers(&read_all(&engine, &at).await), (0..75).collect::<Vec<_>>());
    engine.close().await.unwrap();
}

/// An owner that opens again after every error, as the contract asks.
struct Careful<'a> {
    engine: &'a Engine,
    at: &'a Partition,
    hold: Hold,
    delivered: u64,
    settled: BTreeSet<u64>,
}

impl Careful<'_> {
    /// Opens, reads, settles and commits until something fails; true when nothing is left.
    async fn work(&mut self, proxy: &Proxy) -> firth_engine::Result<bool> {
        let name = group("g");
        let progress = self.engine.open(self.at, &name, StartPosition::Start, &self.hold).await?;
        let mut window = Window::new(&progress, 100);
        loop {
            maybe_cut(proxy);
            let due = self.engine.due(self.at, &name, &self.hold, TakeDue::up_to(5)).await?;
            let next = due.next;
            let due: Vec<_> = due.records.into_iter().filter_map(|record| record.with(|| None)).collect();
            due.iter().for_each(|record| assert!(window.offer_due(record)));
            let page = self.engine.read(self.at, window.position(), ReadLimit::records(7)).await?;
            if page.is_empty() && due.is_empty() && next.is_none() {
                return Ok(true);
            }
            let fresh = page.into_iter().filter(|record| window.offer(record) == Offer::Deliver);
            let mut done = Vec::new();
            for record in fresh.collect::<Vec<_>>().into_iter().chain(due) {
                let number = world::number(&record);
                assert!(
                    !self.settled.contains(&number),
                    "{number} comes again after its acknowledged commit"
                );
                self.delivered += 1;
                let verdict = match (number % 5, record.attempt) {
                    (0, 1) => world::retry(std::time::Duration::ZERO),
                    _ => Verdict::Ack,
                };
                if verdict == Verdict::Ack {
                    done.push(number);
                }
                window.settle(&record, verdict)?;
            }
            maybe_cut(proxy);
            if let Some(commit) = window.take_commit() {
                self.engine.commit(self.at, &name, &self.hold, commit).await?;
            }
            self.settled.extend(done);
        }
    }
}

async fn commits_survive_lost_replies_by_opening_again(flavor: Flavor) {
    let (_server, proxy, engine) = behind_proxy(flavor).await;
    let at = partition(&engine).await;
    for from in (0..60).step_by(4) {
        world::append(&engine, &at, from, from + 4).await;
    }
    let hold = acquire(&engine, &at, &group("g"), LONG).await;
    let mut owner = Careful { engine: &engine, at: &at, hold, delivered: 0, settled: BTreeSet::new() };
    let mut failures = 0;
    loop {
        match owner.work(&proxy).await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::Fenced, "{error:?}");
                assert!(error.is_retryable(), "{error:?}");
                failures += 1;
                assert!(failures < 500, "it gets nowhere");
                proxy.heal().await;
                until_ok("the engine reconnects", || engine.bounds(&at)).await;
            }
        }
    }
    proxy.heal().await;
    until_ok("the engine reconnects", || engine.bounds(&at)).await;
    let end = status(&engine, &at, &group("g")).await;
    assert_eq!((end.lag(), end.dead), (0, 0));
    assert!(failures > 0 && owner.delivered >= 60 + 12);
    engine.close().await.unwrap();
}

#[test]
fn a_step_that_was_never_sent_is_a_definite_error() {
    block_on(async {
        let (_server, proxy, engine) = behind_proxy(Flavor::Redis).await;
        let at = partition(&engine).await;
        proxy.refuse().await;
        proxy.cut().await;
        world::eventually("the loss is noticed", || async {
            let error = super::refused(super::append_one(&engine, &at, 0)).await;
            !error.may_have_happened()
        })
        .await;
        proxy.heal().await;
        until_ok("the engine reconnects", || super::append_one(&engine, &at, 0)).await;
        engine.close().await.unwrap();
    });
}
