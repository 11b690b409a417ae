//! Groups of parked gateways belong to the owner of the partition. A node that slept while it lost
//! the partition makes none, and a lost answer leaves none behind. A group that no owner knows of
//! would hold back retention until the partition changes hands.

use crate::chaos::{books_close, books_tell, nothing_was_given_up};
use crate::gateway::{Mood, TestGateway};
use crate::leases::at;
use crate::node::World;
use crate::world::*;
use firth::{Broker, GroupName, RecordId};
use firth_engine::facet::{EntryKey, Expect, StartPosition};
use firth_engine::{Engine, SpaceName};
use firth_laws::faulty::{Fault, Faults, Faulty};
use firth_laws::world::seize;
use firth_router::node::Router;
use std::sync::Arc;
use std::time::Duration;

/// A node whose calls to the engine can be held up and lost. It hears of a loss when it asks, and
/// not before.
async fn faulty_node(world: &mut World, engine: Engine) -> (Router, Faulty) {
    let (engine, faulty) = Faulty::wrap(engine, Faults::default());
    world.options.lease = Duration::from_secs(600);
    let node = world.node_on(&Broker::with_engine(engine)).await;
    until(PATIENCE, "it owns both", async || node.consumer().epochs().len() == 2).await;
    (node, faulty)
}

async fn no_group_is_left(world: &World) {
    until(PATIENCE * 2, "no group is left", async || {
        world.broker.admin().groups("changes").await.is_ok_and(|groups| groups.len() == 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_slept_makes_no_group_for_a_gateway() {
    let engine = Engine::memory();
    let mut world = World::new(engine.clone()).await;
    let gateway = world.gateway("hanging", "doc.all").await;
    let (node, faulty) = faulty_node(&mut world, engine.clone()).await;
    gateway.set(Mood::Hangs);
    world.send(20).await;
    until(PATIENCE, "events wait for it", async || node.lanes().iter().any(|lane| lane.held == 20)).await;
    let before = faulty.count("create_group");
    let marks = faulty.count("put");
    faulty.cut();
    until(PATIENCE, "it is about to park the gateway", async || faulty.count("put") > marks).await;
    let group = GroupName::new("router").unwrap();
    let holds = [seize(&engine, &at(0), &group).await, seize(&engine, &at(1), &group).await];
    faulty.heal();
    until(PATIENCE, "it is awake", async || {
        faulty.count("create_group") > before || node.consumer().epochs().is_empty()
    })
    .await;
    assert_eq!(world.broker.admin().groups("changes").await.unwrap(), [group]);
    for hold in &holds {
        engine.release(hold).await.unwrap();
    }
    gateway.set(Mood::Fine);
    world.has_all(&gateway).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 20).await;
    no_group_is_left(&world).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_made_without_an_answer_is_found_and_ended() {
    let engine = Engine::memory();
    let mut world = World::new(engine.clone()).await;
    let gateway = world.gateway("hanging", "doc.all").await;
    let (node, faulty) = faulty_node(&mut world, engine).await;
    gateway.set(Mood::Hangs);
    faulty.plan("create_group", Fault::LostReply);
    // By then the gateway has everything, and nothing is a reason to park it.
    (0..20).for_each(|_| faulty.plan("create_group", Fault::Refused));
    world.send(20).await;
    until(PATIENCE, "a group is made", async || {
        world.broker.admin().groups("changes").await.is_ok_and(|groups| groups.len() == 2)
    })
    .await;
    gateway.set(Mood::Fine);
    world.has_all(&gateway).await;
    until(PATIENCE, "it asks until it knows", async || faulty.are_spent()).await;
    no_group_is_left(&world).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 20).await;
    node.close().await.unwrap();
}

/// An event of `d3` was given up, then its gateway's group was made, and then the node died: the
/// letter is still there.
async fn a_letter_was_not_taken_back(mood: Mood) -> (World, Arc<TestGateway>, Router) {
    let mut world = World::memory().await;
    // However long a starved machine takes, the node parks no gateway before that.
    world.options.stall_timeout = Duration::from_secs(600);
    let picky = world.gateway("picky", "doc.all").await;
    picky.set(Mood::Refuses("d3".to_owned()));
    let node = world.node().await;
    world.send(20).await;
    world.settled().await;
    until(PATIENCE, "two are given up", async || world.dead().await == 2).await;
    books_tell(&node, (18, 2)).await;
    node.close().await.unwrap();
    let letters = world.broker.dead_letters("changes").list(None, 10).await.unwrap().letters;
    let first = letters.iter().map(|letter| letter.id.id).min().unwrap();
    let engine = world.broker.engine();
    let group = GroupName::new("router.gw.picky").unwrap();
    let (after, partition) =
        (StartPosition::After(RecordId { seq: first.seq - 1, ..first }), letters[0].id.partition);
    let space = SpaceName::new("router.parked").unwrap();
    let mark = EntryKey::new(space, format!("changes/router/{partition}/picky")).unwrap();
    engine.put(&mark, "".into(), Expect::Any).await.unwrap();
    engine.create_group(&at(partition), &group, after, None).await.unwrap();
    picky.set(mood);
    let node = world.node().await;
    (world, picky, node)
}

async fn letters(world: &World) -> Option<Vec<String>> {
    let letters = world.broker.dead_letters("changes").list(None, 10).await.ok()?.letters;
    Some(letters.iter().map(|letter| letter.id.group.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_a_dead_node_did_not_take_back_is_the_only_one_when_the_event_is_refused_again() {
    let (world, picky, node) = a_letter_was_not_taken_back(Mood::Refuses("d3".to_owned())).await;
    let group = "router.gw.picky".to_owned();
    let expected = Some(vec![group.clone(), group]);
    until(PATIENCE, "each is a letter once", async || letters(&world).await == expected).await;
    assert_eq!(picky.count(), 18);
    books_tell(&node, (0, 2)).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_that_a_dead_node_did_not_take_back_is_gone_when_the_event_is_taken() {
    let (world, picky, node) = a_letter_was_not_taken_back(Mood::Fine).await;
    world.has_all(&picky).await;
    no_group_is_left(&world).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 2).await;
    node.close().await.unwrap();
}
