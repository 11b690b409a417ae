//! An append-only file that ends anywhere: the machine dies while its server writes down what a
//! script did. With any rest of the file the server comes back with a state between two steps
//! of the engine, and never with half a step; and what is acknowledged after that is there, and
//! nothing else, however often it dies again.

use super::{block_on, until_ok};
use bytes::Bytes;
use firth_engine::facet::{
    Acquire, Adopt, Append, ClaimKey, ClaimShard, EntryKey, Expect, Join, LeaseQuery, NewOffer, ProducerSeq,
    Replay, Reset, StartPosition, Trim, TrimTo,
};
use firth_engine::{
    Content, Engine, GroupName, Hold, LeaseInfo, LeaseName, MemberName, OfferName, Partition, ProducerName,
    RecordId, ServiceName, Verdict,
};
use firth_laws::world::{
    self, LONG, Owner, acquire, append, dead, group, holder, numbered, partition, pool_lease, read_all,
    retry, retry_kept, status, take_over,
};
use firth_testkit::{Flavor, Persist, RedisServer, on_both};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

on_both!(
    a_torn_file_never_holds_half_a_step,
    who_outlives_the_server_writes_nothing_behind_a_torn_step,
    a_server_that_dies_while_it_rewrites_a_torn_file_loses_nothing
);

/// Of each kind of place inside a step, at how many the file is cut.
const FEW: usize = 1;
/// The same for those who have time.
const MANY: usize = 20;

/// A call of the engine that was answered.
#[derive(Clone)]
struct Step {
    what: &'static str,
    /// How long the file was then.
    end: usize,
    /// What the server held then.
    digest: String,
    /// How many records the idempotent producer had appended.
    sent: u64,
}

/// Notes what the server holds after each step.
struct Diary<'a> {
    server: &'a RedisServer,
    steps: Vec<Step>,
    sent: u64,
}

impl Diary<'_> {
    async fn note(&mut self, what: &'static str) {
        let end = std::fs::metadata(file_of(self.server)).unwrap().len().try_into().unwrap();
        self.steps.push(Step { what, end, digest: digest(self.server).await, sent: self.sent });
    }
}

/// One figure for all that a server holds.
async fn digest(server: &RedisServer) -> String {
    server.order(&["DEBUG", "DIGEST"]).await.text()
}

/// The file into which the server writes its steps now.
fn file_of(server: &RedisServer) -> PathBuf {
    let manifest = std::fs::read_to_string(folder_of(server).join("appendonly.aof.manifest")).unwrap();
    let last = manifest.lines().rfind(|line| line.ends_with("type i")).unwrap();
    folder_of(server).join(last.split(' ').nth(1).unwrap())
}

fn folder_of(server: &RedisServer) -> PathBuf {
    server.data_dir().join("appendonlydir")
}

/// All files of a server that is dead.
struct Files {
    server_files: Vec<(PathBuf, Vec<u8>)>,
    /// Where it wrote last.
    last: PathBuf,
}

impl Files {
    fn of(server: &RedisServer) -> Self {
        let paths = std::fs::read_dir(folder_of(server)).unwrap().map(|file| file.unwrap().path());
        let server_files = paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        Self { server_files, last: file_of(server) }
    }

    fn last(&self) -> &[u8] {
        &self.server_files.iter().find(|(path, _)| *path == self.last).unwrap().1
    }

    /// Puts them back as they were, the last one up to here.
    fn restore(&self, server: &RedisServer, cut: usize) {
        std::fs::remove_dir_all(folder_of(server)).unwrap();
        std::fs::create_dir(folder_of(server)).unwrap();
        for (path, content) in &self.server_files {
            let length = if *path == self.last { cut } else { content.len() };
            std::fs::write(path, &content[..length]).unwrap();
        }
    }
}

/// Opens an engine, and waits until the server has begun its file anew where the engine wants that.
async fn open_settled(server: &RedisServer) -> Engine {
    let engine = Engine::at(&server.url()).await.unwrap();
    world::eventually("the file is rewritten", || async {
        server.info("persistence").await["aof_rewrite_in_progress"].trim() == "0"
    })
    .await;
    engine
}

