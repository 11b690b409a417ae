//! Every setting, once: its name in the file, its variable, its default, and what it is for.

use super::variables::variables;

/// One setting. All are scalars; what they mean is read in `config::Config`.
pub(crate) struct Setting {
    /// Its place in the file, with dots for sections.
    pub(crate) key: &'static str,
    /// Its environment variable.
    pub(crate) env: &'static str,
    /// The default; empty means "not set".
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    /// Never shown.
    pub(crate) secret: bool,
    /// Takes effect on SIGHUP; others need a restart.
    pub(crate) live: bool,
}

const fn fixed(key: &'static str, env: &'static str, default: &'static str, doc: &'static str) -> Setting {
    Setting { key, env, default, doc, secret: false, live: false }
}

const fn live(key: &'static str, env: &'static str, default: &'static str, doc: &'static str) -> Setting {
    Setting { live: true, ..fixed(key, env, default, doc) }
}

/// The table, in the order of the printed file.
pub(crate) const SETTINGS: [Setting; 29] = [
    fixed(
        "engine",
        "FIRTH_ENGINE",
        "file:./firth-data",
        "Where topics are kept: file:./DIR, memory:, redis://HOST, …",
    ),
    fixed(
        "listen",
        "FIRTH_LISTEN",
        "127.0.0.1:7171",
        "The address to serve; one that others can reach needs tokens",
    ),
    live(
        "log.level",
        "FIRTH_LOG",
        "info",
        "error, warn, info, debug or trace; also by target: info,firth=debug",
    ),
    fixed("log.format", "FIRTH_LOG_FORMAT", "text", "text for people, json for programs; always on stderr"),
    live(
        "auth.token_file",
        "FIRTH_TOKEN_FILE",
        "",
        "Lines as `firth token` prints them: sha256:… name=… scopes=… topics=… gateways=… tenants=…",
    ),
    Setting {
        secret: true,
        ..fixed(
            "auth.token",
            "FIRTH_TOKEN",
            "",
            "One plain token that may do everything; better use a token file",
        )
    },
    fixed(
        "auth.audit_file",
        "FIRTH_AUDIT_FILE",
        "",
        "Who changed what and when, one JSON object per line; also in the log",
    ),
    live(
        "tls.cert",
        "FIRTH_TLS_CERT",
        "",
        "PEM file with the certificate and its chain; then the server speaks HTTPS only",
    ),
    live("tls.key", "FIRTH_TLS_KEY", "", "PEM file with its private key"),
    fixed(
        "console.enabled",
        "FIRTH_CONSOLE_ENABLED",
        "true",
        "The console, a web page at `/`; false: `/` is 404",
    ),
    fixed(
        "topics.auto_create",
        "FIRTH_TOPICS_AUTO_CREATE",
        "false",
        "true: a missing topic is made by the first who may send to it or consume from it; false: that is 404",
    ),
    fixed(
        "topics.auto_create_limit",
        "FIRTH_TOPICS_AUTO_CREATE_LIMIT",
        "1000",
        "No topic is made so while there are this many or more; a missing one is 404 then",
    ),
    fixed(
        "topics.partitions",
        "FIRTH_TOPICS_PARTITIONS",
        "1",
        "How many partitions a topic gets that names no number",
    ),
    fixed(
        "limits.connections",
        "FIRTH_LIMITS_CONNECTIONS",
        "10000",
        "Connections at a time; more wait in the system's queue",
    ),
    live(
        "limits.streams",
        "FIRTH_LIMITS_STREAMS",
        "2000",
        "Event streams at a time (consumers and listeners); more get 429",
    ),
    live(
        "limits.request_size",
        "FIRTH_LIMITS_REQUEST_SIZE",
        "32MiB",
        "The largest request body; larger ones get 413",
    ),
    fixed(
        "limits.buffered",
        "FIRTH_LIMITS_BUFFERED",
        "512MiB",
        "Bodies in memory at a time, all requests together; then 429",
    ),
    live(
        "limits.request_time",
        "FIRTH_LIMITS_REQUEST_TIME",
        "60s",
        "How long an answer may take; waiting fetches take up to 30s of it",
    ),
    fixed(
        "limits.head_time",
        "FIRTH_LIMITS_HEAD_TIME",
        "15s",
        "How long a client may take to send a request's head; then 408",
    ),
    live(
        "limits.body_time",
        "FIRTH_LIMITS_BODY_TIME",
        "30s",
        "How long a client may take to send a body; then 408",
    ),
    fixed(
        "limits.write_time",
        "FIRTH_LIMITS_WRITE_TIME",
        "30s",
        "How long a client may take nothing of its answer; then it is cut off",
    ),
    live(
        "limits.drain_time",
        "FIRTH_LIMITS_DRAIN_TIME",
        "20s",
        "How long running requests may finish after SIGTERM",
    ),
    live(
        "limits.rate",
        "FIRTH_LIMITS_RATE",
        "0",
        "Requests per second of one token, or of one address without tokens; 0: any number. Then 429",
    ),
    live(
        "limits.burst",
        "FIRTH_LIMITS_BURST",
        "100",
        "How many requests may come at once before the rate counts",
    ),
    live(
        "limits.failures",
        "FIRTH_LIMITS_FAILURES",
        "20",
        "How often one wrong token may come from one address before it must wait; then 429",
    ),
    fixed(
        "otlp.endpoint",
        "FIRTH_OTLP_ENDPOINT",
        "",
        "Send metrics and traces to this collector: http://127.0.0.1:4318",
    ),
    fixed("otlp.interval", "FIRTH_OTLP_INTERVAL", "10s", "How often metrics are sent"),
    live(
        "otlp.sample",
        "FIRTH_OTLP_SAMPLE",
        "1",
        "The share of new traces that is kept, 0 to 1; a caller's own choice is followed",
    ),
    fixed("otlp.service", "FIRTH_OTLP_SERVICE", "firth", "The name under which this server is known there"),
];

