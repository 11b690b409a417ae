//! What operators see and do.

use super::{TTL, event, grants, put_up, service};
use crate::world::{eventually, fails, soon};
use firth::claims::{Event, OfferOwner, WorkerConfig};
use firth::{Broker, ErrorKind};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn offers_owners_and_ages_are_shown_over_all_shards() {
    let (_broker, claims) = service();
    let claims = claims.shards(3);
    put_up(&claims, 30).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let mut worker = claims.worker("w").max_claims(12).ttl(TTL).await.unwrap();
    grants(&mut worker, 12).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = claims.offers(after.as_deref(), 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        all.extend(page);
    }
    assert_eq!(all.iter().map(|offer| offer.name.clone()).collect::<Vec<_>>(), super::names(30));
    for offer in &all {
        assert!((Duration::from_secs(29)..Duration::from_secs(40)).contains(&offer.age), "{offer:?}");
        match &offer.owner {
            OfferOwner::Worker(id) => assert!(id == "w" && offer.since < Duration::from_secs(25)),
            owner => assert_eq!(*owner, OfferOwner::Free { last: None }),
        }
    }
    let status = claims.status().await.unwrap();
    assert_eq!(
        (status.offers, status.owned, status.free, status.orphaned, status.workers),
        (30, 12, 18, 0, 1)
    );
    assert!(status.longest_unowned.is_some_and(|time| time >= Duration::from_secs(29)));
    let workers = claims.workers().await.unwrap();
    assert_eq!(
        (workers.len(), workers[0].id.as_str(), workers[0].claims, workers[0].max_claims),
        (1, "w", 12, 12)
    );
    assert!(workers[0].is_alive && !workers[0].remaining.is_zero());
    fails(claims.offers(None, 0).await, ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_claim_can_be_taken_away_by_force() {
    let (_broker, claims) = service();
    put_up(&claims, 1).await;
    let mut worker = claims.worker("w").ttl(TTL).await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    assert!(claims.force_release("unit-00000").await.unwrap());
    assert!(!claims.force_release("nothing").await.unwrap());
    soon("the loss", claim.lost()).await;
    assert!(matches!(event(&mut worker).await, Event::Lost(_)));
    assert!(grants(&mut worker, 1).await[0].epoch() > claim.epoch(), "it may come to the same worker again");
}

#[tokio::test(start_paused = true)]
async fn health_shows_whether_a_worker_can_be_trusted() {
    let engine = firth::Engine::memory();
    let (broker, faults) = crate::faulty::process(&engine);
    let claims = broker.claims("calls").shards(2);
    put_up(&claims, 4).await;
    let mut worker = claims.worker("w").ttl(TTL).await.unwrap();
    grants(&mut worker, 4).await;
    let health = worker.health();
    assert!(health.is_healthy && health.valid_for <= TTL && health.sessions.iter().all(Option::is_some));
    assert_eq!((health.id.as_str(), health.claims, health.offers), ("w", 4, 4));
    faults.cut();
    eventually("it is not healthy", async || !worker.health().is_healthy).await;
    assert_eq!(worker.health().valid_for, Duration::ZERO);
    faults.heal();
    eventually("it is healthy again", async || worker.health().is_healthy && worker.health().claims == 4)
        .await;
}

#[tokio::test(start_paused = true)]
async fn wrong_settings_are_refused_by_name() {
    let (_broker, claims) = service();
    let cases = [
        (claims.worker("w").ttl(Duration::from_millis(1)).await, "ttl"),
        (claims.worker("w").max_claims(0).await, "max_claims"),
        (claims.worker("w").buffer(0).await, "buffer"),
        (claims.worker("").await, "member name"),
        (claims.worker("a b").await, "member name"),
        (
            claims
                .worker("w")
                .config(WorkerConfig { handover: Duration::MAX, ..WorkerConfig::default() })
                .await,
            "handover",
        ),
    ];
    for (result, word) in cases {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(word), "{error}");
    }
    fails(claims.offer("a/b", "").await, ErrorKind::Invalid);
    fails(claims.offer("large", vec![0; 65 * 1024]).await, ErrorKind::Invalid);
    fails(Broker::memory().claims("a b").offer("x", "").await, ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn after_close_no_task_of_ours_runs_and_debug_shows_no_payload() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let (broker, claims) = service();
    claims.offer("unit", "secret payload").await.unwrap();
    let mut worker = claims.worker("w").await.unwrap();
    let claim = grants(&mut worker, 1).await.remove(0);
    assert!(!format!("{claim:?} {worker:?} {:?}", worker.handle()).contains("secret"));
    drop(claim);
    worker.close().await.unwrap();
    broker.close().await.unwrap();
    eventually("all tasks end", async || tasks() == before).await;
}

#[test]
fn metrics_have_bounded_labels() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (_broker, claims) = service();
            put_up(&claims, 3).await;
            let mut worker = claims.worker("pod-with-a-name").ttl(TTL).await.unwrap();
            let held = grants(&mut worker, 3).await;
            held[0].done().await.unwrap();
            held[1].checkpoint("x").await.unwrap();
            held[1].release().await.unwrap();
            drop(held);
            worker.close().await.unwrap();
        });
    });
    let mut names = BTreeSet::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels = key.key().labels().cloned().collect::<Vec<_>>();
        let key = key.key().name().to_owned();
        for label in &labels {
            assert!(["service", "kind", "result"].contains(&label.key()), "{key} has label {label:?}");
            assert!(!label.value().contains("unit") && !label.value().contains("pod"), "{key}: {label:?}");
        }
        if key == "firth_claims_granted_total" && labels.iter().any(|label| label.value() == "new") {
            assert_eq!(value, DebugValue::Counter(3));
        }
        names.insert(key);
    }
    for name in [
        "firth_claims_ended_total",
        "firth_claims_beats_total",
        "firth_claims_held",
        "firth_claims_grant_seconds",
        "firth_claims_processing_seconds",
    ] {
        assert!(names.contains(name), "{name} is missing in {names:?}");
    }
}
