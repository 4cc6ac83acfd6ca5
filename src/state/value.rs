//! What the values and keys of all key spaces have in common.
//!
//! A value is one version byte, and a body that only that version defines. A body is bincode
//! (varint integers, little endian) unless its module says otherwise; one with left-over bytes is
//! refused.

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::offset::Offset;
use crate::state::StateError;

/// The only version of all values so far.
pub(crate) const VERSION: u8 = 1;

/// Longest value. A row is at most 16 MiB, but all waiting events of a key stand beside it; this
/// many bytes are some ten million of them.
const VALUE_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// A value: version byte and bincode.
pub(crate) fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Vec<u8>, StateError> {
    let mut bytes = vec![VERSION];
    codec::encode_into(&mut bytes, value, VALUE_BYTES_MAX).map_err(|error| {
        StateError::TooLarge {
            what,
            reason: error.to_string(),
        }
    })?;
    Ok(bytes)
}

/// The value that [`encode`] made.
pub(crate) fn decode<'a, T: Deserialize<'a>>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<T, StateError> {
    codec::decode(body(what, bytes)?, VALUE_BYTES_MAX)
        .map_err(|error| damaged(what, error.to_string()))
}

/// The bytes after the version byte.
pub(crate) fn body<'a>(what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], StateError> {
    match bytes.split_first() {
        Some((&VERSION, body)) => Ok(body),
        Some((&found, _)) => Err(StateError::Format {
            what,
            found: u64::from(found),
            supported: u64::from(VERSION),
        }),
        None => Err(damaged(what, "empty value".to_owned())),
    }
}

/// A key: `tag`, and the offset in 8 bytes, so that the order of bytes is the order of offsets.
#[expect(
    clippy::big_endian_bytes,
    reason = "the state store orders keys by their bytes"
)]
pub(crate) fn offset_key(tag: u8, offset: Offset) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(tag);
    key.extend_from_slice(&offset.get().to_be_bytes());
    key
}

/// The offset in a key that [`offset_key`] made.
#[expect(
    clippy::big_endian_bytes,
    reason = "the state store orders keys by their bytes"
)]
pub(crate) fn key_offset(what: &'static str, tag: u8, key: &[u8]) -> Result<Offset, StateError> {
    key.split_first()
        .filter(|(found, _)| **found == tag)
        .and_then(|(_, rest)| <[u8; 8]>::try_from(rest).ok())
        .map(|bytes| Offset::new(u64::from_be_bytes(bytes)))
        .ok_or_else(|| damaged(what, "not a key of this kind".to_owned()))
}

/// Text in a key or value.
pub(crate) fn text(what: &'static str, bytes: &[u8]) -> Result<String, StateError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|error| damaged(what, error.to_string()))
}

/// Bytes that foldlog cannot have written.
pub(crate) fn damaged(what: &'static str, reason: String) -> StateError {
    StateError::Damaged { op: what, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_is_named_and_an_empty_value_is_damage() {
        let Err(StateError::Format {
            found: 2,
            supported: 1,
            ..
        }) = body("row", &[2, 0])
        else {
            panic!("version 2 accepted")
        };
        assert!(matches!(body("row", &[]), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn left_over_bytes_are_refused() {
        assert_eq!(decode::<u8>("row", &[1, 7]).unwrap(), 7);
        assert!(decode::<u8>("row", &[1, 7, 0]).is_err());
    }

    #[test]
    fn offset_keys_keep_numeric_order_and_come_back() {
        let numbers = [
            0,
            1,
            255,
            256,
            65_535,
            65_536,
            u64::from(u32::MAX),
            u64::from(u32::MAX) + 1,
            u64::MAX,
        ];
        let keys: Vec<_> = numbers
            .iter()
            .map(|n| offset_key(b'w', Offset::new(*n)))
            .collect();
        assert!(keys.is_sorted());
        assert_eq!(keys[3], b"w\0\0\0\0\0\0\x01\0");
        for (number, key) in numbers.iter().zip(&keys) {
            assert_eq!(key_offset("w", b'w', key).unwrap(), Offset::new(*number));
        }
        assert!(key_offset("w", b'w', b"w\0\0").is_err());
        assert!(key_offset("w", b'w', &offset_key(b'l', Offset::ZERO)).is_err());
    }
}
