//! Laws of the catalog.

use crate::world::{fails, soon, space};
use bytes::Bytes;
use firth_engine::facet::{EntryKey, Expect, Put};
use firth_engine::{Engine, ErrorKind};

fn done(put: Put) -> u64 {
    match put {
        Put::Done(version) => version,
        Put::Conflict(current) => panic!("conflict with {current:?}"),
    }
}

/// Absent, a version, or anything: the change happens only then, and a loser learns what is there.
pub async fn a_change_happens_only_as_expected(engine: Engine) {
    let key = EntryKey::new(space(), "orders/settings").unwrap();
    assert_eq!(engine.get(&key).await.unwrap(), None);
    assert_eq!(engine.put(&key, "x".into(), Expect::Version(1)).await.unwrap(), Put::Conflict(None));
    assert_eq!(engine.remove(&key, Expect::Version(1)).await.unwrap(), Put::Conflict(None));
    let first = done(engine.put(&key, "one".into(), Expect::Absent).await.unwrap());
    let entry = engine.get(&key).await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_ref(), entry.version, entry.name.as_str()),
        (&b"one"[..], first, "orders/settings")
    );
    assert_eq!(
        engine.put(&key, "two".into(), Expect::Absent).await.unwrap(),
        Put::Conflict(Some(entry.clone()))
    );
    let second = done(engine.put(&key, "two".into(), Expect::Version(first)).await.unwrap());
    let stale = engine.put(&key, "three".into(), Expect::Version(first)).await.unwrap();
    assert!(
        matches!(stale, Put::Conflict(Some(current)) if current.version == second && current.value == "two")
    );
    let third = done(engine.put(&key, Bytes::new(), Expect::Any).await.unwrap());
    assert!(matches!(engine.remove(&key, Expect::Version(second)).await.unwrap(), Put::Conflict(Some(_))));
    done(engine.remove(&key, Expect::Version(third)).await.unwrap());
    assert_eq!(engine.get(&key).await.unwrap(), None);
    let huge = Bytes::from(vec![0; (1 << 20) + 1]);
    fails(engine.put(&key, huge, Expect::Any).await, ErrorKind::Invalid);
    assert!(EntryKey::new(space(), "").is_err() && EntryKey::new(space(), "a b").is_err());
}

/// Many increments by compare-and-set: none is lost.
pub async fn racing_changes_have_one_winner(engine: Engine) {
    let key = EntryKey::new(space(), "counter").unwrap();
    done(engine.put(&key, "0".into(), Expect::Absent).await.unwrap());
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let engine = engine.clone();
            let key = key.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    increment(&engine, &key).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(engine.get(&key).await.unwrap().unwrap().value, "40");
}

async fn increment(engine: &Engine, key: &EntryKey) {
    loop {
        let entry = engine.get(key).await.unwrap().unwrap();
        let value: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
        let put =
            engine.put(key, (value + 1).to_string().into(), Expect::Version(entry.version)).await.unwrap();
        if matches!(put, Put::Done(_)) {
            return;
        }
    }
}

/// Also after a removal: a writer with an old version changes nothing.
pub async fn a_version_never_comes_back(engine: Engine) {
    let key = EntryKey::new(space(), "k").unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(done(engine.put(&key, "v".into(), Expect::Absent).await.unwrap()));
        seen.push(done(engine.put(&key, "v".into(), Expect::Any).await.unwrap()));
        done(engine.remove(&key, Expect::Any).await.unwrap());
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    done(engine.put(&key, "v".into(), Expect::Absent).await.unwrap());
    for version in seen {
        assert!(matches!(
            engine.put(&key, "old".into(), Expect::Version(version)).await.unwrap(),
            Put::Conflict(_)
        ));
    }
}

/// Sorted, by prefix, in pages, and one space only.
pub async fn entries_are_listed_in_order_and_paged(engine: Engine) {
    let other = space();
    let space = space();
    let key = |name: &str| EntryKey::new(space.clone(), name).unwrap();
    for name in ["b/2", "a/1", "b/10", "b/1", "c", "b"] {
        done(engine.put(&key(name), name.to_owned().into(), Expect::Absent).await.unwrap());
    }
    done(engine.put(&EntryKey::new(other, "b/9").unwrap(), "x".into(), Expect::Any).await.unwrap());
    let names = |prefix: &'static str, after: &'static str, max| {
        let engine = engine.clone();
        let space = space.clone();
        async move {
            let page = engine.list(&space, prefix, after, max).await.unwrap();
            page.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        }
    };
    assert_eq!(names("", "", 100).await, ["a/1", "b", "b/1", "b/10", "b/2", "c"]);
    assert_eq!(names("b/", "", 2).await, ["b/1", "b/10"]);
    assert_eq!(names("b/", "b/10", 2).await, ["b/2"]);
    assert_eq!(names("b/", "a", 9).await, ["b/1", "b/10", "b/2"]);
    assert!(names("b/", "c", 9).await.is_empty());
    assert!(names("zz", "", 9).await.is_empty());
    assert_eq!(engine.list_all(&space, "b").await.unwrap().len(), 4);
}

/// The first look is at once; then each change wakes the watcher, removals too.
pub async fn a_watcher_sees_every_change(engine: Engine) {
    let space = space();
    let key = |name: &str| EntryKey::new(space.clone(), name).unwrap();
    let mut watch = engine.watch_catalog(space.clone(), "r/");
    assert!(soon("the first look", watch.changed()).await.unwrap().is_empty());
    done(engine.put(&key("r/1"), "x".into(), Expect::Any).await.unwrap());
    assert_eq!(soon("a put", watch.changed()).await.unwrap().len(), 1);
    done(engine.put(&key("r/1"), "y".into(), Expect::Any).await.unwrap());
    assert_eq!(soon("a change", watch.changed()).await.unwrap()[0].value, "y");
    let waiting =
        tokio::spawn(async move { (soon("a removal", watch.changed()).await.unwrap().len(), watch) });
    done(engine.put(&key("elsewhere"), "x".into(), Expect::Any).await.unwrap());
    done(engine.remove(&key("r/1"), Expect::Any).await.unwrap());
    assert_eq!(waiting.await.unwrap().0, 0);
}
