//! What waiters watch on the server: each change of hands is a new version, and what a reader needs
//! to know of a partition is true however its records came.

use firth_engine::facet::{
    Acquire, Append, ClaimKey, ClaimShard, Join, NewOffer, ProducerSeq, Replay, Reset, StartPosition,
};
use firth_engine::{
    Content, Engine, LeaseName, MemberName, OfferName, Partition, PoolName, ProducerName, RecordId,
    ServiceName,
};
use firth_laws::world::{
    self, LONG, Owner, acquire, append, dead, group, holder, numbered, partition, take_over,
};
use firth_testkit::{Flavor, RedisServer, on_both};
use std::time::Duration;

on_both!(
    each_change_of_hands_of_a_group_is_a_new_version,
    each_change_of_hands_of_a_pool_is_a_new_version,
    each_change_of_a_claim_shard_is_a_new_version,
    a_letter_that_is_due_again_is_a_new_version_of_its_partition,
    the_largest_record_is_known_however_it_came,
    what_is_kept_of_a_producer_is_bounded,
    delayed_messages_are_counted_one_by_one,
);

const HOUR: Duration = Duration::from_secs(3600);

struct World {
    server: RedisServer,
    engine: Engine,
    at: Partition,
    /// What the keys of the partition begin with.
    stem: String,
}

impl World {
    async fn new(flavor: Flavor) -> Self {
        let server = RedisServer::start(flavor).await;
        let engine = Engine::at(&server.url()).await.unwrap();
        let at = partition(&engine).await;
        let key = server.command(&["KEYS", "firth:{*:p"]).await.items()[0].text();
        Self { server, engine, at, stem: key.trim_end_matches('p').to_owned() }
    }

    /// A field of the partition.
    async fn field(&self, name: &str) -> String {
        self.server.command(&["HGET", &format!("{}p", self.stem), name]).await.text()
    }

    /// The version of all leases of the partition's groups; none before the first.
    async fn leases(&self) -> String {
        format!("{:?}", self.server.command(&["GET", &format!("{}v", self.stem)]).await)
    }

    async fn end(self) {
        self.engine.close().await.unwrap();
    }
}

async fn each_change_of_hands_of_a_group_is_a_new_version(flavor: Flavor) {
    let world = World::new(flavor).await;
    let World { engine, at, .. } = &world;
    let mut seen = vec![world.leases().await];
    let note = async |what: &str, seen: &mut Vec<String>| {
        let now = world.leases().await;
        assert!(!seen.contains(&now), "{what} is a change of hands: {now}");
        seen.push(now);
    };
    append(engine, at, 0, 3).await;
    let name = group("g");
    let hold = acquire(engine, at, &name, LONG).await;
    note("acquiring", &mut seen).await;
    assert!(engine.release(&hold).await.unwrap());
    note("releasing", &mut seen).await;
    let owner = Owner::new(engine, at, &name).await;
    note("acquiring again", &mut seen).await;
    take_over(engine, at, &name).await;
    note("taking over", &mut seen).await;
    assert!(engine.revoke(&owner.hold.lease).await.unwrap());
    note("revoking", &mut seen).await;
    acquire(engine, at, &name, LONG).await;
    note("acquiring after that", &mut seen).await;
    engine.reset(at, &name, Reset { to: StartPosition::Start, drop_due: true }, None).await.unwrap();
    note("a reset", &mut seen).await;
    acquire(engine, at, &name, LONG).await;
    note("acquiring once more", &mut seen).await;
    assert!(engine.delete_group(at, &name, None).await.unwrap());
    note("deleting the group", &mut seen).await;
    world.end().await;
}

