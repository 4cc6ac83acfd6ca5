//! What files there are in the log's directory, and whether the segments among them join up:
//! headers, seals, bases and chain of all of them. Writes nothing.
//!
//! Invariants:
//! - A hole, an overlap or a segment of another log is an error that names it:
//!   `missing_foreign_and_renamed_segments_are_refused`.
//! - The header counts, never the name: `a_renamed_segment_is_refused`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::super::reader::{CHUNK_MAX, Window};
use super::super::segment::{
    self, SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderAt, SegmentName,
};
use super::scan::{self, Opened, Place, Stop};
use crate::error::{Error, Result};
use crate::frame::{self, FrameAt, FrameKind, HEADER_LEN, HeaderAt, SEAL_LEN, Seal};
use crate::limits;
use crate::num::{to_u64, to_usize};
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage};

/// No segment file is longer than this: one frame that starts below the largest roll size, and a
/// seal. Longer ones are not ours to read to the end.
const FILE_LEN_MAX: u64 = limits::SEGMENT_BYTES_MAX + (1 << 27);
/// The first step of the search for a seal, backwards from the end of the file.
const BACK_STEP_MIN: usize = 4 * 1024;

const _: () = assert!(limits::FRAME_BYTES_MAX + HEADER_LEN + 2 * SEAL_LEN < 1 << 27);

/// The files of a log.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The published segments in ascending order; all but the last are sealed and join up.
    pub(super) segments: Vec<SegmentHeader>,
    /// The last of them.
    pub(super) last: Option<Opened>,
    /// Segments under construction.
    pub(super) fresh: Vec<Fresh>,
    /// Names that are none of ours.
    pub(super) ignored: Vec<String>,
}

/// A `.seg.new`.
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) name: SegmentName,
    /// Open, if its header is valid and fits its name.
    pub(super) opened: Option<Opened>,
    /// Whether a frame stands in it, which no roll and no crash leaves behind.
    pub(super) has_frame: bool,
}

impl Survey {
    /// Looks at everything but the content of the last segment.
    pub(super) fn take(storage: &Arc<dyn Storage>) -> Result<Self> {
        let mut survey = Self::default();
        let mut names = Vec::new();
        for entry in list(&**storage)? {
            match SegmentName::parse(&entry.name).filter(|_| !entry.is_dir) {
                Some(name) if name.fresh => survey.fresh.push(look_at_fresh(storage, name)?),
                Some(name) => names.push(name),
                None => survey.ignored.push(entry.name),
            }
        }
        names.sort_unstable();
        survey.fresh.sort_unstable_by_key(|fresh| fresh.name);
        survey.ignored.sort_unstable();
        for name in names {
            let next = open_segment(storage, name)?;
            match survey.last.take() {
                None => check_first(storage, &next)?,
                Some(before) => check_joint(storage, &before, &next)?,
            }
            survey.segments.push(next.header);
            survey.last = Some(next);
        }
        Ok(survey)
    }
}

pub(super) fn list(storage: &dyn Storage) -> Result<Vec<crate::storage::DirEntry>> {
    match storage.list(segment::DIR) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => {
            listed.map_err(|error| Error::io("list", storage.path(segment::DIR), None, 0, error))
        }
    }
}

fn corrupt(
    storage: &dyn Storage,
    name: SegmentName,
    (position, offset): (u64, Offset),
    reason: impl Into<String>,
) -> Error {
    Error::Corrupt {
        file: storage.path(&name.to_path()),
        position,
        offset,
        reason: reason.into(),
    }
}

/// Opens a file and decodes its header, whatever it is.
pub(super) fn open_header(
    storage: &Arc<dyn Storage>,
    name: SegmentName,
) -> Result<(Arc<dyn crate::storage::StorageFile>, u64, SegmentHeaderAt)> {
    let path = name.to_path();
    let file: Arc<_> = Arc::from(scan::open_file(&**storage, &path, OpenMode::Read)?);
    let mut window = Window::new(storage, path, Arc::clone(&file), SEGMENT_HEADER_LEN);
    let len = file.len().map_err(|error| window.io("stat", 0, error))?;
    let header = SegmentHeader::decode(window.at(0, to_usize(SEGMENT_HEADER_LEN))?);
    Ok((file, len, header))
}

