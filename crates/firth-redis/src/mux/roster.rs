//! All muxes of a client, so that they close and open again with it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::task::JoinSet;

use super::{Inner, Mux};

/// The muxes that a client has made.
#[derive(Default)]
pub(crate) struct Roster {
    shared: OnceLock<Mux>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// The client is closed, and every mux with it.
    closed: bool,
    muxes: Vec<Weak<Inner>>,
}

impl Roster {
    /// The client's own mux, made when first asked for.
    pub(crate) fn shared(&self, make: impl FnOnce() -> Mux) -> &Mux {
        self.shared.get_or_init(make)
    }

    /// Adds a mux. If the client is closed, the mux is closed too.
    pub(crate) fn enrol(&self, mux: Mux) -> Mux {
        let mut made = self.lock();
        if made.closed {
            mux.live().hub.shut();
        }
        made.muxes.retain(|known| known.strong_count() > 0);
        made.muxes.push(Arc::downgrade(&mux.inner));
        mux
    }

    /// Closes every mux, side by side.
    pub(crate) async fn close(&self) {
        let muxes = {
            let mut made = self.lock();
            made.closed = true;
            made.alive()
        };
        let closings: JoinSet<()> = muxes.into_iter().map(async |mux: Mux| mux.close().await).collect();
        closings.join_all().await;
    }

    /// Opens every mux again that is still held.
    pub(crate) fn reopen(&self) {
        let mut made = self.lock();
        made.closed = false;
        made.alive().iter().for_each(Mux::reopen);
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Made {
    fn alive(&self) -> Vec<Mux> {
        self.muxes.iter().filter_map(Weak::upgrade).map(|inner| Mux { inner }).collect()
    }
}
