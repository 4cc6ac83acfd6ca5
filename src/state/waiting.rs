//! Key space `w`: which key waits with the event at an offset. An index into the key space `k`,
//! so that a redelivery round goes by offset without reading all keys.
//!
//! | part | bytes |
//! |---|---|
//! | key | `w`, offset (8, big endian) |
//! | value | version 1, the key in UTF-8 (no bincode) |

use crate::offset::Offset;
use crate::state::{StateError, value};

/// First byte of the keys.
pub(crate) const TAG: u8 = b'w';
const WHAT: &str = "waiting event";

/// Where the waiting event at `offset` is noted.
pub(crate) fn key_of(offset: Offset) -> Vec<u8> {
    value::offset_key(TAG, offset)
}

/// The offset in an entry's key.
pub(crate) fn parse_key(bytes: &[u8]) -> Result<Offset, StateError> {
    value::key_offset(WHAT, TAG, bytes)
}

/// An entry's value.
pub(crate) fn encode(key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len().saturating_add(1));
    bytes.push(value::VERSION);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// The key in an entry's value.
pub(crate) fn decode(bytes: &[u8]) -> Result<String, StateError> {
    value::text(WHAT, value::body(WHAT, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_waiting_event_are_these() {
        assert_eq!(key_of(Offset::new(258)), b"w\0\0\0\0\0\0\x01\x02");
        assert_eq!(encode("order-1"), b"\x01order-1");
        assert_eq!(decode(b"\x01order-1").unwrap(), "order-1");
        assert!(decode(b"\x01\xff").is_err());
        assert!(decode(b"\x02order-1").is_err());
        assert_eq!(parse_key(b"w\0\0\0\0\0\0\x01\x02").unwrap().get(), 258);
    }
}
