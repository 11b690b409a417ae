//! A cluster without faults: everything that works on one server works here too.

use super::{SOON, config, connect, errors, keys, runs, sum};
use firth_redis::config::ReadFrom;
use firth_redis::{CallError, Client, ConnectionState, NodeRole, Script, Unpack, cmd, pipe, slot};
use firth_testkit::{Flavor, RedisCluster, on_both, wait};
use std::time::Duration;

on_both!(a_cluster_serves_what_a_server_serves, reads_go_to_replicas_if_they_may);

async fn a_cluster_serves_what_a_server_serves(flavor: Flavor) {
    let cluster = RedisCluster::start(flavor).await;
    let client = connect(config(&cluster)).await;
    tokio::join!(
        calls_reach_the_owner_of_their_key(&cluster, &client),
        pipelines_keep_their_order_across_nodes(&client),
        transactions_run_on_one_node_or_not_at_all(&client),
        commands_bound_together_go_in_one_piece(&client),
        scripts_are_sent_in_full_only_where_they_are_unknown(&client),
        a_blocking_command_holds_nobody_up(&client),
        a_session_stays_with_the_node_of_its_key(&client),
        several_connections_per_node_serve_alike(&cluster),
    );
    let moved = sum(&cluster, async |node| errors(node, "MOVED").await).await;
    assert_eq!(moved, 0, "whoever knows the topology needs no redirection");
    an_unblocked_command_stays_so(&cluster, &client).await;
    the_topology_is_told(&cluster, &client).await;
    close_ends_every_connection(&cluster, &client).await;
}

async fn calls_reach_the_owner_of_their_key(cluster: &RedisCluster, client: &Client) {
    for key in keys("call", 100) {
        client.call::<()>(cmd("SET").key(&key).arg(&key)).await.unwrap();
        assert_eq!(client.call::<String>(cmd("GET").key(&key)).await.unwrap(), key);
    }
    for key in keys("call", 5) {
        let owner = cluster.node(cluster.master_of_key(&key).await);
        assert_eq!(owner.server().command(&["GET", &key]).await.text(), key);
    }
    let big = "x".repeat(300_000);
    client.call::<()>(cmd("SET").key("call:big").arg(&big)).await.unwrap();
    assert_eq!(client.call::<String>(cmd("GET").key("call:big")).await.unwrap().len(), big.len());
    client.call::<()>(cmd("PING")).await.unwrap();
    client.call::<()>(cmd("SET").key("").arg("an empty key has a slot too")).await.unwrap();
    let wrong = client.call::<i64>(cmd("LPUSH").key("call:1").arg(1)).await.unwrap_err();
    assert_eq!(wrong.code(), Some("WRONGTYPE"));
    let session = client.call::<()>(cmd("SUBSCRIBE").arg("x")).await.unwrap_err();
    assert!(matches!(session, CallError::Invalid(_)), "{session:?}");
}

async fn pipelines_keep_their_order_across_nodes(client: &Client) {
    let keys = keys("pipe", 100);
    let mut writes = pipe();
    for (n, key) in keys.iter().enumerate() {
        writes.push(&cmd("SET").key(key).arg(n));
        writes.push(&cmd("INCRBY").key(key).arg(1000));
        if n % 10 == 0 {
            writes.push(&cmd("ECHO").arg(n));
        }
    }
    let answers = client.pipeline::<Vec<String>>(&writes).await.unwrap().unpack().unwrap();
    let mut expected = Vec::new();
    for n in 0..keys.len() {
        expected.push("OK".to_owned());
        expected.push((n + 1000).to_string());
        if n % 10 == 0 {
            expected.push(n.to_string());
        }
    }
    assert_eq!(answers, expected);
    let reads: firth_redis::Pipe = keys.iter().map(|key| cmd("GET").key(key)).collect();
    let values = client.pipeline::<Vec<usize>>(reads).await.unwrap().unpack().unwrap();
    assert_eq!(values, (1000..1100).collect::<Vec<_>>());
    // One that fails does not hide the others.
    let mixed = pipe()
        .then(cmd("GET").key("pipe:0"))
        .then(cmd("LPUSH").key("pipe:1").arg(1))
        .then(cmd("GET").key("pipe:2"));
    let (a, b, c) = client.pipeline::<(i64, i64, i64)>(mixed).await.unwrap();
    assert_eq!((a.unwrap(), c.unwrap()), (1000, 1002));
    assert_eq!(b.unwrap_err().code(), Some("WRONGTYPE"));
    let one = client.pipeline::<(String,)>(pipe().then(cmd("GET").key("pipe:3"))).await.unwrap();
    assert_eq!(one.unpack().unwrap(), ("1003".to_owned(),));
    assert!(client.pipeline::<Vec<i64>>(pipe()).await.unwrap().is_empty());
}

