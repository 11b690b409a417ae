//! What a server is like, and the configuration file that says so.

use super::builder::Persist;
use crate::bins::Flavor;
use crate::certs::Certs;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

/// The user under which the fixture itself talks to the server.
pub(crate) const CONTROL_USER: &str = "firth-testkit";
pub(crate) const CONTROL_PASSWORD: &str = "only-for-tests";
pub(super) const SOCKET_FILE: &str = "server.sock";

/// Everything that a builder collects.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) flavor: Flavor,
    pub(super) password: Option<String>,
    pub(super) users: Vec<(String, String)>,
    pub(super) prefer_unix: bool,
    pub(super) tls: Option<Tls>,
    pub(super) persist: Persist,
    pub(super) sentinel: bool,
    pub(super) lines: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

/// How a server speaks TLS.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) certs: Certs,
    pub(super) client_certs: bool,
}

impl Settings {
    /// The text of the configuration file.
    pub(super) fn render(&self, dir: &Path, port: u16) -> String {
        let mut conf = String::new();
        let mut line = |text: String| writeln!(conf, "{text}").expect("writing to a string succeeds");
        line("bind 127.0.0.1".into());
        line(format!("dir {}", quoted(&dir.to_string_lossy())));
        line(format!("unixsocket {}", quoted(&dir.join(SOCKET_FILE).to_string_lossy())));
        line("loglevel notice".into());
        line(format!("user {CONTROL_USER} on >{CONTROL_PASSWORD} ~* &* +@all"));
        self.listen_lines(port).into_iter().for_each(&mut line);
        if !self.sentinel {
            line("enable-debug-command local".into());
            line("repl-diskless-sync-delay 0".into());
            self.persist.lines().into_iter().map(String::from).for_each(&mut line);
        }
        if let Some(password) = &self.password {
            line(format!("requirepass {}", quoted(password)));
            if !self.sentinel {
                line(format!("masterauth {}", quoted(password)));
            }
        }
        self.users.iter().map(|(name, rules)| format!("user {name} {rules}")).for_each(&mut line);
        self.lines.iter().cloned().for_each(&mut line);
        conf
    }

    /// The command line of the server.
    pub(super) fn arguments(&self, conf: &Path) -> Vec<OsString> {
        let mut args = vec![conf.as_os_str().to_owned()];
        if self.sentinel {
            args.push("--sentinel".into());
        }
        args
    }

    /// `:password@` of a URL, or nothing.
    pub(super) fn userinfo(&self) -> String {
        self.password
            .as_deref()
            .map(|password| format!(":{}@", percent_encoded(password)))
            .unwrap_or_default()
    }

    fn listen_lines(&self, port: u16) -> Vec<String> {
        let Some(tls) = &self.tls else { return vec![format!("port {port}")] };
        let file = |path: std::path::PathBuf| quoted(&path.to_string_lossy());
        vec![
            "port 0".into(),
            format!("tls-port {port}"),
            format!("tls-cert-file {}", file(tls.certs.server_cert_path())),
            format!("tls-key-file {}", file(tls.certs.server_key_path())),
            format!("tls-ca-cert-file {}", file(tls.certs.ca_path())),
            format!("tls-auth-clients {}", if tls.client_certs { "yes" } else { "no" }),
        ]
    }
}

/// `:password@`, as URLs write it.
pub(crate) fn userinfo(password: &str) -> String {
    format!(":{}@", percent_encoded(password))
}

/// A configuration value in double quotes.
pub(super) fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string succeeds");
        }
        out
    })
}
