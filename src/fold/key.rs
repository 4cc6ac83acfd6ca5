//! Everything the fold knows about one key: its row, the events that wait, the open dead letters.
//!
//! They live under one entry, so that judging an event costs one look-up, and so that the row and
//! what it blocks can never come apart.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::num::to_u64;
use crate::offset::Offset;

/// One row of the projection, its state still encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RawRow {
    /// The version of the last event that moved it, or what a fix or skip said.
    pub(crate) version: i64,
    /// The encoded state; `None` after a skipped first version.
    #[serde(with = "state_bytes")]
    pub(crate) state: Option<Vec<u8>>,
    /// The record that last moved it.
    pub(crate) moved_at: Offset,
}

/// States go through serde as one run of bytes, not as a sequence of numbers: the encoding is the
/// same, the speed is not.
mod state_bytes {
    use std::fmt;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};

    struct Borrowed<'a>(&'a [u8]);

    impl Serialize for Borrowed<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_bytes(self.0)
        }
    }

    struct Owned(Vec<u8>);

    impl<'de> Deserialize<'de> for Owned {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_byte_buf(Bytes)
        }
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Owned;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Owned, E> {
            Ok(Owned(bytes.to_vec()))
        }

        fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Owned, E> {
            Ok(Owned(bytes))
        }
    }

    #[expect(clippy::ref_option, reason = "serde gives the field as it is")]
    pub(super) fn serialize<S: Serializer>(
        state: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        state.as_deref().map(Borrowed).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let state = Option::<Owned>::deserialize(from)?;
        Ok(state.map(|Owned(bytes)| bytes))
    }
}

/// An event that came too early. Its content stays in the log, at `offset`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) offset: Offset,
    pub(crate) version: i64,
    pub(crate) id: String,
    /// Attempts since the event was first judged; a redrive does not reset it.
    pub(crate) attempts: u32,
    /// Attempts since the last fresh budget: what the budget looks at.
    pub(crate) spent: u32,
}

impl Waiting {
    fn place(&self) -> (i64, Offset) {
        (self.version, self.offset)
    }
}

/// The state of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyState {
    pub(crate) row: Option<RawRow>,
    /// Sorted by version, then offset. All are above the row's next version. Taken from the front
    /// when the row moves, one by one, however many wait behind: so not a `Vec`.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Version and offset of every open dead letter, sorted. Those the row has passed stay here:
    /// a fix may take the row back below them.
    pub(crate) open: Vec<(i64, Offset)>,
}

impl KeyState {
    /// The row's version; 0 for a key without a row.
    pub(crate) fn version(&self) -> i64 {
        self.row.as_ref().map_or(0, |row| row.version)
    }

