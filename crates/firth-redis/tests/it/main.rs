//! Laws of the client, checked against real servers.

mod basics;
mod mux;
