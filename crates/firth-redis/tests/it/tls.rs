//! TLS: own authority, own certificate, and no word to a server that is not who it should be. The
//! packaged Valkey has no TLS, so Redis only.

use crate::support::*;
use firth_redis::config::TlsOptions;
use firth_redis::{Client, ConnectError, cmd};
use firth_testkit::{Certs, Proxy, RedisServer, wait};
use metrics_util::debugging::DebugValue;

/// URL options as a user writes them.
fn options(server: &RedisServer, options: &[(&str, &std::path::Path)]) -> String {
    let options: Vec<String> =
        options.iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    format!("{}?{}", server.tcp_url(), options.join("&"))
}

#[tokio::test]
async fn an_own_authority_is_trusted_and_no_other() {
    let certs = Certs::new();
    let server = RedisServer::builder().tls(&certs).password("pw").start().await;
    let client = connect(options(&server, &[("tls_ca", &certs.ca_path())])).await;
    let value = "x".repeat(3 << 20);
    client.call::<()>(cmd("SET").key("k").arg(&value)).await.unwrap();
    assert_eq!(client.call::<String>(cmd("GET").key("k")).await.unwrap(), value);
    let stranger = Certs::new();
    let error = Client::connect(options(&server, &[("tls_ca", &stranger.ca_path())])).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Tls { .. }), "{error:?}");
    let error = Client::connect(server.tcp_url()).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Tls { .. } | ConnectError::Config { field: "tls_ca", .. }),
        "the system's authorities did not sign it: {error:?}"
    );
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_one_is_wanted() {
    let certs = Certs::new();
    let server = RedisServer::builder().mutual_tls(&certs).start().await;
    let ca = certs.ca_path();
    let cert = certs.client_cert_path();
    let key = certs.client_key_path();
    let url = options(&server, &[("tls_ca", &ca), ("tls_cert", &cert), ("tls_key", &key)]);
    echo(&connect(url).await, "known").await.unwrap();
    let error = Client::connect(options(&server, &[("tls_ca", &ca)])).await.unwrap_err();
    assert!(
        matches!(&error, ConnectError::Tls { .. } | ConnectError::Broken { .. }),
        "TLS 1.3 refuses after the handshake: {error:?}"
    );
    let stranger = certs.stranger();
    let mut config = quick(options(&server, &[("tls_ca", &ca)]));
    config.tls = Some(TlsOptions {
        ca: Some(certs.ca_pem().into()),
        certificate: Some(stranger.cert_pem.into()),
        key: Some(stranger.key_pem.into()),
        ..TlsOptions::default()
    });
    let error = Client::connect(config).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Tls { .. } | ConnectError::Broken { .. }), "{error:?}");
}

#[tokio::test]
async fn the_name_is_checked_and_may_be_given() {
    let certs = Certs::for_names(&["cache.example"]);
    let server = RedisServer::builder().tls(&certs).start().await;
    let url = options(&server, &[("tls_ca", &certs.ca_path())]);
    let error = Client::connect(url.as_str()).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Tls { .. }), "it is not localhost: {error:?}");
    let client = connect(format!("{url}&tls_name=cache.example")).await;
    echo(&client, "the right name").await.unwrap();
    let error = Client::connect(format!("{url}&tls_name=other.example")).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Tls { .. }), "{error:?}");
    let error = Client::connect(format!("{url}&tls_name=not%20a%20name")).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Config { field: "tls_name", .. }), "{error:?}");
}

