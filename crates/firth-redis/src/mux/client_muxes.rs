//! All muxes of a client, so that they close and open again with it.

use super::{Mux, MuxInner};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use tokio::task::JoinSet;

/// The muxes that a client has made.
#[derive(Default)]
pub(crate) struct ClientMuxes {
    shared: OnceLock<Mux>,
    state: Mutex<ClientMuxesState>,
}

#[derive(Default)]
struct ClientMuxesState {
    /// The client is closed, and every mux with it.
    closed: bool,
    muxes: Vec<Weak<MuxInner>>,
}

impl ClientMuxes {
    /// The client's own mux, made when first asked for.
    pub(crate) fn shared(&self, make: impl FnOnce() -> Mux) -> &Mux {
        self.shared.get_or_init(make)
    }

    /// Adds a mux. If the client is closed, the mux is closed too.
    pub(crate) fn register(&self, mux: Mux) -> Mux {
        let mut state = self.lock();
        if state.closed {
            mux.open_mux().driver.shut_down();
        }
        state.muxes.retain(|known| known.strong_count() > 0);
        state.muxes.push(Arc::downgrade(&mux.inner));
        mux
    }

    /// Closes every mux, side by side.
    pub(crate) async fn close(&self) {
        let muxes = {
            let mut state = self.lock();
            state.closed = true;
            state.alive()
        };
        let closings: JoinSet<()> = muxes.into_iter().map(async |mux: Mux| mux.close().await).collect();
        closings.join_all().await;
    }

    /// Opens every mux again that is still held.
    pub(crate) fn reopen(&self) {
        let mut state = self.lock();
        state.closed = false;
        state.alive().iter().for_each(Mux::reopen);
    }

    fn lock(&self) -> MutexGuard<'_, ClientMuxesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientMuxesState {
    fn alive(&self) -> Vec<Mux> {
        self.muxes.iter().filter_map(Weak::upgrade).map(|inner| Mux { inner }).collect()
    }
}