/// Where the commands of an append-only file end.
fn command_ends(file: &[u8]) -> Vec<usize> {
    let mut at = 0;
    let mut ends = Vec::new();
    let number = |at: &mut usize| -> usize {
        let stop = *at + file[*at..].iter().position(|byte| *byte == b'\r').unwrap();
        let number = std::str::from_utf8(&file[*at + 1..stop]).unwrap().parse().unwrap();
        *at = stop + 2;
        number
    };
    while at < file.len() {
        assert_eq!(file[at], b'*', "a command is a list");
        for _ in 0..number(&mut at) {
            at += number(&mut at) + 2;
        }
        ends.push(at);
    }
    ends
}

async fn a_torn_file_never_holds_half_a_step(flavor: Flavor) {
    tear(flavor, FEW).await;
}

#[test]
#[ignore = "cuts the file at thousands of places: for those who change what scripts write"]
fn a_file_torn_at_many_places_never_holds_half_a_step() {
    for flavor in [Flavor::Redis, Flavor::Valkey] {
        block_on(tear(flavor, MANY));
    }
}

async fn tear(flavor: Flavor, inside: usize) {
    let story = Story::of(flavor).await;
    for cut in story.cuts(inside) {
        story.tear(cut).await;
        let server = &story.server;
        let step = story.last_before(cut);
        let next = story.steps.iter().find(|step| step.end > cut).map(|step| step.what);
        let place = format!("cut after {cut} bytes: after {}, in {next:?}", step.what);
        assert_eq!(digest(server).await, step.digest, "{place}");
        if cut == step.end {
            balance(server, &story.at, &story.name, step).await;
            continue;
        }
        let engine = Engine::at(&server.url()).await.unwrap();
        // A step that is one command has no transaction of its own.
        let sent = if fastrand::u8(..4) == 0 {
            assert!(engine.create_partition(&world::unmade_partition()).await.unwrap());
            step.sent
        } else {
            carry_on(&engine, &story.at, &story.name, step.sent).await
        };
        engine.close().await.unwrap();
        let before = digest(server).await;
        server.restart().await;
        assert_eq!(digest(server).await, before, "{place}, and died again");
        balance(server, &story.at, &story.name, &Step { sent, ..step.clone() }).await;
    }
}

/// As most clients: connected before the server died, and not told that it did.
async fn who_outlives_the_server_writes_nothing_behind_a_torn_step(flavor: Flavor) {
    let story = Story::of(flavor).await;
    let mut cuts = story.torn_steps();
    fastrand::shuffle(&mut cuts);
    story.server.restart().await;
    let engine = Engine::at(&story.server.url()).await.unwrap();
    let entry = EntryKey::new(world::space(), "entry").unwrap();
    for cut in cuts.into_iter().take(8) {
        story.tear(cut).await;
        let server = &story.server;
        let step = story.last_before(cut);
        until_ok("the engine is connected again", || engine.get(&entry)).await;
        // One after the other, which soon needs no scripts, before anything else and behind it.
        if fastrand::bool() && engine.append(&story.at, Append::new([numbered(1)])).await.is_ok() {
            trickle(&engine, &story.at).await;
        }
        carry_on(&engine, &story.at, &story.name, step.sent).await;
        trickle(&engine, &story.at).await;
        let before = digest(server).await;
        server.restart().await;
        assert_eq!(digest(server).await, before, "cut after {cut} bytes: after {}", step.what);
    }
    engine.close().await.unwrap();
}

async fn trickle(engine: &Engine, at: &Partition) {
    for n in 6000..6030 {
        append(engine, at, n, n + 1).await;
    }
}

