//! Opening a log: from whatever files there are to a log that can be appended to, or to an error
//! that leaves them as they are.
//!
//! `survey.rs` lists the segments and checks that they join up, `scan.rs` reads the last one,
//! `plan.rs` holds the decision table, `repair.rs` and `quarantine.rs` carry out what it says,
//! `inspect.rs` is the same for readers, which change nothing. For a log that is refused
//! `damage.rs` tells what would be lost, and `accept.rs` goes on without it.
//!
//! Invariants:
//! - The table, row by row: `tests/recovery/table.rs`.
//! - No bit and no length of a damaged log gives other records:
//!   `every_bit_of_a_log_gives_its_records_an_error_or_a_reported_trim`.
//! - An error changes nothing: checked by every test that expects one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use self::survey::Survey;
use super::LogOptions;
use super::anchor::Anchor;
use super::catalog::{Catalog, Index};
use super::segment::{self, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::error::{Error, Result};
use crate::frame::Salt;
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage, StorageFile};

mod accept;
mod check;
mod damage;
mod inspect;
mod plan;
mod quarantine;
mod repair;
mod scan;
mod survey;

pub(crate) use self::accept::{accept, finish_pending, pending};
pub(crate) use self::check::check;
pub use self::damage::LostBytes;
pub(crate) use self::damage::{Damage, look};
pub(crate) use self::inspect::{Inspected, inspect};

/// What opening found, and what it did about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Recovery {
    /// There was no log; this opening made one.
    pub created: bool,
    /// A torn tail was cut off (in a read-only opening: found).
    pub trimmed: Option<Trimmed>,
    /// How many bytes of valid frames were not proven to be on disk, and were written again and
    /// synced before the opening returned.
    pub rewritten_bytes: u64,
    /// Files of an unfinished roll that were removed.
    pub discarded_files: Vec<String>,
    /// Files in the log's directory that are none of ours. Left alone.
    pub ignored_files: Vec<String>,
    /// The segment that an interrupted roll had prepared and this opening put in place.
    pub finished_roll: Option<String>,
    /// A repair that was accepted and interrupted, and that this opening finished: the offset from
    /// which records were given up.
    pub finished_repair: Option<Offset>,
    /// The records below it were proven to be on disk by what was on disk.
    pub proven_end: Offset,
    /// The end of the log.
    pub end: Offset,
    /// Anchors that could not be read: no evidence.
    pub unreadable_anchors: Vec<String>,
    /// Anchors of another log, or of an epoch before an accepted loss: no evidence.
    pub ignored_anchors: Vec<String>,
}

/// A torn tail: bytes behind the last whole record that no evidence calls acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Trimmed {
    /// The segment.
    pub file: String,
    /// The first byte that was cut.
    pub position: u64,
    /// How many bytes, up to the last that was not zero.
    pub bytes: u64,
    /// The offset that the next append gets.
    pub from: Offset,
    /// Offsets that may have been acknowledged: a whole damaged frame cannot be told from a torn
    /// one. At least these; `None` where the bytes are certainly torn.
    pub undecidable: Option<Range<Offset>>,
    /// Where the bytes are kept; empty for a read-only opening, which cuts nothing.
    pub quarantine: String,
}

/// Where the writer goes on.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The active segment, open for writing.
    pub(crate) file: Box<dyn StorageFile>,
    /// The name inside the store's directory.
    pub(crate) name: String,
    pub(crate) salt: Salt,
    /// Where the next frame goes. At [`super::segment::SEGMENT_HEADER_LEN`] the segment has no
    /// frame yet, so that the upstream table, if not empty, has to be written first.
    pub(crate) position: u64,
    pub(crate) end: Offset,
    /// Header CRC of the log's last data frame.
    pub(crate) chain: u32,
    /// The file is zeros from `position` up to here (a note aside).
    pub(crate) allocated: u64,
    pub(crate) records_in_segment: u64,
}

/// A log that is ready to be written to.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) log_id: u64,
    pub(crate) epoch: u32,
    pub(crate) catalog: Catalog,
    pub(crate) tail: Tail,
    pub(crate) upstreams: BTreeMap<String, u64>,
    pub(crate) report: Recovery,
}

