//! The section of the design document loads as it stands, and mistakes are named.

use super::*;
use serde_json::json;

/// Section 10 of the routing design, as a reader of YAML gives it.
fn documented() -> Value {
    json!({
        "mode": "direct",
        "num_partitions": 1,
        "batch": { "max_size": 100, "max_wait": "50ms", "flush_interval": "10ms" },
        "backpressure": { "soft_watermark": 70, "hard_watermark": 90, "queue_size": 10000 },
        "delivery": {
            "protocol": "http",
            "timeout": "5s",
            "retry": { "max_attempts": 3, "initial_delay": "100ms", "max_delay": "5s", "multiplier": 2.0 }
        },
        "dlq": { "enabled": true, "max_age": "7d" }
    })
}

#[test]
fn the_documented_section_loads_and_states_the_defaults() {
    let config: RoutingConfig = serde_json::from_value(documented()).unwrap();
    assert_eq!(config, RoutingConfig::default());
    assert_eq!(RoutingConfig::from_value(&Value::Null).unwrap(), RoutingConfig::default());
    assert_eq!(config.dlq.max_age, Duration::from_secs(604_800));
}

#[test]
fn the_yaml_of_the_design_loads_unchanged() {
    #[derive(serde::Deserialize)]
    struct File {
        routing: RoutingConfig,
    }
    let file: File = serde_saphyr::from_str(include_str!("documented.yaml")).unwrap();
    assert_eq!(file.routing, RoutingConfig::default());
    let wrong = include_str!("documented.yaml").replace("max_wait", "max_weight");
    let error = serde_saphyr::from_str::<File>(&wrong).map(|file| file.routing).unwrap_err().to_string();
    assert!(error.contains("did you mean `max_wait`?"), "{error}");
}

#[test]
fn every_documented_option_can_be_changed() {
    let changes = [
        ("/mode", json!("consistent_hash")),
        ("/num_partitions", json!(8)),
        ("/batch/max_size", json!(1)),
        ("/batch/max_wait", json!("0s")),
        ("/batch/flush_interval", json!("5ms")),
        ("/backpressure/soft_watermark", json!(50)),
        ("/backpressure/hard_watermark", json!(99)),
        ("/backpressure/queue_size", json!(20)),
        ("/delivery/protocol", json!("nats")),
        ("/delivery/timeout", json!("1m")),
        ("/delivery/retry/max_attempts", json!(1)),
        ("/delivery/retry/initial_delay", json!("1s")),
        ("/delivery/retry/max_delay", json!("1h30m")),
        ("/delivery/retry/multiplier", json!(1)),
        ("/dlq/enabled", json!(false)),
        ("/dlq/max_age", json!("1h")),
    ];
    for (pointer, value) in changes {
        let mut section = documented();
        *section.pointer_mut(pointer).unwrap() = value;
        let config = RoutingConfig::from_value(&section).unwrap();
        assert_ne!(config, RoutingConfig::default(), "{pointer} changes nothing");
    }
}

#[test]
fn a_mistake_is_named_with_what_to_do() {
    let cases = [
        (json!({ "mdoe": "direct" }), "routing.mdoe is not an option; did you mean `mode`?"),
        (json!({ "batch": { "size": 5 } }), "routing.batch.size is not an option"),
        (
            json!({ "delivery": { "retry": { "max_atempts": 5 } } }),
            "routing.delivery.retry.max_atempts is not an option; did you mean `max_attempts`?",
        ),
        (
            json!({ "mode": "hash" }),
            "routing.mode is \"hash\"; give one of direct, consistent_hash, broadcast",
        ),
        (json!({ "num_partitions": 0 }), "routing.num_partitions is 0; give a whole number from 1 to 1024"),
        (json!({ "num_partitions": -1 }), "routing.num_partitions is -1"),
        (
            json!({ "batch": { "max_wait": 50 } }),
            "routing.batch.max_wait is 50; give a duration such as 50ms",
        ),
        (json!({ "batch": { "max_wait": "50 parsecs" } }), "routing.batch.max_wait"),
        (json!({ "backpressure": { "soft_watermark": 95 } }), "soft must be lower"),
        (json!({ "delivery": { "retry": { "initial_delay": "10s" } } }), "longer than max_delay"),
        (json!({ "dlq": { "enabled": "yes" } }), "true or false"),
        (
            json!({ "delivery": { "tls": { "ca_file": 5 } } }),
            "routing.delivery.tls.ca_file is 5; give a text",
        ),
        (
            json!({ "delivery": { "tls": { "key_file": "k" } } }),
            "routing.delivery.tls has one of cert_file and key_file",
        ),
        (
            json!({ "delivery": { "nats": { "url": "http://h" } } }),
            "routing.delivery.nats.url: a NATS address is",
        ),
        (json!({ "delivery": { "nats": { "url": "nats://u:p@h" } } }), "must hold no secrets"),
        (
            json!({ "delivery": { "nats": { "subject": "a..b" } } }),
            "routing.delivery.nats.subject must be words",
        ),
        (json!({ "delivery": { "nats": { "stream": "S" } } }), "then ack must be jetstream"),
        (json!({ "delivery": { "nats": { "ack": "publish" } } }), "give one of reply, jetstream"),
        (
            json!({ "delivery": { "nats": { "nkey_file": "n", "creds_file": "c" } } }),
            "more than one of token_file, nkey_file and creds_file",
        ),
        (json!({ "dlq": true }), "routing.dlq must hold options with names"),
        (json!([]), "routing must hold options with names"),
    ];
    for (section, expected) in cases {
        let error = RoutingConfig::from_value(&section).unwrap_err();
        assert!(error.to_string().contains(expected), "{section}: {error}");
    }
}

