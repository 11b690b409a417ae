//! Probe: a second connection that only checks which server answers at the endpoint. It tells a
//! busy server from a lost connection, and finds the successor of a demoted master behind the same
//! name.

use super::handshake::establish;
use super::transport::Endpoint;
use crate::command::cmd;
use crate::config::Config;
use crate::error::{ConnectError, LostCause};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// A server that serves, and whether it calls itself master.
    Serving { master: bool },
    /// A server that is busy, or no answer in time: a busy server gives none either.
    Unknown,
    /// Nothing listens there.
    Gone,
}

pub(crate) type Probe = Pin<Box<dyn Future<Output = ProbeResult> + Send>>;

/// Connects, greets and pings; each step within `limit` at most.
pub(crate) fn start(config: &Config, endpoint: &Endpoint, limit: Duration) -> Probe {
    let mut config = config.clone();
    let endpoint = endpoint.clone();
    let shorter = |own: Option<Duration>| Some(own.map_or(limit, |own| own.min(limit)));
    config.timeouts.resolve = shorter(config.timeouts.resolve);
    config.timeouts.connect = shorter(config.timeouts.connect);
    config.timeouts.handshake = shorter(config.timeouts.handshake);
    // HELLO is answered by a server that is busy with a script, PING is not.
    config.setup = Arc::from([cmd("PING")]);
    config.trace = None;
    Box::pin(async move {
        match establish(&config, endpoint).await {
            Ok(mut established) => {
                let master = established.is_master(config.timeouts.handshake).await;
                ProbeResult::Serving { master: master.unwrap_or(false) }
            }
            Err(error) => of_error(&error),
        }
    })
}

fn of_error(error: &ConnectError) -> ProbeResult {
    match error {
        ConnectError::Refused { error, .. } if matches!(&*error.code, "BUSY" | "LOADING") => {
            ProbeResult::Unknown
        }
        ConnectError::Refused { .. } => ProbeResult::Serving { master: false },
        ConnectError::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
            ProbeResult::Gone
        }
        ConnectError::Broken { source: LostCause::Eof, .. } => ProbeResult::Gone,
        _ => ProbeResult::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::ConnectStage, resp::ServerError};

    #[test]
    fn only_a_refusal_to_connect_proves_that_nothing_is_there() {
        let endpoint = || "h:1".to_owned();
        let refused = |code: &str| ConnectError::Refused {
            endpoint: endpoint(),
            step: "PING",
            error: ServerError::new(code, ""),
        };
        let connect = |kind: io::ErrorKind| ConnectError::Connect {
            endpoint: endpoint(),
            source: Arc::new(kind.into()),
        };
        let late = |stage| ConnectError::Timeout { stage, endpoint: endpoint(), limit: Duration::ZERO };
        for (error, expected) in [
            (refused("BUSY"), ProbeResult::Unknown),
            (refused("LOADING"), ProbeResult::Unknown),
            (refused("NOPERM"), ProbeResult::Serving { master: false }),
            (connect(io::ErrorKind::ConnectionRefused), ProbeResult::Gone),
            (connect(io::ErrorKind::HostUnreachable), ProbeResult::Unknown),
            (ConnectError::Broken { endpoint: endpoint(), source: LostCause::Eof }, ProbeResult::Gone),
            (late(ConnectStage::Connect), ProbeResult::Unknown),
            (late(ConnectStage::Handshake), ProbeResult::Unknown),
        ] {
            assert_eq!(of_error(&error), expected, "{error}");
        }
    }
}
