//! The Redis engine: all laws on Redis 7.0, Valkey 9 and a Redis Cluster, the reference model, and what only servers can do wrong.

mod laws;

/// Runs a test on a runtime of its own.
fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test)
}
