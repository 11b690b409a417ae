//! Laws of the client, checked against real servers.

mod basics;
mod closing;
mod deadlines;
mod fake;
mod faults;
mod hostile;
mod kit;
mod mux;
mod reconnect;
