//! Points in time as people write and read them: `2026-11-17T06:30:00Z`. Pure.

/// Milliseconds since 1970 of a time as RFC 3339 writes it. The seconds, a fraction of them and the
/// offset may be left out; without an offset the time is UTC.
pub(super) fn parse(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00"));
    let [year, month, day] = numbers(date, '-')?;
    let (time, offset) = split_offset(time)?;
    let (time, millis) = split_fraction(time)?;
    let [hour, minute, second] = match time.matches(':').count() {
        1 => {
            let [hour, minute] = numbers(time, ':')?;
            [hour, minute, 0]
        }
        _ => numbers(time, ':')?,
    };
    let is_real = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_real {
        return None;
    }
    let seconds = (days_since_1970(year, month, day) * 24 + hour) * 3600 + minute * 60 + second - offset;
    u64::try_from(seconds * 1000 + millis).ok()
}

/// The time in UTC, to the second.
pub(super) fn show(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let days = seconds / 86_400;
    let rest = seconds % 86_400;
    let mut year = 1970 + days / 366;
    while days_since_1970(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days_since_1970(year, month + 1, 1) <= days {
        month += 1;
    }
    let day = days - days_since_1970(year, month, 1) + 1;
    let hour = rest / 3600;
    let minute = rest / 60 % 60;
    let second = rest % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn numbers<const N: usize>(text: &str, by: char) -> Option<[i64; N]> {
    let parts: Option<Vec<i64>> = text.split(by).map(number).collect();
    parts?.try_into().ok()
}

fn number(text: &str) -> Option<i64> {
    let is_short = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_short.then(|| text.parse().ok()).flatten()
}

/// The time without its offset, and the offset in seconds.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, 0)) };
    let [hours, minutes] = numbers(&time[at + 1..], ':')?;
    let sign = if time[at..].starts_with('-') { -1 } else { 1 };
    (hours < 24 && minutes < 60).then_some((&time[..at], sign * (hours * 3600 + minutes * 60)))
}

/// The time without a fraction of its seconds, and that in milliseconds.
fn split_fraction(time: &str) -> Option<(&str, i64)> {
    let Some((time, fraction)) = time.split_once('.') else { return Some((time, 0)) };
    let is_number = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let millis = format!("{fraction:0<3}");
    is_number.then(|| Some((time, millis[..3].parse().ok()?))).flatten()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    years + (1..month).map(|month| days_in(year, month)).sum::<i64>() + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2023-11-14T22:13:20Z", 1_700_000_000_000),
            ("2023-11-14 22:13:20.25", 1_700_000_000_250),
            ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
            ("2023-11-14T22:13", 1_699_999_980_000),
            ("2024-02-29", 1_709_164_800_000),
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        for wrong in
            ["", "1h", "2023-02-29", "2023-13-01", "2023-11-14T24:00", "2023-11-14T22:13:20+1", "1969-12-31"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_can_be_read(seconds in 0_u64..253_402_300_800) {
            prop_assert_eq!(parse(&show(seconds * 1000)), Some(seconds * 1000));
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
