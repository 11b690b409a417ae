//! Laws of the bus: hints, in order, and never a silent gap.

use crate::world::{fails, fresh, soon};
use bytes::Bytes;
use firth_engine::facet::{Signal, Subscription};
use firth_engine::{ChannelName, Engine, ErrorKind};

fn channel() -> ChannelName {
    ChannelName::new(fresh("channel")).unwrap()
}

async fn next(subscription: &mut Subscription) -> Signal {
    soon("a signal", subscription.next()).await.unwrap()
}

/// Subscribers of the channel get what is published after they subscribed, each, in order.
pub async fn who_listens_gets_it_in_order(engine: Engine) {
    let here = channel();
    let there = channel();
    engine.publish(&here, "nobody listens".into()).await.unwrap();
    let mut listeners = [engine.subscribe(&here).await.unwrap(), engine.subscribe(&here).await.unwrap()];
    let mut other = engine.subscribe(&there).await.unwrap();
    for n in 0..50 {
        engine.publish(&here, Bytes::from(n.to_string())).await.unwrap();
    }
    engine.publish(&there, "there".into()).await.unwrap();
    for listener in &mut listeners {
        for n in 0..50 {
            assert_eq!(next(listener).await, Signal::Message(n.to_string().into()));
        }
    }
    assert_eq!(next(&mut other).await, Signal::Message("there".into()));
    fails(engine.publish(&here, vec![0; 70_000].into()).await, ErrorKind::Invalid);
}

/// A slow listener loses signals, sees a gap in their place, and blocks no other listener.
pub async fn a_slow_listener_gets_a_gap(engine: Engine) {
    let channel = channel();
    let mut slow = engine.subscribe(&channel).await.unwrap();
    let total = Subscription::CAPACITY * 3;
    for n in 0..total {
        engine.publish(&channel, Bytes::from(n.to_string())).await.unwrap();
    }
    engine.publish(&channel, "last".into()).await.unwrap();
    let mut expected = 0;
    let mut gaps = 0;
    loop {
        match next(&mut slow).await {
            Signal::Gap => {
                gaps += 1;
                break;
            }
            Signal::Message(payload) => {
                assert_eq!(payload, expected.to_string());
                expected += 1;
            }
        }
    }
    assert!(gaps == 1 && expected < total);
    engine.publish(&channel, "after".into()).await.unwrap();
    while next(&mut slow).await != Signal::Message("after".into()) {}
}
