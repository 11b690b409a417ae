//! [`NatsAuth`]: who we are to a NATS server. Checked when it is read, so that a bad file is named
//! at the start and not at the first batch.

use crate::config::NatsConfig;
use crate::error::{Error, Result};
use async_nats::ConnectOptions;
use nkeys::KeyPair;
use std::fmt;

/// Who we are to a NATS server. Never shown.
#[derive(Clone, Default)]
pub enum NatsAuth {
    /// Anyone.
    #[default]
    Anyone,
    /// A client that knows this token.
    Token(String),
    /// The user with the nkey of this seed (`SU…`).
    Nkey(String),
    /// The user of this credentials file: a JWT and a seed, as `nsc` writes them.
    Creds(String),
}

impl NatsAuth {
    /// From the file that the configuration names, if it names one.
    pub(super) fn from_files(config: &NatsConfig) -> Result<Self> {
        let NatsConfig { token_file, nkey_file, creds_file, .. } = config;
        let files = [("token_file", token_file), ("nkey_file", nkey_file), ("creds_file", creds_file)];
        for (name, file) in files {
            let Some(file) = file else { continue };
            let about = |what: &str| format!("routing.delivery.nats.{name}: {} {what}", file.display());
            let text = std::fs::read_to_string(file)
                .map_err(|error| Error::invalid(about("cannot be read")).with_source(error))?;
            let auth = match name {
                "token_file" => Self::Token(text.trim().to_owned()),
                "nkey_file" => Self::Nkey(text.trim().to_owned()),
                _ => Self::Creds(text),
            };
            // The reason is left out: it may quote the file.
            auth.add(ConnectOptions::new()).map_err(|error| Error::invalid(about(error.context())))?;
            return Ok(auth);
        }
        Ok(Self::Anyone)
    }

    /// Adds it to what a connection is made with.
    pub(super) fn add(&self, options: ConnectOptions) -> Result<ConnectOptions> {
        match self {
            Self::Anyone => Ok(options),
            Self::Token(token) => Ok(options.token(token.clone())),
            Self::Nkey(seed) => match KeyPair::from_seed(seed) {
                Ok(_) => Ok(options.nkey(seed.clone())),
                Err(_) => Err(Error::invalid("holds no seed of an nkey; it begins with SU")),
            },
            Self::Creds(text) => options
                .credentials(text)
                .map_err(|_| Error::invalid("holds no credentials; make it with `nsc generate creds`")),
        }
    }
}

impl fmt::Debug for NatsAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anyone => "Anyone",
            Self::Token(_) => "Token(..)",
            Self::Nkey(_) => "Nkey(..)",
            Self::Creds(_) => "Creds(..)",
        })
    }
}