#[test]
fn units_are_read_as_people_write_them() {
    assert_eq!(parse_duration("1.5s"), Some(Duration::from_millis(1500)));
    assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5400)));
    assert_eq!(parse_duration(" 1m 30s "), Some(Duration::from_secs(90)));
    for bad in ["", "5", "s", "5 s", "-5s", "5x", "1e9d", "."] {
        assert_eq!(parse_duration(bad), None, "{bad:?}");
    }
    assert_eq!(parse_bytes("64MiB"), Some(64 << 20));
    assert_eq!(parse_bytes("1.5kB"), Some(1500));
    assert_eq!(parse_bytes("123"), Some(123));
    assert_eq!(parse_bytes("1 GB"), Some(1_000_000_000));
    for bad in ["", "MiB", "-1B", "1.5B", "1XiB", "12 34"] {
        assert_eq!(parse_bytes(bad), None, "{bad:?}");
    }
}

#[test]
fn wires_are_configured_by_files_and_words() {
    let section = json!({ "delivery": {
        "grpc": { "stream": false },
        "tls": { "ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "k.pem" },
        "nats": { "url": "tls://h:4222", "subject": "a.b", "ack": "jetstream", "stream": "S", "token_file": "t" } } });
    let delivery = RoutingConfig::from_value(&section).unwrap().delivery;
    let file = |name: &str| Some(std::path::PathBuf::from(name));
    let tls = TlsFiles { ca_file: file("ca.pem"), cert_file: file("c.pem"), key_file: file("k.pem") };
    assert_eq!((&delivery.tls, delivery.grpc_stream), (&tls, false));
    let nats = NatsConfig {
        url: Some("tls://h:4222".to_owned()),
        subject: "a.b".to_owned(),
        ack: NatsAck::JetStream,
        stream: Some("S".to_owned()),
        token_file: file("t"),
        nkey_file: None,
        creds_file: None,
    };
    assert_eq!(delivery.nats, nats);
    let error = crate::deliver::Tls::from_files(&tls).unwrap_err().to_string();
    assert_eq!(error, "routing.delivery.tls.ca_file: ca.pem cannot be read");
}

#[test]
fn u13_an_unknown_option_is_told_with_all_that_there_are() {
    // A short name is near to many.
    for unknown in ["colour", "foo"] {
        let error = NodeConfig::from_value(&json!({ unknown: "red" })).unwrap_err().to_string();
        for known in
            ["mode", "dlq", "topic", "group", "node", "listen", "lease", "drain", "stall_timeout", "gateways"]
        {
            assert!(error.contains(known), "{known}: {error}");
        }
    }
    let near = NodeConfig::from_value(&json!({ "lisen": "x" })).unwrap_err().to_string();
    assert!(near.contains("did you mean `listen`?"), "{near}");
}

#[test]
fn the_stall_timeout_is_read_under_its_former_name_too() {
    for name in ["stall_timeout", "patience"] {
        let config = NodeConfig::from_value(&json!({ name: "2s" })).unwrap();
        assert_eq!(config.options.stall_timeout, Duration::from_secs(2), "{name}");
    }
}
