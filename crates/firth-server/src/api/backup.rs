//! `/v1/backup`: everything that is stored, at one moment, as one stream.
//!
//! A backup keeps files and notes changes while it runs, so a client that does not read ends it.
//! Two pieces wait for the client at most, and the engine reads on when it has taken them.

use crate::app::{App, StreamPermit};
use crate::problem::{Answer, Problem};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use firth::backup::Backup;
use firth::{Error, ErrorKind};
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};

/// Pieces that wait for the client.
const WAITING: usize = 2;
/// How long a client may take for one piece.
const STALLED: Duration = Duration::from_secs(60);
/// How long the reason of a failure may take to arrive: a connection that breaks off drops it.
const ARRIVES: Duration = Duration::from_secs(5);

type Piece = Result<Bytes, Error>;

/// A backup of everything, taken while everything goes on: one verified stream, for `firth restore`
#[utoipa::path(get, path = "/v1/backup", tag = "system",
    responses((status = 200, body = String, content_type = "application/octet-stream",
        description = "The stream; without its last block it is not whole"),
        (status = 501, body = Problem, description = "Only engines on files take backups")))]
pub(crate) async fn backup(State(app): State<App>) -> Answer<Response> {
    let permit = app.permit()?;
    let backup = app.broker().admin().backup().await?;
    let (sender, receiver) = channel(WAITING);
    tokio::spawn(feed(app, permit, backup, sender));
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece: Piece| (piece, receiver))
    });
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response())
}

/// Sends the backup until it ends, the client stays away, or the server closes.
async fn feed(app: App, _permit: StreamPermit, mut backup: Backup, sender: Sender<Piece>) {
    loop {
        let next = tokio::select! {
            next = backup.next() => next,
            () = app.closing().cancelled() => Err(Error::new(ErrorKind::Closed, "the server is shutting down")),
            () = sender.closed() => return tracing::info!("a backup ended: its client is gone"),
        };
        let piece = match next {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "a backup failed");
                // A client that reads the stream learns why; the connection then breaks off.
                if let Some(last_words) = backup.last_words() {
                    let _ = sender.send_timeout(Ok(last_words), STALLED).await;
                    let _ = tokio::time::timeout(ARRIVES, sender.closed()).await;
                }
                Err(error)
            }
        };
        let is_over = piece.is_err();
        if sender.send_timeout(piece, STALLED).await.is_err() && !is_over {
            return tracing::warn!("a backup ended: its client did not read for {} s", STALLED.as_secs());
        }
        if is_over {
            return;
        }
    }
}