    /// Nothing is known about the key: it needs no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.row.is_none() && self.waiting.is_empty() && self.open.is_empty()
    }

    /// The open dead letter with the lowest version above the row: what blocks the key until it is
    /// resolved.
    pub(crate) fn blocking_letter(&self) -> Option<(i64, Offset)> {
        let row = self.version();
        let passed = self.open.partition_point(|(version, _)| *version <= row);
        self.open.get(passed).copied()
    }

    /// The lowest known version above the row (waiting, or an open dead letter) with its offset.
    pub(crate) fn blocker(&self) -> Option<(i64, Offset)> {
        let row = self.version();
        let passed = self
            .waiting
            .partition_point(|waiting| waiting.version <= row);
        let waiting = self.waiting.get(passed).map(Waiting::place);
        match (waiting, self.blocking_letter()) {
            (Some(waiting), Some(letter)) => Some(waiting.min(letter)),
            (waiting, letter) => waiting.or(letter),
        }
    }

    /// Whether an event of `version` is held: a known event of the key sits in the gap before it.
    pub(crate) fn is_held(&self, version: i64) -> bool {
        self.blocker().is_some_and(|(known, _)| known < version)
    }

    /// How many of the waiting events are held.
    pub(crate) fn held(&self) -> u64 {
        let Some((known, _)) = self.blocker() else {
            return 0;
        };
        let free = self
            .waiting
            .partition_point(|waiting| waiting.version <= known);
        to_u64(self.waiting.len().saturating_sub(free))
    }

    /// The index of the waiting event with this id and version.
    pub(crate) fn find_waiting(&self, version: i64, id: &str) -> Option<usize> {
        let start = self
            .waiting
            .partition_point(|waiting| waiting.version < version);
        self.waiting
            .iter()
            .enumerate()
            .skip(start)
            .take_while(|(_, waiting)| waiting.version == version)
            .find(|(_, waiting)| waiting.id == id)
            .map(|(index, _)| index)
    }

    /// The index of the waiting event at `offset`, if it is one of those that wait unheld: these
    /// all have the lowest known version.
    pub(crate) fn find_unheld(&self, offset: Offset) -> Option<usize> {
        let (known, _) = self.blocker()?;
        let found = self
            .waiting
            .binary_search_by_key(&(known, offset), Waiting::place);
        found.ok()
    }

    /// Puts `waiting` in its place.
    pub(crate) fn add_waiting(&mut self, waiting: Waiting) {
        let index = self
            .waiting
            .partition_point(|other| other.place() < waiting.place());
        self.waiting.insert(index, waiting);
    }

    /// Notes an open dead letter.
    pub(crate) fn add_open(&mut self, version: i64, offset: Offset) {
        let index = self
            .open
            .partition_point(|other| *other < (version, offset));
        self.open.insert(index, (version, offset));
    }

    /// Forgets an open dead letter that was resolved.
    pub(crate) fn remove_open(&mut self, version: i64, offset: Offset) {
        if let Ok(index) = self.open.binary_search(&(version, offset)) {
            self.open.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    fn waiting(version: i64, offset: u64) -> Waiting {
        Waiting {
            offset: Offset::new(offset),
            version,
            id: format!("e{offset}"),
            attempts: 2,
            spent: 1,
        }
    }

    fn state(row: i64, waits: &[(i64, u64)], open: &[(i64, u64)]) -> KeyState {
        let mut state = KeyState {
            row: Some(RawRow {
                version: row,
                ..RawRow::default()
            }),
            ..KeyState::default()
        };
        for (version, offset) in waits {
            state.add_waiting(waiting(*version, *offset));
        }
        for (version, offset) in open {
            state.add_open(*version, Offset::new(*offset));
        }
        state
    }

    #[test]
    fn an_event_is_held_only_by_what_is_known_between_the_row_and_it() {
        let passed = state(5, &[], &[(2, 1), (5, 2)]);
        assert!(
            !passed.is_held(9),
            "letters the row has passed hold nothing"
        );
        let same = state(5, &[(7, 1), (7, 0)], &[]);
        assert!(!same.is_held(7), "its own version is not before it");
        assert!(same.is_held(8));
        assert_eq!(same.held(), 0);
        assert_eq!(same.find_unheld(Offset::new(1)), Some(1));
        let letter = state(5, &[(9, 3), (7, 4)], &[(7, 1), (8, 2)]);
        assert_eq!(letter.blocker(), Some((7, Offset::new(1))));
        assert_eq!(letter.held(), 1);
        assert_eq!(letter.find_unheld(Offset::new(4)), Some(0));
        assert_eq!(letter.find_unheld(Offset::new(3)), None);
        assert_eq!(KeyState::default().blocker(), None);
    }

    #[test]
    fn waiting_and_open_are_kept_in_order() {
        let state = state(
            0,
            &[(4, 1), (2, 9), (4, 0), (2, 3)],
            &[(3, 8), (3, 2), (1, 9)],
        );
        let order: Vec<_> = state.waiting.iter().map(|w| w.offset.get()).collect();
        assert_eq!(order, [3, 9, 0, 1]);
        let open: Vec<_> = state.open.iter().map(|(v, o)| (*v, o.get())).collect();
        assert_eq!(open, [(1, 9), (3, 2), (3, 8)]);
        assert_eq!(state.find_waiting(4, "e1"), Some(3));
        assert_eq!(state.find_waiting(2, "e1"), None);
    }

    #[test]
    fn bytes_of_a_key_are_pinned() {
        let mut state = state(3, &[(5, 300)], &[(-1, 7)]);
        state.row.as_mut().unwrap().state = Some(b"\x00\xff".to_vec());
        state.row.as_mut().unwrap().moved_at = Offset::new(251);
        let bytes: &[&[u8]] = &[
            // A row, version 3 (zigzag 6), with a state of two bytes, moved by record 251.
            &[1, 6, 1, 2, 0x00, 0xff, 251, 251, 0],
            // One event waits: offset 300, version 5, id, 2 attempts, 1 spent.
            &[1, 251, 0x2c, 0x01, 10, 4, b'e', b'3', b'0', b'0', 2, 1],
            // One open letter: version -1, offset 7.
            &[1, 1, 7],
        ];
        assert_eq!(codec::encode(&state, 100).unwrap(), bytes.concat());
        let back: KeyState = codec::decode(&bytes.concat(), 100).unwrap();
        assert_eq!(back, state);
    }
}
