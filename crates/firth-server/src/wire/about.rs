//! The server about itself, and about what its caller may do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The server that answers, and what the caller may do.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct About {
    pub(crate) version: String,
    /// Its clock, as Unix time.
    pub(crate) time_ms: u64,
    /// Where topics are kept: `memory`, `file`, `redis`, `redis+cluster`, …
    #[serde(default)]
    pub(crate) engine: String,
    /// Whether calls need a token.
    #[serde(default)]
    pub(crate) tokens: bool,
    /// The name of the caller's token.
    #[serde(default)]
    pub(crate) caller: Option<String>,
    /// What the caller may do: some of `produce`, `consume`, `observe`, `route`, `admin`.
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
    /// With which topics, channels and services: names with `*` for any part.
    #[serde(default)]
    pub(crate) topics: Vec<String>,
    /// Whether this server runs a node of the router.
    #[serde(default)]
    pub(crate) routing: bool,
}
