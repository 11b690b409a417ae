//! [`Watch`]: the session for queries beside a stream. Now and then it asks how much log the slot
//! holds back, and writes the reader's sign of life.

use super::catalog::{self, Slot};
use super::connection::Connection;
use super::emitted::HEARTBEAT;
use crate::error::Result;
use crate::progress::Progress;
use futures_util::future::BoxFuture;
use std::time::{Duration, Instant};

/// How often it looks.
const EVERY: Duration = Duration::from_secs(10);

/// What it saw: the slot, unless it is gone.
pub(super) type Seen = Result<Option<Slot>>;

/// See the [module](self).
pub(super) struct Watch {
    /// None while it looks.
    queries: Option<Connection>,
    pub(super) looking: Option<BoxFuture<'static, (Connection, Seen)>>,
    slot: String,
    heartbeat: bool,
    pub(super) due: Instant,
}

impl Watch {
    pub(super) fn new(queries: Connection, slot: String, heartbeat: bool) -> Self {
        Self { queries: Some(queries), looking: None, slot, heartbeat, due: Instant::now() }
    }

    /// Looks, if it is time.
    pub(super) fn look(&mut self) {
        if Instant::now() < self.due {
            return;
        }
        let Some(mut queries) = self.queries.take() else { return };
        self.due = Instant::now() + EVERY;
        let slot = self.slot.clone();
        let heartbeat = self.heartbeat;
        self.looking = Some(Box::pin(async move {
            let seen = async {
                if heartbeat {
                    let now = Progress::now_ms().to_string();
                    let sql = "SELECT pg_logical_emit_message(false, $1, $2::text)";
                    queries.query_with(sql, &[HEARTBEAT, &now]).await?;
                }
                catalog::slot(&mut queries, &slot).await
            };
            let seen = seen.await;
            (queries, seen)
        }));
    }

    /// It has looked.
    pub(super) fn looked(&mut self, queries: Connection) {
        self.looking = None;
        self.queries = Some(queries);
    }

    /// The session, once it is free.
    pub(super) async fn queries(&mut self) -> &mut Connection {
        if let Some(looking) = self.looking.as_mut() {
            let (queries, _) = looking.await;
            self.looked(queries);
        }
        self.queries.as_mut().expect("it is not looking")
    }
}