async fn each_change_of_hands_of_a_pool_is_a_new_version(flavor: Flavor) {
    let world = World::new(flavor).await;
    let engine = &world.engine;
    let pool = PoolName::new("members").unwrap();
    let lease = |name: &str| LeaseName::pool(&pool, &MemberName::new(name).unwrap());
    let take = async |name: &str| {
        let request = Acquire::new(lease(name), holder(), LONG);
        engine.acquire(request).await.unwrap().granted().unwrap()
    };
    let version = async || {
        let key = world.server.command(&["KEYS", "firth:pool:*:m"]).await.items()[0].text();
        world.server.command(&["HGET", &key, "v"]).await.text().parse::<u64>().unwrap()
    };
    let a = take("a").await;
    let mut before = version().await;
    let mut note = async |what: &str| {
        let now = version().await;
        assert!(now > before, "{what}: {now} after {before}");
        before = now;
    };
    take("b").await;
    note("acquiring").await;
    assert!(engine.release(&a).await.unwrap());
    note("releasing").await;
    take("c").await;
    note("acquiring again").await;
    assert!(engine.revoke(&lease("b")).await.unwrap());
    note("revoking").await;
    // The pool vanishes with its last lease, and comes again.
    assert!(engine.revoke(&lease("c")).await.unwrap());
    take("d").await;
    note("a pool that vanished and came again").await;
    world.end().await;
}

async fn each_change_of_a_claim_shard_is_a_new_version(flavor: Flavor) {
    let world = World::new(flavor).await;
    let engine = &world.engine;
    let claim_shard = ClaimShard::new(ServiceName::new("devices").unwrap(), 0);
    let names = [0, 1].map(|n| OfferName::new(format!("unit-{n}")).unwrap());
    let key = async |field: &str| {
        world.server.command(&["KEYS", &format!("firth:board:*:{field}")]).await.items()[0].text()
    };
    let mut before = 0;
    let mut note = async |what: &str| {
        let now = world.server.command(&["HGET", &key("m").await, "v"]).await.text().parse().unwrap();
        assert!(now > before, "{what}: {now} after {before}");
        before = now;
    };
    let offer = |name: &OfferName| NewOffer { name: name.clone(), payload: "x".into() };
    engine.offer(&claim_shard, names.iter().map(offer).collect()).await.unwrap();
    note("offering").await;
    let join = async |name: &str| {
        let join = Join::new(MemberName::new(name).unwrap(), LONG, 10);
        engine.join(&claim_shard, join).await.unwrap()
    };
    let membership = join("a").await;
    note("joining").await;
    let granted = engine.grant(&membership, 5).await.unwrap();
    let claim = |at: usize| ClaimKey { name: granted[at].name.clone(), epoch: granted[at].epoch };
    engine.give_back(&membership, &[claim(0)], Duration::ZERO).await.unwrap();
    note("giving back").await;
    assert_eq!(engine.force_release(&claim_shard, &[granted[1].name.clone()]).await.unwrap(), [true]);
    note("releasing by force").await;
    assert_eq!(engine.grant(&membership, 5).await.unwrap().len(), 2);
    assert!(engine.leave(&membership).await.unwrap());
    note("leaving").await;
    // Who takes over what was left makes its former member forgotten.
    let heir = join("b").await;
    assert_eq!(engine.grant(&heir, 5).await.unwrap().len(), 2);
    assert!(engine.grant(&heir, 5).await.unwrap().is_empty());
    assert_eq!(world.server.command(&["HLEN", &key("w").await]).await.int(), 1, "one life is left");
    world.end().await;
}

