//! What can be seen from outside: the trace hook sees every request but no argument, and no
//! password ever shows.

use crate::fake::Fake;
use crate::support::*;
use firth_redis::config::TlsOptions;
use firth_redis::{
    CallError, Client, Config, ConnectError, RequestKind, RequestStart, RequestTrace, Secret, TraceHook, cmd,
    pipe,
};
use firth_testkit::{Certs, Direction, Flavor, Proxy, RedisServer, on_both, wait};
use metrics_util::debugging::DebugValue;
use std::io::Write;
use std::sync::{Arc, Mutex};

on_both!(the_hook_sees_every_request_and_no_argument);

type Seen = Arc<Mutex<Vec<RequestTrace>>>;

fn traced(mut config: Config) -> (Config, Seen) {
    let seen = Seen::default();
    let into = seen.clone();
    config.trace = Some(TraceHook::new(move |trace| into.lock().unwrap().push(trace.clone())));
    (config, seen)
}

async fn the_hook_sees_every_request_and_no_argument(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let proxy = Proxy::start(server.addr()).await;
    let (config, seen) = traced(quick(proxy.url()));
    let client = connect(config).await;
    client.call::<()>(cmd("SET").key("secret-key").arg("secret-value")).await.unwrap();
    let three =
        pipe().then(cmd("GET").key("secret-key")).then(cmd("LPOP").key("secret-key")).then(cmd("PING"));
    client.pipeline::<Vec<Option<String>>>(three).await.unwrap();
    client.call::<()>(cmd("NOSUCH").arg("secret-argument")).await.unwrap_err();
    proxy.stall(Direction::ToClient);
    client.call::<i64>(cmd("INCR").key("n")).timeout(ms(40)).await.unwrap_err();
    let traces = seen.lock().unwrap().clone();
    let told: Vec<_> = traces.iter().map(|t| (t.name.as_str(), t.commands, t.ok, t.errors)).collect();
    assert_eq!(told, [("SET", 1, 1, 0), ("pipeline", 3, 2, 1), ("NOSUCH", 1, 0, 1), ("INCR", 1, 0, 1)]);
    let errors: Vec<_> = traces.iter().map(|t| t.first_error.as_deref()).collect();
    assert_eq!(errors[..3], [None, Some("WRONGTYPE"), Some("ERR")]);
    assert!(errors[3].is_some_and(|text| text.contains("40ms")), "{errors:?}");
    assert!(traces[0].bytes > 30 && traces[3].duration >= ms(39));
    assert!(traces.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(!format!("{traces:?}").contains("secret"), "{traces:?}");
}

#[tokio::test]
async fn the_hook_is_told_of_starts_nodes_and_handshakes() {
    let server = RedisServer::builder().password(SECRET).start().await;
    let starts: Arc<Mutex<Vec<RequestStart>>> = Arc::default();
    let (mut config, seen) = traced(quick(server.tcp_url()));
    let into = starts.clone();
    let hook = config.trace.take().expect("it is traced");
    config.trace =
        Some(hook.on_start(move |start| into.lock().unwrap().push(start.clone())).with_handshakes());
    let client = connect(config).await;
    client.call::<()>(cmd("SET").key("k").arg(SECRET)).await.unwrap();
    let kinds = |kind| seen.lock().unwrap().iter().filter(|t| t.kind == kind).count();
    wait::until(LONG, "all is told", async || kinds(RequestKind::Handshake) == 2).await;
    let traces = seen.lock().unwrap().clone();
    let starts = starts.lock().unwrap().clone();
    let address = server.addr().to_string();
    assert!(traces.iter().all(|t| t.node.as_deref() == Some(address.as_str())), "{traces:?}");
    let of = |id| starts.iter().find(|start: &&RequestStart| start.id == id).expect("it was said to start");
    for trace in &traces {
        let start = of(trace.id);
        let told = (start.kind, start.name.as_str(), start.commands, start.bytes);
        assert_eq!(told, (trace.kind, trace.name.as_str(), trace.commands, trace.bytes));
    }
    let user: Vec<_> = traces.iter().filter(|t| t.kind == RequestKind::User).collect();
    assert_eq!(user.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["SET"]);
    assert!(traces.iter().any(|t| t.kind == RequestKind::Handshake && t.name == "HELLO" && t.ok == 1));
    assert!(!format!("{traces:?} {starts:?}").contains(SECRET));

    // A handshake that fails is told with the server's code.
    let (mut config, seen) = traced(quick(format!("redis://:wrong@{}", server.addr())));
    config.trace = config.trace.map(TraceHook::with_handshakes);
    Client::connect(config).await.unwrap_err();
    wait::until(LONG, "it is told", async || {
        seen.lock().unwrap().iter().any(|t| t.first_error.as_deref() == Some("WRONGPASS"))
    })
    .await;
}

#[tokio::test]
async fn the_hook_runs_with_the_caller_and_its_panic_harms_nobody_else() {
    let server = RedisServer::start(Flavor::Redis).await;
    let mut config = quick(server.tcp_url());
    let ids: Arc<Mutex<Vec<Option<tokio::task::Id>>>> = Arc::default();
    let into = ids.clone();
    config.trace = Some(TraceHook::new(move |trace| {
        into.lock().unwrap().push(tokio::task::try_id());
        assert_ne!(trace.name, "TIME", "this hook does not like it");
    }));
    let client = connect(config).await;
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.call::<String>(cmd("PING")).await.map(|_| tokio::task::id()) }
    });
    let id = soon(task).await.unwrap().unwrap();
    assert_eq!(*ids.lock().unwrap(), [Some(id)], "invariant 3: never in the connection's task");
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.call::<Vec<i64>>(cmd("TIME")).await }
    });
    assert!(soon(task).await.unwrap_err().is_panic(), "it reaches whoever called");
    echo(&client, "unharmed").await.unwrap();
    settles(&client).await;
}

