//! One log file: its name, its header, and how it comes into being.
//!
//! A segment file is a header, then frames (`frame.rs`) one behind the other, then zeros that are
//! written ahead. The header, 64 bytes, all integers little endian:
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 8 | magic: `FOLDLOG` and a zero byte |
//! | 8 | 4 | version of the segment format: 1 |
//! | 12 | 4 | epoch of the log: 0, and one more after each accepted loss |
//! | 16 | 8 | log id, a random number |
//! | 24 | 8 | salt, a random number mixed into both checksums of every frame |
//! | 32 | 8 | base: the offset of the segment's first record |
//! | 40 | 4 | chain: header CRC of the last data frame before this segment; 0 if there is none |
//! | 44 | 16 | zeros |
//! | 60 | 4 | CRC-32 of bytes 0..60 |
//!
//! A header is valid if and only if magic and CRC hold and the version is known. Magic, version and
//! CRC stay where they are in every later format, so that *newer* is never taken for *damaged*.
//!
//! Invariants:
//! - A name and its base are the same thing: `names_round_trip_and_nothing_else_parses`.
//! - No single damaged bit of a header passes: `every_flipped_bit_of_a_header_is_noticed`.

use crate::error::{Error, Result};
use crate::frame::{Fields, Salt};
use crate::num::{to_u64, to_usize};
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage, StorageFile, write_full};

/// The directory of the segments, inside the store's.
pub(crate) const DIR: &str = "log";
/// Length of a segment's header, and the position of the first frame.
pub(crate) const SEGMENT_HEADER_LEN: u64 = 64;

const MAGIC: &[u8; 8] = b"FOLDLOG\0";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 64;
const CHECKED_LEN: usize = HEADER_LEN - 4;
/// Zeros are written in pieces of this size.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

const _: () = assert!(HEADER_LEN == 8 + 4 + 4 + 8 + 8 + 8 + 4 + 16 + 4);
const _: () = assert!(SEGMENT_HEADER_LEN == 64 && HEADER_LEN == 64);

/// The name of a segment file: 20 digits of base offset, `.seg`, and `.new` until it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    pub(crate) base: Offset,
    /// Whether the file is still under construction (`.seg.new`).
    pub(crate) fresh: bool,
}

impl SegmentName {
    /// The name of the published segment that starts at `base`.
    pub(crate) const fn live(base: Offset) -> Self {
        Self { base, fresh: false }
    }

    /// The name of a segment under construction.
    pub(crate) const fn fresh(base: Offset) -> Self {
        Self { base, fresh: true }
    }

    /// The name inside the log's directory.
    pub(crate) fn to_file_name(self) -> String {
        let new = if self.fresh { ".new" } else { "" };
        format!("{:020}.seg{new}", self.base.get())
    }

    /// The name inside the store's directory.
    pub(crate) fn to_path(self) -> String {
        format!("{DIR}/{}", self.to_file_name())
    }

    /// The exact opposite of [`Self::to_file_name`]; any other name is not ours.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (digits, rest) = name.split_at_checked(20)?;
        let fresh = match rest {
            ".seg" => false,
            ".seg.new" => true,
            _ => return None,
        };
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let base = Offset::new(digits.parse().ok()?);
        Some(Self { base, fresh })
    }
}

/// The name of a published segment inside the store's directory.
pub(crate) fn path(base: Offset) -> String {
    SegmentName::live(base).to_path()
}

/// The name of a segment under construction inside the store's directory.
pub(crate) fn path_new(base: Offset) -> String {
    SegmentName::fresh(base).to_path()
}

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: u64,
    pub(crate) epoch: u32,
    pub(crate) salt: Salt,
    pub(crate) base: Offset,
    pub(crate) chain: u32,
}

/// What the first bytes of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentHeaderAt {
    Valid(SegmentHeader),
    /// Magic and checksum hold, the version is another.
    Unknown {
        version: u32,
    },
    /// Not a header, or a damaged one.
    Bad,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.log_id.to_le_bytes());
        bytes.extend_from_slice(&self.salt.0.to_le_bytes());
        bytes.extend_from_slice(&self.base.get().to_le_bytes());
        bytes.extend_from_slice(&self.chain.to_le_bytes());
        bytes.resize(CHECKED_LEN, 0);
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.try_into().unwrap_or([0; HEADER_LEN])
    }

    pub(crate) fn decode(bytes: &[u8]) -> SegmentHeaderAt {
        Self::fields(bytes).unwrap_or(SegmentHeaderAt::Bad)
    }

    fn fields(bytes: &[u8]) -> Option<SegmentHeaderAt> {
        let (head, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let (checked, crc) = head.split_at(CHECKED_LEN);
        let fields = checked.strip_prefix(MAGIC)?;
        if Fields(crc).u32()? != crc32fast::hash(checked) {
            return None;
        }
        let mut fields = Fields(fields);
        let version = fields.u32()?;
        if version != VERSION {
            return Some(SegmentHeaderAt::Unknown { version });
        }
        Some(SegmentHeaderAt::Valid(Self {
            epoch: fields.u32()?,
            log_id: fields.u64()?,
            salt: Salt(fields.u64()?),
            base: Offset::new(fields.u64()?),
            chain: fields.u32()?,
        }))
    }

    /// The newest version of the segment format that this build reads.
    pub(crate) const fn supported() -> u64 {
        1
    }
}