/// The file that is to replace the torn one is not ready when the server dies again.
async fn a_server_that_dies_while_it_rewrites_a_torn_file_loses_nothing(flavor: Flavor) {
    let story = Story::of(flavor).await;
    let cuts = story.torn_steps();
    let cut = cuts[fastrand::usize(cuts.len() / 2..cuts.len())];
    story.tear(cut).await;
    let server = &story.server;
    let step = story.last_before(cut);
    // Five seconds for each key.
    server.order(&["CONFIG", "SET", "rdb-key-save-delay", "5000000"]).await;
    let engine = Engine::at(&server.url()).await.unwrap();
    carry_on(&engine, &story.at, &story.name, step.sent).await;
    engine.close().await.unwrap();
    let rewrites = server.info("persistence").await["aof_rewrite_in_progress"].trim() == "1";
    assert_eq!(rewrites, flavor == Flavor::Redis, "Valkey cuts the file well");
    let before = digest(server).await;
    for _ in 0..2 {
        server.restart().await;
        assert_eq!(digest(server).await, before, "cut after {cut} bytes: after {}", step.what);
    }
}

/// What was done, and what it left on disk.
struct Story {
    server: RedisServer,
    at: Partition,
    name: ProducerName,
    steps: Vec<Step>,
    files: Files,
}

impl Story {
    /// Does everything, and kills the server.
    async fn of(flavor: Flavor) -> Self {
        let server = RedisServer::builder().flavor(flavor).persist(Persist::AofAlways).start().await;
        let engine = open_settled(&server).await;
        let mut diary = Diary { server: &server, steps: Vec::new(), sent: 0 };
        diary.note("nothing").await;
        let at = partition(&engine).await;
        let name = world::producer();
        diary.note("create partition").await;
        work(&engine, &at, &name, &mut diary).await;
        settle_in_many_ways(&engine, &at, &mut diary).await;
        administer(&engine, &at, &mut diary).await;
        follow_a_stream(&engine, &mut diary).await;
        claim(&engine, &mut diary).await;
        engine.close().await.unwrap();
        let steps = diary.steps;
        server.kill().await;
        let files = Files::of(&server);
        let written = steps.last().unwrap().end;
        assert_eq!(written, files.last().len(), "everything was written before it was answered");
        Self { server, at, name, steps, files }
    }

    /// The step after which the server was as it must be with so much of its file.
    fn last_before(&self, cut: usize) -> &Step {
        self.steps.iter().rfind(|step| step.end <= cut).unwrap()
    }

    /// The end of each step, and some places inside it: where a command ends and where none does.
    fn cuts(&self, inside: usize) -> Vec<usize> {
        let ends = command_ends(self.files.last());
        let mut from = 0;
        let mut cuts = BTreeSet::new();
        for step in &self.steps {
            let mut between: Vec<usize> =
                ends.iter().copied().filter(|end| (from + 1..step.end).contains(end)).collect();
            fastrand::shuffle(&mut between);
            cuts.extend(between.into_iter().take(inside));
            cuts.extend((0..inside.min(step.end - from)).map(|_| fastrand::usize(from..step.end)));
            cuts.insert(step.end);
            from = step.end;
        }
        cuts.into_iter().filter(|cut| *cut >= self.steps[0].end).collect()
    }

    /// Where a step with several commands can be torn such that some of them are left whole.
    fn torn_steps(&self) -> Vec<usize> {
        let ends = command_ends(self.files.last());
        let pairs = self.steps.windows(2).filter_map(|pair| {
            let inside: Vec<usize> =
                ends.iter().copied().filter(|end| (pair[0].end + 1..pair[1].end).contains(end)).collect();
            // The last command that is left whole is not the MULTI of the step.
            (inside.len() > 2).then(|| inside[fastrand::usize(1..inside.len())] + 3)
        });
        pairs.collect()
    }

    /// The server is started with so much of its file.
    async fn tear(&self, cut: usize) {
        self.server.kill().await;
        self.files.restore(&self.server, cut);
        self.server.restart().await;
    }
}

