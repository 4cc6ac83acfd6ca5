//! [`Digest`]: an order-free sum over rows, waiting events and dead letters.
//!
//! Each of them adds the XXH3-128 of its canonical bytes, modulo 2^128, so a change subtracts the
//! old and adds the new, and partitions add up. Canonical bytes, all integers little endian, each
//! text or state preceded by its length in 8 bytes:
//!
//! | entry | bytes |
//! |---|---|
//! | row | `1`, key, version (8), moved at (8), then `0`, or `1` and the state |
//! | waiting event | `2`, key, offset (8), version (8), id, attempts (4), spent (4) |
//! | dead letter | `3`, key, offset (8), version (8), id, number of deaths (8), and per death: class (1: 0 poison, 1 conflict, 2 crashed), reason, attempts (4), at (8), then `0`, or `1`, how (1: 0 redriven, 1 discarded, 2 skipped) and at (8) |
//!
//! The digest covers no log id, salt, partition, generation, checkpoint, counter or time.

use std::fmt;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::key::{KeyState, RawRow, Waiting};
use super::letter::{Class, DeadLetter, Resolved};
use crate::num::to_u64;

/// What state amounts to, in 128 bits: equal digests mean equal rows, waiting events and letters.
///
/// It detects accidents, not forgery. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(u128);

