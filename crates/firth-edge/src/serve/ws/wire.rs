//! [`Wire`]: the socket below a WebSocket. The library reads from it; what the library has to say
//! (pongs, closes) is kept until it is that frame's turn, because writers write to the socket, too.
//! The task that reads a ping must have its pong written before long.

use crate::hub::RawSocket;
use bytes::Buf;
use hyper::upgrade::{Parts, Upgraded};
use hyper_util::rt::TokioIo;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

/// How many pieces one write takes.
const PIECES: usize = 16;

pub(super) struct Wire {
    socket: Socket,
    said: Vec<u8>,
}

enum Socket {
    Tcp(Arc<TcpStream>),
    /// TLS, or what the program around this crate listens on.
    Other(TokioIo<Upgraded>),
}

impl Wire {
    /// The wire, and what was read from it too early.
    pub(super) fn new(upgraded: Upgraded) -> (Self, Vec<u8>) {
        let (socket, read) = match upgraded.downcast::<TokioIo<TcpStream>>() {
            Ok(Parts { io, read_buf, .. }) => (Socket::Tcp(Arc::new(io.into_inner())), read_buf.to_vec()),
            Err(upgraded) => (Socket::Other(TokioIo::new(upgraded)), Vec::new()),
        };
        (Self { socket, said: Vec::new() }, read)
    }

    /// The socket below, for direct writes.
    pub(super) fn raw_socket(&self) -> Option<Arc<dyn RawSocket>> {
        match &self.socket {
            Socket::Tcp(socket) => Some(socket.clone()),
            Socket::Other(_) => None,
        }
    }

    /// What the library has said since.
    pub(super) fn said(&mut self) -> Option<Vec<u8>> {
        (!self.said.is_empty()).then(|| std::mem::take(&mut self.said))
    }

    pub(super) async fn send(&mut self, mut bytes: impl Buf) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(socket) => send(socket, bytes).await,
            Socket::Other(socket) => {
                socket.write_all_buf(&mut bytes).await?;
                socket.flush().await
            }
        }
    }
}

async fn send(socket: &TcpStream, mut bytes: impl Buf) -> io::Result<()> {
    while bytes.has_remaining() {
        match send_some(socket, &bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes.advance(written),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::future::poll_fn(|context| socket.poll_write_ready(context)).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Not part of the above, where the pieces would take room in every connection's task.
fn send_some(socket: &TcpStream, bytes: &impl Buf) -> io::Result<usize> {
    let mut pieces = [IoSlice::new(&[]); PIECES];
    let used = bytes.chunks_vectored(&mut pieces);
    RawSocket::try_write(socket, &pieces[..used])
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(socket) => loop {
                ready!(socket.poll_read_ready(context))?;
                match socket.try_read(buffer.initialize_unfilled()) {
                    Ok(read) => {
                        buffer.advance(read);
                        return Poll::Ready(Ok(()));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            },
            Socket::Other(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

/// For the library, whose frames are kept.
impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().said.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
