//! A server whose clock is set while it runs: a minute ahead, an hour back. Safety rests on
//! fencing, liveness also on beats.

use firth_engine::facet::{Acquire, Acquired, LeaseQuery, StartPosition, TakeDue};
use firth_engine::{Commit, Engine, Epoch, ErrorKind, Hold, LeaseName, Partition, RecordId};
use firth_laws::world::{self, Owner, append, fails, group, holder, numbers, partition, read_all};
use firth_testkit::{Flavor, RedisServer, ServerClock};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const MINUTE_AHEAD: i64 = 60;
const HOUR_BACK: i64 = -3600;
const TTL: Duration = Duration::from_secs(15);
const SOON: Duration = Duration::from_millis(300);

on_valkey!(
    a_clock_that_jumps_ahead_never_makes_two_owners
    a_clock_that_jumps_back_does_not_block_takeover
    an_owner_that_renews_keeps_its_lease_over_any_jump
    the_log_goes_on_over_any_jump
    q19_the_age_of_a_streams_entries_is_by_the_servers_clock
);

pub(super) struct World {
    clock: StepClock,
    server: Option<RedisServer>,
    pub(super) url: String,
    pub(super) engine: Engine,
    pub(super) at: Partition,
}

/// Whose clock steps.
enum StepClock {
    Server(ServerClock),
    /// This process runs under libfaketime, which reads this file.
    Own(PathBuf, Instant, SystemTime),
}

/// The engine of a test whose own process has the clock that steps.
pub(super) const OWN_CLOCK: &str = "FIRTH_TEST_OWN_CLOCK";

impl World {
    /// A server with a clock of its own; `None` where that cannot be.
    pub(super) async fn new(flavor: Flavor) -> Option<Self> {
        let (clock, server, url) = match std::env::var(OWN_CLOCK) {
            Ok(url) => {
                let file = PathBuf::from(std::env::var_os("FAKETIME_TIMESTAMP_FILE").unwrap());
                (StepClock::Own(file, Instant::now(), SystemTime::now()), None, url)
            }
            Err(_) => {
                let clock = ServerClock::new()?;
                let server = RedisServer::builder().flavor(flavor).clock(&clock).start().await;
                let url = server.url();
                (StepClock::Server(clock), Some(server), url)
            }
        };
        let engine = Engine::at(&url).await.unwrap();
        let at = partition(&engine).await;
        append(&engine, &at, 0, 10).await;
        Some(Self { clock, server, url, engine, at })
    }

    fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("the test has a server of its own")
    }

    /// Another client; a store inside the process has but one.
    pub(super) async fn rival(&self) -> Engine {
        if self.url == "memory:" { self.engine.clone() } else { Engine::at(&self.url).await.unwrap() }
    }

    /// Moves the clock, and waits until its owner goes by it.
    pub(super) async fn jump(&self, seconds: i64) {
        match &self.clock {
            StepClock::Server(clock) => clock.jump(seconds),
            StepClock::Own(file, ..) => ServerClock::jump_by(file, seconds),
        }
        world::eventually("the clock has moved", || async { (self.off_by().await - seconds).abs() < 5 })
            .await;
    }

    /// How many seconds the clock is ahead of the right time.
    async fn off_by(&self) -> i64 {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        match &self.clock {
            StepClock::Server(_) => {
                let shown: i64 = self.server().command(&["TIME"]).await.items()[0].text().parse().unwrap();
                shown - seconds(SystemTime::now())
            }
            StepClock::Own(_, start, wall) => seconds(SystemTime::now()) - seconds(*wall + start.elapsed()),
        }
    }

    pub(super) fn lease(&self) -> LeaseName {
        LeaseName::group(&self.at, &group("g"))
    }

    pub(super) async fn own(&self, ttl: Duration) -> Owner {
        let hold = world::acquire(&self.engine, &self.at, &group("g"), ttl).await;
        Owner::with(&self.engine, &self.at, &group("g"), hold).await
    }

    pub(super) async fn renew(&self, hold: &Hold, ttl: Duration) -> bool {
        self.engine.renew(std::slice::from_ref(hold), ttl).await.unwrap()[0]
    }

    /// What a rival remembers that trusts no clock but its own.
    async fn look(&self) -> (Epoch, u64) {
        let query = LeaseQuery::Names(vec![self.lease()]);
        let seen = self.engine.leases(&query).await.unwrap().remove(0);
        (seen.epoch, seen.beats)
    }

    /// What it does after a whole TTL: it takes what stood still.
    async fn take_if_still(&self, seen: (Epoch, u64)) -> Option<Hold> {
        let request = Acquire { stalled: Some(seen), ..Acquire::new(self.lease(), holder(), TTL) };
        self.engine.acquire(request).await.unwrap().granted()
    }

    /// A former owner can do nothing, at any reading of the clock.
    async fn is_out(&self, former: &Owner) {
        let last = RecordId::new(u64::MAX >> 12, 10);
        fails(former.send(Commit::up_to(last)).await, ErrorKind::Fenced);
        fails(
            self.engine.due(&self.at, &group("g"), &former.hold, TakeDue::up_to(1)).await,
            ErrorKind::Fenced,
        );
        assert!(!self.renew(&former.hold, TTL).await);
        assert!(!self.engine.release(&former.hold).await.unwrap());
    }
}

