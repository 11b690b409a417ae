//! Whether firth reaches a target: a figure of firth beside the best figure of its peers in the
//! same run.
//!
//! Pure. Each bench states its limits in a `targets.rs` of its own and asks here; the report
//! prints.

use crate::measure::Row;

/// The subject that is judged.
pub(crate) const FIRTH: &str = "firth";

/// One target of one workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    /// CPU per op at most this many times the lowest of the peers.
    Cpu(f64),
    /// Rate at least this many times the highest of the peers.
    Rate(f64),
    /// 99th percentile at most this many times the lowest of the peers.
    P99(f64),
    /// Rate at least this many times that of one peer.
    RateOf(&'static str, f64),
    /// The server's CPU per op at most this many times that of one peer.
    ServerOf(&'static str, f64),
    /// A figure of the row, at most this much, independent of the peers.
    AtMost(&'static str, f64),
    /// A figure of the row, at least this much, independent of the peers.
    AtLeast(&'static str, f64),
}

/// How a run did against one target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) limit: Limit,
    /// Firth's figure, divided by that of the best peer unless the limit stands by itself.
    pub(crate) figure: f64,
    /// The peer that set the mark, if one did.
    pub(crate) peer: Option<String>,
}

impl Verdict {
    pub(crate) fn met(&self) -> bool {
        match self.limit {
            Limit::Cpu(most) | Limit::P99(most) | Limit::AtMost(_, most) | Limit::ServerOf(_, most) => {
                self.figure <= most
            }
            Limit::Rate(least) | Limit::RateOf(_, least) | Limit::AtLeast(_, least) => self.figure >= least,
        }
    }
}

/// Judges firth's row against the other rows. Nothing without firth; a ratio needs a peer.
pub(crate) fn judge(limits: &[Limit], rows: &[Row]) -> Vec<Verdict> {
    let Some(firth) = rows.iter().find(|row| row.subject == FIRTH) else { return vec![] };
    let ratio = |limit: Limit, figure: fn(&Row) -> f64, higher_wins: bool| {
        let best = best_peer(rows, figure, higher_wins)?;
        Some(Verdict { limit, figure: figure(firth) / figure(best), peer: Some(best.subject.clone()) })
    };
    let judged = limits.iter().filter_map(|limit| match *limit {
        Limit::Cpu(_) => ratio(*limit, |row| row.cpu_us_per_op, false),
        Limit::Rate(_) => ratio(*limit, |row| row.ops_per_s, true),
        Limit::P99(_) => ratio(*limit, |row| row.p99_us, false),
        Limit::RateOf(peer, _) => beside(*limit, firth, named(rows, peer)?, "ops_per_s"),
        Limit::ServerOf(peer, _) => beside(*limit, firth, named(rows, peer)?, "server_cpu_us_per_op"),
        Limit::AtMost(name, _) | Limit::AtLeast(name, _) => {
            firth.figure(name).map(|figure| Verdict { limit: *limit, figure, peer: None })
        }
    });
    judged.collect()
}

fn named<'r>(rows: &'r [Row], subject: &str) -> Option<&'r Row> {
    rows.iter().find(|row| row.subject == subject)
}

/// Firth's figure divided by that of one peer.
fn beside(limit: Limit, firth: &Row, peer: &Row, name: &str) -> Option<Verdict> {
    Some(Verdict {
        limit,
        figure: firth.figure(name)? / peer.figure(name)?,
        peer: Some(peer.subject.clone()),
    })
}

/// The peer that is best by one figure.
pub(crate) fn best_peer(rows: &[Row], figure: fn(&Row) -> f64, higher_wins: bool) -> Option<&Row> {
    let peers = rows.iter().filter(|row| row.subject != FIRTH);
    let order = |a: &&Row, b: &&Row| figure(a).total_cmp(&figure(b));
    if higher_wins { peers.max_by(order) } else { peers.min_by(order) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample_row;

    fn rows() -> Vec<Row> {
        vec![
            sample_row("w", "firth", 200.0, 0.5),
            sample_row("w", "redis", 100.0, 1.5),
            sample_row("w", "fred", 80.0, 1.0),
        ]
    }

    #[test]
    fn each_figure_is_compared_with_the_peer_that_is_best_at_it() {
        let verdicts = judge(
            &[Limit::Cpu(0.5), Limit::Rate(2.1), Limit::P99(1.0), Limit::AtMost("allocs_per_op", 3.0)],
            &rows(),
        );
        let seen: Vec<_> =
            verdicts.iter().map(|v| (v.peer.as_deref().unwrap_or(""), v.figure, v.met())).collect();
        assert_eq!(
            seen,
            [("fred", 0.5, true), ("redis", 2.0, false), ("redis", 1.0, true), ("", 4.0, false)]
        );
    }

    #[test]
    fn a_target_can_name_its_peer_or_stand_by_itself() {
        let limits =
            [Limit::RateOf("fred", 2.0), Limit::RateOf("absent", 1.0), Limit::AtLeast("ops_per_s", 300.0)];
        let verdicts = judge(&limits, &rows());
        let seen: Vec<_> =
            verdicts.iter().map(|v| (v.peer.as_deref().unwrap_or(""), v.figure, v.met())).collect();
        assert_eq!(seen, [("fred", 2.5, true), ("", 200.0, false)]);
    }

    #[test]
    fn there_is_no_verdict_without_firth_or_without_peers() {
        assert_eq!(judge(&[Limit::Cpu(1.0)], &rows()[1..]), []);
        assert_eq!(judge(&[Limit::Cpu(1.0)], &rows()[..1]), []);
    }
}
