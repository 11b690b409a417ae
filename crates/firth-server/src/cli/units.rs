//! Durations and sizes as people write them.

use crate::config;
use std::time::Duration;

/// `500ms`, `1m30s`, `2h`, `7d`, as in the configuration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    config::duration(text).ok_or_else(|| "write it as 500ms, 30s, 5m, 2h or 7d".to_owned())
}

/// `512`, `64KiB`, `1MiB`, `10MB`, as in the configuration.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let size = config::size(text).and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| "write it as 512, 64KiB, 1MiB or 10MB".to_owned())
}

/// A limit that is set, or ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LimitChange<T>(pub(crate) Option<T>);

/// As `read` reads it, or `none`, which ends the limit.
pub(crate) fn or_none<T>(
    read: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<LimitChange<T>, String> + Clone {
    move |text| match text {
        "none" => Ok(LimitChange(None)),
        text => read(text).map(|value| LimitChange(Some(value))).map_err(|why| format!("{why}, or none")),
    }
}

/// `10000`.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number".to_owned())
}

/// For the wire.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A span as people read it: the two largest units, or milliseconds.
pub(crate) fn age(ms: u64) -> String {
    let seconds = ms / 1000;
    let minutes = ms / 60_000;
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{seconds} s"),
        60_000..3_600_000 => format!("{minutes} m {} s", seconds % 60),
        3_600_000..86_400_000 => format!("{} h {} m", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / 1440, minutes / 60 % 24),
    }
}

/// Thousands apart, so that large numbers can be read.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_as_written_or_refused_with_the_way_to_write_them() {
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("7d").unwrap(), Duration::from_secs(7 * 86_400));
        for wrong in ["", "5", "s", "-5s", "5y", "1.5", "99999999999999999999s"] {
            assert!(duration(wrong).unwrap_err().contains("30s"), "{wrong}");
        }
        assert_eq!(
            (size("512").unwrap(), size("64KiB").unwrap(), size("10MB").unwrap()),
            (512, 65_536, 10_000_000)
        );
        assert!(size("64k").is_err() && size("KiB").is_err());
    }

    #[test]
    fn spans_and_numbers_are_written_for_people() {
        let spans = [999, 59_000, 61_000, 3_660_000, 90_000_000].map(age);
        assert_eq!(spans, ["999 ms", "59 s", "1 m 1 s", "1 h 1 m", "1 d 1 h"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1 000", "1 234 567"]);
    }
}
