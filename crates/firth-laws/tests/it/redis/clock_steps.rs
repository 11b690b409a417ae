//! Q10: the clock of a server, or of a client, steps by an hour, forward or back. What was timed
//! before and what is timed after stays right: delayed messages, retries, leases, memberships,
//! offers.

use super::clock::{OWN_CLOCK, World};
use bytes::Bytes;
use firth_engine::facet::{
    Acquire, Acquired, Append, Beat, ClaimKey, ClaimShard, Join, LeaseQuery, Membership, NewOffer, Outcome,
    TakeDue,
};
use firth_engine::{
    Engine, FileOptions, LeaseName, MemberName, OfferName, Result, ServiceName, Verdict, valid_for,
};
use firth_laws::world::{self, eventually, fresh, group, holder, numbered, numbers, pool_lease, retry};
use firth_testkit::{Flavor, RedisServer, ServerClock};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);
/// The server's clock, in seconds off the right time, step by step.
const STEPS: [i64; 4] = [-3600, 0, 3600, 0];
/// Longer than a client must know a unit before its word counts.
const KNOWN: Duration = Duration::from_secs(11);
const TTL: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_secs(1);

on_valkey!(
    q10_delayed_messages_keep_their_time
    q10_retries_keep_their_time
    q10_leases_of_groups_keep_their_time
    q10_leases_of_pools_keep_their_time
    q10_offers_and_seats_keep_their_time
    q10_a_lease_lasts_as_long_as_its_holder_counts_on_it
    q10_a_new_client_goes_on_from_the_time_that_was_kept
    q10_the_age_of_a_record_is_by_the_clock_that_shrinks
    q10_a_damaged_clock_counts_as_none
    q10_both_sides_compute_the_same_time
);

/// The same laws when the client's clock steps, on a server and on the engine inside the process.
macro_rules! on_own_clock {
    ($($law:ident)*) => {
        mod on_own_clock {
            $(#[test]
            fn $law() {
                super::run_under_a_clock_of_its_own(concat!("redis::clock_steps::on_valkey::", stringify!($law)));
            })*
        }
    };
}

on_own_clock!(
    q10_delayed_messages_keep_their_time
    q10_retries_keep_their_time
    q10_leases_of_groups_keep_their_time
    q10_leases_of_pools_keep_their_time
    q10_offers_and_seats_keep_their_time
    q10_a_lease_lasts_as_long_as_its_holder_counts_on_it
);

fn run_under_a_clock_of_its_own(test: &str) {
    let Some(clock) = ServerClock::new() else { return };
    super::block_on(async {
        let server = RedisServer::start(Flavor::Valkey).await;
        for url in [server.url(), "memory:".to_owned()] {
            clock.jump(0);
            run_child(&clock, test, &url);
        }
    });
}

fn run_child(clock: &ServerClock, test: &str, url: &str) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).envs(clock.environment()).env(OWN_CLOCK, url);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{url}: {text} {output:?}");
}

/// A process that comes back on its files goes on from the time that they keep.
#[test]
fn q10_files_keep_their_time_over_a_restart() {
    if let Ok(dir) = std::env::var(OWN_CLOCK) {
        return super::block_on(files_keep_their_time(dir.as_ref()));
    }
    let Some(clock) = ServerClock::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    clock.jump(0);
    let name = "redis::clock_steps::q10_files_keep_their_time_over_a_restart";
    run_child(&clock, name, dir.path().to_str().unwrap());
}

async fn files_keep_their_time(dir: &Path) {
    let open = async || Engine::file(dir, FileOptions::default()).await.unwrap();
    let engine = open().await;
    let at = world::partition(&engine).await;
    let late = Append { after: HOUR / 2, ..Append::new([numbered(1)]) };
    engine.append(&at, late).await.unwrap();
    let before = SystemTime::now();
    ServerClock::jump_by(std::env::var_os("FAKETIME_TIMESTAMP_FILE").unwrap().as_ref(), 3600);
    eventually("the clock has moved", || async { before.elapsed().is_ok_and(|passed| passed > HOUR / 2) })
        .await;
    assert_eq!(engine.promote_due(&at, 9).await.unwrap().moved, 0);
    engine.close().await.unwrap();
    let again = open().await;
    let promoted = again.promote_due(&at, 9).await.unwrap();
    assert_eq!(promoted.moved, 0, "half an hour has not passed");
    assert!(promoted.next.is_some_and(|next| next > HOUR / 3), "{:?}", promoted.next);
    again.close().await.unwrap();
}

