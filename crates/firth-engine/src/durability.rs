//! [`Durability`]: what an acknowledgement means, in one word for every engine.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// What an acknowledgement means. Which of them an engine can give is asked with
/// [`Backend::can_promise`](crate::facet::Backend::can_promise).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The server or the operating system has it. It survives the death of the process; a failover,
    /// or a crash of the machine, may lose the last moments.
    Fast,
    /// This many replicas have it too (WAIT). Survives the loss of the master, also one that was
    /// cut off from its peers.
    Replicated(u32),
    /// It is on disk: it survives a power failure. On files concurrent calls share one fsync. A
    /// server must be set to `appendonly yes`, `appendfsync always` and
    /// `no-appendfsync-on-rewrite no`, and permit CONFIG GET, by which every step sees that; under
    /// `everysec` WAITAOF confirms what is not on disk (Valkey 9.1.2). A file whose last write was
    /// torn by the failure is loaded up to the last whole step, as `aof-load-truncated yes` (the
    /// default of servers) allows; with `no` a server refuses to start on it.
    ///
    /// Redis, and Valkey before 9.1.2, leave the beginning of the torn step in the file, though,
    /// and would apply it at the start after that one. So the first client of a server that was
    /// started again lets it begin its file anew (BGREWRITEAOF) before any step. A server that dies
    /// once more before that is done refuses to start, mends its file thereby, and starts at the
    /// next try: let something start it again. A server that forbids its user BGREWRITEAOF or INFO
    /// cannot promise this; with weaker durabilities the engine only warns.
    #[default]
    Synced,
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let replicas = name.strip_prefix("replicated").map(|rest| match rest.strip_prefix(':') {
            Some(count) => count.parse().ok().filter(|count| *count > 0),
            None => rest.is_empty().then_some(1),
        });
        match (name, replicas) {
            ("fast", _) => Ok(Self::Fast),
            ("synced", _) => Ok(Self::Synced),
            (_, Some(Some(count))) => Ok(Self::Replicated(count)),
            _ => Err(Error::invalid(format!(
                "unknown durability {name:?}: use fast, replicated, replicated:2 or synced"
            ))),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fast => f.write_str("fast"),
            Self::Replicated(count) => write!(f, "replicated:{count}"),
            Self::Synced => f.write_str("synced"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durability_is_read_as_it_is_written_and_others_are_refused_by_name() {
        for known in
            [Durability::Fast, Durability::Replicated(1), Durability::Replicated(3), Durability::Synced]
        {
            assert_eq!(known.to_string().parse::<Durability>().unwrap(), known);
        }
        assert_eq!("replicated".parse::<Durability>().unwrap(), Durability::Replicated(1));
        for bad in ["quick", "replicated:", "replicated:0", "replicated:x", "replicatedx", ""] {
            let error = bad.parse::<Durability>().unwrap_err();
            assert!(error.context().contains(bad), "{error}");
        }
    }
}
