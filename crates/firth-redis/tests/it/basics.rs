//! One server, no faults: what every user does first.

use firth_redis::{Client, Script, Unpack, cmd, pipe};
use firth_testkit::{Flavor, RedisServer};

#[tokio::test]
async fn a_value_set_is_the_value_got() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = Client::connect(server.tcp_url()).await.unwrap();
    client.call::<()>(cmd("SET").key("k").arg("v")).await.unwrap();
    assert_eq!(client.call::<String>(cmd("GET").key("k")).await.unwrap(), "v");
    assert_eq!(client.call::<Option<String>>(cmd("GET").key("none")).await.unwrap(), None);
    let (a, b) = client
        .pipeline::<(i64, i64)>(pipe().then(cmd("INCR").key("n")).then(cmd("INCR").key("n")))
        .await
        .unwrap()
        .unpack()
        .unwrap();
    assert_eq!((a, b), (1, 2));
    let all = client
        .transaction::<Vec<i64>>(pipe().then(cmd("INCR").key("n")).then(cmd("INCR").key("n")))
        .await
        .unwrap();
    assert_eq!(all.unpack().unwrap(), [3, 4]);
    let script = Script::new("return {KEYS[1], ARGV[1]}");
    let answer: (String, String) = client.eval(&script.key("a").arg("b")).await.unwrap();
    assert_eq!(answer, ("a".into(), "b".into()));
    client.close().await;
    assert!(client.call::<()>(cmd("PING")).await.is_err());
}