/// What a variable is that nothing reads, if it is meant for firth: its name is near to a known
/// one, or in one of the sections. Others are left alone: Kubernetes sets some for a service
/// `firth`.
pub(crate) fn mistaken_variable(name: &str) -> Option<Option<&'static str>> {
    const PREFIX: &str = "FIRTH_";
    let known = variables;
    if known().any(|known| known == name) || is_password(name) {
        return None;
    }
    let own = name.strip_prefix(PREFIX)?;
    // The common front would make all names alike.
    let near = nearest(own, known().filter_map(|known| known.strip_prefix(PREFIX)));
    let near = near.and_then(|near| known().find(|known| known.strip_prefix(PREFIX) == Some(near)));
    let sections = SETTINGS.iter().filter_map(|setting| setting.key.split_once('.'));
    let mut sections = sections.map(|(section, _)| format!("{}_", section.to_ascii_uppercase()));
    (near.is_some() || sections.any(|section| own.starts_with(&section))).then_some(near)
}

/// Whether the variable is the password of a source: `FIRTH_CONNECT_SHOP_PASSWORD`.
fn is_password(name: &str) -> bool {
    let source = name.strip_prefix("FIRTH_CONNECT_").and_then(|rest| rest.strip_suffix("_PASSWORD"));
    source.is_some_and(|source| !source.is_empty())
}

/// The setting of this name.
pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

/// The known name that is nearest to a wrong one, if any is near.
pub(crate) fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|name| (strsim::damerau_levenshtein(wrong, name), name));
    scored.min().filter(|(distance, name)| *distance <= name.len().max(4) / 3).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_setting_has_a_name_and_a_variable_of_its_own() {
        let keys: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.key).collect();
        let variables: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.env).collect();
        assert_eq!((keys.len(), variables.len()), (SETTINGS.len(), SETTINGS.len()));
    }

    #[test]
    fn a_typing_error_is_answered_with_the_nearest_name() {
        let known = || SETTINGS.iter().map(|setting| setting.key);
        assert_eq!(nearest("limits.requst_size", known()), Some("limits.request_size"));
        assert_eq!(nearest("lisen", known()), Some("listen"));
        assert_eq!(nearest("color", known()), None);
    }
}