/// Makes the log ready to be written to, or creates it. The caller holds the writer's lock.
///
/// # Errors
///
/// Those of the decision table (`plan.rs`), [`Error::TornTail`] in strict mode, and what the system
/// answers. Up to the first change they leave the directory as it was; an interrupted repair is
/// done again by the next call.
pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    options: &LogOptions,
    anchors: &[Anchor],
) -> Result<Recovered> {
    let finished = finish_pending(storage, options)?;
    let Some(mut plan) = plan::make(storage, anchors)? else {
        return create(storage, options);
    };
    plan.report.finished_repair = finished.map(|order| order.end);
    refuse_torn(&**storage, &plan, options)?;
    if let Some(torn) = plan.trimmed(String::new()) {
        // Said before it is done: an interrupted opening makes no report.
        tracing::warn!(?torn, "torn tail, to be kept aside and cut");
    }
    let tail = repair::carry_out(storage, &mut plan)?;
    plan.report.trace();
    let (log_id, epoch) = (plan.log_id(), plan.epoch());
    let place = plan.scan.place;
    Ok(Recovered {
        log_id,
        epoch,
        catalog: plan::catalog(storage, &plan.segments, plan.scan.index, place),
        tail,
        upstreams: plan.scan.upstreams,
        report: plan.report,
    })
}

/// Strict mode takes no torn tail.
fn refuse_torn(storage: &dyn Storage, plan: &plan::Plan, options: &LogOptions) -> Result<()> {
    match plan.trimmed(String::new()).filter(|_| options.strict) {
        None => Ok(()),
        Some(torn) => Err(Error::TornTail {
            file: storage.path(&torn.file),
            position: torn.position,
            bytes: torn.bytes,
            offset: torn.from,
        }),
    }
}

/// A new log: its first segment is made as every other is.
fn create(storage: &Arc<dyn Storage>, options: &LogOptions) -> Result<Recovered> {
    let fail = |op, error| Error::io(op, storage.path(segment::DIR), None, 0, error);
    let dirs = storage
        .create_dir("")
        .and_then(|()| storage.create_dir(segment::DIR));
    dirs.map_err(|error| fail("create directory", error))?;
    storage
        .sync_dir("")
        .map_err(|error| fail("sync directory", error))?;
    let survey = Survey::take(storage)?;
    let left_over = plan::discardable(storage, &survey.fresh)?;
    let discarded_files = repair::remove(&**storage, &left_over)?;
    let header = SegmentHeader {
        log_id: storage.random(),
        epoch: 0,
        salt: Salt(storage.random()),
        base: Offset::ZERO,
        chain: 0,
    };
    drop(segment::create(&**storage, &header, options.first_chunk())?);
    segment::publish(&**storage, header.base)?;
    let name = segment::path(header.base);
    let file = scan::open_file(&**storage, &name, OpenMode::Write)?;
    let report = Recovery {
        created: true,
        discarded_files,
        ignored_files: survey.ignored,
        ..Recovery::default()
    };
    report.trace();
    let place = scan::Place {
        position: SEGMENT_HEADER_LEN,
        offset: header.base,
        chain: 0,
    };
    Ok(Recovered {
        log_id: header.log_id,
        epoch: header.epoch,
        catalog: plan::catalog(storage, &[header], Index::new(true), place),
        tail: Tail {
            file,
            name,
            salt: header.salt,
            position: place.position,
            end: place.offset,
            chain: place.chain,
            allocated: options.first_chunk(),
            records_in_segment: 0,
        },
        upstreams: BTreeMap::new(),
        report,
    })
}

impl Recovery {
    /// Whether opening met nothing but a log as its writer left it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.trimmed.is_none()
            && self.discarded_files.is_empty()
            && self.ignored_files.is_empty()
            && self.finished_roll.is_none()
            && self.finished_repair.is_none()
            && self.unreadable_anchors.is_empty()
            && self.ignored_anchors.is_empty()
    }

    /// Each entry as an event.
    fn trace(&self) {
        if self.created {
            tracing::info!("new log");
        }
        if let Some(trimmed) = &self.trimmed {
            tracing::warn!(
                file = %trimmed.file,
                position = trimmed.position,
                bytes = trimmed.bytes,
                from = %trimmed.from,
                undecidable = ?trimmed.undecidable,
                quarantine = %trimmed.quarantine,
                "torn tail"
            );
        }
        if self.rewritten_bytes > 0 {
            tracing::info!(
                bytes = self.rewritten_bytes,
                "unproven tail written and synced"
            );
        }
        for file in &self.discarded_files {
            tracing::warn!(%file, "removed a file of an unfinished roll");
        }
        for file in &self.ignored_files {
            tracing::warn!(%file, "not a file of the log: left alone");
        }
        if let Some(file) = &self.finished_roll {
            tracing::warn!(%file, "finished an interrupted roll");
        }
        if let Some(from) = &self.finished_repair {
            tracing::warn!(%from, "finished an accepted repair");
        }
        for consumer in &self.ignored_anchors {
            tracing::warn!(%consumer, "anchor of another log or epoch: no evidence");
        }
        tracing::debug!(end = %self.end, proven_end = %self.proven_end, "log opened");
    }
}

#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;
