//! Key space `m`: what the state was folded from, and how far.
//!
//! | part | bytes |
//! |---|---|
//! | key of [`Global`] | `mg` |
//! | key of a [`PartitionMeta`] | `mp`, partition (4, big endian) |
//! | values | version 1, bincode of the fields in the order of the struct |
//!
//! Nothing here is optional: a store with entries but without all of its meta is damaged, never "at
//! the end" or "new" (a missing checkpoint must lead to a fold from 0).

use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::fold::overlay::{Changes, Totals};
use crate::num::{to_u32, to_usize};
use crate::offset::Offset;
use crate::state::{Change, StateError, StateStore, letters, rows, value, waiting};

const GLOBAL_KEY: &[u8] = b"mg";
const PARTITION_PREFIX: &[u8] = b"mp";
const WHAT: &str = "meta";
/// The format of a whole state store: which key spaces there are and how they hang together.
pub(crate) const STATE_FORMAT: u32 = 1;
/// Most partitions of a consumer: each costs a meta entry and, while it runs, a thread.
pub(crate) const PARTITIONS_MAX: u32 = 4096;

/// What a state store is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Global {
    /// [`STATE_FORMAT`] of the build that wrote it.
    pub(crate) format: u32,
    /// The log that was folded.
    pub(crate) log_id: u64,
    /// The log's epoch.
    pub(crate) epoch: u32,
    /// `StateMachine::REVISION`.
    pub(crate) revision: u32,
    /// How many partitions there are; each has its own [`PartitionMeta`].
    pub(crate) partitions: u32,
}

/// How far a partition is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartitionMeta {
    /// The first offset not yet folded.
    pub(crate) checkpoint: Offset,
    /// Header CRC of the frame that holds the record before the checkpoint; 0 at checkpoint 0.
    pub(crate) frame_crc: u32,
    /// The retry budget in force there.
    pub(crate) budget: u32,
    /// Counters, and digest of the partition's keys.
    pub(crate) totals: Totals,
}

/// All meta of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) global: Global,
    /// As many as `global.partitions`, in order.
    pub(crate) partitions: Vec<PartitionMeta>,
}

impl Meta {
    /// Counters and digest of all partitions together.
    pub(crate) fn totals(&self) -> Totals {
        self.partitions
            .iter()
            .fold(Totals::default(), |sum, part| Totals {
                counters: sum.counters.merge(part.totals.counters),
                digest: sum.digest.plus(part.totals.digest),
            })
    }

    /// The consumer's checkpoint: the lowest of its partitions.
    pub(crate) fn checkpoint(&self) -> Offset {
        self.partitions
            .iter()
            .map(|part| part.checkpoint)
            .min()
            .unwrap_or(Offset::ZERO)
    }
}

#[expect(
    clippy::big_endian_bytes,
    reason = "the state store orders keys by their bytes"
)]
fn partition_key(partition: u32) -> Vec<u8> {
    let mut key = PARTITION_PREFIX.to_vec();
    key.extend_from_slice(&partition.to_be_bytes());
    key
}

/// Reads all meta; `None` if the store has no entry at all.
///
/// # Errors
///
/// [`StateError::Format`] for another [`STATE_FORMAT`]; [`StateError::Damaged`] if a part is
/// missing, of a partition that should not be there, or not readable.
pub(crate) fn read(store: &dyn StateStore) -> Result<Option<Meta>, StateError> {
    let Some(bytes) = store.get(GLOBAL_KEY)? else {
        if store.scan(Bound::Unbounded, b"", 1)?.is_empty() {
            return Ok(None);
        }
        return Err(value::damaged(WHAT, "entries without meta".to_owned()));
    };
    let global: Global = value::decode(WHAT, &bytes)?;
    if global.format != STATE_FORMAT {
        return Err(StateError::Format {
            what: "state",
            found: u64::from(global.format),
            supported: u64::from(STATE_FORMAT),
        });
    }
    if global.partitions == 0 || global.partitions > PARTITIONS_MAX {
        return Err(value::damaged(WHAT, "impossible partitions".to_owned()));
    }
    let count = to_usize(u64::from(global.partitions));
    let found = store.scan(Bound::Unbounded, PARTITION_PREFIX, count.saturating_add(1))?;
    let in_order = found.len() == count
        && (0_u32..)
            .zip(&found)
            .all(|(partition, (key, _))| *key == partition_key(partition));
    if !in_order {
        return Err(value::damaged(
            WHAT,
            "a partition's meta is missing".to_owned(),
        ));
    }
    let partitions = found
        .iter()
        .map(|(_, bytes)| value::decode(WHAT, bytes))
        .collect::<Result<_, _>>()?;
    Ok(Some(Meta { global, partitions }))
}

