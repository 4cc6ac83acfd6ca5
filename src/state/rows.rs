//! Key space `k`: everything known about one key (row, waiting events, open letters), under `k` and
//! the key's bytes.
//!
//! | part | bytes |
//! |---|---|
//! | key | `k`, the key in UTF-8. No end mark and no length: the order of entries is the order of keys' bytes, and an entry is looked up whole, so a key that is a prefix of another is no danger |
//! | value | version 1, bincode of `KeyState` |
//!
//! `KeyState` in bincode: row (`0`, or `1`, version, `0` or `1` length state, moved at), number of
//! waiting events and each (offset, version, id, attempts, spent), number of open letters and each
//! (version, offset).

use crate::fold::key::KeyState;
use crate::state::{StateError, value};

/// First byte of the keys.
pub(crate) const TAG: u8 = b'k';
const WHAT: &str = "row";

/// Where the state of `key` is.
pub(crate) fn key_of(key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len().saturating_add(1));
    bytes.push(TAG);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// The key in an entry's key.
pub(crate) fn parse_key(bytes: &[u8]) -> Result<String, StateError> {
    match bytes.split_first() {
        Some((&TAG, key)) => value::text(WHAT, key),
        _ => Err(value::damaged(WHAT, "not a key of this kind".to_owned())),
    }
}

/// An entry's value.
pub(crate) fn encode(state: &KeyState) -> Result<Vec<u8>, StateError> {
    value::encode(WHAT, state)
}

/// The state in an entry's value.
pub(crate) fn decode(bytes: &[u8]) -> Result<KeyState, StateError> {
    value::decode(WHAT, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fold::key::{RawRow, Waiting};
    use crate::offset::Offset;

    fn sample() -> KeyState {
        KeyState {
            row: Some(RawRow {
                version: 2,
                state: Some(vec![7, 8]),
                moved_at: Offset::new(300),
            }),
            waiting: vec![Waiting {
                offset: Offset::new(5),
                version: -1,
                id: "e".to_owned(),
                attempts: 2,
                spent: 1,
            }]
            .into(),
            open: vec![(4, Offset::new(250))],
        }
    }

    /// Written by hand from the table above: signed numbers are zigzag (2 → 4, -1 → 1), numbers
    /// from 251 on have a width byte (251: two bytes follow).
    const GOLDEN: [u8; 17] = [
        1, // version of the value
        1, 4, 1, 2, 7, 8, 251, 0x2c, 0x01, // row: version 2, state of 2 bytes, moved at 300
        1, 5, 1, 1, b'e', 2,
        1, // one waiting: offset 5, version -1, id "e", 2 attempts, 1 spent
    ];
    const GOLDEN_OPEN: [u8; 3] = [1, 8, 250]; // one open letter: version 4, offset 250

    #[test]
    fn the_bytes_of_a_row_are_these() {
        let golden = [&GOLDEN[..], &GOLDEN_OPEN[..]].concat();
        assert_eq!(encode(&sample()).unwrap(), golden);
        assert_eq!(decode(&golden).unwrap(), sample());
    }

    #[test]
    fn a_row_without_state_is_not_one_with_an_empty_state() {
        let mut state = sample();
        state.waiting.clear();
        state.open.clear();
        state.row.as_mut().unwrap().state = None;
        let none = encode(&state).unwrap();
        assert_eq!(none, [1, 1, 4, 0, 251, 0x2c, 1, 0, 0]);
        state.row.as_mut().unwrap().state = Some(Vec::new());
        assert_eq!(encode(&state).unwrap(), [1, 1, 4, 1, 0, 251, 0x2c, 1, 0, 0]);
        assert!(decode(&none).unwrap().row.unwrap().state.is_none());
    }

    #[test]
    fn every_cut_and_every_appended_byte_is_refused() {
        let whole = encode(&sample()).unwrap();
        for end in 0..whole.len() {
            assert!(decode(&whole[..end]).is_err(), "cut at {end}");
        }
        for extra in 0..=u8::MAX {
            let mut longer = whole.clone();
            longer.push(extra);
            assert!(decode(&longer).is_err(), "{extra} appended");
        }
    }

    #[test]
    fn keys_sort_by_their_bytes_also_where_one_is_a_prefix_of_another() {
        let ordered = ["", "a", "a\0", "a\0b", "aa", "ab", "b", "é", "\u{10ffff}"];
        let keys: Vec<_> = ordered.iter().map(|key| key_of(key)).collect();
        assert!(keys.is_sorted());
        for (key, bytes) in ordered.iter().zip(&keys) {
            assert_eq!(parse_key(bytes).unwrap(), *key);
        }
        assert!(parse_key(b"k\xff").is_err());
        assert!(parse_key(b"lx").is_err());
    }
}
