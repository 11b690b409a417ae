//! Durations and sizes as people write them: `250ms`, `1m30s`, `16MiB`. Pure.

use std::time::Duration;

const TIMES: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 8] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// One or more numbers with units, largest first by habit but not by force: `90s`, `1m30s`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = leading_number(rest)?;
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        let unit = TIMES.iter().find(|(name, _)| *name == unit)?.1;
        total = total.checked_add(number.checked_mul(unit)?)?;
        rest = next.trim_start();
    }
    Some(Duration::from_millis(total))
}

/// A number with a unit of bytes; without one it is bytes.
pub(crate) fn size(text: &str) -> Option<usize> {
    let (number, unit) = leading_number(text.trim())?;
    let unit = unit.trim();
    let factor = if unit.is_empty() { 1 } else { SIZES.iter().find(|(name, _)| *name == unit)?.1 };
    usize::try_from(number.checked_mul(factor)?).ok()
}

fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_and_sizes_are_read_as_people_write_them() {
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(duration(" 2h "), Some(Duration::from_secs(7200)));
        assert_eq!(size("16MiB"), Some(16 << 20));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("1 GB"), Some(1_000_000_000));
        for wrong in ["", "5", "s", "5 seconds", "-1s", "1.5s", "99999999999999999999s", "1e3s"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        for wrong in ["", "MiB", "5 apples", "-1", "1.5MiB", "99999999999999999999"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text: String) {
            let _ = (duration(&text), size(&text));
        }
    }
}
