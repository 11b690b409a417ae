//! Engines against the reference model.

use firth_engine::{Durability, Engine, FileOptions};
use firth_laws::model::{agree, operations};
use proptest::prelude::*;

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_agrees_with_the_model(ops in operations(80)) {
        block_on(agree(Engine::memory(), ops));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_agree_with_the_model(ops in operations(60)) {
        let dir = tempfile::tempdir().unwrap();
        block_on(async {
            let outgrown = if ops.len() % 2 == 0 { 300 } else { 1 << 20 };
            let options = FileOptions { durability: Durability::Fast, outgrown, ..FileOptions::default() };
            let engine = Engine::file(dir.path(), options).await.unwrap();
            agree(engine.clone(), ops).await;
            engine.close().await.unwrap();
        });
    }
}