async fn a_letter_that_is_due_again_is_a_new_version_of_its_partition(flavor: Flavor) {
    let world = World::new(flavor).await;
    let World { engine, at, .. } = &world;
    let name = group("g");
    let ids = append(engine, at, 0, 2).await;
    let mut owner = Owner::new(engine, at, &name).await;
    for record in owner.take(2).await {
        owner.judge(&record, dead("no")).await;
    }
    let keys = async || world.server.command(&["DBSIZE"]).await.int();
    for (id, to) in ids.into_iter().zip([Replay::Group, Replay::Everyone]) {
        let before = world.field("v").await;
        assert_eq!(engine.replay(at, &name, &[id], to).await.unwrap(), 1);
        assert_ne!(world.field("v").await, before, "{to:?} wakes who waits");
    }
    // By number, by time, and bodies: nothing is left of the letters.
    let left = format!("{:?}", world.server.command(&["KEYS", "*"]).await);
    assert!([":x:g", ":t:g", ":b:g"].iter().all(|key| !left.contains(key)), "{left}");
    owner.drain().await;
    for record in owner.due(9).await {
        owner.settle(&record, firth_engine::Verdict::Ack);
    }
    owner.commit().await;
    let before = keys().await;
    // Deleting and expiring leave nothing either.
    for round in 0..2 {
        let id = append(engine, at, round, round + 1).await.remove(0);
        let record = owner.take(1).await.remove(0);
        owner.judge(&record, dead("no")).await;
        let removed = match round {
            0 => engine.delete_dead(at, &name, &[id]).await.unwrap(),
            _ => {
                world::soon("it is old", async {
                    loop {
                        match engine.expire_dead(at, &name, Duration::ZERO).await.unwrap() {
                            0 => tokio::task::yield_now().await,
                            removed => return removed,
                        }
                    }
                })
                .await
            }
        };
        assert_eq!((removed, keys().await), (1, before));
    }
    world.end().await;
}

/// A page of large records is read one by one, so a script must know that there are such.
async fn the_largest_record_is_known_however_it_came(flavor: Flavor) {
    let world = World::new(flavor).await;
    let World { engine, at, .. } = &world;
    let other = Engine::at(&world.server.url()).await.unwrap();
    let mut size = 10_000;
    let mut large = || {
        size += 10_000;
        (size, Content::new(vec![7; size]))
    };
    let check = async |how: &str, size: usize| {
        let known: usize = world.field("m").await.parse().unwrap();
        assert!((size..size + 1000).contains(&known), "{how}: {known} instead of {size}");
    };
    for (how, engine) in [("alone", engine), ("beside another process", &other), ("again", engine)] {
        let (size, content) = large();
        engine.append(at, Append::new([content])).await.unwrap();
        check(how, size).await;
    }
    let (size, content) = large();
    let producer = ProducerSeq { name: ProducerName::new("p").unwrap(), first: 0, keep: Duration::ZERO };
    engine.append(at, Append { producer: Some(producer), ..Append::new([content]) }).await.unwrap();
    check("of a producer", size).await;
    let (size, content) = large();
    engine.append(at, Append { after: HOUR, ..Append::new([content]) }).await.unwrap();
    check("delayed", size).await;
    append(engine, at, 0, 1).await;
    check("a small one behind it", size).await;
    other.close().await.unwrap();
    world.end().await;
}

async fn what_is_kept_of_a_producer_is_bounded(flavor: Flavor) {
    let world = World::new(flavor).await;
    let World { engine, at, .. } = &world;
    let kept = async || world.server.command(&["HVALS", &format!("{}w", world.stem)]).await;
    let mut batches = Vec::new();
    for n in 0..40 {
        let producer = ProducerSeq { name: ProducerName::new("p").unwrap(), first: n, keep: Duration::ZERO };
        engine.append(at, Append { producer: Some(producer), ..Append::new([numbered(n)]) }).await.unwrap();
        batches.push(kept().await.items()[0].text().matches(';').count());
    }
    assert_eq!(batches[..9], [1, 2, 3, 4, 5, 6, 7, 8, 8]);
    assert!(batches[8..].iter().all(|count| *count == 8), "{batches:?}");
    world.end().await;
}

async fn delayed_messages_are_counted_one_by_one(flavor: Flavor) {
    let world = World::new(flavor).await;
    let World { engine, at, .. } = &world;
    engine.append(at, Append { after: HOUR, ..Append::new([0, 1, 2].map(numbered)) }).await.unwrap();
    engine.append(at, Append { after: HOUR, ..Append::new([3, 4].map(numbered)) }).await.unwrap();
    let bounds = engine.bounds(at).await.unwrap();
    assert_eq!((bounds.delayed, bounds.last), (5, RecordId::ZERO));
    world.end().await;
}
