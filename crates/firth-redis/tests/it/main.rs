//! Laws of the client, checked against real servers.

mod basics;
mod fake;
mod faults;
mod kit;
mod mux;
