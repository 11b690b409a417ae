//! Runs a test on every engine, in real time: in memory, on files, on Redis and on Valkey, each
//! with two processes' worth of brokers.

use firth::Broker;
use firth_testkit::{Flavor, RedisServer};
use std::time::Duration;

/// Two brokers that share one engine: two processes where the engine allows that, else two handles.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) first: Broker,
    pub(crate) second: Broker,
}

impl Pair {
    async fn close(self) {
        self.second.close().await.unwrap();
        self.first.close().await.unwrap();
    }
}

fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let done = runtime.block_on(test);
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

pub(crate) fn in_memory<F: Future<Output = ()>>(test: impl FnOnce(Pair) -> F) {
    let one = Broker::memory();
    block_on(test(Pair { first: one.clone(), second: one }));
}

pub(crate) fn on_files<F: Future<Output = ()>>(test: impl FnOnce(Pair) -> F) {
    block_on(async {
        let (one, _dir) = crate::world::on_files().await;
        test(Pair { first: one.clone(), second: one.clone() }).await;
        one.close().await.unwrap();
    });
}

fn on_server<F: Future<Output = ()>>(flavor: Flavor, test: impl FnOnce(Pair) -> F) {
    block_on(async {
        let server = RedisServer::start(flavor).await;
        let connect = || async { Broker::connect(&server.url()).await.unwrap() };
        let pair = Pair { first: connect().await, second: connect().await };
        test(pair.clone()).await;
        pair.close().await;
    });
}

pub(crate) fn on_redis<F: Future<Output = ()>>(test: impl FnOnce(Pair) -> F) {
    on_server(Flavor::Redis, test);
}

pub(crate) fn on_valkey<F: Future<Output = ()>>(test: impl FnOnce(Pair) -> F) {
    on_server(Flavor::Valkey, test);
}

/// Makes a test of each function on each engine.
macro_rules! on_every_engine {
    ($($test:ident)*) => {
        $crate::engines::on_every_engine!(@ in_memory $($test)*);
        $crate::engines::on_every_engine!(@ on_files $($test)*);
        $crate::engines::on_every_engine!(@ on_redis $($test)*);
        $crate::engines::on_every_engine!(@ on_valkey $($test)*);
    };
    (@ $engine:ident $($test:ident)*) => {
        mod $engine {
            $(#[test]
            fn $test() {
                $crate::engines::$engine(super::$test);
            })*
        }
    };
}
pub(crate) use on_every_engine;
