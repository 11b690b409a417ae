//! Who asks, as it presents itself: for operators who look for a consumer.

use super::layers::Peer;
use crate::auth::CLIENT;
use crate::delivery_leases;
use crate::problem::{Answer, Problem};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// The longest name.
const MAX_NAME: usize = 128;

/// The client of a request: the name in `Firth-Client`, if there is one, and its address.
pub(super) struct Asker {
    name: Option<String>,
    peer: Option<Peer>,
}

impl Asker {
    /// As a consumer of this kind.
    pub(super) fn by(self, kind: &'static str) -> delivery_leases::LeaseClient {
        delivery_leases::LeaseClient { name: self.name, address: self.peer.map(|peer| peer.0), kind }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let peer = parts.extensions.get::<Peer>().copied();
        let Some(name) = parts.headers.get(CLIENT) else { return Ok(Self { name: None, peer }) };
        let is_plain = name.as_bytes().iter().all(|byte| (b' '..=b'~').contains(byte));
        let text = name.to_str().ok().filter(|name| is_plain && (1..=MAX_NAME).contains(&name.len()));
        let name = text.map(str::to_owned).ok_or_else(|| {
            let detail = format!("Firth-Client is a name: give 1 to {MAX_NAME} characters of ASCII");
            Problem::field("Firth-Client", detail).limit(MAX_NAME as u64)
        })?;
        Ok(Self { name: Some(name), peer })
    }
}