/// Collects log lines of this thread.
#[derive(Clone, Default)]
struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl Write for LogCapture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl LogCapture {
    /// Everything from the most talkative level on, of all crates.
    fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

const SECRET: &str = "hunter2-planted";

// One thread, so that the connection's task logs to the same listener.
#[tokio::test]
async fn a_password_shows_nowhere_in_a_whole_life() {
    let (log, _guard) = LogCapture::listen();
    let mut shown = String::new();
    let server = RedisServer::builder()
        .password(SECRET)
        .acl_user("app", format!("on >{SECRET}-app ~* +@all"))
        .start()
        .await;
    let (config, seen) = traced(quick(format!("redis://app:{SECRET}-app@{}/1?name=me", server.addr())));
    shown += &format!("{config:?} {:#?}", config.password);
    let client = connect(config.clone()).await;
    shown += &format!("{client:?} {:?}", client.config());
    client.call::<()>(cmd("SET").key("k").arg(SECRET)).await.unwrap();
    let command = cmd("ACL").arg("SETUSER").arg("other").arg(format!(">{SECRET}"));
    shown += &format!("{command:?} {:?}", pipe().then(command.clone()));
    client.call::<()>(command).await.unwrap();
    // Secrets as arguments of what the server does not understand, alone, in a pipeline, in a
    // transaction.
    let wrong = || cmd("NOSUCH").arg(SECRET).arg("more");
    let error = client.call::<()>(wrong()).await.unwrap_err();
    assert!(error.to_string().contains("NOSUCH"), "what is wrong is still said: {error}");
    shown += &format!("{error} {error:?}");
    shown += &format!("{:?}", client.pipeline::<(i64,)>(pipe().then(wrong())).await.unwrap().0);
    shown += &format!("{:?}", client.transaction::<(i64,)>(pipe().then(wrong())).await.unwrap_err());
    // a life of failures: cut, refused, gone, wrong password
    server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    wait::until(LONG, "it is back", async || echo(&client, "back").await.is_ok()).await;
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">another"]).await;
    server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    wait::until(LONG, "it is refused", async || {
        matches!(client.last_error(), Some(firth_redis::LostCause::Reconnect(_)))
    })
    .await;
    shown += &format!("{:?}", client.last_error());
    let down = client.call::<()>(cmd("PING")).await;
    shown += &format!("{down:?}");
    server.kill().await;
    for url in [
        format!("redis://:{SECRET}@{}", server.addr()),
        format!("redis://:{SECRET}@127.0.0.1:1/?nonsense={SECRET}"),
        format!("redis://:{SECRET}@127.0.0.1:99999999"),
        format!("http://:{SECRET}@127.0.0.1"),
        format!("redis://user%ff:{SECRET}@127.0.0.1"),
    ] {
        let error = Client::connect(url).await.unwrap_err();
        shown += &format!("{error} {error:?} {:?}", std::error::Error::source(&error));
    }
    client.close().await;
    shown += &format!("{:?}", seen.lock().unwrap());
    let log = log.text();
    assert!(log.contains("Disconnected") && log.contains("WRONGPASS"), "the log tells the story:\n{log}");
    assert!(!log.contains(SECRET), "a secret in the log:\n{log}");
    assert!(!shown.contains(SECRET), "a secret is shown:\n{shown}");
}

