//! The pub/sub workloads by their names in the JSON lines, and the channels and messages they use.

/// One line of the table: `channels` ordinary channels on one subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) channels: usize,
}

/// All of them.
pub(crate) const ALL: [Workload; 3] = [
    Workload { name: "deliver/1", channels: 1 },
    Workload { name: "deliver/1000", channels: 1_000 },
    Workload { name: "deliver/10000", channels: 10_000 },
];

/// Length of a message. Its first eight bytes are the time of sending in nanoseconds, or 0.
pub(crate) const PAYLOAD: usize = 64;

/// Name of the n-th channel, of the same length for every n.
pub(crate) fn channel(n: usize) -> String {
    format!("bench:channel:{n:05}")
}

/// Which channel a name stands for.
pub(crate) fn number_of(channel: &[u8]) -> Option<usize> {
    std::str::from_utf8(channel).ok()?.strip_prefix("bench:channel:")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_known_by_its_name() {
        assert_eq!(number_of(channel(59).as_bytes()), Some(59));
        assert_eq!(number_of(b"bench:channel:x"), None);
        assert_eq!(number_of(b"59"), None);
    }
}