async fn transactions_run_on_one_node_or_not_at_all(client: &Client) {
    for n in 0..20 {
        let pair = pipe()
            .then(cmd("INCR").key(format!("{{tx{n}}}a")))
            .then(cmd("INCRBY").key(format!("{{tx{n}}}b")).arg(2));
        let sums = client.transaction::<(i64, i64)>(pair).await.unwrap().unpack().unwrap();
        assert_eq!(sums, (1, 2));
    }
    let apart = pipe().then(cmd("INCR").key("tx:a")).then(cmd("INCR").key("tx:b"));
    let error = client.transaction::<(i64, i64)>(apart).await.unwrap_err();
    assert!(matches!(&error, CallError::Invalid(why) if why.contains("CROSSSLOT")), "{error:?}");
    assert!(!error.may_have_run() && !error.is_retryable());
    let none: Option<i64> = client.call(cmd("GET").key("tx:a")).await.unwrap();
    assert_eq!(none, None, "nothing of it ran");
    let server = client.call::<i64>(cmd("DEL").keys(["tx:a", "tx:b"])).await.unwrap_err();
    assert_eq!(server.code(), Some("CROSSSLOT"));
}

async fn commands_bound_together_go_in_one_piece(client: &Client) {
    for n in 0..10 {
        let key = format!("together:{n}");
        let write = pipe()
            .then(cmd("SET").key(&key).arg(n))
            .then(cmd("WAIT").arg(1).arg(5000))
            .then(cmd("GET").key(&key));
        let (set, copies, value) =
            client.pipeline::<((), i64, i64)>(write.together()).await.unwrap().unpack().unwrap();
        assert_eq!((set, copies, value), ((), 1, n), "the replica of this very write answered");
    }
    let apart = pipe().then(cmd("GET").key("a")).then(cmd("GET").key("b")).together();
    let error = client.pipeline::<(i64, i64)>(apart).await.unwrap_err();
    assert!(matches!(&error, CallError::Invalid(why) if why.contains("CROSSSLOT")), "{error:?}");
}

async fn scripts_are_sent_in_full_only_where_they_are_unknown(client: &Client) {
    let script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    for round in 1..=2 {
        for key in keys("script", 30) {
            assert_eq!(client.eval::<i64>(&script.key(&key).arg(5)).await.unwrap(), 5 * round);
        }
    }
}

async fn a_blocking_command_holds_nobody_up(client: &Client) {
    let pop = client.call::<(String, String)>(cmd("BLPOP").key("jobs").arg(0));
    let push = async {
        // The same node answers other requests during the wait.
        for _ in 0..50 {
            client.call::<()>(cmd("LLEN").key("jobs")).timeout(SOON).await.unwrap();
        }
        client.call::<()>(cmd("RPUSH").key("jobs").arg("work")).await.unwrap();
    };
    let (popped, ()) = tokio::join!(pop, push);
    assert_eq!(popped.unwrap(), ("jobs".to_owned(), "work".to_owned()));
    let nothing = client.call::<Option<(String, String)>>(cmd("BLPOP").key("jobs").arg(0));
    let error = nothing.timeout(Duration::from_millis(50)).await.unwrap_err();
    assert!(
        matches!(error, CallError::Timeout { after, sent: true } if after.as_millis() == 50),
        "{error:?}"
    );
}

