//! A workload's rows as text: which columns there are, what they are called, how figures are
//! written. Pure; called by the report, which adds the verdicts.

use crate::measure::Row;
use crate::verdict::best_peer;
use std::fmt::Write as _;

/// Which columns a workload's table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    /// Rates, costs and latencies, then all figures that the bench adds.
    Speed,
    /// Rates and costs of queues, beside the raw limit.
    Queue,
    /// Only the figures that the bench adds.
    Figures,
    /// What became of subscriptions when a cluster changed; the rest is in the JSON lines.
    Change,
}

/// The columns of [`Table::Change`], with their decimals.
const CHANGE: [(&str, usize); 9] = [
    ("affected", 0),
    ("published", 0),
    ("lost", 0),
    ("lost_silently", 0),
    ("gaps_signalled", 0),
    ("never_resumed", 0),
    ("silence_ms", 1),
    ("live_again_ms", 1),
    ("others_lost", 0),
];

/// A column of [`Table::Change`] that is shown where it was measured.
const WRONG_REPLIES: (&str, usize) = ("wrong_replies", 0);

/// Headings of the figures that a bench adds; a figure without one goes by its own name.
pub(crate) fn heading(name: &str) -> &str {
    match name {
        "allocs_per_op" => "allocs/op",
        "bytes_per_item" => "B/item",
        "client_cpu_percent" => "client %",
        "cost_share" => "cost",
        "cpu_us_per_op" => "cpu µs",
        "connections" => "conns",
        "idle_cpu_percent" => "idle cpu %",
        "idle_mb" => "idle MB",
        "peak_mb" => "peak MB",
        "start_ms" => "start ms",
        "gaps_signalled" => "gaps told",
        "live_again_ms" => "again ms",
        "lost_share" => "lost",
        "lost_silently" => "untold",
        "never_resumed" => "never back",
        "median_ms" => "median ms",
        "ops_per_s" => "ops/s",
        "others_lost" => "elsewhere",
        "over_ttl_ms" => "over TTL",
        "p50_us" => "p50 µs",
        "p99_us" => "p99 µs",
        "plain_per_s" => "without",
        "server_cpu_percent" => "server %",
        "server_cpu_us_per_op" => "server µs",
        "silence_ms" => "silence ms",
        "takeover_ms" => "slowest ms",
        "wrong_replies" => "wrong GETs",
        other => other,
    }
}

impl Table {
    /// The table of one workload, one line per row.
    pub(crate) fn render(self, workload: &str, rows: &[Row]) -> String {
        match self {
            Self::Speed => speed(workload, rows),
            Self::Queue => queue(workload, rows),
            Self::Figures => figures(workload, rows),
            Self::Change => change(workload, rows),
        }
    }
}

fn speed(workload: &str, rows: &[Row]) -> String {
    let extras: Vec<&String> = rows.first().map(|row| row.extra.keys().collect()).unwrap_or_default();
    let mut text = format!(
        "\n{workload:<18}{:>11}{:>8}{:>9}{:>8}{:>10}{:>10}",
        "ops/s", "× best", "cpu µs", "× best", "p50 µs", "p99 µs"
    );
    extras.iter().for_each(|name| put(&mut text, format_args!("{:>11}", heading(name))));
    let best_rate = best_peer(rows, |row| row.ops_per_s, true).map(|row| row.ops_per_s);
    let best_cpu = best_peer(rows, |row| row.cpu_us_per_op, false).map(|row| row.cpu_us_per_op);
    let ratio =
        |value: f64, best: Option<f64>| best.map_or("–".to_owned(), |best| format!("{:.2}", value / best));
    for row in rows {
        put(
            &mut text,
            format_args!(
                "\n  {:<16}{:>11.0}{:>8}{:>9.2}{:>8}{:>10.1}{:>10.1}",
                row.subject,
                row.ops_per_s,
                ratio(row.ops_per_s, best_rate),
                row.cpu_us_per_op,
                ratio(row.cpu_us_per_op, best_cpu),
                row.p50_us,
                row.p99_us,
            ),
        );
        for name in &extras {
            let value = row.extra.get(*name).copied().unwrap_or_default();
            put(&mut text, format_args!("{value:>11.2}"));
        }
    }
    text.push('\n');
    text
}

