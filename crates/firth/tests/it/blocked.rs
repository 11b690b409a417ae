//! Handlers that block their runtime's only thread for 15 s (MQ-30): leases and claims are kept all
//! the same.

use crate::world::{Diary, Reader, eventually, soon};
use firth::claims::Event;
use firth::{Broker, Message};
use firth_testkit::{Flavor, RedisServer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Long enough for a busy machine to renew in time.
const LEASE: Duration = Duration::from_secs(3);
/// Five leases: the owner is renewed again and again while its runtime stands still.
const BLOCK: Duration = Duration::from_secs(15);

fn on_one_thread<F: Future>(test: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// When the owner has its work, and when it is done.
#[derive(Clone, Default)]
struct Signs {
    owns: Arc<AtomicBool>,
    is_done: Arc<AtomicBool>,
}

/// Runs an owner on a runtime that it blocks, and a rival on a thread of its own; answers how much
/// the rival got.
fn beside<R>(owner: impl AsyncFnOnce(Signs), rival: impl FnOnce(Signs) -> R + Send + 'static) -> usize
where
    R: Future<Output = usize>,
{
    let signs = Signs::default();
    let (sender, result) = mpsc::channel();
    let watched = signs.clone();
    let thread = std::thread::spawn(move || sender.send(on_one_thread(rival(watched))).unwrap());
    on_one_thread(owner(signs.clone()));
    signs.is_done.store(true, Ordering::SeqCst);
    thread.join().unwrap();
    result.recv().unwrap()
}

/// The owner blocks in its first record, beyond its lease.
fn a_consumer_keeps_its_partition(
    ours: impl Future<Output = Broker>,
    theirs: impl Future<Output = Broker> + Send + 'static,
) {
    let rival = move |signs: Signs| async move {
        eventually("it is owned", async || signs.owns.load(Ordering::SeqCst)).await;
        let broker = theirs.await;
        let diary = Diary::default();
        let consumer = broker.consumer("orders", "billing").lease(LEASE).await.unwrap();
        let reader = Reader::start(consumer, "rival", &diary);
        eventually("the owner is done", async || signs.is_done.load(Ordering::SeqCst)).await;
        reader.close().await;
        diary.len()
    };
    let owner = async move |signs: Signs| {
        let broker = ours.await;
        broker.create_topic("orders").await.unwrap();
        let messages = (0..10).map(|n: u32| Message::new(n.to_string()));
        broker.producer("orders").await.unwrap().send_all(messages).await.unwrap();
        let diary = Diary::default();
        let consumer = broker.consumer("orders", "billing").lease(LEASE).await.unwrap();
        let reader = {
            let diary = diary.clone();
            Reader::with(consumer, move |record| {
                diary.note("owner", &record);
                if record.text().unwrap() == "0" {
                    signs.owns.store(true, Ordering::SeqCst);
                    std::thread::sleep(BLOCK);
                }
                async { Ok(()) }
            })
        };
        diary.reaches(10).await;
        assert_eq!(diary.len(), 10, "nothing came twice");
        reader.close().await;
    };
    assert_eq!(beside(owner, rival), 0, "the rival got records of the blocked owner");
}

/// The owner blocks when it has its claim, beyond its TTL.
fn a_worker_keeps_its_claim(
    ours: impl Future<Output = Broker>,
    theirs: impl Future<Output = Broker> + Send + 'static,
) {
    let rival = move |signs: Signs| async move {
        eventually("it is owned", async || signs.owns.load(Ordering::SeqCst)).await;
        let broker = theirs.await;
        let mut worker = broker.claims("calls").worker("rival").ttl(LEASE).await.unwrap();
        let mut grants = 0;
        while !signs.is_done.load(Ordering::SeqCst) {
            let event = tokio::time::timeout(Duration::from_millis(20), worker.next()).await;
            grants += usize::from(matches!(event, Ok(Some(Ok(Event::Granted(_))))));
        }
        worker.close().await.unwrap();
        grants
    };
    let owner = async move |signs: Signs| {
        let claims = ours.await.claims("calls");
        claims.offer("unit", "work").await.unwrap();
        let mut worker = claims.worker("owner").ttl(LEASE).await.unwrap();
        let event = soon("a grant", worker.next()).await.unwrap().unwrap();
        let Event::Granted(claim) = event else { panic!("{event:?}") };
        signs.owns.store(true, Ordering::SeqCst);
        std::thread::sleep(BLOCK);
        claim.checkpoint("still mine").await.unwrap();
        claim.done().await.unwrap();
        soon("it closes", worker.close()).await.unwrap();
    };
    assert_eq!(beside(owner, rival), 0, "the rival got the claim of the blocked owner");
}

fn on_files(test: impl FnOnce(Broker, Broker)) {
    let (broker, _dir) = on_one_thread(crate::world::on_files());
    test(broker.clone(), broker);
}

fn on_redis(test: impl FnOnce(String, String)) {
    let server = on_one_thread(RedisServer::start(Flavor::Redis));
    test(server.url(), server.url());
}

async fn connect(url: String) -> Broker {
    Broker::connect(&url).await.unwrap()
}

#[test]
fn q12_a_handler_that_blocks_its_runtime_keeps_its_partition_on_files() {
    on_files(|a, b| a_consumer_keeps_its_partition(async { a }, async { b }));
}

#[test]
fn q12_a_handler_that_blocks_its_runtime_keeps_its_partition_on_redis() {
    on_redis(|a, b| a_consumer_keeps_its_partition(connect(a), connect(b)));
}

#[test]
fn q12_a_worker_that_blocks_its_runtime_keeps_its_claim_on_files() {
    on_files(|a, b| a_worker_keeps_its_claim(async { a }, async { b }));
}

#[test]
fn q12_a_worker_that_blocks_its_runtime_keeps_its_claim_on_redis() {
    on_redis(|a, b| a_worker_keeps_its_claim(connect(a), connect(b)));
}