/// A block that an operator ends is not begun again behind the caller's back.
async fn an_unblocked_command_stays_so(cluster: &RedisCluster, client: &Client) {
    let node = cluster.node(cluster.master_of_key("unblocked").await);
    let pop = client.call::<(String, String)>(cmd("BLPOP").key("unblocked").arg(0));
    let unblock = async {
        wait::until(SOON, "it was unblocked", async || {
            let list = node.server().command(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await.text();
            let blocked =
                list.lines().find(|line| line.contains(" cmd=blpop ") && line.contains(" flags=b "));
            let Some(id) = blocked.and_then(|line| line.strip_prefix("id=")?.split(' ').next()) else {
                return false;
            };
            node.server().command(&["CLIENT", "UNBLOCK", id, "ERROR"]).await.int() == 1
        })
        .await;
    };
    let (popped, ()) = tokio::join!(pop, unblock);
    let error = popped.unwrap_err();
    assert!(error.code() == Some("UNBLOCKED") && !error.may_have_run(), "{error:?}");
}

async fn a_session_stays_with_the_node_of_its_key(client: &Client) {
    let mut session = client.session_for("{watched}n").await.unwrap();
    session.call::<()>(cmd("WATCH").key("{watched}n")).await.unwrap();
    client.call::<()>(cmd("SET").key("{watched}n").arg(1)).await.unwrap();
    let refused = session.transaction::<(i64,)>(pipe().then(cmd("INCR").key("{watched}n"))).await;
    assert!(matches!(refused, Err(CallError::Conflict)), "{refused:?}");
    let ran = session.transaction::<(i64,)>(pipe().then(cmd("INCR").key("{watched}n"))).await.unwrap();
    assert_eq!(ran.unpack().unwrap(), (2,));
    session.close().await;
    let mut any = client.session().await.unwrap();
    any.call::<()>(cmd("PING")).await.unwrap();
    any.close().await;
}

async fn several_connections_per_node_serve_alike(cluster: &RedisCluster) {
    let mut config = config(cluster);
    config.cluster.connections_per_node = 3;
    config.client_name = Some("three".to_owned());
    let client = connect(config).await;
    let keys = keys("three", 60);
    for key in &keys {
        client.call::<()>(cmd("INCR").key(key)).await.unwrap();
    }
    let named = async |node: &firth_testkit::ClusterNode| {
        let list = node.server().command(&["CLIENT", "LIST"]).await.text();
        list.lines().filter(|line| line.contains(" name=three ")).count() as u64
    };
    assert_eq!(sum(cluster, named).await, 9, "three to each of three masters");
    client.close().await;
}

async fn the_topology_is_told(cluster: &RedisCluster, client: &Client) {
    all_nodes_are_known(client).await;
    let nodes = client.nodes();
    let masters: Vec<_> = nodes.iter().filter(|node| node.role == NodeRole::Master).collect();
    assert_eq!(masters.len(), 3);
    let slots: usize = masters.iter().flat_map(|node| &node.slots).map(ExactSizeIterator::len).sum();
    assert_eq!(slots, 16_384);
    let owner = cluster.node(cluster.master_of_key("foo").await).addr();
    let told = masters.iter().find(|node| node.slots.iter().any(|range| range.contains(&slot(b"foo"))));
    assert_eq!(told.map(|node| node.address.port), Some(owner.port()));
    assert_eq!(client.state(), ConnectionState::Open);
    assert_eq!(client.server().map(|server_info| server_info.mode), Some("cluster".to_owned()));
}

/// A replica counts once the others have heard that it has data.
async fn all_nodes_are_known(client: &Client) {
    wait::until(SOON, "masters and replicas are known", async || client.nodes().len() == 6).await;
}

async fn close_ends_every_connection(cluster: &RedisCluster, client: &Client) {
    let ours = async |node: &firth_testkit::ClusterNode| {
        let list = node.server().command(&["CLIENT", "LIST"]).await.text();
        list.lines().filter(|line| line.contains(" user=default ") && line.contains(" flags=N ")).count()
            as u64
    };
    assert!(sum(cluster, ours).await > 0);
    client.close().await;
    wait::until(SOON, "the nodes have no client left", async || sum(cluster, ours).await == 0).await;
    let error = client.call::<()>(cmd("PING")).await.unwrap_err();
    assert!(matches!(error, CallError::Closed { sent: false }), "{error:?}");
    assert_eq!(client.state(), ConnectionState::Closed);
    assert!(client.session().await.is_err() && client.ready().await.is_err());
    assert!(client.reopen() && !client.reopen());
    assert_eq!(client.call::<String>(cmd("GET").key("call:1")).await.unwrap(), "call:1");
    client.close().await;
}

async fn reads_go_to_replicas_if_they_may(flavor: Flavor) {
    let cluster = RedisCluster::start(flavor).await;
    let mut prefer = config(&cluster);
    prefer.cluster.reads = ReadFrom::PreferReplica;
    let client = connect(prefer).await;
    let keys = keys("read", 30);
    let writes: firth_redis::Pipe = keys.iter().map(|key| cmd("SET").key(key).arg(key)).collect();
    client.pipeline::<Vec<()>>(writes).await.unwrap().unpack().unwrap();
    all_nodes_are_known(&client).await;
    let mut masters = Vec::new();
    let mut replicas = Vec::new();
    for node in cluster.nodes() {
        if node.is_master().await { masters.push(node) } else { replicas.push(node) }
    }
    let gets = async |nodes: &[std::sync::Arc<firth_testkit::ClusterNode>]| {
        let mut sum = 0;
        for node in nodes {
            sum += runs(node, "get").await;
        }
        sum
    };
    for key in &keys {
        let read = || cmd("GET").key(key).read_only();
        wait::until(SOON, "the replica has caught up", async || {
            client.call::<Option<String>>(read()).await.unwrap().as_ref() == Some(key)
        })
        .await;
    }
    assert_eq!(gets(&masters).await, 0, "masters are spared");
    let reads: firth_redis::Pipe = keys.iter().map(|key| cmd("GET").key(key).read_only()).collect();
    assert_eq!(client.pipeline::<Vec<String>>(reads).await.unwrap().unpack().unwrap(), keys);
    assert_eq!(gets(&masters).await, 0, "in pipelines too");
    for key in &keys {
        client.call::<String>(cmd("GET").key(key)).await.unwrap();
    }
    assert_eq!(gets(&masters).await, 30, "what is not marked as a read goes to the master");

    let mut any = config(&cluster);
    any.cluster.reads = ReadFrom::Any;
    let any = connect(any).await;
    all_nodes_are_known(&any).await;
    let before = (gets(&masters).await, gets(&replicas).await);
    for _ in 0..20 {
        any.call::<String>(cmd("GET").key(&keys[0]).read_only()).await.unwrap();
    }
    let after = (gets(&masters).await, gets(&replicas).await);
    assert_eq!((after.0 - before.0, after.1 - before.1), (10, 10), "in turn");

    // Without its replicas, a master answers itself.
    for node in &replicas {
        node.server().kill().await;
    }
    for key in &keys {
        let value = client.call::<String>(cmd("GET").key(key).read_only()).await;
        match value {
            Ok(value) => assert_eq!(value, *key),
            Err(CallError::Lost { sent: true, .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    for key in &keys {
        assert_eq!(client.call::<String>(cmd("GET").key(key).read_only()).await.unwrap(), *key);
    }
    client.close().await;
    any.close().await;
}
