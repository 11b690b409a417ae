//! The bus facet: sharded channels over the client's multiplexer, and a task per subscription that
//! keeps its queue bounded.

use super::RedisEngine;
use super::error_mapping::of_call;
use crate::checks;
use crate::facet::{Bus, Reply, Signal, Subscription};
use crate::name::ChannelName;
use bytes::Bytes;
use firth_redis::cmd;
use firth_redis::mux::{self, Event};
use firth_redis::resp::Ignore;
use tokio::sync::mpsc::Sender;

impl Bus for RedisEngine {
    fn publish<'a>(&'a self, channel: &'a ChannelName, payload: Bytes) -> Reply<'a, ()> {
        Box::pin(async move {
            checks::signal(&payload)?;
            let publish = cmd("SPUBLISH").key(self.keys.channel(channel)).arg(&payload);
            self.steps.client.call::<Ignore>(publish).await.map(drop).map_err(of_call)
        })
    }

    fn subscribe<'a>(&'a self, channel: &'a ChannelName) -> Reply<'a, Subscription> {
        Box::pin(async move {
            let heard = self.steps.client.mux().subscribe_sharded([self.keys.channel(channel)]).await;
            let heard = heard.map_err(of_call)?;
            let (sender, subscription) = Subscription::channel();
            tokio::spawn(forward(heard, sender));
            Ok(subscription)
        })
    }
}

/// Hands on what comes until either side ends. What does not fit is one gap.
async fn forward(mut heard: mux::Subscription, to: Sender<Signal>) {
    let mut in_gap = false;
    loop {
        let event = tokio::select! {
            () = to.closed() => return,
            event = heard.next() => event,
        };
        let signal = match event {
            None => return,
            Some(Event::Message(message)) => Signal::Message(message.payload),
            Some(Event::Signal(mux::Signal::Gap { .. } | mux::Signal::Lagged { .. })) => Signal::Gap,
            Some(Event::Signal(_)) => continue,
        };
        // The last place is for the gap.
        let has_room = to.capacity() > 1;
        if has_room || !in_gap {
            in_gap = !has_room || signal == Signal::Gap;
            // A subscriber that is gone ends the task at the next turn.
            let _ = to.try_send(if has_room { signal } else { Signal::Gap });
        }
    }
}