impl Digest {
    /// The digest of two disjoint states together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// The digest without a part of the state.
    #[must_use]
    pub(crate) const fn minus(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// What the row and the waiting events of `key` add to the digest. Its letters add on their own.
pub(crate) fn of_key(key: &str, state: &KeyState) -> Digest {
    let mut bytes = Vec::with_capacity(128);
    let mut sum = Digest::default();
    if let Some(row) = &state.row {
        row_bytes(&mut bytes, key, row);
        sum = sum.plus(hash(&bytes));
    }
    for waiting in &state.waiting {
        bytes.clear();
        waiting_bytes(&mut bytes, key, waiting);
        sum = sum.plus(hash(&bytes));
    }
    sum
}

/// What a dead letter adds to the digest.
pub(crate) fn of_letter(letter: &DeadLetter) -> Digest {
    let mut bytes = Vec::with_capacity(256);
    letter_bytes(&mut bytes, letter);
    hash(&bytes)
}

fn hash(bytes: &[u8]) -> Digest {
    Digest(XxHash3_128::oneshot(bytes))
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&to_u64(bytes.len()).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn row_bytes(out: &mut Vec<u8>, key: &str, row: &RawRow) {
    out.push(1);
    put_bytes(out, key.as_bytes());
    out.extend_from_slice(&row.version.to_le_bytes());
    out.extend_from_slice(&row.moved_at.get().to_le_bytes());
    match &row.state {
        None => out.push(0),
        Some(state) => {
            out.push(1);
            put_bytes(out, state);
        }
    }
}

fn waiting_bytes(out: &mut Vec<u8>, key: &str, waiting: &Waiting) {
    out.push(2);
    put_bytes(out, key.as_bytes());
    out.extend_from_slice(&waiting.offset.get().to_le_bytes());
    out.extend_from_slice(&waiting.version.to_le_bytes());
    put_bytes(out, waiting.id.as_bytes());
    out.extend_from_slice(&waiting.attempts.to_le_bytes());
    out.extend_from_slice(&waiting.spent.to_le_bytes());
}

fn letter_bytes(out: &mut Vec<u8>, letter: &DeadLetter) {
    out.push(3);
    put_bytes(out, letter.key.as_bytes());
    out.extend_from_slice(&letter.offset.get().to_le_bytes());
    out.extend_from_slice(&letter.version.to_le_bytes());
    put_bytes(out, letter.id.as_bytes());
    out.extend_from_slice(&to_u64(letter.history.len()).to_le_bytes());
    for death in &letter.history {
        out.push(match death.class {
            Class::Poison => 0,
            Class::Conflict => 1,
            Class::Crashed => 2,
        });
        put_bytes(out, death.reason.as_bytes());
        out.extend_from_slice(&death.attempts.to_le_bytes());
        out.extend_from_slice(&death.at.get().to_le_bytes());
        match death.resolved {
            None => out.push(0),
            Some(resolution) => {
                out.push(1);
                out.push(match resolution.how {
                    Resolved::Redriven => 0,
                    Resolved::Discarded => 1,
                    Resolved::Skipped => 2,
                });
                out.extend_from_slice(&resolution.at.get().to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::letter::{Death, Resolution};
    use super::*;
    use crate::offset::Offset;

    fn row(state: Option<&[u8]>) -> RawRow {
        RawRow {
            version: 2,
            state: state.map(<[u8]>::to_vec),
            moved_at: Offset::new(258),
        }
    }

    fn waiting() -> Waiting {
        Waiting {
            offset: Offset::new(5),
            version: -2,
            id: "id".to_owned(),
            attempts: 7,
            spent: 3,
        }
    }

    fn letter() -> DeadLetter {
        let death = |class, resolved| Death {
            class,
            reason: "no".to_owned(),
            attempts: 4,
            at: Offset::new(9),
            resolved,
        };
        let resolved = Resolution {
            how: Resolved::Skipped,
            at: Offset::new(10),
        };
        DeadLetter {
            offset: Offset::new(6),
            id: "id".to_owned(),
            key: "k".to_owned(),
            version: 1,
            history: vec![
                death(Class::Conflict, Some(resolved)),
                death(Class::Crashed, None),
            ],
        }
    }

    const ROW: &[&[u8]] = &[
        &[1],
        b"\x01\0\0\0\0\0\0\0k",
        b"\x02\0\0\0\0\0\0\0",
        b"\x02\x01\0\0\0\0\0\0",
        b"\x01\x02\0\0\0\0\0\0\0\xfe\xff",
    ];
    const WAITING: &[&[u8]] = &[
        &[2],
        b"\x01\0\0\0\0\0\0\0k",
        b"\x05\0\0\0\0\0\0\0",
        b"\xfe\xff\xff\xff\xff\xff\xff\xff",
        b"\x02\0\0\0\0\0\0\0id",
        b"\x07\0\0\0",
        b"\x03\0\0\0",
    ];
    const LETTER: &[&[u8]] = &[
        &[3],
        b"\x01\0\0\0\0\0\0\0k",
        b"\x06\0\0\0\0\0\0\0",
        b"\x01\0\0\0\0\0\0\0",
        b"\x02\0\0\0\0\0\0\0id",
        b"\x02\0\0\0\0\0\0\0",
        b"\x01\x02\0\0\0\0\0\0\0no\x04\0\0\0\x09\0\0\0\0\0\0\0",
        b"\x01\x02\x0a\0\0\0\0\0\0\0",
        b"\x02\x02\0\0\0\0\0\0\0no\x04\0\0\0\x09\0\0\0\0\0\0\0",
        b"\0",
    ];

    #[test]
    fn canonical_bytes_are_as_the_header_of_this_file_says() {
        let mut bytes = Vec::new();
        row_bytes(&mut bytes, "k", &row(Some(&[0xfe, 0xff])));
        assert_eq!(bytes, ROW.concat());
        bytes.clear();
        row_bytes(&mut bytes, "k", &row(None));
        assert_eq!(bytes, [&ROW[..4].concat(), &[0_u8][..]].concat());
        bytes.clear();
        waiting_bytes(&mut bytes, "k", &waiting());
        assert_eq!(bytes, WAITING.concat());
        bytes.clear();
        letter_bytes(&mut bytes, &letter());
        assert_eq!(bytes, LETTER.concat());
    }

    #[test]
    fn the_hash_is_xxh3_128_and_the_digest_its_sum() {
        // The published XXH3-128 of no bytes, seed 0.
        assert_eq!(hash(b"").to_string(), "99aa06d3014798d86001c324468d497f");
        let state = KeyState {
            row: Some(row(Some(&[0xfe, 0xff]))),
            waiting: [waiting()].into(),
            open: vec![(1, Offset::new(6))],
        };
        let sum = |parts: &[&[&[u8]]]| {
            let hashes = parts
                .iter()
                .map(|part| XxHash3_128::oneshot(&part.concat()));
            Digest(hashes.fold(0, u128::wrapping_add))
        };
        assert_eq!(of_key("k", &state), sum(&[ROW, WAITING]));
        assert_eq!(of_letter(&letter()), sum(&[LETTER]));
        let all = of_key("k", &state).plus(of_letter(&letter()));
        assert_eq!(all, sum(&[LETTER, WAITING, ROW]));
        assert_eq!(all.minus(of_letter(&letter())), of_key("k", &state));
        assert_eq!(of_key("k", &KeyState::default()), Digest::default());
    }

    #[test]
    fn a_digest_is_shown_as_32_digits() {
        assert_eq!(Digest(0xab).to_string(), "000000000000000000000000000000ab");
    }
}
