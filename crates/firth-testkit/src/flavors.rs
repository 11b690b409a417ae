//! The macro that runs one law against both servers.

/// Turns `async fn law(flavor: Flavor)` into one test per flavor, so that the runner shows, times
/// and parallelises them apart: `on_redis::law` and `on_valkey::law`. Call it once per module.
///
/// ```
/// use firth_testkit::{Flavor, RedisServer, on_both};
///
/// on_both!(a_fresh_server_is_empty);
///
/// async fn a_fresh_server_is_empty(flavor: Flavor) {
///     let server = RedisServer::start(flavor).await;
///     assert_eq!(server.command(&["DBSIZE"]).await.int(), 0);
/// }
/// ```
#[macro_export]
macro_rules! on_both {
    ($($law:ident),+ $(,)?) => {
        #[cfg(test)]
        mod on_redis {
            $($crate::on_both!(@one $law, Redis);)+
        }
        #[cfg(test)]
        mod on_valkey {
            $($crate::on_both!(@one $law, Valkey);)+
        }
    };
    (@one $law:ident, $flavor:ident) => {
        #[test]
        fn $law() {
            $crate::__run(super::$law($crate::Flavor::$flavor));
        }
    };
}

/// Runs a test's future on a two-threaded runtime of its own.
#[doc(hidden)]
pub fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built")
        .block_on(future)
}
