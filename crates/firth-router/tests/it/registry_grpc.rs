//! The registry over gRPC: a client of a few lines registers, gives signs of life, and is told what
//! is wrong.

use crate::world::*;
use bytes::{BufMut, Bytes, BytesMut};
use firth::Broker;
use firth_router::config::{Mode, Protocol, RoutingConfig};
use firth_router::deliver::{Bearer, Tls};
use firth_router::registry::{
    Access, Admitted, CallOutcome, Callers, Refused, Registry, RegistryCall, RegistryClient, RegistryService,
    ServerTls,
};
use firth_router::routing::Target;
use firth_testkit::Certs;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[derive(Clone, PartialEq, Message)]
struct Gateway {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    protocol: String,
    #[prost(uint32, tag = "4")]
    ttl_seconds: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(string, tag = "1")]
    tenant: String,
    #[prost(string, tag = "2")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct RandomInterest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    tenant: String,
    #[prost(string, tag = "3")]
    collection: String,
    #[prost(string, tag = "5")]
    filter: String,
    #[prost(message, repeated, tag = "6")]
    conditions: Vec<Condition>,
    #[prost(string, tag = "7")]
    gateway: String,
    #[prost(string, tag = "8")]
    mode: String,
    #[prost(string, tag = "9")]
    priority: String,
    #[prost(uint32, tag = "11")]
    ttl_seconds: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Condition {
    #[prost(string, tag = "1")]
    field: String,
    #[prost(string, tag = "2")]
    op: String,
    #[prost(string, tag = "3")]
    value_json: String,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(uint32, tag = "1")]
    value: u32,
}

struct Client {
    sender: SendRequest<Full<Bytes>>,
    address: SocketAddr,
    token: &'static str,
}

impl Client {
    async fn connect(address: SocketAddr, token: &'static str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, address, token }
    }

    /// The number of the answer, or the status and its text.
    async fn call(&mut self, call: &str, message: &impl Message) -> Result<u32, (u32, String)> {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.encoded_len()).unwrap());
        message.encode(&mut frame).unwrap();
        let request = Request::post(format!("http://{}/RegistryService/{call}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {}", self.token))
            .body(Full::new(frame.freeze()))
            .unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &"application/grpc".parse().unwrap())
        );
        let body = response.into_body().collect().await.unwrap();
        let trailers = body.trailers().unwrap().clone();
        match trailers["grpc-status"].to_str().unwrap().parse().unwrap() {
            0 => Ok(Number::decode(&body.to_bytes()[5..]).unwrap().value),
            code => Err((code, trailers["grpc-message"].to_str().unwrap().to_owned())),
        }
    }
}

