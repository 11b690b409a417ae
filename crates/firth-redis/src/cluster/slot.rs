//! From a key to its hash slot: CRC16 (XMODEM) of the key, or of its `{tag}`, modulo 16 384. Pure.

use super::topology::SLOTS;

const TABLE: [u16; 256] = table();

/// The slot of a key in a cluster. Of a key that holds a non-empty `{tag}` only the tag counts, so
/// that keys with the same tag always live together.
///
/// ```
/// assert_eq!(firth_redis::slot(b"123456789"), 12_739);
/// assert_eq!(firth_redis::slot(b"{user1}.name"), firth_redis::slot(b"{user1}.mail"));
/// ```
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS as u16
}

/// What is hashed: the bytes between the first `{` and the next `}`, if there are any, else the
/// whole key.
fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else { return key };
    let inside = &key[open + 1..];
    match memchr::memchr(b'}', inside) {
        Some(0) | None => key,
        Some(close) => &inside[..close],
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
        assert_eq!(slot(b"123456789"), 0x31C3);
        // As CLUSTER KEYSLOT says.
        for (key, expected) in [("foo", 12_182), ("bar", 5_061), ("hello", 866), ("somekey", 11_058), ("", 0)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn only_the_first_tag_counts_and_an_empty_one_does_not() {
        for (key, hashed) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{", "foo}bar{"),
            ("}{a}", "a"),
        ] {
            assert_eq!(tag(key.as_bytes()), hashed.as_bytes(), "{key}");
        }
    }

    proptest! {
        #[test]
        fn every_key_has_a_slot_and_a_tag_decides_it(
            before in "[^{}]*",
            tag in "[^{}]+",
            after in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut key = format!("{before}{{{tag}}}").into_bytes();
            key.extend_from_slice(&after);
            prop_assert!(usize::from(slot(&after)) < SLOTS);
            prop_assert_eq!(slot(&key), slot(tag.as_bytes()));
        }
    }
}
