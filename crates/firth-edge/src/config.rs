//! [`Config`]: how an edge serves its clients. Every value is checked once.

use crate::journal::Window;
use crate::outbox::SlowPolicy;
use crate::protocol::{Code, EdgeError};
use std::time::Duration;

/// Limits that protect the gateway and its tenants from one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one tenant.
    pub per_tenant: usize,
    /// Connections from one address. Behind a proxy all come from one: raise it then.
    pub per_address: usize,
    /// Subscriptions of one connection.
    pub subscriptions: usize,
    /// Filters of one tenant that no index answers.
    pub slow_filters: usize,
    /// Different subscriptions of all clients that are registered with a router. Those without a
    /// client make room for others.
    pub registrations: usize,
    /// The same of one tenant.
    pub registrations_per_tenant: usize,
    /// The largest message of a client, in bytes.
    pub message_bytes: usize,
    /// Messages of a client per second, on average; ten times as many at once.
    pub messages_per_second: u32,
    /// Events that may wait for one connection before it counts as slow.
    pub queued_events: usize,
    /// Bytes that may wait for one connection before it counts as slow.
    pub queued_bytes: usize,
    /// Members of a room that are named; all are counted.
    pub named_members: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            per_tenant: 10_000,
            per_address: 200,
            subscriptions: 100,
            slow_filters: 200,
            registrations: 10_000,
            registrations_per_tenant: 8_000,
            message_bytes: 64 << 10,
            messages_per_second: 20,
            queued_events: 1_000,
            queued_bytes: 256 << 10,
            named_members: 100,
        }
    }
}

/// How an edge works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Limits.
    pub limits: Limits,
    /// How much is kept for clients that come back.
    pub window: Window,
    /// What happens to slow clients, unless they choose.
    pub slow: SlowPolicy,
    /// Under load each connection is written to once in this time; an idle one, or one of a hub
    /// with little to do, at once.
    pub tick: Duration,
    /// How often the gateway says that it is there.
    pub heartbeat: Duration,
    /// How long a client may be silent.
    pub silence: Duration,
    /// How long a client may take to say who it is.
    pub auth_within: Duration,
    /// How long a write may be stuck before the connection is given up.
    pub write_within: Duration,
    /// How long a client may acknowledge nothing before its connection is given up. A phone that
    /// changes networks is away for a while.
    pub unreachable_after: Duration,
    /// How long a poll waits for something to say.
    pub poll_wait: Duration,
    /// Clients of a gateway that closes come back spread over this time.
    pub retry_spread: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            window: Window::default(),
            slow: SlowPolicy::default(),
            tick: Duration::from_millis(10),
            heartbeat: Duration::from_secs(30),
            silence: Duration::from_secs(90),
            auth_within: Duration::from_secs(10),
            write_within: Duration::from_secs(5),
            unreachable_after: Duration::from_secs(30),
            poll_wait: Duration::from_secs(25),
            retry_spread: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// Checks every value, or says what to change.
    pub fn check(&self) -> Result<(), EdgeError> {
        let limits = &self.limits;
        let counts = [
            ("connections", limits.connections),
            ("per_tenant", limits.per_tenant),
            ("per_address", limits.per_address),
            ("subscriptions", limits.subscriptions),
            ("registrations", limits.registrations),
            ("registrations_per_tenant", limits.registrations_per_tenant),
            ("message_bytes", limits.message_bytes),
            ("messages_per_second", limits.messages_per_second as usize),
            ("queued_events", limits.queued_events),
            ("queued_bytes", limits.queued_bytes),
            ("window.events", self.window.events),
            ("window.bytes", self.window.bytes),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(EdgeError::invalid(field, format!("`{field}` is 0; give at least 1")));
        }
        let times = [
            ("tick", self.tick),
            ("heartbeat", self.heartbeat),
            ("auth_within", self.auth_within),
            ("write_within", self.write_within),
            ("unreachable_after", self.unreachable_after),
            ("poll_wait", self.poll_wait),
        ];
        if let Some((field, _)) = times.into_iter().find(|(_, time)| time.is_zero()) {
            return Err(EdgeError::invalid(field, format!("`{field}` is 0; give at least 1 ms")));
        }
        if self.silence <= self.heartbeat {
            let message = "`silence` must be longer than `heartbeat`: a client answers heartbeats";
            return Err(EdgeError { code: Code::Invalid, ..EdgeError::invalid("silence", message) });
        }
        Ok(())
    }
}