fn big(gateway: &str) -> RandomInterest {
    RandomInterest {
        id: "s".into(),
        tenant: "t".into(),
        collection: "orders".into(),
        filter: "doc.n > 1".into(),
        gateway: gateway.into(),
        priority: "high".into(),
        ..RandomInterest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_and_subscriptions_register_live_and_leave_over_grpc() {
    let mut quotas = RoutingConfig::default().subscriptions;
    quotas.per_tenant = 2;
    let registry = Registry::open(&Broker::memory(), quotas).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let service = RegistryService::new(registry.clone(), Some("secret"));
    let serving = tokio::spawn(service.serve(listener, stop.clone()));

    let mut stranger = Client::connect(address, "guess").await;
    assert_eq!(stranger.call("Register", &big("g")).await.unwrap_err().0, 16);
    assert!(registry.is_empty());

    let mut client = Client::connect(address, "secret").await;
    let gateway =
        Gateway { id: "g".into(), endpoint: "http://h:1".into(), protocol: "grpc".into(), ttl_seconds: 60 };
    assert_eq!(client.call("RegisterGateway", &gateway).await, Ok(60));
    assert_eq!(registry.gateways()[0].protocol, Some(Protocol::Grpc));
    assert_eq!(
        client.call("HeartbeatGateway", &Gateway { id: "g".into(), ..Gateway::default() }).await,
        Ok(60)
    );
    assert_eq!(client.call("Register", &big("g")).await, Ok(300));
    let condition = Condition { field: "a".into(), op: "in".into(), value_json: "[1, \"x\"]".into() };
    let conditions = RandomInterest {
        id: "c".into(),
        filter: String::new(),
        mode: "hash".into(),
        gateway: String::new(),
        conditions: vec![condition],
        ttl_seconds: 60,
        ..big("")
    };
    assert_eq!(client.call("Register", &conditions).await, Ok(60));
    assert_eq!(registry.matches(&order("1", serde_json::json!({ "n": 2, "a": "x" }))).unwrap().len(), 2);

    let name = |id: &str| Name { tenant: "t".into(), id: id.into() };
    assert_eq!(client.call("Heartbeat", &name("c")).await, Ok(60));
    let (code, text) = client.call("Heartbeat", &name("none")).await.unwrap_err();
    assert!(code == 5 && text.contains("register it again"), "{code} {text}");
    let (code, text) =
        client.call("Register", &RandomInterest { id: "third".into(), ..big("g") }).await.unwrap_err();
    assert!(code == 8 && text.contains("per_tenant of 2"), "{code} {text}");
    let (code, text) =
        client.call("Register", &RandomInterest { filter: "doc.(".into(), ..big("g") }).await.unwrap_err();
    assert!(code == 3 && text.contains("CEL"), "{code} {text}");
    assert_eq!(
        client.call("Register", &RandomInterest { mode: "any".into(), ..big("g") }).await.unwrap_err().0,
        3
    );
    assert_eq!(client.call("Dance", &name("s")).await.unwrap_err().0, 12);
    assert_eq!(client.call("Unregister", &name("c")).await, Ok(1));
    assert_eq!(
        client.call("UnregisterGateway", &Gateway { id: "g".into(), ..Gateway::default() }).await,
        Ok(1)
    );
    assert!(registry.is_empty() && registry.gateways().is_empty());

    stop.cancel();
    drop((client, stranger));
    serving.await.unwrap();
    registry.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_generated_from_the_proto_registers_and_is_told_what_is_wrong() {
    let mut quotas = RoutingConfig::default().subscriptions;
    quotas.per_tenant = 2;
    let registry = Registry::open(&Broker::memory(), quotas).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stop = CancellationToken::new();
    let service = RegistryService::new(registry.clone(), Some("secret"));
    let serving = tokio::spawn(service.serve(listener, stop.clone()));
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let (client, told) = crate::peers::start("registry_client.py", &[proto, &address, "secret"]).await;
    for (what, ttl) in
        [("gateway", 60), ("filter", 300), ("conditions", 60), ("gateway_lives", 60), ("lives", 60)]
    {
        assert_eq!(told[what], serde_json::json!({ "ttl_seconds": ttl }), "{what}: {told}");
    }
    for (what, code, text) in [
        ("stranger", "UNAUTHENTICATED", "Bearer"),
        ("too_many", "RESOURCE_EXHAUSTED", "per_tenant of 2"),
        ("wrong", "INVALID_ARGUMENT", "CEL"),
        ("unknown", "NOT_FOUND", "register it again"),
    ] {
        assert_eq!(told[what]["code"], code, "{what}: {told}");
        assert!(told[what]["text"].as_str().unwrap().contains(text), "{what}: {told}");
    }
    assert_eq!(told["left"], serde_json::json!({ "subscriptions": 1 }));
    assert_eq!((registry.len(), registry.gateways().len()), (1, 1));
    assert_eq!(registry.matches(&order("1", serde_json::json!({ "n": 2 }))).unwrap().len(), 1);
    drop(client);
    stop.cancel();
    serving.await.unwrap();
    registry.close().await;
}

async fn serving(service: RegistryService) -> (SocketAddr, tokio::task::JoinHandle<()>, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    (address, tokio::spawn(service.serve(listener, stop.clone())), stop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rte_a_registration_by_grpc_has_the_configured_mode_and_time_unless_it_says_otherwise() {
    let mut routing = RoutingConfig { mode: Mode::ConsistentHash, ..RoutingConfig::default() };
    routing.subscriptions.ttl = std::time::Duration::from_secs(70);
    let registry = Registry::open(&Broker::memory(), routing.subscriptions.clone()).await.unwrap();
    let (address, task, stop) =
        serving(RegistryService::new(registry.clone(), None).configured(&routing)).await;
    let mut client = Client::connect(address, "any").await;
    assert_eq!(client.call("Register", &big("")).await, Ok(70));
    let target = |id: &str| registry.subscription(&tenant("t"), &sub_id(id)).unwrap().target.clone();
    assert_eq!(target("s"), Target::Hash);
    assert_eq!(client.call("Register", &RandomInterest { id: "d".into(), ..big("g") }).await, Ok(70));
    assert_eq!(target("d"), Target::Direct(gateway("g")), "it names its gateway");
    let wish = RandomInterest { id: "b".into(), mode: "broadcast".into(), ttl_seconds: 60, ..big("") };
    assert_eq!(client.call("Register", &wish).await, Ok(60));
    assert_eq!(target("b"), Target::Broadcast);
    stop.cancel();
    drop(client);
    task.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_the_registry_speaks_tls_and_takes_no_call_without_it() {
    let certs = Certs::new();
    let registry = Registry::open(&Broker::memory(), RoutingConfig::default().subscriptions).await.unwrap();
    let tls = ServerTls::from_files(&certs.server_cert_path(), &certs.server_key_path()).unwrap();
    let (address, task, stop) =
        serving(RegistryService::new(registry.clone(), Some("secret")).with_tls(tls)).await;
    let bearer = || Some(Bearer::new("secret"));
    let trusting = Tls::from_pem(Some(certs.ca_pem().as_bytes()), None).unwrap();
    let client = RegistryClient::new(format!("https://{address}"), bearer()).unwrap().with_tls(trusting);
    client.register(&wish("s", "doc.n == 1", "g")).await.unwrap();
    assert_eq!(registry.len(), 1);
    let plain = RegistryClient::new(format!("http://{address}"), bearer()).unwrap();
    plain.register(&wish("t", "doc.n == 1", "g")).await.unwrap_err();
    assert_eq!(registry.len(), 1);
    let wrong = ServerTls::from_files(&certs.ca_path(), &certs.server_key_path()).unwrap_err();
    assert!(wrong.to_string().contains("routing.tls.cert_file"), "{wrong}");
    stop.cancel();
    drop((client, plain));
    task.await.unwrap();
}

/// Callers by their tokens, and what became of their calls.
struct Known {
    access: Access,
    told: Arc<Mutex<Vec<String>>>,
}

impl Callers for Known {
    fn admit(&self, call: &RegistryCall<'_>) -> Result<Admitted, Refused> {
        let token = call.headers["authorization"].to_str().unwrap();
        let access = match token {
            "Bearer secret" => Access::default(),
            "Bearer edge" => self.access.clone(),
            _ => return Err(Refused { status: 16, text: "unknown".to_owned() }),
        };
        let who = format!("{} {token} {}", call.peer.unwrap(), call.path);
        let told = Arc::clone(&self.told);
        let report = move |answered: &CallOutcome<'_>| {
            told.lock().unwrap().push(format!("{who} {} {}", answered.about, answered.status));
        };
        Ok(Admitted { access, report: Box::new(report) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_caller_with_limits_registers_its_own_gateways_and_tenants_only() {
    let registry = Registry::open(&Broker::memory(), RoutingConfig::default().subscriptions).await.unwrap();
    let access = Access::new(vec!["edge-*".to_owned()], vec!["t".to_owned()]).unwrap();
    let told = Arc::new(Mutex::default());
    let callers = Arc::new(Known { access, told: Arc::clone(&told) });
    let service = RegistryService::new(registry.clone(), None).with_callers(callers);
    let (address, serving, stop) = serving(service).await;
    let (mut all, mut edge) =
        (Client::connect(address, "secret").await, Client::connect(address, "edge").await);
    let mut none = Client::connect(address, "wrong").await;
    let gateway = |id: &str| Gateway { id: id.into(), endpoint: "http://h:1".into(), ..Gateway::default() };
    // The first field of a gateway's name is its id.
    let named = |id: &str| Name { tenant: id.into(), id: String::new() };
    assert_eq!(none.call("RegisterGateway", &gateway("edge-1")).await.unwrap_err().0, 16);
    assert!(all.call("RegisterGateway", &gateway("core")).await.is_ok());
    assert!(edge.call("RegisterGateway", &gateway("edge-1")).await.is_ok());
    assert!(edge.call("HeartbeatGateway", &named("edge-1")).await.is_ok());
    assert_eq!(edge.call("RegisterGateway", &gateway("core")).await.unwrap_err().0, 7);
    for call in ["HeartbeatGateway", "UnregisterGateway"] {
        assert_eq!(edge.call(call, &named("core")).await.unwrap_err().0, 7, "{call}");
    }
    assert!(all.call("Register", &RandomInterest { id: "theirs".into(), ..big("core") }).await.is_ok());
    assert!(edge.call("Register", &big("edge-1")).await.is_ok());
    for wish in [
        big("core"),
        RandomInterest { tenant: "other".into(), ..big("edge-1") },
        RandomInterest { id: "theirs".into(), ..big("edge-1") },
        RandomInterest { mode: "hash".into(), ..big("") },
    ] {
        assert_eq!(edge.call("Register", &wish).await.unwrap_err().0, 7, "{wish:?}");
    }
    for (tenant, id) in [("t", "theirs"), ("other", "s")] {
        let name = Name { tenant: tenant.into(), id: id.into() };
        for call in ["Heartbeat", "Unregister"] {
            assert_eq!(edge.call(call, &name).await.unwrap_err().0, 7, "{call} {tenant} {id}");
        }
    }
    assert_eq!(edge.call("Unregister", &Name { tenant: "t".into(), id: "s".into() }).await, Ok(1));
    assert_eq!(registry.len(), 1);
    let told = std::mem::take(&mut *told.lock().unwrap());
    for (token, call, about, status) in [
        ("secret", "RegisterGateway", "core", 0),
        ("edge", "RegisterGateway", "core", 7),
        ("edge", "HeartbeatGateway", "edge-1", 0),
        ("edge", "Register", "t/theirs", 7),
        ("edge", "Unregister", "other/s", 7),
    ] {
        let line = format!("127.0.0.1 Bearer {token} /RegistryService/{call} {about} {status}");
        assert!(told.contains(&line), "{line}: {told:?}");
    }
    stop.cancel();
    serving.await.unwrap();
}
