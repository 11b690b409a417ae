//! Reading the URLs of [`Config::from_url`]. Pure but for the PEM files that TLS options name.
//! Errors name the part and never repeat the URL itself, because it may hold a password.

use super::{Address, Config, Sentinels, Server, TlsOptions};
use crate::error::ConnectError;
use crate::secret::Secret;
use percent_encoding::percent_decode_str;
use std::path::PathBuf;
use std::time::Duration;

const OPTIONS: &str = "db, name, connect_timeout, request_timeout, tls_ca, tls_cert, tls_key, tls_name, sentinel_user, sentinel_password";

#[derive(Clone, Copy, PartialEq)]
enum UrlForm {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

pub(super) fn parse(url: &str) -> Result<Config, ConnectError> {
    let (scheme, rest) =
        url.split_once("://").ok_or_else(|| bad("url", "must begin with a scheme such as redis://"))?;
    let (form, tls) = form(scheme)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = if form == UrlForm::Unix { split_socket(rest)? } else { split_path(rest) };
    let (userinfo, hosts) = match authority.rsplit_once('@') {
        Some((userinfo, hosts)) => (Some(userinfo), hosts),
        None => (None, authority),
    };
    let mut config = Config::new(server(form, hosts, path)?);
    if tls {
        config.tls = Some(TlsOptions::default());
    }
    if let Some(userinfo) = userinfo {
        credentials(&mut config, userinfo)?;
    }
    if let Some(db) = database_segment(form, path) {
        config.database = number("db", db)?;
    }
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        option(&mut config, name, &decode("option", value)?)?;
    }
    Ok(config)
}

fn form(scheme: &str) -> Result<(UrlForm, bool), ConnectError> {
    Ok(match scheme {
        "redis" | "valkey" => (UrlForm::Single, false),
        "rediss" | "valkeys" => (UrlForm::Single, true),
        "redis+unix" | "unix" => (UrlForm::Unix, false),
        "redis+sentinel" => (UrlForm::Sentinel, false),
        "rediss+sentinel" => (UrlForm::Sentinel, true),
        "redis+cluster" => (UrlForm::Cluster, false),
        "rediss+cluster" => (UrlForm::Cluster, true),
        _ => {
            return Err(bad(
                "scheme",
                "must be one of redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster",
            ));
        }
    })
}

fn split_path(rest: &str) -> (&str, &str) {
    rest.find('/').map_or((rest, ""), |at| (&rest[..at], &rest[at + 1..]))
}

/// The path of a Unix socket keeps its first slash; before it only credentials can stand.
fn split_socket(rest: &str) -> Result<(&str, &str), ConnectError> {
    let path = rest.find('/').filter(|&at| at == 0 || rest[..at].ends_with('@'));
    path.map(|at| rest.split_at(at))
        .ok_or_else(|| bad("path", "must be absolute: redis+unix:///run/redis.sock"))
}

fn server(form: UrlForm, hosts: &str, path: &str) -> Result<Server, ConnectError> {
    Ok(match form {
        UrlForm::Single => Server::Tcp(address(hosts, 6379)?),
        UrlForm::Unix => {
            if path.len() < 2 {
                return Err(bad("path", "is missing: redis+unix:///run/redis.sock"));
            }
            Server::Unix(PathBuf::from(decode("path", path)?))
        }
        UrlForm::Cluster => Server::Cluster(addresses(hosts, 6379)?),
        UrlForm::Sentinel => {
            let master = decode("master", path.split('/').next().unwrap_or(""))?;
            if master.is_empty() {
                return Err(bad("master", "is missing: redis+sentinel://host:26379/master-name"));
            }
            Server::Sentinel(Sentinels {
                addresses: addresses(hosts, 26379)?,
                master,
                username: None,
                password: None,
            })
        }
    })
}

fn database_segment(form: UrlForm, path: &str) -> Option<&str> {
    let segment = match form {
        UrlForm::Single | UrlForm::Cluster => Some(path),
        UrlForm::Sentinel => path.split_once('/').map(|(_, db)| db),
        UrlForm::Unix => None,
    };
    segment.filter(|s| !s.is_empty())
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>, ConnectError> {
    hosts.split(',').map(|host| address(host, port)).collect()
}

fn address(host: &str, default: u16) -> Result<Address, ConnectError> {
    let (name, port) = if let Some(v6) = host.strip_prefix('[') {
        let (name, rest) =
            v6.split_once(']').ok_or_else(|| bad("host", "an IPv6 address needs a closing ]"))?;
        (name, rest.strip_prefix(':'))
    } else {
        host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)))
    };
    let name = if name.is_empty() { "localhost" } else { name };
    let port = port.map_or(Ok(default), |p| number("port", p))?;
    Ok(Address::new(decode("host", name)?, port))
}

fn credentials(config: &mut Config, userinfo: &str) -> Result<(), ConnectError> {
    let (user, password) = userinfo.split_once(':').map_or((userinfo, None), |(u, p)| (u, Some(p)));
    if !user.is_empty() {
        config.username = Some(decode("user", user)?);
    }
    if let Some(password) = password {
        config.password = Some(Secret::new(decode("password", password)?));
    }
    Ok(())
}

fn option(config: &mut Config, name: &str, value: &str) -> Result<(), ConnectError> {
    match name {
        "db" => config.database = number("db", value)?,
        "name" => config.client_name = Some(value.to_owned()),
        "connect_timeout" => {
            let limit = duration("connect_timeout", value)?;
            (config.timeouts.resolve, config.timeouts.connect, config.timeouts.handshake) =
                (limit, limit, limit);
        }
        "request_timeout" => config.timeouts.request = duration("request_timeout", value)?,
        "tls_ca" | "tls_cert" | "tls_key" => tls_file(tls(config)?, name, value)?,
        "tls_name" => tls(config)?.server_name = Some(value.to_owned()),
        "sentinel_user" => sentinels(config)?.username = Some(value.to_owned()),
        "sentinel_password" => sentinels(config)?.password = Some(Secret::new(value)),
        _ => return Err(bad("option", &format!("\"{name}\" is unknown; known are {OPTIONS}"))),
    }
    Ok(())
}