async fn a_clock_that_jumps_ahead_never_makes_two_owners(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let former = world.own(TTL).await;
    world.jump(MINUTE_AHEAD).await;
    // The lease seems to have run out: a rival may have it, and from then on only the rival.
    let mut rival = world.own(TTL).await;
    assert!(rival.hold.epoch > former.hold.epoch);
    world.is_out(&former).await;
    world.jump(0).await;
    world.is_out(&former).await;
    assert!(world.renew(&rival.hold, TTL).await);
    assert_eq!(rival.drain().await, (0..10).collect::<Vec<_>>());
    world.engine.close().await.unwrap();
}

async fn a_clock_that_jumps_back_does_not_block_takeover(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let former = world.own(SOON).await;
    world.jump(HOUR_BACK).await;
    tokio::time::sleep(SOON).await;
    let request = Acquire::new(world.lease(), holder(), TTL);
    let Acquired::Held(seen) = world.engine.acquire(request).await.unwrap() else {
        panic!("by the server's clock the lease runs for an hour");
    };
    assert!(seen.remaining > Duration::from_secs(3000), "{:?}", seen.remaining);
    let seen = world.look().await;
    tokio::time::sleep(SOON).await;
    let hold = world.take_if_still(seen).await.expect("it stood still for its whole TTL");
    assert!(hold.epoch > former.hold.epoch, "epochs grow although the clock went back");
    world.is_out(&former).await;
    let mut rival = Owner::with(&world.engine, &world.at, &group("g"), hold).await;
    assert_eq!(rival.drain().await, (0..10).collect::<Vec<_>>());
    // Forward again: leases taken since seem over, which costs their owner nothing until another
    // member asks.
    world.jump(0).await;
    assert!(world.renew(&rival.hold, TTL).await);
    world.engine.close().await.unwrap();
}

async fn an_owner_that_renews_keeps_its_lease_over_any_jump(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let mut owner = world.own(TTL).await;
    for seconds in [HOUR_BACK, 0, HOUR_BACK, MINUTE_AHEAD, 0] {
        world.jump(seconds).await;
        // After a jump ahead the owner must be first; after one back it is safe anyway.
        assert!(world.renew(&owner.hold, TTL).await);
        let seen = world.look().await;
        assert!(world.renew(&owner.hold, TTL).await);
        let rival = world.take_if_still(seen).await;
        assert!(rival.is_none(), "a beat refutes who thinks that it stands still");
    }
    assert_eq!(owner.drain().await, (0..10).collect::<Vec<_>>());
    world.engine.close().await.unwrap();
}

async fn the_log_goes_on_over_any_jump(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    let mut count = 10;
    for seconds in [MINUTE_AHEAD, HOUR_BACK, 0] {
        world.jump(seconds).await;
        append(&world.engine, &world.at, count, count + 5).await;
        count += 5;
    }
    let records = read_all(&world.engine, &world.at).await;
    assert_eq!(numbers(&records), (0..count).collect::<Vec<_>>());
    assert!(records.windows(2).all(|pair| pair[0].id < pair[1].id), "ids never go back");
    world.engine.create_group(&world.at, &group("end"), StartPosition::End, None).await.unwrap();
    assert_eq!(world::status(&world.engine, &world.at, &group("end")).await.waiting, 0);
    world.engine.close().await.unwrap();
}

async fn q19_the_age_of_a_streams_entries_is_by_the_servers_clock(flavor: Flavor) {
    let Some(world) = World::new(flavor).await else { return };
    world.jump(HOUR_BACK).await;
    let added = world.server().command(&["XADD", "orders", "*", "n", "1"]).await;
    let entry: RecordId = added.text().parse().unwrap();
    let mark =
        world.engine.stream_mark("orders", StartPosition::Age(Duration::from_secs(600))).await.unwrap();
    assert!(mark < entry && mark.ms + 700_000 > entry.ms, "{mark} {entry}");
    world.engine.close().await.unwrap();
}