fn unsupported(storage: &dyn Storage, name: SegmentName, version: u32) -> Error {
    Error::UnsupportedFormat {
        file: storage.path(&name.to_path()),
        what: "segment",
        found: version.into(),
        supported: SegmentHeader::supported(),
    }
}

/// Opens a published segment. It was synced before it got its name, so whatever is wrong with its
/// header is corruption.
pub(super) fn open_segment(storage: &Arc<dyn Storage>, name: SegmentName) -> Result<Opened> {
    let (file, len, header) = open_header(storage, name)?;
    let at = (0, name.base);
    let header = match header {
        SegmentHeaderAt::Valid(header) => header,
        SegmentHeaderAt::Unknown { version } => {
            return Err(unsupported(&**storage, name, version));
        }
        SegmentHeaderAt::Bad => {
            let reason = "the segment's header is damaged";
            return Err(corrupt(&**storage, name, at, reason));
        }
    };
    if header.base != name.base {
        let reason = format!(
            "by its header this is the segment of offset {}",
            header.base
        );
        return Err(corrupt(&**storage, name, at, reason));
    }
    if len > FILE_LEN_MAX {
        let reason = format!("no segment is longer than {FILE_LEN_MAX} bytes");
        return Err(corrupt(&**storage, name, (FILE_LEN_MAX, name.base), reason));
    }
    Ok(Opened {
        name,
        header,
        file,
        len,
    })
}

pub(super) fn look_at_fresh(storage: &Arc<dyn Storage>, name: SegmentName) -> Result<Fresh> {
    let (file, len, header) = open_header(storage, name)?;
    let header = match header {
        SegmentHeaderAt::Valid(header) if header.base == name.base => header,
        SegmentHeaderAt::Unknown { version } => {
            return Err(unsupported(&**storage, name, version));
        }
        SegmentHeaderAt::Valid(_) | SegmentHeaderAt::Bad => {
            return Ok(Fresh {
                name,
                opened: None,
                has_frame: false,
            });
        }
    };
    let opened = Opened {
        name,
        header,
        file,
        len,
    };
    let limit = SEGMENT_HEADER_LEN.saturating_add(to_u64(HEADER_LEN));
    let mut window = opened.window(storage, limit);
    let head = window.at(SEGMENT_HEADER_LEN, HEADER_LEN)?;
    let has_frame = match frame::decode_header(head, header.salt.at(SEGMENT_HEADER_LEN)) {
        HeaderAt::Valid(..) | HeaderAt::Unknown { .. } => true,
        HeaderAt::Short | HeaderAt::Bad => false,
    };
    Ok(Fresh {
        name,
        opened: Some(opened),
        has_frame,
    })
}

pub(super) fn check_first(storage: &Arc<dyn Storage>, first: &Opened) -> Result<()> {
    if first.header.base != Offset::ZERO {
        return Err(Error::MissingSegment {
            before: "the start".to_owned(),
            after: first.name.to_file_name(),
            from: Offset::ZERO,
            to: first.header.base,
        });
    }
    if first.header.chain != 0 {
        let reason = "the first segment names a frame before it";
        return Err(corrupt(&**storage, first.name, (40, Offset::ZERO), reason));
    }
    Ok(())
}

/// Checks that `before` is sealed and `next` goes on from it.
fn check_joint(storage: &Arc<dyn Storage>, before: &Opened, next: &Opened) -> Result<()> {
    let Some(seal) = find_seal(storage, before)? else {
        return Err(not_sealed(storage, before, next)?);
    };
    if seal.end < next.header.base {
        return Err(Error::MissingSegment {
            before: before.name.to_file_name(),
            after: next.name.to_file_name(),
            from: seal.end,
            to: next.header.base,
        });
    }
    check_follows(storage, (&before.header, &seal), next)
}

