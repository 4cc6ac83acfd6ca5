//! Carries a plan out: the only code that changes a log at open. Each step can be interrupted and
//! is then done again by the next open.
//!
//! In order, and what a crash after each step leaves:
//! 1. Remove left-over `.seg.new` files, sync the directory. A log without them.
//! 2. An interrupted roll: write the unproven tail of the sealed segment again, seal included,
//!    sync; rename the `.seg.new`, sync the directory. The roll is done.
//! 3. Copy the torn tail to quarantine, synced. The same tail, and its copy.
//! 4. Write the unproven tail of the last segment again, cut the file at the end of its data, sync
//!    file and directory. The bytes that are written are those that stand there, so any mix of old
//!    and new is the same log; the cut may come back, and then so does step 3, which finds its
//!    copy.
//! 5. A note behind the data, unsynced: what step 4 synced need not be doubted again.
//!
//! Nothing here makes a file longer: in a sector that no sync has covered a crash may leave what
//! the disk held before, and that would look like another torn tail.

use std::sync::Arc;

use super::super::segment::{self, SEGMENT_HEADER_LEN, SegmentName};
use super::plan::Plan;
use super::scan::{self, Opened, Stop};
use super::{Tail, quarantine};
use crate::error::{Error, Result};
use crate::frame::{self, FrameKind, Header};
use crate::num::to_u64;
use crate::storage::{OpenMode, Storage, StorageFile, write_full};

/// Carries the plan out and opens the last segment for writing. Fills in the plan's report.
pub(super) fn carry_out(storage: &Arc<dyn Storage>, plan: &mut Plan) -> Result<Tail> {
    discard(&**storage, plan)?;
    finish_roll(storage, plan)?;
    let kept = match &plan.torn {
        Some(torn) => Some(quarantine::keep(storage, &plan.last, torn)?),
        None => None,
    };
    let name = plan.last.name.to_path();
    let file = scan::open_file(&**storage, &name, OpenMode::Write)?;
    let fail = |op, error| Error::io(op, storage.path(&name), None, 0, error);
    let place = plan.scan.place;
    let unproven = place.position.saturating_sub(plan.scan.proven);
    rewrite(
        storage,
        &plan.last,
        &*file,
        plan.scan.proven,
        place.position,
    )?;
    if kept.is_some() {
        file.set_len(place.position)
            .map_err(|error| fail("truncate", error))?;
        plan.last.len = place.position;
    }
    if unproven > 0 || kept.is_some() {
        file.sync().map_err(|error| fail("sync", error))?;
    }
    // Always: the name of a segment without frames may not be on disk yet.
    segment::sync_log_dir(&**storage)?;
    let has_note = plan.scan.stop == Stop::Note && kept.is_none();
    if !has_note && place.position > SEGMENT_HEADER_LEN {
        write_note(&**storage, plan, &*file);
    }
    plan.report.rewritten_bytes = plan.report.rewritten_bytes.saturating_add(unproven);
    plan.report.trimmed = kept.and_then(|kept| plan.trimmed(kept));
    Ok(Tail {
        name,
        salt: plan.last.header.salt,
        position: place.position,
        end: place.offset,
        chain: place.chain,
        allocated: plan.last.len.max(place.position),
        records_in_segment: place.offset.since(plan.last.header.base),
        file,
    })
}

/// Step 1.
fn discard(storage: &dyn Storage, plan: &mut Plan) -> Result<()> {
    let names = std::mem::take(&mut plan.discard);
    plan.report.discarded_files = remove(storage, &names)?;
    Ok(())
}

/// Removes left-over files, durably; answers their names.
pub(super) fn remove(storage: &dyn Storage, names: &[SegmentName]) -> Result<Vec<String>> {
    for name in names {
        let path = name.to_path();
        storage
            .remove(&path)
            .map_err(|error| Error::io("remove", storage.path(&path), None, 0, error))?;
    }
    if !names.is_empty() {
        segment::sync_log_dir(storage)?;
    }
    Ok(names.iter().map(|name| name.to_path()).collect())
}

/// Step 2.
fn finish_roll(storage: &Arc<dyn Storage>, plan: &mut Plan) -> Result<()> {
    let Some((sealed, scan, end)) = &plan.roll else {
        return Ok(());
    };
    let name = sealed.name.to_path();
    let file = scan::open_file(&**storage, &name, OpenMode::Write)?;
    rewrite(storage, sealed, &*file, scan.proven, *end)?;
    file.sync()
        .map_err(|error| Error::io("sync", storage.path(&name), None, 0, error))?;
    let unproven = end.saturating_sub(scan.proven);
    plan.report.rewritten_bytes = plan.report.rewritten_bytes.saturating_add(unproven);
    let base = plan.last.header.base;
    segment::publish(&**storage, base)?;
    plan.last.name = SegmentName::live(base);
    plan.report.finished_roll = Some(plan.last.name.to_path());
    Ok(())
}

/// Writes the bytes of `from..to` over themselves: a failed sync leaves bytes that can be read and
/// that no later sync would bring to disk.
pub(super) fn rewrite(
    storage: &Arc<dyn Storage>,
    segment: &Opened,
    file: &dyn StorageFile,
    from: u64,
    to: u64,
) -> Result<()> {
    let mut window = segment.window(storage, to);
    let path = storage.path(&segment.name.to_path());
    quarantine::for_each_chunk(&mut window, from, |bytes, position| {
        let len = to_u64(bytes.len());
        write_full(file, bytes, position)
            .map_err(|error| Error::io("write", path.clone(), Some(position), len, error))
    })
}

/// Step 5. Only evidence: a note that has no room or cannot be written is none.
fn write_note(storage: &dyn Storage, plan: &Plan, file: &dyn StorageFile) {
    let header = Header {
        payload_len: 0,
        first: plan.scan.place.offset,
        count: 0,
        unproven: 0,
        recorded_at_ms: storage.now_ms(),
        kind: FrameKind::Note,
        flags: 0,
        payload_crc: 0,
    };
    let position = plan.scan.place.position;
    let (bytes, _) = frame::encode(header, &[], plan.last.header.salt.at(position));
    let end = position.saturating_add(to_u64(bytes.len()));
    if end > plan.last.len {
        return;
    }
    if let Err(error) = write_full(file, &bytes, position) {
        tracing::warn!(file = %plan.last.name.to_path(), %error, "could not write a note");
    }
}
