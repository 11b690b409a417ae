//! The accept loop: the task that owns the listener and all links.
//!
//! Orders are answered when they have taken effect, so that a test never races with the proxy.

use super::{Shared, link};
use crate::ports::Port;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// What the handle asks for; answered when done.
pub(super) enum Order {
    /// Accept connections.
    Listen(oneshot::Sender<()>),
    /// Refuse connections.
    Refuse(oneshot::Sender<()>),
    /// Reset all connections.
    Cut(oneshot::Sender<()>),
}

/// The state of the accept loop.
pub(super) struct Front {
    port: Port,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
    listener: Option<TcpListener>,
    links: JoinSet<()>,
    cuts: watch::Sender<()>,
}

/// Runs the proxy on the calling thread until its handle is gone.
pub(super) fn run(front: Front) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built")
        .block_on(front.serve());
}

impl Front {
    pub(super) fn new(port: Port, shared: Arc<Shared>, orders: mpsc::UnboundedReceiver<Order>) -> Self {
        Self { port, shared, orders, listener: None, links: JoinSet::new(), cuts: watch::Sender::new(()) }
    }

    async fn serve(mut self) {
        loop {
            tokio::select! {
                // connections first: a cut also ends connections that came before it
                biased;
                accepted = accept(self.listener.as_ref()) => self.welcome(accepted),
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => break,
                },
                Some(_) = self.links.join_next() => {}
            }
        }
        self.cut().await;
    }

    fn welcome(&mut self, client: tokio::net::TcpStream) {
        self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        self.links.spawn(link::run(client, self.shared.clone(), self.cuts.subscribe()));
    }

    async fn obey(&mut self, order: Order) {
        let done = match order {
            Order::Listen(done) => {
                self.listener.get_or_insert_with(|| self.port.listen());
                done
            }
            Order::Refuse(done) => {
                self.listener = None;
                done
            }
            Order::Cut(done) => {
                self.cut().await;
                done
            }
        };
        let _ = done.send(()); // the test may have stopped waiting
    }

    async fn cut(&mut self) {
        self.cuts.send_replace(());
        while self.links.join_next().await.is_some() {}
    }
}

/// The next connection; never ends without a listener.
async fn accept(listener: Option<&TcpListener>) -> tokio::net::TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
        tokio::task::yield_now().await; // a client that gave up while it was in the queue
    }
}
