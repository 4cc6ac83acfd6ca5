//! Carries out an accepted loss: ends the log where its good part ends, and starts a new epoch
//! behind it.
//!
//! In order, and what a crash after each step leaves:
//! 1. Everything that goes is copied to the quarantine, synced. The log as it was, still refused.
//! 2. The good part of the last good segment is written over itself where nothing proves it
//!    synced, and synced. The same.
//! 3. `log/REPAIR` is written, durably: what is to be done, in full. From here on the loss counts
//!    as accepted: a writing open does the rest before anything else, a reading one says so.
//! 4. Files that go are removed; the last good segment is cut and sealed; the new segment, with the
//!    next epoch in its header, is made and named. All of it can be done again from the start.
//! 5. `log/REPAIR` is removed, durably.
//!
//! `log/REPAIR`, 65 bytes, integers little endian:
//!
//! | position | width | field |
//! |---|---|---|
//! | 0 | 8 | `FOLDREPR` |
//! | 8 | 4 | format: 1 |
//! | 12 | 8 | log id |
//! | 20 | 4 | the new epoch |
//! | 24 | 8 | salt of the new segment |
//! | 32 | 8 | the offset where the log ends, base of the new segment |
//! | 40 | 4 | chain of the new segment |
//! | 44 | 1 | the last good segment: 0 there is none, 1 stays, 2 is cut, 3 is replaced by the new one |
//! | 45 | 8 | its base |
//! | 53 | 8 | the position where its good part ends |
//! | 61 | 4 | CRC-32 of the bytes before |
//!
//! Invariants:
//! - A crash at any call leaves a store that is refused as before or repaired, with whole copies:
//!   `accepted_loss_survives_a_crash_at_every_call`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::super::LogOptions;
use super::super::segment::{
    self, SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderAt, SegmentName,
};
use super::super::upstream::Table;
use super::damage::{Damage, Keep};
use super::{quarantine, repair, scan, survey};
use crate::error::{Error, Result};
use crate::frame::{self, FLAG_TABLE, Fields, FrameKind, Header, Salt, Seal};
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage, StorageFile, read_small, replace_small, write_full};

const NAME: &str = "REPAIR";
const MAGIC: &[u8; 8] = b"FOLDREPR";
const FORMAT: u32 = 1;
const LEN: usize = 65;
const CRC_WIDTH: usize = 4;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    log_id: u64,
    pub(crate) epoch: u32,
    salt: Salt,
    /// Where the log ends and the new segment begins.
    pub(crate) end: Offset,
    chain: u32,
    keep: Keep,
}

impl Order {
    fn encode(&self) -> Vec<u8> {
        let (what, base, position) = match self.keep {
            Keep::Nothing => (0, Offset::ZERO, 0),
            Keep::Whole(base) => (1, base, 0),
            Keep::Cut(base, position) => (2, base, position),
            Keep::Replace(base, position) => (3, base, position),
        };
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.log_id.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.salt.0.to_le_bytes());
        bytes.extend_from_slice(&self.end.get().to_le_bytes());
        bytes.extend_from_slice(&self.chain.to_le_bytes());
        bytes.push(what);
        bytes.extend_from_slice(&base.get().to_le_bytes());
        bytes.extend_from_slice(&position.to_le_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The order, or the format of one that this build does not know; `None` for anything else.
    fn decode(bytes: &[u8]) -> Option<Result<Self, u32>> {
        let (checked, crc) = bytes.split_last_chunk::<CRC_WIDTH>()?;
        if crc32fast::hash(checked) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut fields = Fields(checked.strip_prefix(MAGIC)?);
        let format = fields.u32()?;
        if format != FORMAT {
            return Some(Err(format));
        }
        let (log_id, epoch, salt) = (fields.u64()?, fields.u32()?, Salt(fields.u64()?));
        let (end, chain) = (Offset::new(fields.u64()?), fields.u32()?);
        let (what, base) = (fields.u8()?, Offset::new(fields.u64()?));
        let position = fields.u64()?;
        let keep = match what {
            0 => Keep::Nothing,
            1 => Keep::Whole(base),
            2 => Keep::Cut(base, position),
            3 => Keep::Replace(base, position),
            _ => return None,
        };
        fields.0.is_empty().then_some(Ok(Self {
            log_id,
            epoch,
            salt,
            end,
            chain,
            keep,
        }))
    }
}

/// The repair that was accepted and is not finished, if there is one.
///
/// # Errors
///
/// [`Error::Corrupt`] for an order that cannot be read; [`Error::UnsupportedFormat`]; what the
/// system answers.
pub(crate) fn pending(storage: &dyn Storage) -> Result<Option<Order>> {
    let name = format!("{}/{NAME}", segment::DIR);
    let corrupt = || Error::Corrupt {
        file: storage.path(&name),
        position: 0,
        offset: Offset::ZERO,
        reason: "this is not what an accepted repair leaves here".to_owned(),
    };
    let bytes = match read_small(storage, &name, LEN) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
            return Err(corrupt());
        }
        Err(error) => return Err(error),
    };
    match Order::decode(&bytes) {
        Some(Ok(order)) => Ok(Some(order)),
        Some(Err(format)) => Err(Error::UnsupportedFormat {
            file: storage.path(&name),
            what: "repair",
            found: format.into(),
            supported: FORMAT.into(),
        }),
        None => Err(corrupt()),
    }
}