impl World {
    async fn delay(&self, n: u64, after: Duration) {
        let batch = Append { after, ..Append::new([numbered(n)]) };
        self.engine.append(&self.at, batch).await.unwrap();
    }
}

/// Works with a unit until the client's word about its time counts. An engine inside the process
/// has no other clients.
async fn get_known<F: Future<Output = ()>>(world: &World, mut work: impl FnMut() -> F) {
    work().await;
    if world.url != "memory:" {
        tokio::time::sleep(KNOWN).await;
    }
    work().await;
}

/// Asks again and again until there is an answer.
async fn until_some<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    world::soon(what, asking).await
}

async fn q10_delayed_messages_keep_their_time(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let promote_due = async || world.engine.promote_due(&world.at, 100).await.unwrap();
    get_known(&world, async || {
        promote_due().await;
    })
    .await;
    world.delay(1000, HOUR).await;
    for (n, seconds) in STEPS.into_iter().enumerate() {
        let n = n as u64;
        world.delay(100 + 2 * n, SOON).await;
        world.jump(seconds).await;
        world.delay(101 + 2 * n, SOON).await;
        let mut moved = 0;
        let next = until_some("both short ones have come", async || {
            let promoted = promote_due().await;
            moved += promoted.moved;
            (moved >= 2).then_some(promoted.next)
        })
        .await;
        let next = next.expect("the long one waits");
        assert!(next > HOUR - Duration::from_secs(100) && next <= HOUR, "{seconds}: {next:?}");
    }
    let records = world::read_all(&world.engine, &world.at).await;
    assert_eq!(numbers(&records)[10..], (100..108).collect::<Vec<_>>());
    world.engine.close().await.unwrap();
}

async fn q10_retries_keep_their_time(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let mut owner = world.own(Duration::from_secs(600)).await;
    let hold = owner.hold.clone();
    get_known(&world, async || assert!(world.renew(&hold, Duration::from_secs(600)).await)).await;
    let long = owner.next().await.unwrap();
    owner.judge(&long, retry(HOUR)).await;
    for seconds in STEPS {
        let mut failed = owner.take(2).await;
        let at_once = failed.remove(0);
        let late = failed.remove(0);
        owner.judge(&at_once, retry(Duration::ZERO)).await;
        owner.judge(&late, retry(SOON)).await;
        world.jump(seconds).await;
        let mut came = Vec::new();
        while came.len() < 2 {
            let due =
                until_some("a retry comes", async || Some(owner.due(10).await).filter(|due| !due.is_empty()));
            came.extend(due.await);
        }
        came.iter().for_each(|record| owner.settle(record, Verdict::Ack));
        owner.commit().await;
        let mut ids: Vec<_> = came.iter().map(|record| record.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [at_once.id, late.id], "the one of an hour is not early");
    }
    let status = world::status(&world.engine, &world.at, &group("g")).await;
    let next = status.next_due.unwrap();
    assert!(next > HOUR - Duration::from_secs(100) && next <= HOUR, "{next:?}");
    world.engine.close().await.unwrap();
}

async fn q10_leases_of_groups_keep_their_time(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    leases_keep_their_time(&world, world.lease()).await;
}

async fn q10_leases_of_pools_keep_their_time(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    leases_keep_their_time(&world, pool_lease()).await;
}