/// A client that comes after the crash does each kind of step that consumers and producers do.
/// Answers how many records the idempotent producer has appended then.
async fn carry_on(engine: &Engine, at: &Partition, name: &ProducerName, sent: u64) -> u64 {
    let red = group("red");
    engine.create_partition(at).await.unwrap();
    engine.create_group(at, &red, StartPosition::Start, None).await.unwrap();
    append(engine, at, 5000, 5070).await;
    engine.append(at, batch(name, sent)).await.unwrap();
    engine.append(at, Append { after: LONG, ..Append::new([Content::new("later")]) }).await.unwrap();
    let mut owner = Owner::with(engine, at, &red, seize(engine, at, &red).await).await;
    for (n, record) in owner.due(3).await.iter().enumerate() {
        owner.settle(record, [Verdict::Ack, retry(Duration::ZERO), dead("torn")][n].clone());
    }
    owner.commit().await;
    let some = owner.take(5).await;
    let verdicts = [Verdict::Ack, retry(Duration::ZERO), retry_kept(LONG), dead("torn"), Verdict::Ack];
    some.iter().zip(verdicts).for_each(|(record, verdict)| owner.settle(record, verdict));
    owner.commit().await;
    let last = owner.take(1).await;
    owner.judge(&last[0], Verdict::Ack).await;
    sent + 3
}

/// Every kind of append.
async fn work(engine: &Engine, at: &Partition, name: &ProducerName, diary: &mut Diary<'_>) {
    for from in ["red", "blue"] {
        assert!(engine.create_group(at, &group(from), StartPosition::Start, None).await.unwrap());
        diary.note("create group").await;
    }
    append(engine, at, 0, 4).await;
    diary.note("append").await;
    append(engine, at, 4, 150).await;
    diary.note("append many").await;
    for _ in 0..2 {
        engine.append(at, batch(name, diary.sent)).await.unwrap();
        diary.sent += 3;
        diary.note("append once").await;
    }
    assert!(engine.append(at, batch(name, diary.sent - 3)).await.unwrap().duplicate);
    diary.note("append again").await;
    let soon =
        Append { after: Duration::from_millis(1), ..Append::new([Content::new("200"), Content::new("201")]) };
    engine.append(at, soon).await.unwrap();
    diary.note("delay").await;
    let later = Append { after: LONG, ..Append::new([Content::new("202")]) };
    engine.append(at, later).await.unwrap();
    diary.note("delay for long").await;
    world::eventually("the delayed ones are ripe", || async {
        engine.promote_due(at, 10).await.unwrap().moved == 2
    })
    .await;
    diary.note("promote_due").await;
}

/// Three records of an idempotent producer.
fn batch(name: &ProducerName, first: u64) -> Append {
    let records: Vec<Content> = (first..first + 3).map(|n| numbered(300 + n)).collect();
    Append {
        producer: Some(ProducerSeq { name: name.clone(), first, keep: Duration::ZERO }),
        ..Append::new(records)
    }
}

/// Every kind of verdict, from the log and from what was due.
async fn settle_in_many_ways(engine: &Engine, at: &Partition, diary: &mut Diary<'_>) {
    let hold = acquire(engine, at, &group("red"), LONG).await;
    diary.note("acquire").await;
    let mut owner = Owner::with(engine, at, &group("red"), hold).await;
    diary.note("open").await;
    let first = owner.take(60).await;
    for (n, record) in first.iter().enumerate() {
        let verdict = match n % 6 {
            0 | 1 => retry(Duration::ZERO),
            2 => retry(LONG),
            3 => retry_kept(Duration::ZERO),
            4 => dead("torn"),
            _ => Verdict::Ack,
        };
        owner.settle(record, verdict);
    }
    owner.commit().await;
    diary.note("commit in many ways").await;
    let ahead = owner.take(20).await;
    ahead.iter().skip(5).for_each(|record| owner.settle(record, Verdict::Ack));
    owner.commit().await;
    diary.note("commit ahead").await;
    let due = owner.due(20).await;
    assert!((5..=20).contains(&due.len()), "{}", due.len());
    diary.note("take due").await;
    for (n, record) in due.iter().enumerate() {
        owner.settle(record, [Verdict::Ack, retry(LONG), dead("torn again")][n % 3].clone());
    }
    ahead.iter().take(3).for_each(|record| owner.settle(record, retry(Duration::ZERO)));
    owner.commit().await;
    diary.note("commit what was due").await;
    assert_eq!(engine.renew(std::slice::from_ref(&owner.hold), LONG).await.unwrap(), [true]);
    diary.note("renew").await;
    let hold = take_over(engine, at, &group("red")).await;
    diary.note("take over").await;
    let heir = Owner::with(engine, at, &group("red"), hold).await;
    diary.note("open after a crash").await;
    heir.leave().await;
    diary.note("release").await;
}

