//! Where upstreams stand: the part of a frame's payload that carries positions, and the table of
//! all of them.
//!
//! In front of the records, in frames that are flagged for it (little endian):
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 4 | length of what follows in bytes |
//! | 4 | length | bincode: pairs of name and position |
//!
//! The first frame of a segment is a data frame without records that carries the whole table, if
//! there is one. A crash after a roll and before that frame was synced leaves a last segment
//! without frames: the table is then the one at the end of the segment before it, and the writer
//! puts it at the head when the next frame comes.
//!
//! Invariants:
//! - A position only rises: `position_not_above_the_stored_one_is_not_taken`.
//! - A table that was accepted can always be written again:
//!   `table_at_its_limits_round_trips_and_one_more_is_refused`.

use std::collections::BTreeMap;

use crate::codec;
use crate::error::{Error, Result};
use crate::event::{RecordError, bounded};
use crate::frame::{FLAG_TABLE, FLAG_UPSTREAM, Fields};
use crate::limits;
use crate::num::{to_u32, to_usize};

/// What bincode adds to a name at most: its length (names are below 64 KiB) and the position.
const PAIR_OVERHEAD_MAX: usize = 3 + 9;
/// The pair count (at most [`limits::UPSTREAMS_MAX`]).
const COUNT_WIDTH_MAX: usize = 3;

const _: () = assert!(limits::UPSTREAM_BYTES_MAX < 1 << 16);
const _: () = assert!(limits::UPSTREAMS_MAX < 1 << 16);

/// Names and positions, as a frame carries them.
pub(crate) type Pairs = Vec<(String, u64)>;

/// Appends the upstream part with these pairs to `out`.
///
/// # Errors
///
/// [`Error::TooLarge`] over [`limits::UPSTREAM_TABLE_BYTES_MAX`]; [`Table::check`] keeps the table
/// below it.
pub(crate) fn put<'a>(
    out: &mut Vec<u8>,
    pairs: impl IntoIterator<Item = (&'a str, u64)>,
) -> Result<()> {
    let pairs: Vec<(&str, u64)> = pairs.into_iter().collect();
    let bytes =
        codec::encode(&pairs, limits::UPSTREAM_TABLE_BYTES_MAX).map_err(|_| Error::TooLarge {
            what: "upstream table",
            len: limits::UPSTREAM_TABLE_BYTES_MAX.saturating_add(1),
            max: limits::UPSTREAM_TABLE_BYTES_MAX,
        })?;
    out.extend_from_slice(&to_u32(bytes.len()).to_le_bytes());
    out.extend_from_slice(&bytes);
    Ok(())
}

/// Splits a data frame's payload into its upstream pairs (none in a frame without the flags) and
/// its records.
pub(crate) fn split(payload: &[u8], flags: u8) -> Result<(Pairs, &[u8]), RecordError> {
    let (part, records) = split_raw(payload, flags)?;
    let pairs = match part {
        None => Vec::new(),
        Some(part) => codec::decode(part, limits::UPSTREAM_TABLE_BYTES_MAX)?,
    };
    Ok((pairs, records))
}

/// As [`split`], for who wants the records only: the upstream part is skipped by its length.
pub(crate) fn skip(payload: &[u8], flags: u8) -> Result<&[u8], RecordError> {
    split_raw(payload, flags).map(|(_, records)| records)
}

fn split_raw(payload: &[u8], flags: u8) -> Result<(Option<&[u8]>, &[u8]), RecordError> {
    if flags & (FLAG_UPSTREAM | FLAG_TABLE) == 0 {
        return Ok((None, payload));
    }
    let cut = || RecordError::Body("upstream part is cut short".to_owned());
    let mut fields = Fields(payload);
    let len = fields.u32().ok_or_else(cut)?;
    let (part, records) = fields
        .0
        .split_at_checked(to_usize(len.into()))
        .ok_or_else(cut)?;
    Ok((Some(part), records))
}

/// Checks the name of an upstream.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::Empty { what: "upstream" });
    }
    bounded("upstream", name.len(), limits::UPSTREAM_BYTES_MAX)
}

/// The positions of all upstreams, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    positions: BTreeMap<String, u64>,
    /// An upper bound of the encoded pairs' length.
    bytes: usize,
}

impl Table {
    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.positions.get(name).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(crate) fn positions(&self) -> &BTreeMap<String, u64> {
        &self.positions
    }

