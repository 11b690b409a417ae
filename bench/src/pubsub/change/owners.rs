//! Commands to the owner of a slot, over raw connections of the test kit: independent of every
//! subject.
//!
//! Only masters of the beginning and nodes named by a redirection are asked, never a replica on the
//! off chance: a replica takes `SPUBLISH` without owning the slot, and that must not count as
//! accepted.

use crate::pubsub::publisher::now;
use firth_testkit::Reply;
use firth_testkit::resp::Conn;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Nodes asked per command at most.
const TRIES: usize = 4;
/// How long one node may take to answer.
const ANSWER: Duration = Duration::from_millis(200);

/// A command that a node took.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) reply: Reply,
    /// When it was sent to that node.
    pub(crate) at: Duration,
    /// The port of that node.
    pub(crate) by: u16,
}

/// Connections to the nodes of a cluster, by port.
#[derive(Default)]
pub(crate) struct Owners {
    masters: Vec<u16>,
    connections: HashMap<u16, Conn<TcpStream>>,
}

impl Owners {
    pub(crate) fn new(masters: Vec<u16>) -> Self {
        Self { masters, connections: HashMap::new() }
    }

    /// Sends a command to the node that was the owner last and follows redirections; `None` if no
    /// node took the command, or if that is not known.
    pub(crate) async fn call(&mut self, last: u16, command: &[&[u8]]) -> Option<Taken> {
        let mut port = last;
        for attempt in 0..TRIES {
            let at = now();
            match self.ask(port, command).await {
                Ok(Reply::Error(text)) => port = moved_to(&text)?,
                Ok(reply) => return Some(Taken { reply, at, by: port }),
                // Perhaps it is gone: ask another master for the new owner.
                Err(_) => port = *self.masters.iter().filter(|master| **master != port).nth(attempt % 2)?,
            }
        }
        None
    }

    async fn ask(&mut self, port: u16, command: &[&[u8]]) -> io::Result<Reply> {
        let answer = timeout(ANSWER, self.exchange(port, command))
            .await
            .unwrap_or(Err(io::ErrorKind::TimedOut.into()));
        if answer.is_err() {
            self.connections.remove(&port);
        }
        answer
    }

    async fn exchange(&mut self, port: u16, command: &[&[u8]]) -> io::Result<Reply> {
        let connection = match self.connections.entry(port) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => {
                let stream = TcpStream::connect(("127.0.0.1", port)).await?;
                stream.set_nodelay(true)?;
                place.insert(Conn::over(stream))
            }
        };
        connection.call(command).await
    }
}

/// The port in `MOVED 3999 127.0.0.1:6381`.
fn moved_to(error: &str) -> Option<u16> {
    error.strip_prefix("MOVED ")?.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_redirection_names_another_node() {
        assert_eq!(moved_to("MOVED 3999 127.0.0.1:6381"), Some(6381));
        assert_eq!(moved_to("CLUSTERDOWN The cluster is down"), None);
    }
}
