//! Anchors: small files in which a consumer, after each flush, says how far the log was durable.
//!
//! A consumer folds durable records only, so its checkpoint is evidence about the log that does not
//! come from the log. `state/<consumer>/ANCHOR` holds, all integers little endian:
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 8 | magic: `FOLDANCR` |
//! | 8 | 4 | version: 1 |
//! | 12 | 8 | log id |
//! | 20 | 4 | epoch of the log |
//! | 24 | 8 | checkpoint: all records below it were durable |
//! | 32 | 4 | header CRC of the frame that holds the record before the checkpoint; 0 for checkpoint 0 |
//! | 36 | 4 | length of the consumer's name |
//! | 40 | length | the consumer's name |
//! | … | 4 | CRC-32 of everything before |
//!
//! The name is inside, so that an anchor copied to another consumer's directory says nothing there.
//!
//! Invariants:
//! - An anchor that cannot be read is no evidence, and is named:
//!   `damaged_and_misplaced_anchors_are_named_and_prove_nothing`.
//! - An I/O error is not an unreadable anchor: `an_io_error_is_not_an_absent_anchor`.

use std::io;

use crate::error::{Error, Result};
use crate::frame::Fields;
use crate::limits;
use crate::num::{to_u32, to_usize};
use crate::offset::Offset;
use crate::storage::{Storage, read_small, replace_small};

const MAGIC: &[u8; 8] = b"FOLDANCR";
const VERSION: u32 = 1;
const STATE_DIR: &str = "state";
const FILE_NAME: &str = "ANCHOR";
const FIXED_LEN: usize = 8 + 4 + 8 + 4 + 8 + 4 + 4;
const CRC_WIDTH: usize = 4;
const LEN_MAX: usize = FIXED_LEN + limits::CONSUMER_BYTES_MAX + CRC_WIDTH;

/// What a consumer's flush left behind as evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) log_id: u64,
    pub(crate) epoch: u32,
    pub(crate) consumer: String,
    /// All records below it were durable when this was written.
    pub(crate) checkpoint: Offset,
    /// Header CRC of the frame that holds the record before `checkpoint`.
    pub(crate) frame_crc: u32,
}

enum AnchorAt {
    Valid(Anchor),
    Unknown { version: u32 },
    Bad,
}

impl Anchor {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEN_MAX);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.log_id.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.checkpoint.get().to_le_bytes());
        bytes.extend_from_slice(&self.frame_crc.to_le_bytes());
        bytes.extend_from_slice(&to_u32(self.consumer.len()).to_le_bytes());
        bytes.extend_from_slice(self.consumer.as_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> AnchorAt {
        Self::fields(bytes).unwrap_or(AnchorAt::Bad)
    }

    fn fields(bytes: &[u8]) -> Option<AnchorAt> {
        let (checked, crc) = bytes.split_last_chunk::<CRC_WIDTH>()?;
        if crc32fast::hash(checked) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut fields = Fields(checked.strip_prefix(MAGIC)?);
        let version = fields.u32()?;
        if version != VERSION {
            return Some(AnchorAt::Unknown { version });
        }
        let (log_id, epoch) = (fields.u64()?, fields.u32()?);
        let (checkpoint, frame_crc) = (Offset::new(fields.u64()?), fields.u32()?);
        let len = to_usize(fields.u32()?.into());
        let consumer = std::str::from_utf8(fields.0).ok()?;
        (len == consumer.len()).then(|| {
            AnchorAt::Valid(Self {
                log_id,
                epoch,
                consumer: consumer.to_owned(),
                checkpoint,
                frame_crc,
            })
        })
    }
}

fn dir_of(consumer: &str) -> String {
    format!("{STATE_DIR}/{consumer}")
}

/// Replaces the consumer's anchor, durably. The consumer's directory exists.
///
/// # Errors
///
/// As the system answers; the old anchor is still there, or the new one.
pub(crate) fn write(storage: &dyn Storage, anchor: &Anchor) -> Result<()> {
    replace_small(
        storage,
        &dir_of(&anchor.consumer),
        FILE_NAME,
        &anchor.encode(),
        true,
    )
}

/// All anchors, in order of consumer, and the files that are none though they stand where one
/// should.
///
/// # Errors
///
/// - As the system answers: an anchor that could not be read for now may be the one that counts.
/// - [`Error::UnsupportedFormat`]: a newer foldlog wrote one.
pub(crate) fn read_all(storage: &dyn Storage) -> Result<(Vec<Anchor>, Vec<String>)> {
    let entries = match storage.list(STATE_DIR) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            let path = storage.path(STATE_DIR);
            return Err(Error::io("list", path, None, 0, error));
        }
    };
    let dirs = entries.into_iter().filter(|entry| entry.is_dir);
    let mut consumers: Vec<String> = dirs.map(|entry| entry.name).collect();
    consumers.sort_unstable();
    let mut anchors = Vec::new();
    let mut unreadable = Vec::new();
    for consumer in consumers {
        let file = format!("{}/{FILE_NAME}", dir_of(&consumer));
        match read(storage, &consumer, &file)? {
            None => {}
            Some(AnchorAt::Valid(anchor)) if anchor.consumer == consumer => anchors.push(anchor),
            Some(AnchorAt::Valid(_) | AnchorAt::Bad) => {
                tracing::warn!(%file, "anchor is damaged or not this consumer's: no evidence");
                unreadable.push(file);
            }
            Some(AnchorAt::Unknown { version }) => {
                return Err(Error::UnsupportedFormat {
                    file: storage.path(&file),
                    what: "anchor",
                    found: version.into(),
                    supported: VERSION.into(),
                });
            }
        }
    }
    Ok((anchors, unreadable))
}

