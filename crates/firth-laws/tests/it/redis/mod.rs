//! The Redis engine: all laws on Redis 7.0, Valkey 9 and a Redis Cluster, the reference model, and
//! what only servers and networks can do wrong.

/// Debian's Redis does not start under libfaketime (its allocator asks for the time too early); the
/// scripts are the same on both.
macro_rules! on_valkey {
    ($($law:ident)*) => {
        mod on_valkey {
            $(#[test]
            fn $law() {
                crate::redis::block_on(super::$law(firth_testkit::Flavor::Valkey));
            })*
        }
    };
}

mod acl;
mod adopted;
mod bounds;
mod clock;
mod clock_steps;
mod cluster;
mod cut_off;
mod durability;
mod earlier;
mod faults;
mod fresh;
mod laws;
mod leftovers;
mod lost;
mod memory;
mod nodes;
mod optimistic_append;
mod tail;
mod time;
mod torn;
mod versions;
mod wake;
mod went_back;

use firth_engine::facet::Append;
use firth_engine::{Content, Engine, Error, Partition, Result};
use firth_laws::world;
use std::time::Duration;

/// Runs a test on a runtime of its own.
fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test)
}

/// Calls until it succeeds; for times when the engine recovers by itself.
async fn until_ok<T, F: Future<Output = Result<T>>>(what: &str, mut call: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + world::PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(tokio::time::Instant::now() < deadline, "never succeeded: {what}: {error:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The error of a call that must fail.
async fn refused<T: std::fmt::Debug>(call: impl Future<Output = Result<T>>) -> Error {
    call.await.expect_err("it must be refused")
}

/// Appends one record.
async fn append_one(engine: &Engine, at: &Partition, n: u64) -> Result<()> {
    engine.append(at, Append::new([Content::new(n.to_string())])).await.map(drop)
}
