//! Handlers of claims that fail: units rest longer each time, and are given up with a reason.

use super::service;
use crate::world::{eventually, soon};
use firth::claims::GivenUp;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn q09_a_unit_that_fails_rests_longer_each_time() {
    let (_broker, claims) = service();
    claims.offer("unit", "").await.unwrap();
    let worker = claims.worker("one").await.unwrap();
    let handle = worker.handle();
    let tries = Arc::new(Mutex::new(Vec::new()));
    let noted = tries.clone();
    let run = tokio::spawn(worker.run(move |_| {
        noted.lock().unwrap().push(Instant::now());
        async { Err::<(), _>("no") }
    }));
    tokio::time::sleep(Duration::from_secs(100)).await;
    handle.close();
    soon("it ends", run).await.unwrap().unwrap();
    let tries = tries.lock().unwrap().clone();
    assert!((8..=16).contains(&tries.len()), "{} tries in 100 s", tries.len());
    let rests: Vec<Duration> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests[0] < Duration::from_secs(1) && rests[6] > 8 * rests[0], "{rests:?}");
}

#[tokio::test(start_paused = true)]
async fn lbs37_a_unit_is_given_up_after_so_many_failures_and_the_reason_is_told() {
    let (_broker, claims) = service();
    claims.offer("bad", "payload").await.unwrap();
    claims.offer("good", "").await.unwrap();
    let worker = claims.worker("one").await.unwrap();
    let handle = worker.handle();
    let told = Arc::new(Mutex::new(Vec::new()));
    let given_up = {
        let told = told.clone();
        move |unit: GivenUp| {
            let payload = unit.claim.payload().clone();
            told.lock().unwrap().push((unit.claim.name().to_owned(), payload, unit.attempts, unit.reason));
            // The first time the reason cannot be stored: the unit must not be lost for that.
            let first = told.lock().unwrap().len() == 1;
            async move { if first { Err("the store is away") } else { Ok(()) } }
        }
    };
    let worker = worker.give_up_after(3, given_up);
    let run = tokio::spawn(
        worker.run(|claim| async move { if claim.name() == "bad" { Err("it is broken") } else { Ok(()) } }),
    );
    eventually("both have left the service", async || claims.offers(None, 9).await.unwrap().is_empty()).await;
    handle.close();
    soon("it ends", run).await.unwrap().unwrap();
    let told = told.lock().unwrap().clone();
    let expected = |attempts| ("bad".to_owned(), "payload".into(), attempts, "it is broken".to_owned());
    assert_eq!(told, [expected(3), expected(4)]);
}

#[tokio::test(start_paused = true)]
async fn lbs37_a_handler_that_takes_too_long_has_failed() {
    let (_broker, claims) = service();
    claims.offer("slow", "").await.unwrap();
    let worker = claims.worker("one").await.unwrap().handler_timeout(Duration::from_secs(30));
    let handle = worker.handle();
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let noted = reasons.clone();
    let worker = worker.give_up_after(2, move |unit: GivenUp| {
        noted.lock().unwrap().push(unit.reason);
        async { Ok::<(), String>(()) }
    });
    let begun = Instant::now();
    let run = tokio::spawn(worker.run(|_| std::future::pending::<Result<(), String>>()));
    eventually("it was given up", async || claims.offers(None, 9).await.unwrap().is_empty()).await;
    assert!((60..70).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    handle.close();
    soon("it ends", run).await.unwrap().unwrap();
    assert_eq!(*reasons.lock().unwrap(), ["the handler took longer than 30s"]);
}
