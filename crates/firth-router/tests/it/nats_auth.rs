//! Real NATS servers that know their users by nkey, or by the JWT of a credentials file: the right
//! one delivers, any other does not, and a file that is none is named when it is read.

use crate::chaos::books_close;
use crate::nats::{Seen, answering, batch};
use crate::node::World;
use crate::world::*;
use async_nats::ConnectOptions;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use firth_router::config::{Protocol, RoutingConfig};
use firth_router::deliver::{ByProtocol, Deliverer, NatsAuth, NatsDeliverer, NatsOptions, Secrets};
use firth_router::lane::Outcome;
use firth_router::registry::Gateway;
use firth_testkit::NatsServer;
use nkeys::KeyPair;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// What a key of an operator, an account or a user says of another one, signed.
fn jwt(signer: &KeyPair, about: &KeyPair, says: &Value) -> String {
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let about = about.public_key();
    let claims = json!({ "jti": about, "iat": 1, "iss": signer.public_key(), "name": about, "sub": about, "nats": says });
    let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(&header), encode(&claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(signer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

/// A server that trusts an operator, and the credentials of a user of one of its accounts.
async fn with_operator() -> (NatsServer, String) {
    let operator = KeyPair::new_operator();
    let user = KeyPair::new_user();
    let system = KeyPair::new_account();
    let account = KeyPair::new_account();
    let limits = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
        "wildcards": true, "conn": -1, "leaf": -1 });
    let says = json!({ "type": "account", "version": 2, "limits": limits });
    let accounts = [&system, &account]
        .map(|account| format!("{}: {}", account.public_key(), jwt(&operator, account, &says)))
        .join(", ");
    let trusted = jwt(&operator, &operator, &json!({ "type": "operator", "version": 2 }));
    let conf = format!(
        "operator: {trusted}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {accounts} }}\n",
        system.public_key()
    );
    let says = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        jwt(&account, &user, &says),
        user.seed().unwrap()
    );
    (NatsServer::with_conf(&conf).await, creds)
}

/// Checks that the server admits a client that has `secret`, and no other client.
async fn is_let_in(server: &NatsServer, (option, secret): (&str, &str), client: ConnectOptions) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let deliverer = |file: &std::path::Path| {
        let nats = json!({ "url": server.url(), option: file });
        let section = json!({ "delivery": { "protocol": "nats", "timeout": "20s", "nats": nats } });
        ByProtocol::configured(
            "node",
            &RoutingConfig::from_value(&section).unwrap().delivery,
            Secrets::default(),
        )
    };
    for wrong in ["SUNOSEED", ""] {
        let bad = dir.path().join("bad");
        std::fs::write(&bad, wrong).unwrap();
        let error = deliverer(&bad).unwrap_err().to_string();
        assert!(error.contains(&format!("routing.delivery.nats.{option}: ")), "{error}");
        assert!(error.contains("holds no") && !error.contains("SUNOSEED"), "{error}");
    }
    let stranger = NatsAuth::Nkey(KeyPair::new_user().seed().unwrap());
    for wrong in [NatsAuth::Anyone, NatsAuth::Token("t".to_owned()), stranger] {
        let auth = wrong;
        let url = Some(server.url());
        let options = NatsOptions { auth, url, ..NatsOptions::new("node", Duration::from_secs(20)) };
        let deliverer = NatsDeliverer::new(options);
        let to = Gateway::new(gateway("g"), "");
        assert_eq!(deliverer.deliver(&to, &batch(1..=1)).await, Outcome::Unreached);
    }
    let seen = Arc::new(Seen::default());
    let mut world = World::memory().await;
    let listening = answering(client.connect(server.url()).await.unwrap(), &seen).await;
    world.register("g", String::new(), Protocol::Nats).await;
    let node = world.node_with(deliverer(&file).unwrap()).await;
    world.send(50).await;
    world.arrives("g", || seen.by_document()).await;
    books_close(&node, 50).await;
    node.close().await.unwrap();
    listening.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_its_users_by_nkey_lets_the_right_one_in_and_nobody_else() {
    let user = KeyPair::new_user();
    let conf = format!("authorization {{ users: [ {{ nkey: {} }} ] }}\n", user.public_key());
    let server = NatsServer::with_conf(&conf).await;
    let seed = user.seed().unwrap();
    assert!(!format!("{:?}", NatsAuth::Nkey(seed.clone())).contains(&seed));
    is_let_in(&server, ("nkey_file", &seed), ConnectOptions::with_nkey(seed.clone())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_an_operator_lets_the_user_of_a_credentials_file_in_and_nobody_else() {
    let (server, creds) = with_operator().await;
    is_let_in(&server, ("creds_file", &creds), ConnectOptions::with_credentials(&creds).unwrap()).await;
}
