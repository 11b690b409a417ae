//! What fuzzers check of this crate, as plain functions; see `fuzz/` at the root of the repository.
//!
//! Not part of the API. Each function takes any bytes at all and panics when a law is broken. The
//! tests below run the same laws over random bytes in every build.

/// Stored values of the embedded engine.
#[cfg(feature = "embedded")]
pub fn values(data: &[u8]) {
    crate::embedded::fuzzing::values(data);
}

/// Logical time as `redis/lua/lib/clock.lua` has to compute it, in µs; `expected` comes with its
/// slack.
pub fn logical_time(wall: u64, offset: i64, last: u64, expected: Option<(u64, u64)>) -> u64 {
    let expected = expected.map(|(us, slack)| crate::clock::Expected { us, slack });
    crate::clock::LogicalClock { offset, last }.now(wall, expected)
}

/// Answers of a server to scripts, and entries of streams.
#[cfg(feature = "redis")]
pub fn replies(data: &[u8]) {
    crate::redis::fuzzing::replies(data);
    crate::redis::fuzzing::records(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// RESP that looks like answers: lists of numbers and short texts.
    fn answer() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            any::<i64>().prop_map(|number| format!(":{number}\r\n")),
            "[ -~]{0,24}".prop_map(|text| format!("${}\r\n{text}\r\n", text.len())),
            "[0-9]{1,20}-[0-9]{1,20}".prop_map(|id| format!("${}\r\n{id}\r\n", id.len())),
            Just("_\r\n".to_owned()),
        ];
        vec(part, 0..12).prop_map(|parts| {
            let mut text = format!("*{}\r\n", parts.len());
            parts.iter().for_each(|part| text.push_str(part));
            text.into_bytes()
        })
    }

    proptest! {
        #[cfg(feature = "embedded")]
        #[test]
        fn stored_values_keep_their_laws(data in vec(any::<u8>(), 0..256)) {
            values(&data);
        }

        #[cfg(feature = "redis")]
        #[test]
        fn answers_keep_their_laws(answer in answer(), data in vec(any::<u8>(), 0..256)) {
            replies(&answer);
            replies(&data);
        }
    }
}