/// Checks that `next` is the segment that was created when `before` was sealed.
pub(super) fn check_follows(
    storage: &Arc<dyn Storage>,
    (before, seal): (&SegmentHeader, &Seal),
    next: &Opened,
) -> Result<()> {
    let header = &next.header;
    let fail = |position, reason: String| {
        Err(corrupt(&**storage, next.name, (position, seal.end), reason))
    };
    if header.log_id != before.log_id {
        return fail(16, "this segment is of another log".to_owned());
    }
    if header.base != seal.end {
        return fail(32, format!("the segment before ends at {}", seal.end));
    }
    // A seal of a segment without data frames may leave the chain to its own segment's header.
    if header.chain != seal.chain && !(seal.chain == 0 && header.chain == before.chain) {
        let reason = "this segment was created behind other records than stand before it";
        return fail(40, reason.to_owned());
    }
    if header.epoch < before.epoch {
        return fail(
            12,
            "this segment is of an earlier epoch than the one before".to_owned(),
        );
    }
    Ok(())
}

/// Why a segment that is not the last has no seal at its end.
fn not_sealed(storage: &Arc<dyn Storage>, before: &Opened, next: &Opened) -> Result<Error> {
    let mut window = before.window(storage, u64::MAX);
    let scan = scan::scan(&mut window, &before.header, before.first(), BTreeMap::new())?;
    let Place {
        mut position,
        offset,
        ..
    } = scan.place;
    if let Stop::Sealed(_, end) = scan.stop {
        position = end;
    }
    let after = next.name.to_file_name();
    let reason = format!(
        "{} before the segment's seal, and {after} follows (offset {})",
        scan.stop.reason(),
        next.header.base
    );
    Ok(window.corrupt(position, offset, reason))
}

/// The seal at the end of a segment, found backwards from the end of the file; `None` if something
/// else stands there, or nothing.
pub(super) fn find_seal(storage: &Arc<dyn Storage>, segment: &Opened) -> Result<Option<Seal>> {
    let mut window = segment.window(storage, segment.len);
    let Some(end) = data_end(&mut window, segment.len)? else {
        return Ok(None);
    };
    // The seal's last bytes may be zeros, so its start is known within its length only.
    let seal_len = to_u64(SEAL_LEN);
    let lowest = end.saturating_sub(seal_len).max(SEGMENT_HEADER_LEN);
    let bytes = window.at(lowest, SEAL_LEN.saturating_mul(2))?;
    for (position, skip) in (lowest..).zip(0..SEAL_LEN) {
        let bytes = bytes.get(skip..).unwrap_or_default();
        let salt = segment.header.salt.at(position);
        if let FrameAt::Valid(header, _, payload) = frame::decode(bytes, salt)
            && header.kind == FrameKind::Seal
        {
            let base = segment.header.base;
            return Ok(Seal::decode(payload)
                .filter(|seal| seal.end == header.first && seal.records == seal.end.since(base)));
        }
    }
    Ok(None)
}

/// The position after the last byte behind the segment's header that is not zero.
pub(super) fn data_end(window: &mut Window, len: u64) -> Result<Option<u64>> {
    let mut step = BACK_STEP_MIN;
    let mut end = len;
    while end > SEGMENT_HEADER_LEN {
        let start = end.saturating_sub(to_u64(step)).max(SEGMENT_HEADER_LEN);
        let want = to_usize(end.saturating_sub(start));
        let bytes = window.at(start, want)?;
        let bytes = bytes.get(..want).unwrap_or(bytes);
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            return Ok(Some(start.saturating_add(to_u64(last)).saturating_add(1)));
        }
        end = start;
        step = step.saturating_mul(4).min(CHUNK_MAX);
    }
    Ok(None)
}