#[tokio::test]
async fn a_server_that_repeats_the_password_is_not_quoted() {
    let echoing = |step: &'static str| {
        Fake::bare(move |_, mut peer| async move {
            while let Some(words) = peer.command().await {
                let text = match words[0].as_str() {
                    "HELLO" if step != "HELLO" => "-ERR unknown command 'HELLO'\r\n".to_owned(),
                    _ => format!("-WRONG no such thing: {}\r\n", words.join(" ")),
                };
                peer.say(text.as_bytes()).await;
            }
        })
    };
    for step in ["HELLO", "AUTH"] {
        let fake = echoing(step).await;
        let url = fake.url().replace("redis://", &format!("redis://app:{SECRET}@"));
        let error = Client::connect(url).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Refused { step: s, .. } if *s == step), "{error:?}");
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
    }
}

#[test]
fn keys_and_secrets_of_a_configuration_are_not_shown() {
    let certs = Certs::new();
    let mut config =
        Config::from_url(&format!("rediss+sentinel://app:{SECRET}@h/m?sentinel_password={SECRET}")).unwrap();
    config.tls = Some(TlsOptions {
        ca: Some(certs.ca_pem().into()),
        certificate: Some(certs.client_cert_pem().into()),
        key: Some(Secret::new(certs.client_key_pem())),
        ..TlsOptions::default()
    });
    let shown = format!("{config:?} {config:#?}");
    assert!(!shown.contains(SECRET) && !shown.contains("PRIVATE KEY"), "{shown}");
}

#[tokio::test]
async fn c14_the_gauge_of_requests_under_way_adds_up_over_connections() {
    let server = RedisServer::start(Flavor::Redis).await;
    let proxy = Proxy::start(server.addr()).await;
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let (stalled, other) = metrics::with_local_recorder(&recorder, || {
        (Client::lazy(quick(proxy.url())).unwrap(), Client::lazy(quick(server.tcp_url())).unwrap())
    });
    soon(stalled.ready()).await.unwrap();
    let snapshotter = recorder.snapshotter();
    // A snapshot takes what was added since the last one.
    let total = std::cell::Cell::new(0.0);
    let under_way = || {
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let is_ours = key.key().name() == "firth_redis_requests_in_flight"
                && key.key().labels().any(|label| label.value() == "shared");
            if let (true, DebugValue::Gauge(added)) = (is_ours, value) {
                total.set(total.get() + added.into_inner());
            }
        }
        total.get()
    };
    proxy.stall(Direction::ToClient);
    let waiting = Many::<i64>::start(&stalled, 100, |n| cmd("ECHO").arg(n)).await;
    wait::until(LONG, "all of them count", async || under_way() >= 100.0).await;
    echo(&other, "over another connection").await.unwrap();
    settles(&other).await;
    wait::until(LONG, "only those count", async || {
        echo(&other, "again").await.unwrap();
        (100.0..103.0).contains(&under_way())
    })
    .await;
    proxy.cut().await;
    drop(waiting.results().await);
    proxy.heal().await;
    stalled.close().await;
    other.close().await;
    wait::until(LONG, "nothing is left", async || under_way() == 0.0).await;
}

#[tokio::test]
async fn c19_nothing_changes_a_shared_connection_for_all() {
    let server = RedisServer::start(Flavor::Redis).await;
    let client = connect(server.tcp_url()).await;
    let client_with = |what: &str| cmd("CLIENT").arg(what);
    for command in [
        cmd("READONLY"),
        cmd("readwrite"),
        cmd("ASKING"),
        cmd("SCRIPT").arg("DEBUG").arg("YES"),
        client_with("NO-TOUCH").arg("ON"),
        client_with("caching").arg("YES"),
    ] {
        let error = client.call::<()>(command.clone()).await.unwrap_err();
        assert!(
            matches!(&error, CallError::Invalid(hint) if hint.contains("use") || hint.contains("itself"))
        );
        assert!(!error.may_have_run(), "{command:?}: {error}");
    }
    let mut session = client.session().await.unwrap();
    session.call::<()>(client_with("TRACKING").arg("ON").arg("OPTIN")).await.unwrap();
    session.call::<()>(client_with("CACHING").arg("YES")).await.unwrap();
}
