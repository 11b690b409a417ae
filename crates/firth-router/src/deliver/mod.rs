//! Deliverers: how a batch reaches a gateway, and what its answer means.
//!
//! | answer | outcome |
//! |---|---|
//! | accepted, or results per event | as it says |
//! | asks for a pause (429, 503 with `Retry-After`) | the whole batch again after the pause |
//! | refuses the batch (other 4xx) | each event refused |
//! | anything else: no connection, timeout, 5xx, redirection, nonsense | unreached; the breaker counts it |

mod choice;
pub(crate) mod connect;
pub(crate) mod grpc;
mod http;
#[cfg(feature = "nats")]
mod nats;
mod sign;
mod tls;
mod token;
mod verdict;

pub use choice::{ByProtocol, Secrets};
pub use grpc::{GrpcDeliverer, GrpcOptions};
pub use http::{HttpDeliverer, HttpOptions};
#[cfg(feature = "nats")]
pub use nats::{NatsAuth, NatsDeliverer, NatsOptions};
pub use sign::{ID_HEADER, SIGNATURE_HEADER, SigningKey, TIME_HEADER, verify};
pub use tls::Tls;
pub use token::{Bearer, TokenHosts, host};

use crate::lane::{Batch, Outcome};
use crate::name::GatewayId;
use crate::registry::Gateway;
use std::pin::Pin;

/// What a delivery returns.
pub type Delivering<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// Sends batches over one kind of wire. Calls for one gateway may overlap; an implementation keeps
/// its connections to itself.
pub trait Deliverer: Send + Sync + 'static {
    /// Sends a batch and waits for its answer, no longer than the configured timeout. Cancel-safe:
    /// a batch that was cut off counts as unreached, and comes again.
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a>;

    /// A gateway is gone: what is kept for it, such as a connection, may end.
    fn forget(&self, _gateway: &GatewayId) {}
}