/// An owner that renews keeps its lease over each step; one that does not loses it in time.
async fn leases_keep_their_time(world: &World, lease: LeaseName) {
    let rival = world.rival().await;
    let request = |ttl| Acquire::new(lease.clone(), holder(), ttl);
    let mut hold = world.engine.acquire(request(TTL)).await.unwrap().granted().unwrap();
    get_known(world, async || {
        assert!(world.renew(&hold, TTL).await);
        assert!(rival.acquire(request(TTL)).await.unwrap().granted().is_none());
    })
    .await;
    for seconds in STEPS {
        world.jump(seconds).await;
        let Acquired::Held(seen) = rival.acquire(request(TTL)).await.unwrap() else {
            panic!("{seconds}: the lease is the owner's");
        };
        assert!(seen.remaining <= TTL + Duration::from_secs(3), "{seconds}: {:?}", seen.remaining);
        assert!(world.renew(&hold, SOON).await);
        world.jump(-seconds).await;
        world.jump(seconds).await;
        let taken = until_some("the lease has run out", async || {
            rival.acquire(request(TTL)).await.unwrap().granted()
        });
        hold = taken.await;
    }
    world.engine.close().await.unwrap();
}

/// After a step forward the engine's time runs fast until it is right again.
async fn q10_a_lease_lasts_as_long_as_its_holder_counts_on_it(flavor: Flavor) {
    const TTL: Duration = Duration::from_secs(8);
    let Some(world) = World::new(flavor).await else { return };
    let rival = world.rival().await;
    let mut leases = vec![];
    for name in [world.lease(), pool_lease()] {
        let request = Acquire::new(name, holder(), TTL);
        leases.push((world.engine.acquire(request.clone()).await.unwrap().granted().unwrap(), request));
    }
    get_known(&world, async || {
        for (hold, _) in &leases {
            assert!(world.renew(hold, HOUR).await);
        }
    })
    .await;
    world.jump(3600).await;
    for (hold, request) in leases {
        let asked = Instant::now();
        assert!(world.renew(&hold, TTL).await);
        until_some("it runs out", async || rival.acquire(request.clone()).await.unwrap().granted()).await;
        assert!(asked.elapsed() >= valid_for(TTL), "{:?}: {}", asked.elapsed(), hold.lease);
    }
    world.engine.close().await.unwrap();
}

struct Shop<'w> {
    world: &'w World,
    claim_shard: ClaimShard,
}

impl Shop<'_> {
    async fn offer(&self) -> OfferName {
        let name = OfferName::new(fresh("unit")).unwrap();
        let offer = NewOffer { name: name.clone(), payload: Bytes::new() };
        assert_eq!(self.world.engine.offer(&self.claim_shard, vec![offer]).await.unwrap(), [true]);
        name
    }

    async fn join(&self, name: &str) -> Membership {
        let request = Join::new(MemberName::new(name).unwrap(), TTL, 10);
        self.world.engine.join(&self.claim_shard, request).await.unwrap()
    }

    async fn beat(&self, membership: &Membership) -> Result<firth_engine::facet::ClaimShardStatus> {
        self.world.engine.beat(membership, Beat { ttl: TTL, capacity: 10, roster: 0 }).await
    }

    /// Takes an offer that is free, or will be in a moment.
    async fn take(&self, membership: &Membership, expected: &OfferName) -> ClaimKey {
        let granted = until_some("a free offer is granted", async || {
            self.world.engine.grant(membership, 1).await.unwrap().pop()
        })
        .await;
        assert_eq!(granted.name, *expected);
        ClaimKey { name: granted.name, epoch: granted.epoch }
    }

    async fn give_back(&self, membership: &Membership, claim: &ClaimKey, rest: Duration) {
        let claims = std::slice::from_ref(claim);
        assert_eq!(self.world.engine.give_back(membership, claims, rest).await.unwrap(), [Outcome::Done]);
    }
}

