//! What stays on the server when something is gone.

use firth_engine::facet::From;
use firth_engine::{Engine, ErrorKind};
use firth_laws::world::{self, LONG, acquire, append, fails, group, partition};
use firth_testkit::{Flavor, RedisServer, on_both};

on_both!(q14_groups_that_come_and_go_leave_nothing_and_epochs_still_grow);

async fn q14_groups_that_come_and_go_leave_nothing_and_epochs_still_grow(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).start().await;
    let engine = Engine::at(&server.url()).await.unwrap();
    let at = partition(&engine).await;
    append(&engine, &at, 0, 3).await;
    let keys = async || server.command(&["DBSIZE"]).await.int();
    let before = keys().await;
    let mut epochs = Vec::new();
    for name in ["a", "b", "a", "c", "a"] {
        let name = group(name);
        let hold = acquire(&engine, &at, &name, LONG).await;
        engine.open(&at, &name, From::Start, &hold).await.unwrap();
        assert!(engine.delete_group(&at, &name, None).await.unwrap());
        fails(engine.open(&at, &name, From::Start, &hold).await, ErrorKind::Fenced);
        assert_eq!(engine.renew(std::slice::from_ref(&hold), LONG).await.unwrap(), [false]);
        epochs.push(hold.epoch);
    }
    assert!(epochs.is_sorted_by(|one, two| one < two), "{epochs:?}");
    // One for the changes of hands of all leases.
    assert_eq!(keys().await, before + 1);
    assert_eq!(world::read_all(&engine, &at).await.len(), 3);
    engine.close().await.unwrap();
}
