//! NATS: the messages of a JetStream stream, each once; or those of plain subjects, which may be
//! missed.

mod config;
mod jetstream;
mod lossy;
mod read;

pub use config::{NatsConfig, NatsOptions, StreamStart};
pub use jetstream::{NatsPlace, NatsStream};
pub use lossy::LossyNats;

use crate::error::{Error, ErrorKind, Result};
use async_nats::{Client, ConnectErrorKind, ConnectOptions};
use config::Login;
use std::time::Duration;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

impl NatsConfig {
    /// How a connection of this source is made.
    fn options(&self) -> Result<ConnectOptions> {
        let options = ConnectOptions::new()
            .name(format!("firth source {}", self.name))
            .connection_timeout(CONNECT)
            .ignore_discovered_servers()
            .reconnect_delay_callback(|attempts| Duration::from_millis(50 << attempts.min(5)));
        let mut options = match &self.login {
            Login::Anyone => options,
            Login::User(user, password) => options.user_and_password(user.clone(), password.clone()),
            Login::Token(token) => options.token(token.clone()),
            Login::Nkey(seed) => options.nkey(seed.clone()),
            // The reason is left out: it may quote the file.
            Login::Creds(text) => options.credentials(text).map_err(|_| {
                Error::invalid("creds_file holds no credentials: make it with `nsc generate creds`")
            })?,
        };
        if let Some(file) = &self.ca_file {
            options = options.add_root_certificates(file.clone());
        }
        if let Some((cert, key)) = &self.certificate {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        Ok(options.require_tls(self.urls.iter().any(|url| url.starts_with("tls://"))))
    }

    async fn connect(&self, options: ConnectOptions) -> Result<Client> {
        options.connect(&self.urls[..]).await.map_err(|error| {
            let kind = match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    ErrorKind::Unauthorized
                }
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, "the NATS server cannot be reached, or refuses us").with_source(error)
        })
    }
}

/// Takes down the consumers that this source left in its stream.
pub(crate) async fn remove(config: &NatsConfig) -> Result<()> {
    match config.stream.is_some() {
        true => jetstream::remove(config).await,
        false => Ok(()),
    }
}
