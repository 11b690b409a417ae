//! All laws on a server of their own each, on both kinds of server; on a cluster, the laws of a
//! facet share one.

use super::block_on;
use firth_engine::Engine;
use firth_laws::model::{agree, operations};
use firth_testkit::{Flavor, RedisCluster, RedisServer};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

fn on_server<F: Future<Output = ()>>(flavor: Flavor, law: impl FnOnce(Engine) -> F) {
    block_on(async {
        let server = RedisServer::start(flavor).await;
        let engine = Engine::at(&server.url()).await.unwrap();
        law(engine.clone()).await;
        engine.close().await.unwrap();
    });
}

fn on_redis<F: Future<Output = ()>>(law: impl FnOnce(Engine) -> F) {
    on_server(Flavor::Redis, law);
}

fn on_valkey<F: Future<Output = ()>>(law: impl FnOnce(Engine) -> F) {
    on_server(Flavor::Valkey, law);
}

macro_rules! instantiate {
    ({ $target:ident } $($module:ident :: $law:ident)*) => {
        mod $target {
            $(#[test]
            fn $law() {
                super::$target(firth_laws::$module::$law);
            })*
        }
    };
}

firth_laws::for_each_law!(instantiate, on_redis);
firth_laws::for_each_law!(instantiate, on_valkey);

/// Runs all laws of a facet on one cluster of three masters, side by side.
fn on_cluster(facet: &str) {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        let engine = Engine::at(&cluster.url()).await.unwrap();
        let laws = firth_laws::LAWS.iter().filter(|(name, _)| name.split("::").next() == Some(facet));
        let runs: Vec<_> = laws.map(|(name, law)| (*name, tokio::spawn(law(engine.clone())))).collect();
        assert!(!runs.is_empty(), "there are laws of {facet}");
        for (name, run) in runs {
            run.await.unwrap_or_else(|error| panic!("{name} does not hold on a cluster: {error}"));
        }
        engine.close().await.unwrap();
    });
}

macro_rules! on_cluster {
    ($($facet:ident)*) => {
        mod on_cluster {
            $(#[test]
            fn $facet() {
                super::on_cluster(stringify!($facet));
            })*
        }
    };
}

on_cluster!(log marks groups fencing retry together verdicts dead retention leases offers claim_shards catalog bus);

/// Random operations on an engine and on the reference model agree at every step.
async fn agrees_with_the_model(engine: Engine) {
    let mut runner = TestRunner::default();
    for _ in 0..15 {
        let ops = operations(60).new_tree(&mut runner).unwrap().current();
        let shown = format!("{ops:?}");
        let run = tokio::spawn(agree(engine.clone(), ops));
        run.await.unwrap_or_else(|error| panic!("{error}\nafter {shown}"));
    }
}

#[test]
fn redis_agrees_with_the_model() {
    on_redis(agrees_with_the_model);
}

#[test]
fn valkey_agrees_with_the_model() {
    on_valkey(agrees_with_the_model);
}

#[test]
fn a_cluster_agrees_with_the_model() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        let engine = Engine::at(&cluster.url()).await.unwrap();
        agrees_with_the_model(engine.clone()).await;
        engine.close().await.unwrap();
    });
}
