//! The only place that calls bincode: varint, little endian, from a checked slice, with a limit,
//! left-over bytes refused.
//!
//! bincode 1.3.3 and 2.0.1 write the same bytes. 1.3.3 is used because, on hostile bytes, it
//! answers an error from a slice even where no limit is set, and because it enforces the limit when
//! encoding too; 2.0.1 ignores it there. No decoded type of this crate has zero-sized elements
//! in a sequence: their count costs no bytes, so no limit would bound the loop.

use bincode::Options;
use serde::{Deserialize, Serialize};

/// Why bytes did not become a value, or a value did not become bytes.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CodecError(String);

fn options(limit: usize) -> impl Options {
    bincode::DefaultOptions::new().with_limit(crate::num::to_u64(limit))
}

/// Encodes `value`, refusing results longer than `limit` bytes.
pub(crate) fn encode<T: Serialize + ?Sized>(
    value: &T,
    limit: usize,
) -> Result<Vec<u8>, CodecError> {
    options(limit)
        .serialize(value)
        .map_err(|error| CodecError(error.to_string()))
}

/// Appends the encoding of `value` to `out`, refusing results longer than `limit` bytes.
pub(crate) fn encode_into<T: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    value: &T,
    limit: usize,
) -> Result<(), CodecError> {
    options(limit)
        .serialize_into(out, value)
        .map_err(|error| CodecError(error.to_string()))
}

/// Decodes the whole of `bytes`; a longer slice than `limit` and left-over bytes are errors.
pub(crate) fn decode<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    limit: usize,
) -> Result<T, CodecError> {
    options(limit)
        .reject_trailing_bytes()
        .deserialize(bytes)
        .map_err(|error| CodecError(error.to_string()))
}