#[tokio::test]
async fn an_expired_certificate_is_not_trusted() {
    let certs = Certs::expired();
    let server = RedisServer::builder().tls(&certs).start().await;
    let error = Client::connect(options(&server, &[("tls_ca", &certs.ca_path())])).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Tls { .. }), "{error:?}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_before_a_server_is_asked() {
    let certs = Certs::new();
    let other = Certs::new();
    let base = "rediss://localhost:1/";
    for (query, field) in [
        (format!("tls_cert={}", certs.client_cert_path().display()), "tls_key"),
        (format!("tls_key={}", certs.client_key_path().display()), "tls_cert"),
        (format!("tls_ca={}", certs.client_key_path().display()), "tls_ca"),
        ("tls_ca=/no/such/file".to_owned(), "tls_ca"),
        (
            format!(
                "tls_ca={}&tls_cert={}&tls_key={}",
                certs.ca_path().display(),
                certs.client_cert_path().display(),
                other.client_key_path().display()
            ),
            "tls_cert",
        ),
    ] {
        let error = Client::connect(format!("{base}?{query}")).await.unwrap_err();
        assert!(matches!(&error, ConnectError::Config { field: f, .. } if *f == field), "{query}: {error:?}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn a_cut_under_tls_is_survived_and_one_byte_at_a_time_is_enough() {
    let certs = Certs::new();
    let server = RedisServer::builder().tls(&certs).start().await;
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("rediss://localhost:{}/?tls_ca={}", proxy.port(), certs.ca_path().display());
    proxy.split(1);
    let client = connect(quick(url)).await;
    echo(&client, "byte by byte").await.unwrap();
    proxy.heal().await;
    for round in 0..5 {
        proxy.cut().await;
        firth_testkit::wait::until(LONG, "it is back", async || {
            echo(&client, &format!("round {round}")).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_plain_server_is_no_tls_server_and_the_other_way_round() {
    let certs = Certs::new();
    let secure = RedisServer::builder().tls(&certs).start().await;
    let error = soon(Client::connect(format!("redis://{}", secure.addr()))).await.unwrap_err();
    assert!(!matches!(error, ConnectError::Closed), "{error:?}");
    let plain = RedisServer::builder().start().await;
    let url = format!("rediss://localhost:{}/?tls_ca={}", plain.port(), certs.ca_path().display());
    let mut config = quick(url);
    config.timeouts.connect = Some(ms(300));
    let error = soon(Client::connect(config)).await.unwrap_err();
    assert!(matches!(&error, ConnectError::Tls { .. } | ConnectError::Timeout { .. }), "{error:?}");
}

/// Puts other contents into a file, as a renewal of certificates does.
fn replace(file: &std::path::Path, with: &std::path::Path) {
    std::fs::copy(with, file).expect("the temporary folder is writable");
}

#[tokio::test]
async fn c17_certificates_that_are_renewed_on_disk_are_used_from_then_on() {
    let old = Certs::new();
    let new = Certs::new();
    let first = RedisServer::builder().mutual_tls(&old).start().await;
    let second = RedisServer::builder().mutual_tls(&new).start().await;
    let name = Proxy::start(first.addr()).await;
    let ca = old.ca_path();
    let cert = old.client_cert_path();
    let key = old.client_key_path();
    let files = format!("tls_ca={}&tls_cert={}&tls_key={}", ca.display(), cert.display(), key.display());
    let client = connect(quick(format!("rediss://127.0.0.1:{}/?{files}", name.port()))).await;
    echo(&client, "with the first").await.unwrap();

    // In the middle of a renewal certificate and key do not fit: what was in use stays in use.
    replace(&cert, &new.client_cert_path());
    name.cut().await;
    wait::until(LONG, "it is back", async || echo(&client, "with the first again").await.is_ok()).await;

    replace(&key, &new.client_key_path());
    replace(&ca, &new.ca_path());
    name.retarget(second.addr());
    name.cut().await;
    wait::until(LONG, "the new ones are used", async || echo(&client, "with the second").await.is_ok()).await;
    client.close().await;
}

#[tokio::test]
async fn c17_a_new_connection_takes_up_the_session_of_the_last() {
    let certs = Certs::new();
    let server = RedisServer::builder().tls(&certs).start().await;
    let name = Proxy::start(server.addr()).await;
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let url = format!("rediss://127.0.0.1:{}/?tls_ca={}", name.port(), certs.ca_path().display());
    let client = metrics::with_local_recorder(&recorder, || Client::lazy(quick(url))).unwrap();
    soon(client.ready()).await.unwrap();
    for round in 0..3 {
        echo(&client, &format!("round {round}")).await.unwrap();
        name.cut().await;
        wait::until(LONG, "it is back", async || echo(&client, "back").await.is_ok()).await;
    }
    let all = recorder.snapshotter().snapshot().into_vec();
    let handshakes = |resumed: &str| {
        let ours = |key: &metrics::Key| {
            key.name() == "firth_redis_tls_handshakes_total" && key.labels().any(|l| l.value() == resumed)
        };
        all.iter().find_map(|(key, _, _, value)| match value {
            DebugValue::Counter(count) if ours(key.key()) => Some(*count),
            _ => None,
        })
    };
    assert_eq!(handshakes("false"), Some(1), "only the first one is made in full");
    assert!(handshakes("true") >= Some(3));
    client.close().await;
}