/// What operators do.
async fn administer(engine: &Engine, at: &Partition, diary: &mut Diary<'_>) {
    let name = group("red");
    let letters: Vec<RecordId> =
        engine.dead(at, &name, RecordId::ZERO, 100).await.unwrap().iter().map(|letter| letter.id).collect();
    assert_eq!(engine.replay(at, &name, &letters[..4], Replay::Group).await.unwrap(), 4);
    diary.note("replay to the group").await;
    assert_eq!(engine.replay(at, &name, &letters[4..7], Replay::Everyone).await.unwrap(), 3);
    diary.note("replay to everyone").await;
    assert_eq!(engine.delete_dead(at, &name, &letters[7..9]).await.unwrap(), 2);
    diary.note("delete dead letters").await;
    let hold = acquire(engine, at, &group("blue"), LONG).await;
    diary.note("acquire another").await;
    let mut blue = Owner::with(engine, at, &group("blue"), hold).await;
    diary.note("open another group").await;
    blue.drain().await;
    diary.note("commit everything").await;
    engine.trim(at, Trim { to: TrimTo::Keep(2), lossy: false }).await.unwrap();
    diary.note("trim").await;
    engine.reset(at, &name, Reset { to: StartPosition::End, drop_due: false }, None).await.unwrap();
    diary.note("reset").await;
    engine.trim(at, Trim { to: TrimTo::Keep(20), lossy: true }).await.unwrap();
    diary.note("trim whatever is lost").await;
    engine.reset(at, &name, Reset { to: StartPosition::Start, drop_due: true }, None).await.unwrap();
    diary.note("reset and drop").await;
    assert!(engine.delete_group(at, &group("blue"), None).await.unwrap());
    diary.note("delete group").await;
    let key = EntryKey::new(world::space(), "entry").unwrap();
    for value in ["one", "two"] {
        engine.put(&key, value.into(), Expect::Any).await.unwrap();
        diary.note("put").await;
    }
    engine.remove(&key, Expect::Any).await.unwrap();
    diary.note("remove").await;
    let other = partition(engine).await;
    diary.note("create another partition").await;
    append(engine, &other, 0, 10).await;
    diary.note("append to another partition").await;
    engine.create_group(&other, &name, StartPosition::Start, None).await.unwrap();
    diary.note("create a group there").await;
    assert!(engine.delete_partition(&other).await.unwrap());
    diary.note("delete partition").await;
}

/// A stream of others is taken in.
async fn follow_a_stream(engine: &Engine, diary: &mut Diary<'_>) {
    let at = world::unmade_partition();
    let adopt = Adopt { stream: "foreign".into(), ..Adopt::default() };
    for n in 0..3 {
        diary.server.order(&["XADD", "foreign", "*", "n", &n.to_string()]).await;
        diary.note("somebody writes").await;
    }
    assert!(engine.create_partition(&at).await.unwrap());
    diary.note("create a partition to follow it").await;
    assert!(engine.adopt(&at, Some(adopt), 1).await.unwrap());
    diary.note("adopt").await;
    assert_eq!(engine.promote_due(&at, 2).await.unwrap().moved, 2);
    diary.note("take in").await;
}

