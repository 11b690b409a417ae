//! Durations such as `50ms` and sizes such as `64MiB`.

use std::time::Duration;

/// Reads `250us`, `50ms`, `5s`, `2m`, `1h`, `7d`, also `1.5s`, `1h30m` and `1h 30m`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, unit, after) = split(rest)?;
        let seconds = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = after.trim_start();
    }
    Some(total)
}

/// Reads `1024`, `64KiB`, `64 MiB`, `2GiB`, and `kB`, `MB`, `GB` as powers of ten.
pub fn parse_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim_start() {
        "" | "B" => 1.0,
        "KiB" | "K" | "Ki" => 1024.0,
        "MiB" | "M" | "Mi" => 1_048_576.0,
        "GiB" | "G" | "Gi" => 1_073_741_824.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    ((0.0..9e15).contains(&bytes) && bytes.fract() == 0.0).then_some(bytes as usize)
}

/// A number, its unit, and what follows.
fn split(text: &str) -> Option<(f64, &str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(digits);
    let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(letters);
    Some((number.parse().ok()?, unit, after))
}
