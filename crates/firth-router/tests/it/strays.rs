//! Groups that are called like those of parked gateways and are not: anyone who may consume can
//! make them.

use crate::chaos::nothing_was_given_up;
use crate::gateway::TestGateway;
use crate::leases::at;
use crate::node::World;
use crate::world::*;
use firth::GroupName;
use firth_engine::facet::StartPosition;
use firth_router::registry::Subscription;
use firth_router::routing::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r08_a_stray_group_neither_stops_a_router_nor_causes_gaps() {
    let mut world = World::memory().await;
    let engine = world.broker.engine().clone();
    for stray in ["router.gw.a.b", "router.gw.x"] {
        for partition in 0..2 {
            let group = GroupName::new(stray).unwrap();
            engine.create_group(&at(partition), &group, StartPosition::Start, None).await.unwrap();
        }
    }
    let gateway = TestGateway::start("g").await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    let spread = Subscription { target: Target::Hash, ..wish("s", "doc.all", "g") };
    world.registry.register(spread).await.unwrap();
    let node = world.node().await;
    world.send(20).await;
    world.has_all(&gateway).await;
    world.settled().await;
    assert!(gateway.missed().is_empty(), "{:?}", gateway.missed());
    nothing_was_given_up(&world).await;
    node.close().await.unwrap();
    assert_eq!(world.broker.admin().groups("changes").await.unwrap().len(), 3, "they are left alone");
}

/// The gateway is known, which makes the group no more the router's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r08_a_consumers_group_named_like_a_known_gateways_is_left_alone() {
    let mut world = World::memory().await;
    let gateway = TestGateway::start("g").await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    world.registry.register(wish("s", "doc.all", "g")).await.unwrap();
    world.broker.consumer("changes", "router.gw.g").await.unwrap().close().await.unwrap();
    let node = world.node().await;
    world.send(20).await;
    world.has_all(&gateway).await;
    world.settled().await;
    node.close().await.unwrap();
    let mut stray = world.broker.consumer("changes", "router.gw.g").await.unwrap();
    for _ in 0..20 {
        let delivery = tokio::time::timeout(PATIENCE, stray.next()).await.unwrap().unwrap().unwrap();
        delivery.ack().await.unwrap();
    }
    stray.close().await.unwrap();
}
