//! Instantiates all laws: one line per engine.

use firth_engine::{Durability, Engine, FileOptions};

/// Runs a law on `memory:` with a paused clock: waiting costs nothing.
fn on_memory<F: Future<Output = ()>>(law: impl FnOnce(Engine) -> F) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(law(Engine::memory()));
}

/// Runs a law on files of its own.
fn on_files<F: Future<Output = ()>>(options: FileOptions, law: impl FnOnce(Engine) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = Engine::file(dir.path(), options).await.unwrap();
        law(engine.clone()).await;
        engine.close().await.unwrap();
    });
}

fn on_synced_files<F: Future<Output = ()>>(law: impl FnOnce(Engine) -> F) {
    on_files(FileOptions::default(), law);
}

fn on_fast_files<F: Future<Output = ()>>(law: impl FnOnce(Engine) -> F) {
    on_files(FileOptions { durability: Durability::Fast, ..FileOptions::default() }, law);
}

/// Every partition gets files of its own at once, while it is being written to.
fn on_grown_files<F: Future<Output = ()>>(law: impl FnOnce(Engine) -> F) {
    on_files(FileOptions { durability: Durability::Fast, outgrown: 1, ..FileOptions::default() }, law);
}

macro_rules! instantiate {
    ({ $target:ident } $($module:ident :: $law:ident)*) => {
        mod $target {
            $(#[test]
            fn $law() {
                super::$target(firth_laws::$module::$law);
            })*
        }
    };
}

firth_laws::for_each_law!(instantiate, on_memory);
firth_laws::for_each_law!(instantiate, on_synced_files);
firth_laws::for_each_law!(instantiate, on_fast_files);
firth_laws::for_each_law!(instantiate, on_grown_files);
