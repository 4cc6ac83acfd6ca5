//! Key space `l`: dead letters, in any state, by the offset of their event. Never removed.
//!
//! | part | bytes |
//! |---|---|
//! | key | `l`, offset (8, big endian) |
//! | value | version 1, bincode of `DeadLetter` |
//!
//! `DeadLetter` in bincode: offset, id, key, version, number of deaths and each (class: 0 poison, 1
//! conflict, 2 crashed; reason; attempts; at; `0`, or `1`, how: 0 redriven, 1 discarded, 2 skipped,
//! and at).

use crate::fold::letter::DeadLetter;
use crate::offset::Offset;
use crate::state::{StateError, value};

/// First byte of the keys.
pub(crate) const TAG: u8 = b'l';
const WHAT: &str = "dead letter";

/// Where the letter of the event at `offset` is.
pub(crate) fn key_of(offset: Offset) -> Vec<u8> {
    value::offset_key(TAG, offset)
}

/// An entry's value.
pub(crate) fn encode(letter: &DeadLetter) -> Result<Vec<u8>, StateError> {
    value::encode(WHAT, letter)
}

/// The letter in an entry, which must be the one that the key names.
pub(crate) fn decode(key: &[u8], bytes: &[u8]) -> Result<DeadLetter, StateError> {
    let letter: DeadLetter = value::decode(WHAT, bytes)?;
    if value::key_offset(WHAT, TAG, key)? == letter.offset {
        Ok(letter)
    } else {
        Err(value::damaged(WHAT, "under another offset".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fold::letter::{Class, Death, Resolution, Resolved};

    fn sample() -> DeadLetter {
        DeadLetter {
            offset: Offset::new(7),
            id: "id".to_owned(),
            key: "k".to_owned(),
            version: 3,
            history: vec![
                Death {
                    class: Class::Conflict,
                    reason: "gap".to_owned(),
                    attempts: 3,
                    at: Offset::new(9),
                    resolved: Some(Resolution {
                        how: Resolved::Skipped,
                        at: Offset::new(11),
                    }),
                },
                Death {
                    class: Class::Crashed,
                    reason: String::new(),
                    attempts: 4,
                    at: Offset::new(70_000),
                    resolved: None,
                },
            ],
        }
    }

    /// Written by hand from the table above (version 3 is zigzag 6; 252: four bytes follow).
    const GOLDEN: &[u8] = &[
        1, // version of the value
        7, 2, b'i', b'd', 1, b'k', 6, // offset, id, key, version
        2, // two deaths
        1, 3, b'g', b'a', b'p', 3, 9, 1, 2,
        11, // conflict, "gap", 3 attempts, at 9, skipped at 11
        2, 0, 4, 252, 0x70, 0x11, 0x01, 0x00, 0, // crashed, "", 4 attempts, at 70,000, open
    ];

    #[test]
    fn the_bytes_of_a_letter_are_these() {
        let key = key_of(Offset::new(7));
        assert_eq!(key, b"l\0\0\0\0\0\0\0\x07");
        assert_eq!(encode(&sample()).unwrap(), GOLDEN);
        assert_eq!(decode(&key, GOLDEN).unwrap(), sample());
    }

    #[test]
    fn a_letter_under_another_offset_is_damage() {
        let error = decode(&key_of(Offset::new(8)), GOLDEN).unwrap_err();
        assert!(matches!(error, StateError::Damaged { .. }), "{error}");
    }

    #[test]
    fn every_cut_of_a_letter_is_refused() {
        for end in 0..GOLDEN.len() {
            assert!(decode(&key_of(Offset::new(7)), &GOLDEN[..end]).is_err());
        }
    }
}
