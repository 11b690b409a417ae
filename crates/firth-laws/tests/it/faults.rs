//! The faulty wrapper does what it says, and an owner that follows the rules survives it.

use firth_engine::facet::{Acquire, Append, ProducerSeq, ReadLimit, StartPosition};
use firth_engine::{Engine, Error, ErrorKind, Hold, LeaseName, Offer, Partition, Verdict, Window};
use firth_laws::faulty::{Faults, Faulty};
use firth_laws::world::{self, LONG, group, number, numbered, partition, read_all, status};
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_refusal_is_definite_and_a_lost_answer_is_not() {
    let plain = Engine::memory();
    let at = partition(&plain).await;
    let (engine, faulty) = Faulty::wrap(plain.clone(), Faults { refuse: 1.0, ..Faults::default() });
    let append = || engine.append(&at, Append::new([numbered(0)]));
    let refused = append().await.unwrap_err();
    assert_eq!((refused.kind(), refused.may_have_happened()), (ErrorKind::Unavailable, false));
    assert!(read_all(&plain, &at).await.is_empty());
    faulty.set(Faults { lose_answer: 1.0, delay: Duration::from_secs(1), ..Faults::default() });
    let lost = append().await.unwrap_err();
    assert!(lost.may_have_happened());
    assert_eq!(read_all(&plain, &at).await.len(), 1);
    faulty.heal();
    append().await.unwrap();
}

/// Repeats a call until it is answered.
async fn insist<T, F: Future<Output = Result<T, Error>>>(mut call: impl FnMut() -> F) -> T {
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Produces through faults: every batch is repeated until it is answered.
async fn produce(engine: &Engine, at: &Partition, batches: u64) {
    let name = world::producer();
    for batch in 0..batches {
        let first = batch * 3;
        let records: Vec<_> = (first..first + 3).map(numbered).collect();
        let producer = Some(ProducerSeq { name: name.clone(), first, keep: Duration::ZERO });
        insist(|| engine.append(at, Append { producer: producer.clone(), ..Append::new(records.clone()) }))
            .await;
    }
}

/// Consumes through faults: after any error the progress is opened again. Answers what was
/// acknowledged.
async fn consume(engine: &Engine, at: &Partition, hold: &Hold, total: u64) -> BTreeSet<u64> {
    let name = group("g");
    let mut done = BTreeSet::new();
    'open: loop {
        let progress = insist(|| engine.open(at, &name, StartPosition::Start, hold)).await;
        if progress.frontier.seq == total {
            return done;
        }
        let mut window = Window::new(&progress, 10);
        loop {
            let Ok(records) = engine.read(at, window.position(), ReadLimit::records(5)).await else {
                continue 'open;
            };
            for record in
                records.iter().filter(|record| window.offer(record) == Offer::Deliver).collect::<Vec<_>>()
            {
                done.insert(number(record));
                window.settle(record, Verdict::Ack).unwrap();
            }
            let Some(commit) = window.take_commit() else { continue 'open };
            if engine.commit(at, &name, hold, commit).await.is_err() {
                continue 'open;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_opens_again_after_every_error_loses_nothing() {
    for seed in 0..20 {
        let plain = Engine::memory();
        let at = partition(&plain).await;
        let faults = Faults { seed, refuse: 0.2, lose_answer: 0.2, delay: Duration::from_millis(3) };
        let (engine, faulty) = Faulty::wrap(plain.clone(), faults);
        produce(&engine, &at, 20).await;
        let log = read_all(&plain, &at).await;
        assert_eq!(
            log.iter().map(number).collect::<Vec<_>>(),
            (0..60).collect::<Vec<_>>(),
            "seed {seed}: exactly once"
        );
        let request = Acquire::new(LeaseName::group(&at, &group("g")), world::holder(), LONG);
        let hold = plain.acquire(request).await.unwrap().granted().unwrap();
        assert_eq!(consume(&engine, &at, &hold, 60).await, (0..60).collect::<BTreeSet<_>>(), "seed {seed}");
        faulty.heal();
        assert_eq!(status(&engine, &at, &group("g")).await.lag(), 0);
    }
}
