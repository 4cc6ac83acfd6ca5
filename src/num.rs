//! Total conversions between the widths this crate uses, so that no `as` is needed anywhere.
//!
//! foldlog supports targets whose `usize` is at least 32 bits wide; on those every conversion here
//! is exact for the values it is given (lengths bounded by [`crate::limits`]), and saturates rather
//! than wraps for any other.

/// A length or count read from disk, as an index type.
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A length in memory, as the width the disk format counts in.
pub(crate) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A length in memory that a limit already keeps below 2^32.
pub(crate) fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
