//! Streams of others: written by plain clients, consumed here, and left alone.

use crate::faulty::{self, Fault};
use crate::world::{Diary, Reader, eventually, fails, lag, payloads, soon};
use firth::{AS_JSON, Broker, ErrorKind, Message, Nack, RecordId, Replay, RetryPolicy, STREAM_ID, StartAt};
use firth_engine::facet::Adopt;
use firth_engine::{Partition, TopicName};
use firth_testkit::{Flavor, RedisCluster, RedisServer, on_both};
use std::collections::HashMap;
use std::time::Duration;

on_both!(
    a_plain_client_writes_while_a_group_consumes_retries_and_gives_up,
    a_group_of_the_stream_goes_on_where_it_stood,
    every_entry_comes_once_however_many_follow,
    fields_become_key_payload_and_headers,
    a_stream_is_moved_only_if_told_so,
    a_topic_of_redis_streaming_is_taken_over_with_its_group,
    a_stream_that_was_made_anew_is_followed_again,
    of_two_that_adopt_at_once_one_wins_with_its_own_fields,
    of_two_that_make_and_adopt_at_once_one_wins_and_nothing_else_is_followed,
    a_crash_while_a_topic_is_made_leaves_none_or_one_that_does_what_it_says,
    who_comes_late_changes_nothing_about_what_a_topic_follows
);

/// The stream as its own programs see it: how many entries, and where its groups stand.
async fn untouched(server: &RedisServer, stream: &str) -> (i64, Vec<String>) {
    let groups = server.command(&["XINFO", "GROUPS", stream]).await;
    let told = |group: &firth_testkit::Reply| {
        ["name", "consumers", "pending", "last-delivered-id"]
            .map(|name| format!("{:?}", group.field(name)))
            .join(" ")
    };
    (server.command(&["XLEN", stream]).await.int(), groups.items().iter().map(told).collect())
}

async fn xadd(server: &RedisServer, fields: &[&str]) {
    let command: Vec<&str> = ["XADD", "orders", "*"].iter().chain(fields).copied().collect();
    server.command(&command).await;
}

async fn a_plain_client_writes_while_a_group_consumes_retries_and_gives_up(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    for n in 0..20 {
        xadd(&server, &["n", &n.to_string(), "customer", ["ada", "bob", "cy"][n % 3]]).await;
    }
    server.command(&["XGROUP", "CREATE", "orders", "theirs", "0"]).await;
    let before = untouched(&server, "orders").await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.adopt_stream("orders").key_field("customer").await.unwrap();
    let retry = RetryPolicy::fixed(2, Duration::from_millis(30));
    let consumer = broker.consumer("orders", "billing").retry(retry).await.unwrap();
    let diary = Diary::default();
    let reader = {
        let diary = diary.clone();
        Reader::with(consumer, move |record| {
            let diary = diary.clone();
            async move {
                let fields: HashMap<String, String> = record.json()?;
                let n: u64 = fields["n"].parse()?;
                assert_eq!(record.key().unwrap(), fields["customer"].as_bytes());
                if n % 10 == 4 || (n % 10 == 7 && record.attempt() == 1) {
                    return Err(Nack::retry(format!("no {n}")));
                }
                diary.note(&fields["customer"], &record);
                Ok(())
            }
        })
    };
    eventually("the first part is settled", async || {
        broker.admin().group("orders", "billing").await.unwrap().lag() == 0
    })
    .await;
    assert_eq!(untouched(&server, "orders").await, before, "the stream was only read");
    for n in 20..40 {
        xadd(&server, &["n", &n.to_string(), "customer", ["ada", "bob", "cy"][n % 3]]).await;
    }
    eventually("all but the hopeless are handled", async || diary.len() == 36).await;
    eventually("four are given up", async || broker.dead_letters("orders").count().await.unwrap() == 4).await;
    for customer in ["ada", "bob", "cy"] {
        let seen: Vec<u64> = diary
            .of(customer)
            .iter()
            .map(|text| serde_json::from_str::<HashMap<String, String>>(text).unwrap()["n"].parse().unwrap())
            .collect();
        assert!(seen.is_sorted(), "{customer}: {seen:?}");
    }
    let letters = broker.dead_letters("orders").list(None, 9).await.unwrap().letters;
    assert!(letters.iter().all(|letter| letter.attempts() == 2 && letter.reason.starts_with("no ")));
    let id = letters[0].id.clone();
    let mended = Message::json(&serde_json::json!({"n": "100", "customer": "bob"})).unwrap().key("bob");
    broker.dead_letters("orders").edit_and_replay(&id, mended, Replay::Group).await.unwrap();
    eventually("the mended one is handled", async || diary.len() == 37).await;
    reader.close().await;
    assert_eq!(untouched(&server, "orders").await, (40, before.1));
    fails(broker.producer("orders").await, ErrorKind::Invalid);
    fails(broker.grow_topic("orders", 2).await, ErrorKind::Invalid);
    assert!(broker.delete_topic("orders").await.unwrap());
    assert_eq!(untouched(&server, "orders").await.0, 40, "deleting the topic leaves the stream alone");
    broker.close().await.unwrap();
}

