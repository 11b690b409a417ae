//! Ports that stay ours.
//!
//! Asking the OS for a free port and letting it go again loses races: the port can become the
//! source port of an outgoing connection before the server binds it, and again whenever the
//! server is restarted. So a [`Port`] keeps a bound socket that never listens. With `SO_REUSEADDR`
//! on both sides Linux lets the server listen on the same port beside it, refuses connections while
//! no server does, and gives the port to no other process until the `Port` is dropped.

use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::{TcpListener, TcpSocket};

/// A loopback TCP port reserved for as long as this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: TcpSocket,
}

impl Port {
    /// Reserves a port that the OS chooses.
    pub fn reserve() -> Self {
        let socket = bound_socket(0);
        let number = socket.local_addr().expect("a bound socket has an address").port();
        Self { number, _reservation: socket }
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1` with this port.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }

    /// Listens on the port; needs a tokio runtime.
    pub fn listen(&self) -> TcpListener {
        bound_socket(self.number).listen(1024).expect("a reserved port can be listened on")
    }
}

fn bound_socket(port: u16) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket can be opened");
    socket.set_reuseaddr(true).expect("SO_REUSEADDR can be set");
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.bind(addr).unwrap_or_else(|error| panic!("cannot bind {addr}: {error}"));
    socket
}
