//! What the wires to gateways need beside time limits: certificates, and the NATS server.

use super::section::Section;
use crate::error::{Error, Result};
use std::path::PathBuf;

/// Files in PEM form for `https://` endpoints and NATS over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whom to trust; the system's authorities if not set.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate chain, for gateways that ask for one.
    pub cert_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
}

/// What counts as a gateway's acknowledgement over NATS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatsAck {
    /// The gateway's reply to the request.
    #[default]
    Reply,
    /// The word of JetStream that the batch is stored; the gateway reads it from there.
    JetStream,
}

/// Delivery through NATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsConfig {
    /// The server, for gateways that name none: `nats://host:port`, or `tls://host:port`.
    pub url: Option<String>,
    /// What subjects begin with; the gateway's name follows.
    pub subject: String,
    /// What counts as an acknowledgement.
    pub ack: NatsAck,
    /// The JetStream stream that batches must go to; made if it is not there. Not set: whichever
    /// takes the subject.
    pub stream: Option<String>,
    /// A file with the token that the server asks for.
    pub token_file: Option<PathBuf>,
    /// A file with the seed of the nkey that the server knows us by.
    pub nkey_file: Option<PathBuf>,
    /// A file with the credentials of a user, JWT and seed, as `nsc` writes it.
    pub creds_file: Option<PathBuf>,
}

impl Default for NatsConfig {
    fn default() -> Self {
        let subject = crate::wire::NATS_SUBJECT.to_owned();
        Self {
            url: None,
            subject,
            ack: NatsAck::Reply,
            stream: None,
            token_file: None,
            nkey_file: None,
            creds_file: None,
        }
    }
}

impl TlsFiles {
    pub(super) fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.file("ca_file", &mut self.ca_file)?;
        section.file("cert_file", &mut self.cert_file)?;
        section.file("key_file", &mut self.key_file)?;
        if self.cert_file.is_some() == self.key_file.is_some() {
            return Ok(());
        }
        Err(Error::invalid("routing.delivery.tls has one of cert_file and key_file; give both or none"))
    }
}

impl NatsConfig {
    pub(super) fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        section.words("url", &mut self.url)?;
        let mut subject = None;
        section.words("subject", &mut subject)?;
        section.choice(
            "ack",
            &mut self.ack,
            &[("reply", NatsAck::Reply), ("jetstream", NatsAck::JetStream)],
        )?;
        section.words("stream", &mut self.stream)?;
        section.file("token_file", &mut self.token_file)?;
        section.file("nkey_file", &mut self.nkey_file)?;
        section.file("creds_file", &mut self.creds_file)?;
        self.subject = subject.unwrap_or_else(|| self.subject.clone());
        self.check()
    }

    fn check(&self) -> Result<()> {
        if let Some(url) = &self.url {
            check_nats_url(url)
                .map_err(|error| Error::invalid(format!("routing.delivery.nats.url: {}", error.context())))?;
        }
        let is_word =
            |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic() && !"*>".contains(c));
        if !self.subject.split('.').all(is_word) {
            return Err(Error::invalid(
                "routing.delivery.nats.subject must be words with dots between them, without blanks, * and >",
            ));
        }
        if let Some(stream) = &self.stream
            && (!is_word(stream) || stream.contains(['.', '/', '\\']))
        {
            return Err(Error::invalid("routing.delivery.nats.stream must be one word without . / \\ * >"));
        }
        if self.stream.is_some() && self.ack != NatsAck::JetStream {
            return Err(Error::invalid("routing.delivery.nats.stream is given; then ack must be jetstream"));
        }
        if [&self.token_file, &self.nkey_file, &self.creds_file].into_iter().flatten().count() > 1 {
            return Err(Error::invalid(
                "routing.delivery.nats has more than one of token_file, nkey_file and creds_file; give the one that the server asks for",
            ));
        }
        Ok(())
    }
}

/// The address of a NATS server, without secrets in it.
pub(crate) fn check_nats_url(url: &str) -> Result<()> {
    let rest = ["nats://", "tls://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    match rest {
        Some(rest) if rest.contains('@') => Err(Error::invalid(
            "a NATS address must hold no secrets; give them in a token_file, nkey_file or creds_file",
        )),
        Some(rest) if !rest.is_empty() => Ok(()),
        _ => Err(Error::invalid("a NATS address is nats://host:port or tls://host:port")),
    }
}
