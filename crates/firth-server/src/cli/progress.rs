//! Progress of long work, drawn on stderr where that is a terminal and nowhere else.

use super::units;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(120);

/// For input read; without a length it shows only what was done.
pub(crate) fn bytes(length: Option<u64>) -> ProgressBar {
    match length {
        Some(length) => bar(length, "{bar:30} {bytes}/{total_bytes}  {msg}  {eta} left"),
        None => {
            let bar = ProgressBar::new_spinner();
            bar.set_style(style("{spinner} {bytes} read  {msg}"));
            bar.enable_steady_tick(TICK);
            bar
        }
    }
}

/// For a known number of steps.
pub(crate) fn steps(name: &'static str, length: u64) -> ProgressBar {
    let bar = bar(length, "{prefix:8} {bar:30} {human_pos}/{human_len}  {msg}");
    bar.set_prefix(name);
    bar
}

/// For records whose number is known, with the bytes as the message.
pub(crate) fn records() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_style(style("{spinner} {human_pos} records  {msg}"));
    bar.enable_steady_tick(TICK);
    bar
}

/// From now on of this many.
pub(crate) fn of_records(bar: &ProgressBar, length: u64) {
    bar.set_length(length);
    bar.set_style(style("{bar:30} {human_pos}/{human_len} records  {msg}  {eta} left").progress_chars("=> "));
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    bar.set_style(style(template).progress_chars("=> "));
    bar.enable_steady_tick(TICK);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Messages per second.
pub(crate) fn rate(messages: u64, took: Duration) -> String {
    format!("{}/s", units::count(per_second(messages, took)))
}

/// Rounded to whole ones.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a figure for people"
)]
pub(crate) fn per_second(count: u64, took: Duration) -> u64 {
    (count as f64 / took.as_secs_f64().max(1e-6)).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_numbers() {
        assert_eq!(rate(3000, Duration::from_secs(2)), "1 500/s");
        assert_eq!(per_second(0, Duration::ZERO), 0);
    }

    #[test]
    fn every_template_is_valid() {
        for template in ["{bar:30} {bytes}/{total_bytes}  {msg}  {eta} left", "{spinner} {bytes} read  {msg}"]
        {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
