//! [`Target`]: which database to read, as its URL and files say. Pure but for reading the files.

use crate::error::{Error, Result};
use percent_encoding::percent_decode_str;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Hosts of one URL, at most.
const MAX_HOSTS: usize = 16;
/// PostgreSQL cuts longer names off.
const MAX_NAME: usize = 63;

/// A database and how to log in.
#[derive(Clone)]
pub struct Target {
    /// The hosts to try in turn: the first that is a primary is read.
    pub hosts: Vec<Host>,
    /// The role.
    pub user: String,
    /// Its password.
    pub(crate) password: Option<String>,
    /// The database.
    pub database: String,
    /// Whether and how the connection is encrypted.
    pub tls: TlsMode,
    /// Files for TLS.
    pub files: TlsFiles,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name, an address, or the folder of a Unix socket.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// Whether the connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// No: the default for this machine's own addresses and Unix sockets.
    Disable,
    /// Yes, and the server's certificate and name are checked: the default for all others.
    VerifyFull,
}

/// Files for TLS, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Our certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
}

impl Host {
    /// Whether it is a Unix socket.
    pub(crate) fn is_unix(&self) -> bool {
        self.name.starts_with('/')
    }

    fn is_local(&self) -> bool {
        self.is_unix()
            || self.name == "localhost"
            || self.name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl Target {
    /// Reads `postgres://user@host1:port,host2/database?sslmode=verify-full`. A password in the URL
    /// is refused, because URLs end up in logs.
    pub fn parse(url: &str, password: Option<String>, files: TlsFiles) -> Result<Self> {
        let rest = ["postgres://", "postgresql://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let rest = rest.ok_or_else(|| wrong("it must begin with postgres://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').ok_or_else(|| wrong("it names no database"))?;
        let (user, hosts) = authority.rsplit_once('@').ok_or_else(|| wrong("it names no role"))?;
        if user.contains(':') {
            return Err(wrong("it holds a password: give it in a file or in the environment instead"));
        }
        let hosts = hosts.split(',').map(host).collect::<Result<Vec<_>>>()?;
        if hosts.len() > MAX_HOSTS {
            return Err(wrong("it names more than 16 hosts"));
        }
        let mut tls = None;
        for (name, value) in query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        {
            match (name, value) {
                ("sslmode", "disable") => tls = Some(TlsMode::Disable),
                ("sslmode", "verify-full") => tls = Some(TlsMode::VerifyFull),
                ("sslmode", _) => return Err(wrong("sslmode is neither `verify-full` nor `disable`")),
                // The only way: replicas are never read.
                ("target_session_attrs", "read-write" | "primary") => {}
                _ => return Err(wrong("it has an option that is not known: only sslmode is")),
            }
        }
        let local = hosts.iter().all(Host::is_local);
        let tls = tls.unwrap_or(if local { TlsMode::Disable } else { TlsMode::VerifyFull });
        let user = name("role", user)?;
        let database = name("database", database)?;
        Ok(Self { hosts, user, password, database, tls, files })
    }
}

/// A password out of a file, without the line's end.
pub fn read_password(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Error::invalid(format!("password_file: {} cannot be read", file.display())).with_source(error)
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn host(text: &str) -> Result<Host> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':')),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(5432), |port| port.parse().ok().filter(|port| *port != 0));
    let name = decoded(host)?;
    match port {
        Some(port) if !name.is_empty() => Ok(Host { name, port }),
        Some(_) => Err(wrong("a host has no name")),
        None => Err(wrong("a port is none of 1 to 65535")),
    }
}

fn name(what: &str, text: &str) -> Result<String> {
    let name = decoded(text)?;
    if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
        return Err(wrong(&format!("the {what} has {} bytes; give 1 to {MAX_NAME}", name.len())));
    }
    Ok(name)
}

fn decoded(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| wrong("a percent-encoded name in it is no UTF-8"))
}

fn wrong(why: &str) -> Error {
    Error::invalid(format!("url: {why}"))
}

/// Never shows the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({:?} as {} at {:?})", self.database, self.user, self.hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Target> {
        Target::parse(url, Some("hidden".into()), TlsFiles::default())
    }

    #[test]
    fn a_url_names_hosts_role_and_database() {
        let target =
            parse("postgres://re%40der@db1,db2:5433,[::1]:5434/shop?target_session_attrs=read-write")
                .unwrap();
        let hosts: Vec<_> = target.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["db1:5432", "db2:5433", "[::1]:5434"]);
        assert_eq!((&*target.user, &*target.database, target.tls), ("re@der", "shop", TlsMode::VerifyFull));
        assert!(!format!("{target:?}").contains("hidden"));
    }

    #[test]
    fn only_this_machine_is_read_without_tls_unless_asked_for() {
        for (url, mode) in [
            ("postgres://r@127.0.0.1/d", TlsMode::Disable),
            ("postgres://r@[::1],localhost/d", TlsMode::Disable),
            ("postgres://r@%2Frun%2Fpostgresql/d", TlsMode::Disable),
            ("postgres://r@localhost,db/d", TlsMode::VerifyFull),
            ("postgres://r@127.0.0.1/d?sslmode=verify-full", TlsMode::VerifyFull),
            ("postgres://r@db/d?sslmode=disable", TlsMode::Disable),
        ] {
            assert_eq!(parse(url).unwrap().tls, mode, "{url}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_showing_it() {
        for (url, expected) in [
            ("mysql://r@h/d", "begin with postgres://"),
            ("postgres://r@h", "no database"),
            ("postgres://h/d", "no role"),
            ("postgres://r:secret@h/d", "holds a password"),
            ("postgres://r@h:0/d", "1 to 65535"),
            ("postgres://r@,h/d", "no name"),
            ("postgres://r@h/d?sslmode=require", "sslmode"),
            ("postgres://r@h/d?host=x", "not known"),
            ("postgres://r@h/", "database has 0 bytes"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
