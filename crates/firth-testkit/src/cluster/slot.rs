//! Which slot a key belongs to (pure): CRC16 of the key, or of its hash tag.

const SLOTS: u16 = 16384;

/// The cluster slot of a key.
pub fn slot_of(key: impl AsRef<[u8]>) -> u16 {
    crc16(hashed_part(key.as_ref())) % SLOTS
}

/// What lies between the first `{` and the next `}`, unless that is nothing.
fn hashed_part(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let tag = &key[open + 1..];
    match tag.iter().position(|byte| *byte == b'}') {
        Some(end) if end > 0 => &tag[..end],
        _ => key,
    }
}

/// CRC16/XMODEM, bit by bit: tests have time.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12182);
    }

    #[test]
    fn only_the_first_non_empty_tag_counts() {
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_eq!(slot_of("foo{bar}{zap}"), slot_of("bar"));
        assert_ne!(slot_of("foo{}{bar}"), slot_of("bar"));
    }
}
