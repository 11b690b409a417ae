//! Entries in any order and number give the same state; quotas; expiry.

use super::*;
use crate::config::RoutingConfig;
use proptest::prelude::*;

fn quotas() -> Subscriptions {
    Subscriptions { per_gateway: 3, per_tenant: 4, total: 5, ..RoutingConfig::default().subscriptions }
}

fn subscription(tenant: &str, id: &str, gateway: &str) -> Subscription {
    let target = Target::Direct(GatewayId::new(gateway).unwrap());
    Subscription::new(SubscriptionId::new(id).unwrap(), Tenant::new(tenant).unwrap(), "orders", target)
}

fn key(tenant: &str, id: &str) -> Key {
    (Tenant::new(tenant).unwrap(), SubscriptionId::new(id).unwrap())
}

#[test]
fn each_quota_is_named_when_it_is_used_up_and_replacing_is_always_allowed() {
    let mut state = State::new(quotas());
    let now = Instant::now();
    let add = |state: &mut State, tenant: &str, id: &str, gateway: &str| {
        let wanted = subscription(tenant, id, gateway);
        state.admit(&wanted)?;
        state.put(wanted, state.len() as u64 + 1, now)
    };
    for id in ["a", "b", "c"] {
        add(&mut state, "t", id, "g1").unwrap();
    }
    let error = add(&mut state, "t", "d", "g1").unwrap_err();
    assert!(error.to_string().contains("per_gateway of 3"), "{error}");
    add(&mut state, "t", "d", "g2").unwrap();
    let error = add(&mut state, "t", "e", "g2").unwrap_err();
    assert!(error.to_string().contains("per_tenant of 4"), "{error}");
    add(&mut state, "u", "e", "g2").unwrap();
    let error = add(&mut state, "v", "f", "g3").unwrap_err();
    assert!(error.to_string().contains("total of 5"), "{error}");
    state.admit(&subscription("t", "a", "g1")).unwrap();
    state.admit(&subscription("t", "d", "g1")).expect_err("it would move to a gateway that is full");
}

#[test]
fn a_subscription_expires_unless_it_or_its_gateway_gives_a_sign() {
    let mut state = State::new(quotas());
    let start = Instant::now();
    let seconds = |n| start + Duration::from_secs(n);
    state.put_gateway(Gateway::new(GatewayId::new("g1").unwrap(), ""), 1, start);
    state.put(subscription("t", "kept", "g1"), 1, start).unwrap();
    state.put(subscription("t", "lost", "g2"), 2, start).unwrap();
    state.put(subscription("t", "renewed", "g2"), 3, start).unwrap();
    assert_eq!(state.expired(seconds(299), 10), []);
    state.put(subscription("t", "renewed", "g2"), 4, seconds(200)).unwrap();
    state.put_gateway(Gateway::new(GatewayId::new("g1").unwrap(), ""), 2, seconds(290));
    assert_eq!(state.expired(seconds(301), 10), [(key("t", "lost"), 2)]);
    state.forget(&key("t", "lost"), 2);
    assert_eq!(state.expired_gateways(seconds(379)), []);
    assert_eq!(state.expired_gateways(seconds(380)).len(), 1);
    assert_eq!(state.expired(seconds(380), 10), [(key("t", "kept"), 1)], "its gateway fell silent too");
    assert_eq!(state.expired(seconds(386), 10), [(key("t", "kept"), 1)], "asked again until it is gone");
    state.forget(&key("t", "kept"), 1);
    assert_eq!(state.expired(seconds(501), 10), [(key("t", "renewed"), 4)]);
}

#[test]
fn an_old_message_never_undoes_a_newer_one() {
    let mut state = State::new(quotas());
    let now = Instant::now();
    state.put(subscription("t", "a", "g1"), 5, now).unwrap();
    state.forget(&key("t", "a"), 4);
    assert_eq!(state.len(), 1, "the removal was older");
    state.forget(&key("t", "a"), 6);
    state.put(subscription("t", "a", "g1"), 5, now).unwrap();
    assert_eq!(state.len(), 0, "the put was older");
    state.put(subscription("t", "a", "g2"), 7, now).unwrap();
    assert_eq!(state.of_gateway(&GatewayId::new("g2").unwrap()).len(), 1);
}

proptest! {
    #[test]
    fn the_order_of_news_makes_no_difference(
        news in proptest::collection::vec((0_u8..3, any::<bool>(), 0_u8..2), 1..12), shuffle in any::<u64>()
    ) {
        let now = Instant::now();
        let apply = |state: &mut State, (version, (id, is_put, gateway)): &(u64, (u8, bool, u8))| {
            let id = format!("s{id}");
            match is_put {
                true => state.put(subscription("t", &id, &format!("g{gateway}")), *version, now).unwrap(),
                false => state.forget(&key("t", &id), *version),
            }
        };
        let news: Vec<_> = (1_u64..).zip(news).collect();
        let mut in_order = State::new(RoutingConfig::default().subscriptions);
        news.iter().for_each(|piece| apply(&mut in_order, piece));
        let mut shuffled = news.clone();
        let mut random = fastrand::Rng::with_seed(shuffle);
        random.shuffle(&mut shuffled);
        shuffled.extend(news.iter().filter(|_| random.bool()).copied());
        let mut other = State::new(RoutingConfig::default().subscriptions);
        shuffled.iter().for_each(|piece| apply(&mut other, piece));
        let view = |state: &State| {
            let shards = (0..super::super::catalog::SHARDS).flat_map(|shard| state.versions(shard));
            let mut all: Vec<_> = shards.map(|(key, version)| (key.clone(), version)).collect();
            all.sort();
            all
        };
        prop_assert_eq!(view(&in_order), view(&other));
        for gateway in ["g0", "g1"] {
            let gateway = GatewayId::new(gateway).unwrap();
            prop_assert_eq!(in_order.of_gateway(&gateway), other.of_gateway(&gateway));
        }
    }
}
