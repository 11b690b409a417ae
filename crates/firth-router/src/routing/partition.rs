//! The partition of a document: FNV-1a-64 of `collection/key`, modulo the number of partitions.

/// The partition that the events of a document go to. One partition needs no hash.
///
/// Growing the number of partitions moves most documents, as any modulo does: grow a topic while it
/// is drained.
pub fn partition(collection: &str, key: &str, partitions: u32) -> u32 {
    if partitions <= 1 {
        return 0;
    }
    let bytes = collection.bytes().chain(std::iter::once(b'/')).chain(key.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u32::try_from(hash % u64::from(partitions)).expect("a remainder of a u32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a_64_of_collection_slash_key() {
        // Computed by a separate implementation that agrees with the published vectors.
        let known = [
            ("orders", "42", 2, 1),
            ("orders", "42", 4, 3),
            ("orders", "42", 1000, 279),
            ("users", "ä", 97, 26),
            ("a", "b/c", 1021, 985),
            ("a/b", "c", 1021, 985),
        ];
        for (collection, key, partitions, expected) in known {
            assert_eq!(
                partition(collection, key, partitions),
                expected,
                "{collection}/{key} of {partitions}"
            );
        }
        assert_eq!(partition("orders", "42", 1), 0);
        assert_eq!(partition("orders", "42", 0), 0);
    }

    #[test]
    fn documents_spread_evenly() {
        let mut counts = [0_u32; 8];
        (0..80_000).for_each(|n| counts[partition("orders", &n.to_string(), 8) as usize] += 1);
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
    }
}
