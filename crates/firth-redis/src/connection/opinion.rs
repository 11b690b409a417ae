//! A second opinion: a connection that is made only to see who answers where ours leads. It tells a
//! busy server from a lost connection, and finds the successor of a demoted master behind the same
//! name.

use std::{future::Future, io, pin::Pin, sync::Arc, time::Duration};

use super::{handshake::establish, transport::Endpoint};
use crate::{
    command::cmd,
    config::Config,
    error::{ConnectError, LostCause},
};

/// What a second connection met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opinion {
    /// A server that serves others, and whether it calls itself master.
    Serves { master: bool },
    /// A server that is busy, or no answer in time: a busy server gives none either.
    Unknown,
    /// Nothing listens there.
    Gone,
}

pub(crate) type Asking = Pin<Box<dyn Future<Output = Opinion> + Send>>;

/// Connects, greets and pings; each step within `limit` at most.
pub(crate) fn ask(config: &Config, endpoint: &Endpoint, limit: Duration) -> Asking {
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
                Opinion::Serves { master: master.unwrap_or(false) }
            }
            Err(error) => of_error(&error),
        }
    })
}

fn of_error(error: &ConnectError) -> Opinion {
    match error {
        ConnectError::Refused { error, .. } if matches!(&*error.code, "BUSY" | "LOADING") => Opinion::Unknown,
        ConnectError::Refused { .. } => Opinion::Serves { master: false },
        ConnectError::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
            Opinion::Gone
        }
        ConnectError::Broken { source: LostCause::Eof, .. } => Opinion::Gone,
        _ => Opinion::Unknown,
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
            (refused("BUSY"), Opinion::Unknown),
            (refused("LOADING"), Opinion::Unknown),
            (refused("NOPERM"), Opinion::Serves { master: false }),
            (connect(io::ErrorKind::ConnectionRefused), Opinion::Gone),
            (connect(io::ErrorKind::HostUnreachable), Opinion::Unknown),
            (ConnectError::Broken { endpoint: endpoint(), source: LostCause::Eof }, Opinion::Gone),
            (late(ConnectStage::Connect), Opinion::Unknown),
            (late(ConnectStage::Handshake), Opinion::Unknown),
        ] {
            assert_eq!(of_error(&error), expected, "{error}");
        }
    }
}