/// The entries that replace all meta of a store that has had `old_partitions` (0 for a fresh one).
/// To be applied in one batch, with a flush of all partitions at the same checkpoint.
pub(crate) fn encode_all(meta: &Meta, old_partitions: u32) -> Result<Vec<Change>, StateError> {
    let mut batch = vec![(
        GLOBAL_KEY.to_vec(),
        Some(value::encode(WHAT, &meta.global)?),
    )];
    for (partition, part) in (0_u32..).zip(&meta.partitions) {
        batch.push(encode_partition(partition, part)?);
    }
    let kept = to_u32(meta.partitions.len());
    batch.extend((kept..old_partitions).map(|gone| (partition_key(gone), None)));
    Ok(batch)
}

fn encode_partition(partition: u32, meta: &PartitionMeta) -> Result<Change, StateError> {
    Ok((partition_key(partition), Some(value::encode(WHAT, meta)?)))
}

/// One flush of one partition as one batch in the order of keys: what changed, and the meta that
/// makes it count.
pub(crate) fn encode_flush(
    partition: u32,
    changes: &Changes<'_>,
    meta: &PartitionMeta,
) -> Result<Vec<Change>, StateError> {
    let entries = changes
        .keys
        .len()
        .saturating_add(changes.letters.len())
        .saturating_add(changes.waiting.len())
        .saturating_add(1);
    let mut batch = Vec::with_capacity(entries);
    for (key, state) in &changes.keys {
        batch.push((rows::key_of(key), state.map(rows::encode).transpose()?));
    }
    for letter in &changes.letters {
        batch.push((
            letters::key_of(letter.offset),
            Some(letters::encode(letter)?),
        ));
    }
    batch.push(encode_partition(partition, meta)?);
    for (offset, key) in &changes.waiting {
        batch.push((waiting::key_of(*offset), key.map(waiting::encode)));
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by hand: version, format 1, log id 300 (251: two bytes follow), epoch 2, revision 3,
    /// 64 partitions.
    const GLOBAL: [u8; 8] = [1, 1, 251, 0x2c, 0x01, 2, 3, 64];
    /// Version, checkpoint 70,000 (252: four bytes follow), frame CRC 0x01020304, budget 3, the 15
    /// counters 1 to 15, and the digest 2^64 (254: sixteen bytes follow).
    const PARTITION: [u8; 44] = [
        1, 252, 0x70, 0x11, 1, 0, 252, 4, 3, 2, 1, 3, // the first four fields
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, // counters
        254, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // digest
    ];

    #[test]
    fn the_bytes_of_meta_are_these() {
        let global = Global {
            format: 1,
            log_id: 300,
            epoch: 2,
            revision: 3,
            partitions: 64,
        };
        assert_eq!(value::encode(WHAT, &global).unwrap(), GLOBAL);
        let part: PartitionMeta = value::decode(WHAT, &PARTITION).unwrap();
        assert_eq!(part.checkpoint, Offset::new(70_000));
        assert_eq!((part.frame_crc, part.budget), (0x0102_0304, 3));
        assert_eq!(part.totals.counters.events, 1);
        assert_eq!(part.totals.counters.decisions, 15);
        assert_eq!(
            part.totals.digest.to_string(),
            "00000000000000010000000000000000"
        );
        assert_eq!(value::encode(WHAT, &part).unwrap(), PARTITION);
        assert_eq!(partition_key(258), b"mp\0\0\x01\x02");
        let keys: Vec<_> = [0, 1, 255, 256, 4095].map(partition_key).to_vec();
        assert!(keys.is_sorted());
    }
}