/// Refuses a log whose repair is not finished, for those who may not finish it.
pub(super) fn refuse_pending(storage: &dyn Storage) -> Result<()> {
    match pending(storage)? {
        None => Ok(()),
        Some(order) => Err(Error::RepairUnfinished {
            path: storage.path(""),
            offset: order.end,
        }),
    }
}

/// Steps 1 to 5. Answers the names of the copies in `dir`. The caller holds the writer's lock.
///
/// # Errors
///
/// What the system answers. Up to step 3 the log is as it was; after it, opening for writing goes
/// on.
pub(crate) fn accept(
    storage: &Arc<dyn Storage>,
    options: &LogOptions,
    damage: &Damage,
    (epoch, dir): (u32, &str),
) -> Result<Vec<String>> {
    let lost = damage.cut.iter().chain(&damage.dropped);
    let needed = lost.fold(0_u64, |sum, lost| sum.saturating_add(lost.bytes));
    let mut kept = Vec::new();
    for (at, lost) in damage.cut.iter().chain(&damage.dropped).enumerate() {
        if at == 0 {
            quarantine::make_dir(storage, quarantine::DIR, needed)?;
            quarantine::make_dir(storage, dir, needed)?;
        }
        kept.push(quarantine::keep_file(storage, dir, &lost.file)?);
    }
    settle(storage, damage)?;
    let fail = |op, error| Error::io(op, storage.path(segment::DIR), None, 0, error);
    storage
        .create_dir(segment::DIR)
        .map_err(|error| fail("create directory", error))?;
    storage
        .sync_dir("")
        .map_err(|error| fail("sync directory", error))?;
    let order = Order {
        log_id: damage.log_id.unwrap_or_else(|| storage.random()),
        epoch,
        salt: Salt(storage.random()),
        end: damage.end,
        chain: damage.chain,
        keep: damage.keep,
    };
    replace_small(&**storage, segment::DIR, NAME, &order.encode(), true)?;
    finish(storage, options, &order)?;
    Ok(kept)
}

/// Step 2: what is about to be sealed must be on disk, also where a failed sync left it in memory
/// only.
fn settle(storage: &Arc<dyn Storage>, damage: &Damage) -> Result<()> {
    let Some((segment, synced, good)) = &damage.last else {
        return Ok(());
    };
    let name = segment.name.to_path();
    let file = scan::open_file(&**storage, &name, OpenMode::Write)?;
    repair::rewrite(storage, segment, &*file, *synced, *good)?;
    file.sync()
        .map_err(|error| Error::io("sync", storage.path(&name), None, 0, error))?;
    segment::sync_log_dir(&**storage)
}

/// Does the rest of an accepted repair, if there is one; answers it.
///
/// # Errors
///
/// What the system answers; the next call goes on.
pub(crate) fn finish_pending(
    storage: &Arc<dyn Storage>,
    options: &LogOptions,
) -> Result<Option<Order>> {
    let order = pending(&**storage)?;
    if let Some(order) = &order {
        tracing::warn!(end = %order.end, epoch = order.epoch, "finishing an accepted repair");
        finish(storage, options, order)?;
    }
    Ok(order)
}

/// Steps 4 and 5.
fn finish(storage: &Arc<dyn Storage>, options: &LogOptions, order: &Order) -> Result<()> {
    let done = remove_dropped(storage, order)?;
    if let Keep::Cut(base, position) = order.keep {
        cut(storage, order, base, position)?;
    }
    if !done {
        let header = SegmentHeader {
            log_id: order.log_id,
            epoch: order.epoch,
            salt: order.salt,
            base: order.end,
            chain: order.chain,
        };
        let table = table(storage, order)?;
        let file = segment::create(&**storage, &header, options.first_chunk())?;
        write_table(storage, &header, &*file, table)?;
        segment::publish(&**storage, header.base)?;
    }
    segment::sync_log_dir(&**storage)?;
    let name = format!("{}/{NAME}", segment::DIR);
    storage
        .remove(&name)
        .map_err(|error| Error::io("remove", storage.path(&name), None, 0, error))?;
    segment::sync_log_dir(&**storage)
}