fn queue(workload: &str, rows: &[Row]) -> String {
    let has = |name: &str| rows.iter().any(|row| row.figure(name).is_some_and(|value| value > 0.0));
    let names = ["cpu_us_per_op", "server_cpu_us_per_op", "bytes_per_item", "p50_us", "p99_us"];
    let columns: Vec<&str> = names.into_iter().filter(|name| has(name)).collect();
    let limit = rows.iter().find(|row| row.subject == "raw").map(|row| row.ops_per_s);
    let mut text = format!("\n{workload:<20}{:>11}{:>8}", "messages/s", "× raw");
    columns.iter().for_each(|name| put(&mut text, format_args!("{:>11}", heading(name))));
    for row in rows {
        let ratio = limit.map_or("–".to_owned(), |limit| format!("{:.2}", row.ops_per_s / limit));
        put(&mut text, format_args!("\n  {:<18}{:>11.0}{ratio:>8}", row.subject, row.ops_per_s));
        for name in &columns {
            let value = row.figure(name).map_or("–".to_owned(), |value| format!("{value:.2}"));
            put(&mut text, format_args!("{value:>11}"));
        }
    }
    text.push('\n');
    text
}

fn figures(workload: &str, rows: &[Row]) -> String {
    let mut text = format!("\n{workload:<20}");
    let names: Vec<&String> = rows.first().map(|row| row.extra.keys().collect()).unwrap_or_default();
    names.iter().for_each(|name| put(&mut text, format_args!("{:>11}", heading(name))));
    for row in rows {
        put(&mut text, format_args!("\n  {:<18}", row.subject));
        for name in &names {
            put(&mut text, format_args!("{:>11.2}", row.extra.get(*name).copied().unwrap_or_default()));
        }
    }
    text.push('\n');
    text
}

fn change(workload: &str, rows: &[Row]) -> String {
    let asked = rows.iter().any(|row| row.extra.contains_key(WRONG_REPLIES.0));
    let columns = CHANGE.iter().chain(asked.then_some(&WRONG_REPLIES));
    let mut text = format!("\n{workload:<18}");
    columns.clone().for_each(|(name, _)| put(&mut text, format_args!("{:>11}", heading(name))));
    for row in rows {
        put(&mut text, format_args!("\n  {:<16}", row.subject));
        for (name, decimals) in columns.clone() {
            let value = row.extra.get(*name).copied().unwrap_or_default();
            put(&mut text, format_args!("{value:>11.decimals$}"));
        }
    }
    text.push('\n');
    text
}

fn put(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece).expect("a String takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::sample_row;
    use std::collections::BTreeMap;

    fn cells(text: &str, subject: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.trim_start().starts_with(subject)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn speed_shows_ratios_to_the_best_peer_and_the_added_figures() {
        let rows = [sample_row("w", "firth", 200.0, 1.0), sample_row("w", "redis", 100.0, 2.0)];
        let text = Table::Speed.render("w", &rows);
        assert_eq!(cells(&text, "firth"), ["firth", "200", "2.00", "1.00", "0.50", "2.0", "3.0", "4.00"]);
        assert!(text.contains("allocs/op"));
    }

    #[test]
    fn change_shows_its_own_columns_and_requests_only_where_there_were_some() {
        let extra = |more: &[(&str, f64)]| -> BTreeMap<String, f64> {
            let all = [("lost", 3.0), ("silence_ms", 20.25)];
            all.iter().chain(more).map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let row =
            |more: &[(&str, f64)]| Row { extra: extra(more), ..sample_row("migrate", "firth", 1.0, 1.0) };
        let text = Table::Change.render("migrate", &[row(&[])]);
        assert_eq!(cells(&text, "firth"), ["firth", "0", "0", "3", "0", "0", "0", "20.2", "0.0", "0"]);
        assert!(!text.contains("wrong GETs"));
        let text = Table::Change.render("migrate", &[row(&[("wrong_replies", 7.0)])]);
        assert_eq!(cells(&text, "firth").last().unwrap(), "7");
    }
}
