//! [`Intake`]: a webhook on this node: what it takes, and how it is.

use crate::control::SourceControl;
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Condition, Progress};
use crate::reports::{Report, Reports};
use crate::webhook::{Headers, Received, WebhookConfig};
use firth_router::event::Event;
use std::sync::Arc;

/// A webhook that this node takes requests for; clones share it.
#[derive(Clone, Debug)]
pub struct Intake {
    config: Arc<WebhookConfig>,
    control: SourceControl,
    progress: Progress,
}

impl Intake {
    pub(crate) fn new(config: Arc<WebhookConfig>, control: SourceControl, progress: Progress) -> Self {
        Self { config, control, progress }
    }

    /// What the configuration says.
    pub fn config(&self) -> &WebhookConfig {
        &self.config
    }

    /// Checks a request that arrived now, and makes it an event;
    /// [`Unavailable`](ErrorKind::Unavailable) while an operator has paused the source.
    pub fn receive(&self, headers: &Headers<'_>, body: &[u8]) -> Result<Received> {
        let desired = self.control.desired();
        if desired.paused || desired.removed {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "an operator paused this webhook: send the event again later",
            ));
        }
        let received = self.config.receive(headers, body, Progress::now_ms());
        if let Err(error) = &received {
            self.progress.refused(error);
        }
        received
    }

    /// An event is in the topic, once.
    pub fn stored(&self, event: &Event, is_new: bool) {
        self.progress.read(event);
        if is_new {
            self.progress.appended(1);
        }
    }

    /// An event could not be appended.
    pub fn failed(&self, error: firth::Error) {
        self.progress.refused(&Error::from(error));
    }

    /// Shows how it is, and tells every process of the engine. Never returns.
    pub(crate) async fn keep_open(self, reports: Reports, like: Report) {
        loop {
            self.progress.enter(Condition::Streaming, None);
            tokio::select! {
                () = reports.keep_telling(&self.config.name, like.clone(), &self.progress) => {}
                () = self.control.wait_for(|desired| desired.paused || desired.removed) => {}
            }
            self.progress.enter(Condition::Paused, Some("an operator paused it".to_owned()));
            self.control.wait_for(|desired| !desired.paused && !desired.removed).await;
        }
    }
}