/// Removes what the order does not keep; answers whether the new segment stands there already.
fn remove_dropped(storage: &Arc<dyn Storage>, order: &Order) -> Result<bool> {
    let last = match order.keep {
        Keep::Nothing => None,
        Keep::Whole(base) | Keep::Cut(base, _) | Keep::Replace(base, _) => Some(base),
    };
    let mut done = false;
    let mut names = Vec::new();
    for entry in survey::list(&**storage)? {
        let name = SegmentName::parse(&entry.name).filter(|_| !entry.is_dir);
        let Some(name) = name else { continue };
        if !name.fresh && is_new(storage, order, name)? {
            done = true;
        } else if name.fresh || last.is_none_or(|last| name.base > last) {
            names.push(name);
        }
    }
    names.sort_unstable();
    repair::remove(&**storage, &names)?;
    Ok(done)
}

/// Whether this is the segment that the order makes.
fn is_new(storage: &Arc<dyn Storage>, order: &Order, name: SegmentName) -> Result<bool> {
    if name.base != order.end {
        return Ok(false);
    }
    let (_, _, header) = survey::open_header(storage, name)?;
    Ok(match header {
        SegmentHeaderAt::Valid(header) => header.epoch == order.epoch && header.salt == order.salt,
        SegmentHeaderAt::Unknown { .. } | SegmentHeaderAt::Bad => false,
    })
}

/// Ends the last good segment behind its last good frame, with a seal.
fn cut(storage: &Arc<dyn Storage>, order: &Order, base: Offset, position: u64) -> Result<()> {
    let segment = survey::open_segment(storage, SegmentName::live(base))?;
    let name = segment.name.to_path();
    let seal = Seal {
        end: order.end,
        records: order.end.since(base),
        chain: order.chain,
    };
    let header = Header {
        payload_len: 0,
        first: order.end,
        count: 0,
        unproven: 0,
        recorded_at_ms: storage.now_ms(),
        kind: FrameKind::Seal,
        flags: 0,
        payload_crc: 0,
    };
    let salt = segment.header.salt.at(position);
    let (bytes, _) = frame::encode(header, &seal.encode(), salt);
    let file = scan::open_file(&**storage, &name, OpenMode::Write)?;
    let fail = |op, error| Error::io(op, storage.path(&name), Some(position), 0, error);
    file.set_len(position)
        .map_err(|error| fail("truncate", error))?;
    write_full(&*file, &bytes, position).map_err(|error| fail("write", error))?;
    file.sync().map_err(|error| fail("sync", error))
}

/// Where the upstreams stand, if the segment that is replaced is the only one that says so.
fn table(storage: &Arc<dyn Storage>, order: &Order) -> Result<BTreeMap<String, u64>> {
    let Keep::Replace(base, position) = order.keep else {
        return Ok(BTreeMap::new());
    };
    let segment = survey::open_segment(storage, SegmentName::live(base))?;
    let mut window = segment.window(storage, position);
    let first = segment.first();
    let scan = scan::scan(&mut window, &segment.header, first, BTreeMap::new())?;
    Ok(scan.upstreams)
}

fn write_table(
    storage: &Arc<dyn Storage>,
    segment: &SegmentHeader,
    file: &dyn StorageFile,
    positions: BTreeMap<String, u64>,
) -> Result<()> {
    let table = Table::from(positions);
    if table.is_empty() {
        return Ok(());
    }
    let mut payload = Vec::new();
    table.put(&mut payload)?;
    let header = Header {
        payload_len: 0,
        first: segment.base,
        count: 0,
        unproven: 0,
        recorded_at_ms: storage.now_ms(),
        kind: FrameKind::Data,
        flags: FLAG_TABLE,
        payload_crc: 0,
    };
    let (bytes, _) = frame::encode(header, &payload, segment.salt.at(SEGMENT_HEADER_LEN));
    let name = SegmentName::fresh(segment.base).to_path();
    let fail = |op, error| Error::io(op, storage.path(&name), None, 0, error);
    write_full(file, &bytes, SEGMENT_HEADER_LEN).map_err(|error| fail("write", error))?;
    file.sync().map_err(|error| fail("sync", error))
}