    /// Checks that the table may take `name` and still be written at the head of a segment.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        if self.positions.contains_key(name) {
            return Ok(());
        }
        let count = self.positions.len().saturating_add(1);
        bounded("number of upstreams", count, limits::UPSTREAMS_MAX)?;
        let len = self.bytes.saturating_add(pair_len(name));
        bounded(
            "upstream table",
            len.saturating_add(COUNT_WIDTH_MAX),
            limits::UPSTREAM_TABLE_BYTES_MAX,
        )
    }

    /// Moves `name` to `position` if that is above where it stands; tells whether it did.
    pub(crate) fn advance(&mut self, name: &str, position: u64) -> bool {
        if let Some(stored) = self.positions.get_mut(name) {
            let above = position > *stored;
            *stored = position.max(*stored);
            return above;
        }
        self.bytes = self.bytes.saturating_add(pair_len(name));
        self.positions.insert(name.to_owned(), position);
        true
    }

    /// Appends the whole table, as the first frame of a segment carries it.
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let pairs = self.positions.iter();
        put(
            out,
            pairs.map(|(name, position)| (name.as_str(), *position)),
        )
    }
}

impl From<BTreeMap<String, u64>> for Table {
    fn from(positions: BTreeMap<String, u64>) -> Self {
        let bytes = positions.keys().map(|name| pair_len(name)).sum();
        Self { positions, bytes }
    }
}

const fn pair_len(name: &str) -> usize {
    name.len().saturating_add(PAIR_OVERHEAD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_part_has_the_bytes_of_the_header_of_this_file() {
        let mut bytes = Vec::new();
        put(&mut bytes, [("ab", 7), ("c", 300)]).unwrap();
        let by_hand = b"\x0a\0\0\0\x02\x02ab\x07\x01c\xfb\x2c\x01";
        assert_eq!(bytes, by_hand);
        bytes.extend_from_slice(b"records");
        for flags in [FLAG_UPSTREAM, FLAG_TABLE, FLAG_TABLE | 1] {
            let (pairs, rest) = split(&bytes, flags).unwrap();
            assert_eq!(pairs, [("ab".to_owned(), 7), ("c".to_owned(), 300)]);
            assert_eq!(rest, b"records");
            assert_eq!(skip(&bytes, flags).unwrap(), b"records");
        }
        assert_eq!(split(b"records", 1).unwrap(), (Vec::new(), &b"records"[..]));
    }

    #[test]
    fn every_cut_and_a_huge_length_are_errors() {
        let mut bytes = Vec::new();
        put(&mut bytes, [("ab", 7)]).unwrap();
        for cut in 0..bytes.len() {
            assert!(split(&bytes[..cut], FLAG_UPSTREAM).is_err(), "cut {cut}");
        }
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(split(&bytes, FLAG_UPSTREAM).is_err());
        // A length that holds, around a count of 2^40 pairs.
        let claims = b"\x09\0\0\0\xfd\0\0\0\0\0\x01\0\0";
        assert!(split(claims, FLAG_TABLE).is_err());
    }

    #[test]
    fn position_not_above_the_stored_one_is_not_taken() {
        let mut table = Table::default();
        assert!(table.advance("u", 0));
        assert!(!table.advance("u", 0));
        assert!(table.advance("u", 9));
        assert!(!table.advance("u", 8));
        assert_eq!(table.get("u"), Some(9));
        assert_eq!(table.get("v"), None);
    }

    #[test]
    fn table_at_its_limits_round_trips_and_one_more_is_refused() {
        // Many short names: the count is the limit. Few long ones: the bytes are.
        for (width, at_most) in [
            (8, limits::UPSTREAMS_MAX),
            (limits::UPSTREAM_BYTES_MAX, 254),
        ] {
            let mut table = Table::default();
            let mut taken = 0;
            loop {
                let name = format!("{taken:0width$}");
                if table.check(&name).is_err() {
                    break;
                }
                assert!(table.advance(&name, u64::MAX));
                taken += 1;
            }
            assert_eq!(taken, at_most);
            assert!(
                table.check(&format!("{:0width$}", 0)).is_ok(),
                "known ones go on"
            );
            let mut bytes = Vec::new();
            table.put(&mut bytes).unwrap();
            assert!(bytes.len() <= limits::UPSTREAM_TABLE_BYTES_MAX + 4);
            let (pairs, rest) = split(&bytes, FLAG_TABLE).unwrap();
            assert!(rest.is_empty());
            let back: BTreeMap<_, _> = pairs.into_iter().collect();
            assert_eq!(Table::from(back), table);
        }
    }
}