fn tls(config: &mut Config) -> Result<&mut TlsOptions, ConnectError> {
    config.tls.as_mut().ok_or_else(|| bad("option", "tls_… needs a scheme with TLS: rediss://"))
}

fn sentinels(config: &mut Config) -> Result<&mut Sentinels, ConnectError> {
    match &mut config.server {
        Server::Sentinel(sentinels) => Ok(sentinels),
        _ => Err(bad("option", "sentinel_… needs redis+sentinel://")),
    }
}

fn tls_file(tls: &mut TlsOptions, name: &str, path: &str) -> Result<(), ConnectError> {
    let file = match name {
        "tls_ca" => &mut tls.files.ca,
        "tls_cert" => &mut tls.files.certificate,
        _ => &mut tls.files.key,
    };
    *file = Some(path.into());
    tls.read_files()
}

fn number<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, ConnectError> {
    text.parse().map_err(|_| bad(field, "must be a number in range"))
}

/// `none`, `250ms`, `5s`, `2m`; a bare number means seconds.
fn duration(field: &'static str, text: &str) -> Result<Option<Duration>, ConnectError> {
    if text == "none" {
        return Ok(None);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let amount: u64 = text[..digits].parse().map_err(|_| bad(field, "must be like 500ms, 5s, 2m or none"))?;
    let limit = match &text[digits..] {
        "ms" => Duration::from_millis(amount),
        "s" | "" => Duration::from_secs(amount),
        "m" => Duration::from_secs(amount.saturating_mul(60)),
        _ => return Err(bad(field, "must be like 500ms, 5s, 2m or none")),
    };
    Ok(Some(limit))
}

fn decode(field: &'static str, text: &str) -> Result<String, ConnectError> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| bad(field, "is not UTF-8 after percent-decoding"))?;
    Ok(text.into_owned())
}

fn bad(field: &'static str, problem: &str) -> ConnectError {
    ConnectError::config(field, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(url: &str) -> Config {
        parse(url).unwrap_or_else(|e| panic!("{url}: {e}"))
    }

    #[test]
    fn a_plain_url_has_defaults() {
        let c = ok("redis://");
        assert_eq!(c.server, Server::Tcp(Address::new("localhost", 6379)));
        assert!(c.username.is_none() && c.password.is_none() && c.tls.is_none() && c.database == 0);
    }

    #[test]
    fn every_part_is_read() {
        let c = ok("rediss://app:p%40ss%2F@[::1]:6380/3?name=w1&request_timeout=250ms&connect_timeout=none");
        assert_eq!(c.server, Server::Tcp(Address::new("::1", 6380)));
        assert_eq!(c.server.to_owned(), c.server);
        assert_eq!(
            (c.username.as_deref(), c.password.as_ref().map(Secret::expose)),
            (Some("app"), Some("p@ss/"))
        );
        assert_eq!((c.database, c.client_name.as_deref()), (3, Some("w1")));
        assert_eq!((c.timeouts.request, c.timeouts.connect), (Some(Duration::from_millis(250)), None));
        assert!(c.tls.is_some());
    }

    #[test]
    fn a_password_alone_belongs_to_the_default_user() {
        let c = ok("redis://:secret@h");
        assert!(c.username.is_none());
        assert_eq!(c.password.as_ref().map(Secret::expose), Some("secret"));
    }

    #[test]
    fn the_other_forms_are_read() {
        assert_eq!(ok("redis+unix:///run/r.sock?db=2").server, Server::Unix("/run/r.sock".into()));
        let c = ok("redis+unix://app:p%40ss@/run/r.sock");
        assert_eq!((c.server, c.username.as_deref()), (Server::Unix("/run/r.sock".into()), Some("app")));
        assert_eq!(c.password.as_ref().map(Secret::expose), Some("p@ss"));
        assert_eq!(
            ok("redis+cluster://a:1,b").server,
            Server::Cluster(vec![Address::new("a", 1), Address::new("b", 6379)])
        );
        let c = ok("redis+sentinel://:pw@s1,s2:5/main/4?sentinel_password=x");
        assert_eq!(c.database, 4);
        let Server::Sentinel(s) = c.server else { panic!("sentinel") };
        assert_eq!((s.master.as_str(), s.addresses[0].port, s.addresses[1].port), ("main", 26379, 5));
        assert_eq!(s.password.as_ref().map(Secret::expose), Some("x"));
    }

    #[test]
    fn what_is_wrong_is_named_and_the_password_is_not() {
        for (url, field) in [
            ("localhost:6379", "url"),
            ("http://:hunter2@x", "scheme"),
            ("redis://:hunter2@x:99999", "port"),
            ("redis://:hunter2@x/abc", "db"),
            ("redis://:hunter2@x?colour=red", "option"),
            ("redis://:hunter2@x?tls_ca=y", "option"),
            ("redis://:hunter2@x?request_timeout=soon", "request_timeout"),
            ("redis+sentinel://:hunter2@x", "master"),
            ("redis+unix://relative", "path"),
            ("redis+unix://:hunter2@relative/path", "path"),
            ("redis+unix:///", "path"),
            ("redis://:hunter2@[::1", "host"),
        ] {
            let error = parse(url).expect_err(url);
            assert!(
                matches!(&error, ConnectError::Config { field: f, .. } if *f == field),
                "{url}: {error:?}"
            );
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}");
        }
    }
}