/// Leases of a pool, and claims.
async fn claim(engine: &Engine, diary: &mut Diary<'_>) {
    let hold = engine.acquire(Acquire::new(pool_lease(), holder(), LONG)).await.unwrap().granted().unwrap();
    diary.note("acquire in a pool").await;
    assert!(engine.release(&hold).await.unwrap());
    diary.note("release in a pool").await;
    let claim_shard = ClaimShard::new(ServiceName::new("service").unwrap(), 0);
    let unit = |n: u32| OfferName::new(format!("unit-{n}")).unwrap();
    let offers = (0..4).map(|n| NewOffer { name: unit(n), payload: Bytes::from("work") }).collect();
    engine.offer(&claim_shard, offers).await.unwrap();
    diary.note("offer").await;
    let request = Join::new(MemberName::new("worker").unwrap(), LONG, 10);
    let membership = engine.join(&claim_shard, request).await.unwrap();
    diary.note("join").await;
    let granted = engine.grant(&membership, 3).await.unwrap();
    diary.note("grant").await;
    let claims: Vec<ClaimKey> =
        granted.iter().map(|granted| ClaimKey { name: granted.name.clone(), epoch: granted.epoch }).collect();
    engine.checkpoint(&membership, &claims[0], Bytes::from("half way")).await.unwrap();
    diary.note("checkpoint").await;
    engine.done(&membership, &claims[..1]).await.unwrap();
    diary.note("done").await;
    engine.give_back(&membership, &claims[1..2], Duration::ZERO).await.unwrap();
    diary.note("give back").await;
    engine.leave(&membership).await.unwrap();
    diary.note("leave").await;
}

/// Law 2 and 10 in the engine's own words: each record of a group is in one place, and the producer
/// goes on where it was.
async fn balance(server: &RedisServer, at: &Partition, name: &ProducerName, step: &Step) {
    let engine = Engine::at(&server.url()).await.unwrap();
    if engine.create_partition(at).await.unwrap() {
        assert!(matches!(step.what, "nothing"), "the partition is lost after {}", step.what);
    }
    for name in engine.groups(at).await.unwrap() {
        let before = status(&engine, at, &name).await;
        let letters = engine.dead(at, &name, RecordId::ZERO, 1000).await.unwrap();
        let pending = engine.pending(at, &name, RecordId::ZERO, 1000).await.unwrap();
        let mut owner = Owner::with(&engine, at, &name, seize(&engine, at, &name).await).await;
        let mut places: Vec<u64> = pending.iter().map(|pending| pending.id.seq).collect();
        while let Some(record) = owner.next().await {
            places.push(record.id.seq);
        }
        let open: BTreeSet<u64> = places.iter().copied().collect();
        assert_eq!(open.len(), places.len(), "{name} has a record in two places after {}", step.what);
        let figures = (places.len() as u64, pending.len(), letters.len());
        let told = (before.lag(), before.due as usize, before.dead as usize);
        assert_eq!(told, figures, "lag, due and dead of {name} after {}", step.what);
    }
    let log = read_all(&engine, at).await;
    let bounds = engine.bounds(at).await.unwrap();
    let numbers: Vec<u64> = log.iter().map(|record| record.id.seq).collect();
    assert_eq!(
        numbers,
        (bounds.trimmed.seq + 1..=bounds.last.seq).collect::<Vec<_>>(),
        "after {}",
        step.what
    );
    if step.sent > 0 {
        assert!(
            engine.append(at, batch(name, step.sent - 3)).await.unwrap().duplicate,
            "after {}",
            step.what
        );
    }
    assert!(!engine.append(at, batch(name, step.sent)).await.unwrap().duplicate, "after {}", step.what);
    engine.close().await.unwrap();
}

/// Takes the lease of a group from its owner at the time of the crash.
async fn seize(engine: &Engine, at: &Partition, name: &GroupName) -> Hold {
    let lease = LeaseName::group(at, name);
    let found = engine.leases(&LeaseQuery::Names(vec![lease])).await.unwrap();
    if found.iter().any(LeaseInfo::is_held) {
        take_over(engine, at, name).await
    } else {
        acquire(engine, at, name, LONG).await
    }
}
