//! The bus of a single process: bounded queues, one per subscriber; a full one gets a gap instead
//! of the payload.

use crate::facet::{Signal, Subscription};
use crate::name::ChannelName;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Mutex;
use tokio::sync::mpsc::Sender;

#[derive(Default)]
pub(super) struct LocalBus(Mutex<HashMap<ChannelName, Vec<Listener>>>);

struct Listener {
    sender: Sender<Signal>,
    /// The last thing in its queue is a gap already.
    in_gap: bool,
}

impl LocalBus {
    pub(super) fn publish(&self, channel: &ChannelName, payload: &Bytes) {
        let mut channels = self.0.lock().expect("nothing panics while it holds this lock");
        let Some(listeners) = channels.get_mut(channel) else {
            return;
        };
        listeners.retain_mut(|listener| listener.offer(payload));
        if listeners.is_empty() {
            channels.remove(channel);
        }
    }

    pub(super) fn subscribe(&self, channel: &ChannelName) -> Subscription {
        let (sender, subscription) = Subscription::channel();
        let mut channels = self.0.lock().expect("nothing panics while it holds this lock");
        let listeners = channels.entry(channel.clone()).or_default();
        listeners.retain(|listener| !listener.sender.is_closed());
        listeners.push(Listener { sender, in_gap: false });
        subscription
    }

    pub(super) fn close(&self) {
        self.0.lock().expect("nothing panics while it holds this lock").clear();
    }
}

impl Listener {
    /// Delivers a payload, or one gap for all that do not fit; false once the subscriber is gone.
    fn offer(&mut self, payload: &Bytes) -> bool {
        // The last place is for the gap.
        let has_room = self.sender.capacity() > 1;
        if has_room {
            self.in_gap = false;
            return self.sender.try_send(Signal::Message(payload.clone())).is_ok();
        }
        if !self.in_gap {
            self.in_gap = self.sender.try_send(Signal::Gap).is_ok();
        }
        !self.sender.is_closed()
    }
}