const _: () = assert!(VERSION == 1 && SegmentHeader::supported() == 1);

/// Writes the segment's `.seg.new`: header and zeros up to `allocate` bytes in all, file and
/// directory synced. It becomes part of the log by [`publish`].
///
/// # Errors
///
/// As the system answers. Nothing that counts was changed; a half-made file is removed where that
/// is possible, and discarded by the next recovery where it is not.
pub(crate) fn create(
    storage: &dyn Storage,
    header: &SegmentHeader,
    allocate: u64,
) -> Result<Box<dyn StorageFile>> {
    let name = path_new(header.base);
    let made = fill(storage, &name, header, allocate);
    if made.is_err()
        && let Err(error) = storage.remove(&name)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(file = %name, %error, "a half-made segment could not be removed");
    }
    made
}

fn fill(
    storage: &dyn Storage,
    name: &str,
    header: &SegmentHeader,
    allocate: u64,
) -> Result<Box<dyn StorageFile>> {
    let fail = |op, source| Error::io(op, storage.path(name), None, allocate, source);
    let file = storage
        .open(name, OpenMode::Create)
        .map_err(|error| fail("create", error))?;
    write_full(&*file, &header.encode(), 0).map_err(|error| fail("write", error))?;
    write_zeros(&*file, SEGMENT_HEADER_LEN, allocate).map_err(|error| fail("write", error))?;
    file.sync().map_err(|error| fail("sync", error))?;
    sync_log_dir(storage)?;
    Ok(file)
}

/// Writes zeros over the positions `from..to` of a file.
pub(crate) fn write_zeros(file: &dyn StorageFile, from: u64, to: u64) -> std::io::Result<()> {
    let mut position = from;
    while position < to {
        let len = to.saturating_sub(position).min(to_u64(ZEROS.len()));
        let zeros = ZEROS.get(..to_usize(len)).unwrap_or(&ZEROS);
        write_full(file, zeros, position)?;
        position = position.saturating_add(to_u64(zeros.len()));
    }
    Ok(())
}

/// Gives the segment its final name, durably. Everything before `base` is synced and sealed by
/// then; the first frame is written after this returns.
pub(crate) fn publish(storage: &dyn Storage, base: Offset) -> Result<()> {
    let from = path_new(base);
    storage
        .rename(&from, &path(base))
        .map_err(|error| Error::io("rename", storage.path(&from), None, 0, error))?;
    sync_log_dir(storage)
}

/// Makes creations and renames in the log's directory durable.
pub(crate) fn sync_log_dir(storage: &dyn Storage) -> Result<()> {
    storage
        .sync_dir(DIR)
        .map_err(|error| Error::io("sync directory", storage.path(DIR), None, 0, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            log_id: 0x0102_0304_0506_0708,
            epoch: 3,
            salt: Salt(0x1112_1314_1516_1718),
            base: Offset::new(0x2122),
            chain: 0x3132_3334,
        }
    }

    #[test]
    fn names_round_trip_and_nothing_else_parses() {
        for base in [0, 7, u64::MAX] {
            for name in [
                SegmentName::live(Offset::new(base)),
                SegmentName::fresh(Offset::new(base)),
            ] {
                assert_eq!(SegmentName::parse(&name.to_file_name()), Some(name));
            }
        }
        assert_eq!(
            SegmentName::live(Offset::new(12)).to_path(),
            "log/00000000000000000012.seg"
        );
        for foreign in [
            "",
            "12.seg",
            "00000000000000000012.seg.old",
            "00000000000000000012.SEG",
            "+0000000000000000012.seg",
            "99999999999999999999.seg",
            "0000000000000000001é.seg",
            "00000000000000000012.seg ",
        ] {
            assert_eq!(SegmentName::parse(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn header_bytes_are_as_the_table_says() {
        let mut expected = Vec::new();
        expected.extend_from_slice(b"FOLDLOG\0\x01\0\0\0\x03\0\0\0");
        expected.extend_from_slice(b"\x08\x07\x06\x05\x04\x03\x02\x01");
        expected.extend_from_slice(b"\x18\x17\x16\x15\x14\x13\x12\x11");
        expected.extend_from_slice(b"\x22\x21\0\0\0\0\0\0\x34\x33\x32\x31");
        expected.extend_from_slice(b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let crc = crc32fast::hash(&expected);
        expected.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(header().encode()[..], expected[..]);
        assert_eq!(
            SegmentHeader::decode(&expected),
            SegmentHeaderAt::Valid(header())
        );
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = header().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bad), SegmentHeaderAt::Bad, "{bit}");
        }
        assert_eq!(SegmentHeader::decode(&bytes[..63]), SegmentHeaderAt::Bad);
        assert_eq!(SegmentHeader::decode(&[0; 64]), SegmentHeaderAt::Bad);
    }

    #[test]
    fn a_newer_header_is_newer_and_not_damaged() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            SegmentHeader::decode(&bytes),
            SegmentHeaderAt::Unknown { version: 2 }
        );
    }
}