async fn a_group_of_the_stream_goes_on_where_it_stood(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(server.command(&["XADD", "orders", "*", "n", &n.to_string()]).await.text());
    }
    server.command(&["XGROUP", "CREATE", "orders", "billing", "0"]).await;
    let read = ["XREADGROUP", "GROUP", "billing", "old", "COUNT", "20", "STREAMS", "orders", ">"];
    server.command(&read).await;
    // Everything that was handed out is acknowledged, but for 5 and 11.
    for n in (0..20).filter(|n| *n != 5 && *n != 11) {
        server.command(&["XACK", "orders", "billing", &ids[n]]).await;
    }
    let before = untouched(&server, "orders").await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    fails(broker.adopt_stream("none").stream("orders").import_group("nobody").await, ErrorKind::NotFound);
    broker.adopt_stream("orders").import_group_as("billing", "accounts").await.unwrap();
    assert_eq!(lag(&broker, "accounts").await, 12);
    let mut consumer = broker.consumer("orders", "accounts").await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..12 {
        let delivery = soon("the next one", consumer.next()).await.unwrap().unwrap();
        let n: usize = delivery.json::<HashMap<String, String>>().unwrap()["n"].parse().unwrap();
        assert_eq!(delivery.headers().get(STREAM_ID).unwrap(), ids[n].as_bytes());
        seen.push((n, delivery.attempt()));
        delivery.ack().await.unwrap();
    }
    seen.sort_unstable();
    let expected: Vec<_> = [(5, 2), (11, 2)].into_iter().chain((20..30).map(|n| (n, 1))).collect();
    assert_eq!(seen, expected);
    assert_eq!(lag(&broker, "accounts").await, 0);
    assert_eq!(untouched(&server, "orders").await, before, "the old group stays as it is");
    consumer.close().await.unwrap();
    broker.close().await.unwrap();
}