fn read(storage: &dyn Storage, consumer: &str, file: &str) -> Result<Option<AnchorAt>> {
    // Longer than any anchor: not one, and not worth its memory.
    let listed = storage.list(&dir_of(consumer));
    let listed = listed.map_err(|error| Error::io("list", storage.path(file), None, 0, error))?;
    let Some(entry) = listed.iter().find(|entry| entry.name == FILE_NAME) else {
        return Ok(None);
    };
    if entry.is_dir || to_usize(entry.len) > LEN_MAX {
        return Ok(Some(AnchorAt::Bad));
    }
    let bytes = read_small(storage, file, LEN_MAX)?;
    Ok(bytes.map(|bytes| Anchor::decode(&bytes)))
}

#[cfg(test)]
#[cfg(feature = "sim")]
mod tests {
    use super::*;
    use crate::storage::sim::{CallKind, Fault, Filter, Repeat, SimDisk};

    fn anchor(consumer: &str) -> Anchor {
        Anchor {
            log_id: 0x0102_0304_0506_0708,
            epoch: 2,
            consumer: consumer.to_owned(),
            checkpoint: Offset::new(0x1112),
            frame_crc: 0x2122_2324,
        }
    }

    fn put(disk: &SimDisk, consumer: &str, bytes: &[u8]) {
        disk.write_file(&format!("state/{consumer}/ANCHOR"), bytes)
            .unwrap();
    }

    #[test]
    fn anchor_bytes_are_as_the_table_says() {
        let mut expected = b"FOLDANCR\x01\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
        expected.extend_from_slice(b"\x02\0\0\0\x12\x11\0\0\0\0\0\0\x24\x23\x22\x21");
        expected.extend_from_slice(b"\x06\0\0\0orders");
        let crc = crc32fast::hash(&expected);
        expected.extend_from_slice(&crc.to_le_bytes());
        let disk = SimDisk::new();
        disk.create_dir("state/orders").unwrap();
        write(&disk, &anchor("orders")).unwrap();
        assert_eq!(disk.read_file("state/orders/ANCHOR").unwrap(), expected);
        let (anchors, unreadable) = read_all(&disk).unwrap();
        assert_eq!((anchors, unreadable.len()), (vec![anchor("orders")], 0));
    }

    #[test]
    fn damaged_and_misplaced_anchors_are_named_and_prove_nothing() {
        let disk = SimDisk::new();
        assert_eq!(read_all(&disk).unwrap(), (vec![], vec![]));
        let good = anchor("good").encode();
        put(&disk, "good", &good);
        put(&disk, "copied", &good);
        put(&disk, "long", &vec![0; 100_000]);
        put(&disk, "short", &good[..20]);
        put(&disk, "empty", b"");
        disk.create_dir("state/none/1").unwrap();
        disk.create_dir("state/dir/ANCHOR").unwrap();
        disk.write_file("state/file", b"x").unwrap();
        let (anchors, unreadable) = read_all(&disk).unwrap();
        assert_eq!(anchors, [anchor("good")]);
        let names = ["copied", "dir", "empty", "long", "short"];
        assert_eq!(unreadable, names.map(|name| format!("state/{name}/ANCHOR")));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            put(&disk, "good", &bad);
            assert_eq!(read_all(&disk).unwrap().0, [], "{bit}");
        }
    }

    #[test]
    fn a_newer_anchor_is_not_an_absent_one() {
        let mut bytes = anchor("c").encode();
        bytes[8] = 2;
        let len = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..len]);
        bytes[len..].copy_from_slice(&crc.to_le_bytes());
        let disk = SimDisk::new();
        put(&disk, "c", &bytes);
        let answer = read_all(&disk);
        assert!(matches!(
            answer,
            Err(Error::UnsupportedFormat { found: 2, .. })
        ));
    }

    #[test]
    fn an_io_error_is_not_an_absent_anchor() {
        let disk = SimDisk::new();
        put(&disk, "c", &anchor("c").encode());
        for kind in [
            CallKind::List,
            CallKind::Open,
            CallKind::Len,
            CallKind::Read,
        ] {
            disk.fail(Filter::kinds(&[kind]), 1, Fault::Io, Repeat::Once);
            assert!(matches!(read_all(&disk), Err(Error::Io { .. })), "{kind:?}");
        }
        assert_eq!(read_all(&disk).unwrap().0.len(), 1);
    }
}
