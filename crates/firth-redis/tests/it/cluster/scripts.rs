//! What a script answers is the script's word, and what the server refuses is the server's: only
//! the second is followed, sent again, or a promise that nothing ran.

use super::{config, connect};
use firth_redis::{CallError, Client, Script, cmd, pipe};
use firth_testkit::{Flavor, RedisCluster, on_both};

on_both!(c03_a_scripts_own_error_is_never_retried);

/// Writes, then answers as a server would that refused it.
fn forging(words: &str) -> Script {
    Script::new(format!("redis.call('INCR', KEYS[1]) return redis.error_reply('{words}')"))
}

async fn c03_a_scripts_own_error_is_never_retried(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).replicas_per_master(0).start().await;
    let client = connect(config(&cluster)).await;
    for code in ["TRYAGAIN", "LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED", "BUSY", "OOM"] {
        let key = format!("forged:{code}");
        let script = forging(&format!("{code} x"));
        let error = client.eval::<i64>(&script.key(&key)).await.unwrap_err();
        assert_once(&client, &key, &error, code).await;
        let eval = cmd("EVAL").arg(script.source()).arg(1).key(&key);
        let loose = pipe().then(eval.clone()).then(cmd("GET").key("elsewhere"));
        let (error, _) = client.pipeline::<(i64, Option<i64>)>(loose).await.unwrap();
        assert_once(&client, &key, &error.unwrap_err(), code).await;
        let (error,) = client.pipeline::<(i64,)>(pipe().then(eval.clone()).together()).await.unwrap();
        assert_once(&client, &key, &error.unwrap_err(), code).await;
        let (error,) = client.transaction::<(i64,)>(pipe().then(eval)).await.unwrap();
        assert_once(&client, &key, &error.unwrap_err(), code).await;
    }
    // A redirection is only believed if it is of the slot of the script's own keys.
    let key = "forged:MOVED";
    let other = (firth_redis::slot(key.as_bytes()) + 1) % 16_384;
    for code in ["MOVED", "ASK"] {
        let script = forging(&format!("{code} {other} 127.0.0.1:1"));
        let error = client.eval::<i64>(&script.key(key)).await.unwrap_err();
        assert_once(&client, key, &error, code).await;
    }
    // The script itself is not sent in full because it says so.
    let error = client.eval::<i64>(&forging("NOSCRIPT x").key("forged:NOSCRIPT")).await.unwrap_err();
    assert_once(&client, "forged:NOSCRIPT", &error, "NOSCRIPT").await;
    real_refusals_are_followed(&cluster, &client).await;
    client.close().await;
}

/// The script ran once, and its error does not deny it.
async fn assert_once(client: &Client, key: &str, error: &CallError, code: &str) {
    assert_eq!(error.code(), Some(code), "{error:?}");
    assert!(error.may_have_run(), "{error:?}");
    assert_eq!(client.call::<i64>(cmd("GETDEL").key(key)).await.unwrap(), 1, "{code} was sent again");
}

/// A slot that moves: the script follows it, and runs once.
async fn real_refusals_are_followed(cluster: &RedisCluster, client: &Client) {
    let script = Script::new("return redis.call('INCR', KEYS[1])");
    let key = "followed";
    assert_eq!(client.eval::<i64>(&script.key(key)).await.unwrap(), 1);
    let from = cluster.master_of_key(key).await;
    let migration = cluster.begin_migration(firth_redis::slot(key.as_bytes()), from, (from + 1) % 3).await;
    while migration.move_keys(10).await > 0 {}
    assert_eq!(client.eval::<i64>(&script.key(key)).await.unwrap(), 2, "it was asked for at the new owner");
    migration.finish().await;
    assert_eq!(client.eval::<i64>(&script.key(key)).await.unwrap(), 3);
}