async fn q10_offers_and_seats_keep_their_time(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let shop =
        Shop { world: &world, claim_shard: ClaimShard::new(ServiceName::new(fresh("service")).unwrap(), 0) };
    let mine = shop.join("mine").await;
    let other = shop.join("other").await;
    get_known(&world, async || {
        shop.beat(&mine).await.unwrap();
        shop.beat(&other).await.unwrap();
    })
    .await;
    let resting = shop.offer().await;
    let claim = shop.take(&mine, &resting).await;
    shop.give_back(&mine, &claim, HOUR).await;
    for seconds in STEPS {
        let early = shop.offer().await;
        world.jump(seconds).await;
        let claim = shop.take(&mine, &early).await;
        shop.give_back(&mine, &claim, SOON).await;
        let claim = shop.take(&other, &early).await;
        assert_eq!(world.engine.done(&other, &[claim]).await.unwrap(), [Outcome::Done]);
        shop.beat(&mine).await.unwrap();
        let status = shop.beat(&other).await.unwrap();
        let next = status.next_expiry.unwrap();
        assert!(next > Duration::ZERO && next <= TTL + Duration::from_secs(3), "{seconds}: {next:?}");
    }
    let next = shop.beat(&mine).await.unwrap().next_free.unwrap();
    assert!(next > HOUR - Duration::from_secs(100) && next <= HOUR, "{next:?}");
    world.engine.close().await.unwrap();
}

/// It has no expectation of its own: the partition says what time it was.
async fn q10_a_new_client_goes_on_from_the_time_that_was_kept(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    get_known(&world, async || {
        world.engine.promote_due(&world.at, 100).await.unwrap();
    })
    .await;
    world.delay(100, SOON).await;
    world.delay(101, HOUR).await;
    world.engine.close().await.unwrap();
    world.jump(-3600).await;
    let engine = world.rival().await;
    eventually("the message has come", || async {
        engine.promote_due(&world.at, 100).await.unwrap().moved == 1
    })
    .await;
    let hold = world::acquire(&engine, &world.at, &group("new"), SOON).await;
    let due = engine.due(&world.at, &group("new"), &hold, TakeDue::up_to(1)).await;
    assert!(due.is_err(), "the group does not exist yet");
    eventually("its own lease runs out in time", || async {
        let request = Acquire::new(LeaseName::group(&world.at, &group("new")), holder(), SOON);
        engine.acquire(request).await.unwrap().granted().is_some()
    })
    .await;
    engine.close().await.unwrap();
}

/// Retention compares a record's time with the partition's, so both go by the same offset.
async fn q10_the_age_of_a_record_is_by_the_clock_that_shrinks(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = world::partition(&engine).await;
    let key = server.command(&["KEYS", "firth:{*:p"]).await.items()[0].text();
    let time = server.command(&["TIME"]).await;
    let now: i64 = time.items()[0].text().parse::<i64>().unwrap() * 1_000_000;
    let hour = 3_600_000_000;
    for (n, (offset, last)) in [
        // Kept ten minutes ago: 30 s of the offset are gone.
        (hour, now + hour - 600_000_000),
        (-hour, now - hour - 600_000_000),
        // The clock went back since then.
        (0, now + hour),
        (-1, now),
    ]
    .into_iter()
    .enumerate()
    {
        // The log of each turn has a partition of its own: ids never go back.
        assert!(engine.delete_partition(&at).await.unwrap() && engine.create_partition(&at).await.unwrap());
        server.order(&["HSET", &key, "c", &format!("{offset} {last}")]).await;
        let plain = world::append(&engine, &at, n as u64, n as u64 + 1).await[0];
        let time = server.command(&["TIME"]).await;
        let now: u64 = time.items()[0].text().parse::<u64>().unwrap() * 1_000_000;
        let told = firth_engine::fuzzing::logical_time(now, offset, last.cast_unsigned(), None) / 1000;
        assert!(plain.ms.abs_diff(told) < 5000, "{offset} {last}: {plain} is not {told}");
    }
    engine.close().await.unwrap();
}

