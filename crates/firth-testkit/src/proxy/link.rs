//! One proxied connection: two sockets, two lines, and how they end.

use super::Shared;
use super::line::Line;
use super::plan::Direction;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// A line ended in a way that must not look like a normal close.
#[derive(Debug)]
pub(super) struct Reset;

/// Serves one client until either side closes, a fault resets it, or the front cuts it.
pub(super) async fn run(mut client: TcpStream, shared: Arc<Shared>, mut cuts: watch::Receiver<()>) {
    let _open = OpenCount::new(&shared);
    let target = shared.plan.borrow().target;
    let connected = tokio::select! {
        connected = TcpStream::connect(target) => connected.ok(),
        _ = cuts.changed() => None,
    };
    let Some(mut server) = connected else { return reset(&client) };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true); // fails only on a dead socket, which the lines will notice
    }
    let ended = tokio::select! {
        ended = forward(&mut client, &mut server, &shared) => ended,
        _ = cuts.changed() => Err(Reset),
    };
    if ended.is_err() {
        reset(&client);
        reset(&server);
    }
}

async fn forward(client: &mut TcpStream, server: &mut TcpStream, shared: &Shared) -> Result<(), Reset> {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = Line::new(from_client, to_server, Direction::ToServer, shared);
    let down = Line::new(from_server, to_client, Direction::ToClient, shared);
    tokio::try_join!(up.run(), down.run()).map(|_| ())
}

/// Makes the coming close an RST.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Counts the link as open while it lives.
struct OpenCount<'a>(&'a Shared);

impl<'a> OpenCount<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for OpenCount<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
