//! The one rule that places a key in a partition.
//!
//! The hash is FNV-1a, 32 bits (Fowler, Noll, Vo), of the key's bytes. It is part of the on-disk
//! format: record headers carry it, so that a consumer of many partitions can skip the records of
//! the others without decoding them.

const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// FNV-1a 32 of `bytes`.
pub(crate) fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(FNV_BASIS, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME)
    })
}

/// The partition of a key whose hash is known.
pub(crate) fn of_hash(hash: u32, partitions: u32) -> u32 {
    hash.checked_rem(partitions).unwrap_or(0)
}

/// The partition, in `0..partitions`, that events of `key` belong to.
///
/// A key lives in exactly one partition, so per-key order holds whatever the number of
/// partitions. With 0 partitions the answer is 0.
///
/// ```
/// assert_eq!(foldlog::partition("order-70972", 64), 61);
/// assert_eq!(foldlog::partition("anything", 0), 0);
/// ```
#[must_use]
pub fn partition(key: &str, partitions: u32) -> u32 {
    of_hash(hash(key.as_bytes()), partitions)
}
