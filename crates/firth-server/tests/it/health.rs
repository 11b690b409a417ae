//! What a running server tells of its health: whether it is ready, and how its router fares
//! (healthy, lagging, stale, failed).

use crate::receiver::Receiver;
use crate::world::{PATIENCE, Server, firth, json};
use firth_testkit::wait::until;
use firth_testkit::{Flavor, RedisServer, ServerClock};

/// A node with a name of its own: after its death it comes back at once.
fn router(engine: &str) -> Server {
    let mut command = firth();
    command.args(["route", "run", "--engine", engine, "--node", "one", "--set", "routing.num_partitions=1"]);
    Server::start(&mut command, None)
}

fn partition(server: &Server) -> (serde_json::Value, serde_json::Value, bool) {
    let status = server.get("/v1/routing").expect(200).json();
    let part = &status["partitions"][0];
    (status["health"].clone(), part["health"].clone(), part["owner"].is_string())
}

async fn is(server: &Server, level: &str, is_owned: bool) {
    let expected = (json!(level), json!(level), is_owned);
    until(PATIENCE * 2, format!("it is {level}"), async || partition(server) == expected).await;
}

/// What `/health` says, whose word a load balancer takes.
async fn answers(server: &Server, level: &str, status: u16) {
    until(PATIENCE * 2, format!("its health is {level}"), async || {
        let reply = server.get("/health");
        reply.status == status && reply.body.contains(level)
    })
    .await;
}

/// Sends an event that a subscription wants, while there is no gateway to give it to.
fn an_event_waits(server: &Server) {
    let request = json!({ "collection": "orders", "mode": "hash", "ttl_seconds": 3600 });
    server.put("/v1/routing/subscriptions/acme/all", &request).expect(200);
    let event =
        json!({ "op": "insert", "tenant": "acme", "collection": "orders", "key": "1", "after": { "n": 1 } });
    server.post("/v1/topics/changes/records", &json!([{ "json": event }])).expect(200);
}

async fn a_gateway_comes(server: &Server, receiver: &Receiver) {
    let gateway = json!({ "endpoint": receiver.endpoint(), "ttl_seconds": 3600 });
    server.put("/v1/routing/gateways/edge", &gateway).expect(200);
    until(PATIENCE * 2, "the event arrives", async || receiver.documents() == [json!({ "n": 1 })]).await;
    is(server, "healthy", true).await;
    answers(server, "healthy", 200).await;
}

/// The test moves the engine's clock, so that it need not wait for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_lags_is_stale_has_failed_and_is_healthy_as_its_events_wait() {
    let Some(clock) = ServerClock::new() else { return };
    let valkey = RedisServer::builder().flavor(Flavor::Valkey).clock(&clock).start().await;
    let receiver = Receiver::start().await;
    let url = valkey.url();
    let watcher = Server::start(firth().args(["serve", "--engine", &url]), None);
    let server = router(&url);
    is(&server, "healthy", true).await;
    an_event_waits(&server);
    is(&server, "healthy", true).await;
    answers(&server, "healthy", 200).await;
    clock.jump(60);
    is(&server, "lagging", true).await;
    answers(&server, "lagging", 200).await;
    clock.jump(400);
    is(&server, "stale", true).await;
    answers(&server, "stale", 503).await;
    tokio::task::block_in_place(|| server.kill());
    // Its lease has run out.
    clock.jump(460);
    is(&watcher, "failed", false).await;
    answers(&watcher, "healthy", 200).await;
    let server = router(&url);
    is(&server, "stale", true).await;
    a_gateway_comes(&server, &receiver).await;
    is(&watcher, "healthy", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_whose_owners_die_over_and_over_has_failed_until_it_gets_on() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let receiver = Receiver::start().await;
    let mut server = router(&redis.url());
    is(&server, "healthy", true).await;
    an_event_waits(&server);
    for _ in 0..3 {
        tokio::task::block_in_place(|| server.kill());
        server = router(&redis.url());
        until(PATIENCE * 2, "it has taken over", async || partition(&server).2).await;
    }
    is(&server, "failed", true).await;
    answers(&server, "failed", 503).await;
    a_gateway_comes(&server, &receiver).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_lives_but_is_not_ready_while_its_engine_is_away() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let server = Server::start(firth().args(["serve", "--engine", &redis.url()]), None);
    let is_ready = || server.get("/health/ready").status;
    server.get("/health/ready").expect(200);
    redis.kill().await;
    until(PATIENCE, "it is not ready", async || is_ready() == 503).await;
    server.get("/health/live").expect(200);
    redis.restart().await;
    until(PATIENCE, "it is ready again", async || is_ready() == 200).await;
    // A server that only listens is no better than none.
    redis.freeze();
    server.get("/health/ready").expect(503);
    server.get("/health/live").expect(200);
    redis.thaw();
    until(PATIENCE, "it is ready again", async || is_ready() == 200).await;
}
