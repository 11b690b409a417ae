//! The engine under the least privilege that docs/acl.md names, and what it says when a rule is
//! missing.

use super::{block_on, refused};
use firth_engine::facet::{Adopt, StartPosition};
use firth_engine::{Engine, ErrorKind, RecordId};
use firth_laws::world;
use firth_testkit::{Flavor, RedisCluster, RedisServer, Reply, on_both};

const DOCUMENT: &str = include_str!("../../../../../docs/acl.md");

/// A block of the document.
fn block(kind: &str) -> String {
    let (_, rest) = DOCUMENT.split_once(&format!("```{kind}\n")).expect("the document has the block");
    rest.split_once("```").expect("the block ends").0.trim().replace("PASSWORD", "secret")
}

/// The rules of the document for a server, without the user's name.
pub(super) fn rules(flavor: Flavor) -> String {
    let rules = block("acl").strip_prefix("user firth ").expect("the block makes the user").to_owned();
    match flavor {
        Flavor::Redis => rules,
        Flavor::Valkey => format!("{rules} {}", block("acl-newer")),
    }
}

async fn server_with(flavor: Flavor, rules: &str) -> (RedisServer, String) {
    let server = RedisServer::builder().flavor(flavor).acl_user("firth", rules).start().await;
    let url = format!("redis://firth:secret@{}", server.addr());
    (server, url)
}

/// What the server denied, but for the rule that the document leaves out (`synced` asks for it).
async fn denied(server: &RedisServer) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]).await;
    let objects = log.items().iter().filter_map(|entry| entry.field("object")).map(Reply::text);
    objects.filter(|object| object != "config|get").collect()
}

async fn all_laws_on(engine: &Engine) {
    let runs: Vec<_> =
        firth_laws::LAWS.iter().map(|(name, law)| (*name, tokio::spawn(law(engine.clone())))).collect();
    for (name, run) in runs {
        run.await.unwrap_or_else(|error| panic!("{name} does not hold under the documented rules: {error}"));
    }
}

on_both!(
    all_laws_hold_under_the_documented_rules,
    a_missing_rule_is_named_at_the_start,
    a_stream_is_adopted_under_the_documented_rules,
    without_tracking_the_poll_wakes
);

async fn all_laws_hold_under_the_documented_rules(flavor: Flavor) {
    // One law asks what `synced` needs, for which there is a rule of its own.
    let (server, url) = server_with(flavor, &format!("{} +config|get", rules(flavor))).await;
    let engine = Engine::at(&url).await.unwrap();
    all_laws_on(&engine).await;
    engine.close().await.unwrap();
    assert_eq!(denied(&server).await, [""; 0], "the server denied something");
}

#[test]
fn k09_all_laws_hold_under_the_documented_rules_on_a_cluster() {
    block_on(async {
        let line = format!("user firth {} +config|get", rules(Flavor::Redis));
        let cluster = RedisCluster::builder().replicas_per_master(0).config(line).start().await;
        let url = cluster.url().replace("redis+cluster://", "redis+cluster://firth:secret@");
        let engine = Engine::at(&url).await.unwrap();
        all_laws_on(&engine).await;
        engine.close().await.unwrap();
        for node in cluster.nodes() {
            assert_eq!(denied(node.server()).await, [""; 0], "the server denied something");
        }
    });
}

async fn a_missing_rule_is_named_at_the_start(flavor: Flavor) {
    let rules = rules(flavor);
    for missing in ["+xtrim", "+zmscore", "+hset", "+evalsha", "+spublish", "+xadd", "+script|load"] {
        let without = rules.replacen(&format!("{missing} "), "", 1);
        let (_server, url) = server_with(flavor, &without).await;
        let error = refused(Engine::at(&url)).await;
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{missing}: {error:?}");
        assert!(error.context().contains(missing), "{missing} is not named: {error}");
    }
    for (pattern, other) in [("~firth:*", "~app:*"), ("&firth:bus:*", "&app:*")] {
        let (_server, url) = server_with(flavor, &rules.replace(pattern, other)).await;
        let error = refused(Engine::at(&url)).await;
        assert!(error.context().contains(pattern), "{pattern} is not named: {error}");
    }
    let (_server, url) = server_with(flavor, &rules).await;
    let error = refused(Engine::at(&url.replace("secret", "wrong"))).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(!format!("{error:?}").contains("wrong"), "the password is never shown");
}

async fn without_tracking_the_poll_wakes(flavor: Flavor) {
    let (_server, url) = server_with(flavor, &rules(flavor).replace("+client|tracking ", "")).await;
    let engine = Engine::at(&url).await.unwrap();
    let at = firth_laws::world::partition(&engine).await;
    let mut hint = engine.hint(firth_engine::HintKey::Log(at.clone()));
    hint.wait().await;
    super::append_one(&engine, &at, 1).await.unwrap();
    firth_laws::world::soon("the poll", hint.wait()).await;
    engine.close().await.unwrap();
}

async fn a_stream_is_adopted_under_the_documented_rules(flavor: Flavor) {
    let adopt = || Some(Adopt { stream: "orders".into(), ..Adopt::default() });
    let (server, url) = server_with(flavor, &format!("{} {}", rules(flavor), block("acl-adopt"))).await;
    let engine = Engine::at(&url).await.unwrap();
    let at = world::unmade_partition();
    engine.create_partition(&at).await.unwrap();
    assert_eq!(engine.stream_mark("orders", StartPosition::End).await.unwrap(), RecordId::ZERO);
    assert!(engine.adopt(&at, adopt(), 1).await.unwrap());
    let mut hint = engine.hint(firth_engine::HintKey::Stream("orders".into()));
    hint.wait().await;
    server.command(&["XADD", "orders", "5-1", "item", "tea"]).await;
    world::soon("the stream's change is noticed", hint.wait()).await;
    assert_eq!(engine.promote_due(&at, 10).await.unwrap().moved, 1);
    assert_eq!(engine.promote_due(&at, 10).await.unwrap().moved, 0, "each entry once");
    assert!(engine.adopt(&at, adopt(), 1).await.unwrap(), "the same again changes nothing");
    let other = Adopt { stream: "others".into(), ..Adopt::default() };
    assert!(!engine.adopt(&at, Some(other), 2).await.unwrap(), "it holds records");
    assert_eq!(engine.stream_mark("orders", StartPosition::End).await.unwrap(), RecordId::new(5, 1));
    let record = world::read_all(&engine, &at).await.remove(0);
    assert_eq!((&record.content.payload[..], record.content.timestamp), (&br#"{"item":"tea"}"#[..], 5));
    server.command(&["XGROUP", "CREATE", "orders", "theirs", "0"]).await;
    server.command(&["XREADGROUP", "GROUP", "theirs", "me", "STREAMS", "orders", ">"]).await;
    let theirs = engine.stream_group(&at, "theirs").await.unwrap();
    assert_eq!((theirs.delivered, theirs.pending.len()), (RecordId::new(5, 1), 1));
    assert_eq!((theirs.pending[0].consumer.as_str(), theirs.pending[0].deliveries), ("me", 1));
    world::fails(engine.stream_group(&at, "nobody").await, ErrorKind::NotFound);
    engine.close().await.unwrap();
    assert_eq!(denied(&server).await, [""; 0], "the server denied something");

    let (_server, url) = server_with(flavor, &rules(flavor)).await;
    let engine = Engine::at(&url).await.unwrap();
    let error = refused(engine.stream_mark("orders", StartPosition::Start)).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    assert!(error.context().contains("orders") && error.context().contains("docs/acl.md"), "{error}");
    engine.close().await.unwrap();
}