async fn every_entry_comes_once_however_many_follow(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let first = Broker::connect(&server.url()).await.unwrap();
    let second = Broker::connect(&server.url()).await.unwrap();
    first.adopt_stream("orders").await.unwrap();
    let one = Diary::default();
    let two = Diary::default();
    let a = Reader::start(first.consumer("orders", "billing").await.unwrap(), "a", &one);
    let b = Reader::start(second.consumer("orders", "audit").await.unwrap(), "b", &two);
    for n in 0..300 {
        xadd(&server, &["n", &n.to_string()]).await;
    }
    let expected: Vec<String> = (0..300).map(|n| format!(r#"{{"n":"{n}"}}"#)).collect();
    one.reaches(300).await;
    two.reaches(300).await;
    assert_eq!((one.payloads(), two.payloads()), (expected.clone(), expected));
    assert_eq!(first.admin().topic("orders").await.unwrap().records(), 300);
    a.close().await;
    b.close().await;
    first.close().await.unwrap();
    second.close().await.unwrap();
}

async fn fields_become_key_payload_and_headers(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    xadd(&server, &["body", "plain text", "who", "ada", "kind", "order"]).await;
    xadd(&server, &["other", "no body"]).await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.adopt_stream("letters").stream("orders").key_field("who").payload_field("body").await.unwrap();
    let admin = broker.admin();
    assert_eq!(admin.topic("letters").await.unwrap().records(), 2, "figures count what stands in the stream");
    let shown = admin.browse("letters", 0, RecordId::ZERO, 9).await.unwrap();
    assert_eq!((shown[0].text().unwrap(), shown[0].key().unwrap().as_ref()), ("plain text", &b"ada"[..]));
    assert_eq!(shown[0].headers().get("kind").unwrap(), "order");
    assert_eq!(shown[1].text().unwrap(), r#"{"other":"no body"}"#);
    assert!(shown[1].headers().get(AS_JSON).is_some() && shown[0].headers().get(AS_JSON).is_none());
    server.command(&["SET", "text", "x"]).await;
    fails(broker.adopt_stream("text").await, ErrorKind::Invalid);
    fails(broker.adopt_stream("letters").await, ErrorKind::AlreadyExists);
    fails(Broker::memory().adopt_stream("orders").await, ErrorKind::Unsupported);
    broker.close().await.unwrap();
}

/// Its partitions are streams, whose entries have these fields.
async fn a_topic_of_redis_streaming_is_taken_over_with_its_group(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    for partition in ["0", "1"] {
        let stream = format!("stream:topic:{{orders}}:p:{partition}");
        let mut ids = Vec::new();
        for n in ["0", "1", "2"] {
            let fixed = ["timestamp", "2026-01-01T00:00:00Z", "retryCount", "0", "maxRetries", "3"];
            let own = ["topic", "orders", "partitionId", partition, "key", "ada", "payload", n];
            let entry = ["XADD", &stream, "*", "headers", r#"{"kind":"invoice"}"#];
            let command: Vec<&str> = entry.iter().chain(&fixed).chain(&own).copied().collect();
            ids.push(server.command(&command).await.text());
        }
        server.command(&["XGROUP", "CREATE", &stream, "payment", "0"]).await;
        let read = ["XREADGROUP", "GROUP", "payment", "consumer-1", "COUNT", "2", "STREAMS", &stream, ">"];
        server.command(&read).await;
        server.command(&["XACK", &stream, "payment", &ids[0]]).await;

        let topic = format!("orders-{partition}");
        let adopt = broker.adopt_stream(&topic).stream(&stream).key_field("key").payload_field("payload");
        adopt.import_group("payment").await.unwrap();
        let mut consumer = broker.consumer(&topic, "payment").await.unwrap();
        for (n, attempt) in [("1", 2), ("2", 1)] {
            let delivery = soon("the next one", consumer.next()).await.unwrap().unwrap();
            assert_eq!((delivery.text().unwrap(), delivery.attempt()), (n, attempt));
            assert_eq!(delivery.key().unwrap(), "ada");
            let header =
                |name: &str| String::from_utf8(delivery.headers().get(name).unwrap().to_vec()).unwrap();
            assert_eq!((header("partitionId").as_str(), header("maxRetries").as_str()), (partition, "3"));
            assert_eq!(
                (header("headers").as_str(), header("topic").as_str()),
                (r#"{"kind":"invoice"}"#, "orders")
            );
            assert_eq!(header(STREAM_ID), ids[n.parse::<usize>().unwrap()]);
            delivery.ack().await.unwrap();
        }
        assert_eq!(broker.admin().group(&topic, "payment").await.unwrap().lag(), 0);
        consumer.close().await.unwrap();
    }
    broker.close().await.unwrap();
}

async fn a_stream_is_moved_only_if_told_so(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    for n in 0..5 {
        xadd(&server, &["n", &n.to_string()]).await;
    }
    let broker = Broker::connect(&server.url()).await.unwrap();
    let newest = broker.adopt_stream("orders").start_at(StartAt::Newest).remove_entries();
    newest.await.unwrap();
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    xadd(&server, &["n", "5"]).await;
    diary.reaches(1).await;
    assert_eq!(diary.payloads(), [r#"{"n":"5"}"#]);
    // The five of before are not the topic's.
    eventually("its entry is removed", async || server.command(&["XLEN", "orders"]).await.int() == 5).await;
    reader.close().await;
    broker.close().await.unwrap();
}

async fn a_stream_that_was_made_anew_is_followed_again(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.adopt_stream("orders").await.unwrap();
    let diary = Diary::default();
    let reader = Reader::start(broker.consumer("orders", "billing").await.unwrap(), "a", &diary);
    server.command(&["XADD", "orders", "500-1", "n", "0"]).await;
    diary.reaches(1).await;
    server.command(&["DEL", "orders"]).await;
    server.command(&["XADD", "orders", "7-1", "n", "1"]).await;
    diary.reaches(2).await;
    assert_eq!(diary.payloads(), [r#"{"n":"0"}"#, r#"{"n":"1"}"#]);
    reader.close().await;
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_stream_anywhere_in_a_cluster_is_followed() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
    let broker = Broker::connect(&cluster.url()).await.unwrap();
    let client = firth_redis::Client::connect(cluster.url().as_str()).await.unwrap();
    let diary = Diary::default();
    let mut readers = Vec::new();
    for stream in ["one", "two", "three", "four"] {
        broker.adopt_stream(stream).await.unwrap();
        readers.push(Reader::start(broker.consumer(stream, "billing").await.unwrap(), stream, &diary));
        for n in 0..10 {
            let add = firth_redis::cmd("XADD").key(stream).arg("*").arg("n").arg(n);
            let _: String = client.call(add).await.unwrap();
        }
    }
    diary.reaches(40).await;
    for stream in ["one", "two", "three", "four"] {
        assert_eq!(diary.of(stream), (0..10).map(|n| format!(r#"{{"n":"{n}"}}"#)).collect::<Vec<_>>());
    }
    for reader in readers {
        reader.close().await;
    }
    broker.close().await.unwrap();
}

async fn of_two_that_adopt_at_once_one_wins_with_its_own_fields(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    xadd(&server, &["a", "by a", "b", "by b"]).await;
    let brokers =
        [Broker::connect(&server.url()).await.unwrap(), Broker::connect(&server.url()).await.unwrap()];
    for round in 0..20 {
        let topic = format!("orders-{round}");
        let adopt = async |by: usize| {
            let field = ["a", "b"][by];
            brokers[by].adopt_stream(&topic).stream("orders").key_field(field).await
        };
        let outcomes: [_; 2] = tokio::join!(adopt(0), adopt(1)).into();
        let winner = outcomes.iter().position(Result::is_ok).expect("one of them wins");
        assert_eq!(outcomes[1 - winner].as_ref().unwrap_err().kind(), ErrorKind::AlreadyExists);
        let adopted = brokers[1 - winner].topic(&topic).await.unwrap().config.adopted.unwrap();
        assert_eq!(adopted.key_field.as_deref(), Some(["a", "b"][winner]));
        let mut consumer = brokers[1 - winner].consumer(&topic, "g").await.unwrap();
        let delivery = soon("the entry", consumer.next()).await.unwrap().unwrap();
        assert_eq!(delivery.key().unwrap(), ["by a", "by b"][winner].as_bytes(), "round {round}");
        delivery.ack().await.unwrap();
        consumer.close().await.unwrap();
    }
}

/// What a topic holds after an entry came to the stream of its name; what follows no stream is sent
/// a record.
async fn holds(server: &RedisServer, broker: &Broker, topic: &str) -> Vec<String> {
    server.command(&["XADD", topic, "*", "n", "1"]).await;
    if broker.topic(topic).await.unwrap().config.adopted.is_none() {
        broker.producer(topic).await.unwrap().send("sent").await.unwrap();
    }
    let at = Partition::new(TopicName::new(topic).unwrap(), 0);
    broker.engine().promote_due(&at, 10).await.unwrap();
    payloads(broker.engine(), topic, 0).await
}

async fn of_two_that_make_and_adopt_at_once_one_wins_and_nothing_else_is_followed(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let (one, other) =
        (Broker::connect(&server.url()).await.unwrap(), Broker::connect(&server.url()).await.unwrap());
    for round in 0..20 {
        let topic = format!("orders-{round}");
        let (made, adopted) =
            tokio::join!(one.create_topic(&topic).into_future(), other.adopt_stream(&topic).into_future());
        assert!(made.is_ok() != adopted.is_ok(), "one wins: {made:?} {adopted:?}");
        let expected = if made.is_ok() { "sent" } else { r#"{"n":"1"}"# };
        assert_eq!(holds(&server, &one, &topic).await, [expected], "round {round}");
    }
}

/// The process that makes a topic dies at any step, before or after the server has done it. The
/// next process makes the topic, or finds one that does what its entry says.
async fn a_crash_while_a_topic_is_made_leaves_none_or_one_that_does_what_it_says(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    for adopts in [true, false] {
        for (round, step) in
            ["get", "stream_mark", "create_partition_as", "put", "adopt"].into_iter().enumerate()
        {
            for fault in [Fault::Refused, Fault::LostReply] {
                let topic = format!("orders-{adopts}-{round}-{fault:?}");
                let (dying, faults) = faulty::process(broker.engine());
                faults.plan(step, fault);
                let died = match adopts {
                    true => dying.adopt_stream(&topic).await.is_err(),
                    false => dying.create_topic(&topic).await.is_err(),
                };
                assert_eq!(died, faults.are_spent(), "{topic}");
                let next = match adopts {
                    true => broker.create_topic(&topic).await,
                    false => broker.adopt_stream(&topic).await,
                };
                if let Err(error) = next {
                    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{topic}: {error}");
                }
                let is_adopted = broker.topic(&topic).await.unwrap().config.adopted.is_some();
                let mut consumer = broker.consumer(&topic, "g").await.unwrap();
                let expected = if is_adopted { r#"{"n":"1"}"# } else { "sent" };
                assert_eq!(holds(&server, &broker, &topic).await, [expected], "{topic}");
                let delivery = soon("the record", consumer.next()).await.unwrap().unwrap();
                assert_eq!(delivery.text().unwrap(), expected);
                delivery.ack().await.unwrap();
                consumer.close().await.unwrap();
            }
        }
    }
}

/// One that was asleep since before the topic was deleted and made anew still wants its own to
/// follow the stream, or to follow nothing.
async fn who_comes_late_changes_nothing_about_what_a_topic_follows(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    let partition = |topic: &str| Partition::new(TopicName::new(topic).unwrap(), 0);
    let request = |topic: &str| Some(Adopt { stream: topic.to_owned(), ..Default::default() });
    broker.create_topic("first").await.unwrap();
    broker.create_topic("plain").await.unwrap();
    assert!(!broker.engine().adopt(&partition("plain"), request("plain"), 1).await.unwrap());
    assert_eq!(holds(&server, &broker, "plain").await, ["sent"]);
    broker.adopt_stream("followed").await.unwrap();
    assert!(!broker.engine().adopt(&partition("followed"), None, 1).await.unwrap());
    assert!(!broker.engine().adopt(&partition("followed"), request("other"), 1).await.unwrap());
    assert_eq!(holds(&server, &broker, "followed").await, [r#"{"n":"1"}"#]);
    broker.delete_topic("followed").await.unwrap();
    let late = broker.engine().adopt(&partition("followed"), request("followed"), 9).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::NotFound, "nothing comes back to life");
}
