//! Cutting a node of a cluster off from its peers while clients still reach it.
//!
//! That needs packet filters, and those a network of our own: a test that wants it runs again,
//! alone, inside a network namespace ([`in_own_network`]). Nodes of a cluster call out from an
//! address of their own, so that their traffic can be told from that of clients.

use crate::bins::on_path;
use crate::cluster::ClusterNode;
use crate::needs::cannot_run;
use std::env;
use std::process::{Command, Stdio};

/// Set inside the namespace.
const INSIDE: &str = "FIRTH_OWN_NETWORK";
const TABLE: &str = "firth";

/// Whether the caller is inside a network of its own and shall go on. If not, this runs the test
/// `name` (its full path in this test binary) in one and answers false: it has then passed. Where
/// that is not allowed, [`cannot_run`] decides.
///
/// # Panics
/// If the test fails in there.
pub fn in_own_network(name: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    if let Some(reason) = missing() {
        cannot_run("network", &reason);
        return false;
    }
    let own = env::current_exe().expect("a test knows its program");
    let status = namespaced("ip link set lo up && exec \"$0\" \"$@\"")
        .arg(own)
        .args([name, "--exact", "--nocapture", "--include-ignored"])
        .env(INSIDE, "1")
        .status()
        .expect("unshare was found");
    assert!(status.success(), "{name} failed in a network of its own; its words are above");
    false
}

/// What this machine lacks.
fn missing() -> Option<String> {
    if let Some(program) = ["unshare", "ip", "nft"].into_iter().find(|program| on_path(program).is_none()) {
        return Some(format!("{program} is missing (`cargo xtask setup` installs it)"));
    }
    let tried = namespaced(&format!("ip link set lo up && nft add table ip {TABLE}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => None,
        _ => Some("network namespaces or packet filters are not allowed here".to_owned()),
    }
}

fn namespaced(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c", script]);
    command
}

/// A node that no other node reaches, and that reaches none, until this is dropped. Needs
/// [`in_own_network`].
#[derive(Debug)]
pub struct Isolation(());

impl Isolation {
    /// Cuts the node off. Packets vanish, as they do in a broken network: no peer is told.
    ///
    /// # Panics
    /// If the filters cannot be set.
    pub fn of(node: &ClusterNode) -> Self {
        assert!(env::var_os(INSIDE).is_some(), "packet filters belong into a network of the test's own");
        let own = source_address(node.server().port());
        let ports = format!("{{ {}, {} }}", node.server().port(), node.bus_port());
        nft(&["add", "table", "ip", TABLE]);
        nft(&["add", "chain", "ip", TABLE, "out", "{ type filter hook output priority 0; }"]);
        for rule in [
            format!("ip saddr {own} drop"),
            format!("ip daddr {own} drop"),
            format!("ip saddr {PEERS} tcp dport {ports} drop"),
            format!("ip daddr {PEERS} tcp sport {ports} drop"),
        ] {
            nft(&["add", "rule", "ip", TABLE, "out", &rule]);
        }
        Self(())
    }
}

impl Drop for Isolation {
    fn drop(&mut self) {
        nft(&["delete", "table", "ip", TABLE]);
    }
}

fn nft(args: &[&str]) {
    let output = Command::new("nft").args(args).output().expect("nft was found");
    assert!(output.status.success(), "nft {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Where nodes of clusters call from.
const PEERS: &str = "127.1.0.0/16";

/// The loopback address from which the node on this port calls others.
pub(crate) fn source_address(port: u16) -> String {
    let [high, low] = port.to_be_bytes();
    format!("127.1.{high}.{low}")
}