/// A text that is no clock is read as if there were none, by every script and by this process.
async fn q10_a_damaged_clock_counts_as_none(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = world::partition(&engine).await;
    let claim_shard = ClaimShard::new(ServiceName::new(fresh("service")).unwrap(), 0);
    let pool = pool_lease();
    let mut membership =
        engine.join(&claim_shard, Join::new(MemberName::new("m").unwrap(), TTL, 1)).await.unwrap();
    let request = |name: &LeaseName| Acquire::new(name.clone(), holder(), TTL);
    let mut hold = engine.acquire(request(&pool)).await.unwrap().granted().unwrap();
    let large = format!("1 {}", "9".repeat(400));
    for text in ["", "x", "1", "1 ", "1 2 3", "nan nan", "1e3 5", "0x10 1", "- 5", &large] {
        for kind in ["p", "m"] {
            for key in server.command(&["KEYS", &format!("firth:*}}:{kind}")]).await.items() {
                server.order(&["HSET", &key.text(), "c", text]).await;
            }
        }
        let before = world::append(&engine, &at, 0, 1).await[0];
        let time = server.command(&["TIME"]).await;
        let now: u64 = time.items()[0].text().parse::<u64>().unwrap() * 1000;
        assert!(before.ms.abs_diff(now) < 60_000, "{text}: {before}");
        assert_eq!(engine.promote_due(&at, 10).await.unwrap().moved, 0, "{text}");
        engine.bounds(&at).await.unwrap();
        engine.beat(&membership, Beat { ttl: TTL, capacity: 1, roster: 0 }).await.unwrap();
        assert!(engine.renew(std::slice::from_ref(&hold), TTL).await.unwrap()[0], "{text}");
        let LeaseName::Pool { pool: name, .. } = &pool else { unreachable!() };
        let listed = engine.leases(&LeaseQuery::Pool(name.clone())).await.unwrap();
        let most = TTL + Duration::from_millis(1);
        assert!(listed[0].is_held() && listed[0].remaining <= most, "{text}: {listed:?}");
        assert!(engine.release(&hold).await.unwrap());
        hold = engine.acquire(request(&pool)).await.unwrap().granted().unwrap();
        membership =
            engine.join(&claim_shard, Join::new(MemberName::new("m").unwrap(), TTL, 1)).await.unwrap();
    }
    engine.close().await.unwrap();
}

/// The rule is written twice, in Rust and in Lua.
async fn q10_both_sides_compute_the_same_time(flavor: Flavor) {
    const RULE: &str = include_str!("../../../../firth-engine/src/redis/lua/lib/clock.lua");
    let script = format!(
        "local call, match, now_us = redis.call, string.match, nil {RULE}
        local wall, offset, last = tonumber(ARGV[1]), parse_clock(ARGV[2])
        return string.format('%.0f', (logical(wall, offset, last, tonumber(ARGV[3]), tonumber(ARGV[4]))))"
    );
    let server = RedisServer::start(flavor).await;
    let mut random = fastrand::Rng::with_seed(10);
    let spans =
        [0, 1, 1_999_999, 2_000_001, 15_000_000, 59_000_000, 61_000_000, 3_600_000_000, 3_000_000_000_000];
    let now: i64 = 1_800_000_000_000_000;
    for _ in 0..500 {
        let mut span = || random.choice(spans).unwrap() * random.choice([-1, 1]).unwrap();
        let wall = now + span();
        let offset = span();
        let last = now + span();
        let expected = now + span();
        let slack = 2_000_000 + span().unsigned_abs() % 100_000_000;
        let is_expected = offset % 2 == 0;
        let clock = format!("{offset} {last}");
        let expected = expected.cast_unsigned();
        let args = if is_expected { [expected.to_string(), slack.to_string()] } else { Default::default() };
        let wall_text = wall.to_string();
        let answer = server.command(&["EVAL", &script, "0", &wall_text, &clock, &args[0], &args[1]]).await;
        let told = firth_engine::fuzzing::logical_time(
            wall.cast_unsigned(),
            offset,
            last.cast_unsigned(),
            is_expected.then_some((expected, slack)),
        );
        assert_eq!(answer.text(), told.to_string(), "{wall} {clock} {args:?}");
    }
}
