//! The decision table: what the end of the log is, and what has to be done about it. Reads, and
//! writes nothing; an error leaves the directory as it was.
//!
//! The place P is where the data of the last segment ends, X the offset expected there, and N the
//! position behind the note, where a note stands at P (else P). The first row that fits wins:
//!
//! | situation | verdict |
//! |---|---|
//! | a read failed | that error |
//! | a checksum holds over what this build does not know, at P or behind it | [`Error::UnsupportedFormat`] |
//! | a valid header at P of another offset, or a valid frame that makes no sense | [`Error::Corrupt`] |
//! | not the last segment, and no seal ends it (`survey.rs`) | [`Error::Corrupt`] |
//! | proof that the bytes at P were synced: a later frame header, a seal, a note; a `.seg.new` of a base above X | [`Error::Corrupt`] |
//! | an anchor of this log and epoch has a checkpoint above X | [`Error::Corrupt`]; with nothing but zeros from P on [`Error::LogShorterThanAnchor`] |
//! | only zeros from N on | clean |
//! | anything else | torn: cut at P, with a copy in quarantine |
//!
//! A torn tail is *undecidable* where a header that was damaged afterwards would look the same: at
//! P something that is not zeros and not a header, or a whole frame with a bad payload. A note at
//! P, or zeros in the place of a header, mean that no frame there was ever synced; a frame that the
//! file is too short for is not a whole one, and neither is one of which nothing but (a part of)
//! its header is there: a payload never starts with a zero.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::super::anchor::Anchor;
use super::super::catalog::{Catalog, Index, Segment};
use super::super::reader;
use super::super::segment::{SegmentHeader, SegmentName};
use super::scan::{self, Opened, Place, Rest, Scan, Stop};
use super::survey::{self, Survey};
use super::{Recovery, Trimmed};
use crate::error::{Error, Result};
use crate::frame::{FrameKind, HEADER_LEN};
use crate::num::to_u64;
use crate::offset::Offset;
use crate::storage::Storage;

/// What the log is, and what is to be done.
#[derive(Debug)]
pub(super) struct Plan {
    /// All segments in order, the one of `roll` last.
    pub(super) segments: Vec<SegmentHeader>,
    /// The sealed segment whose roll was interrupted: the last of the log is a `.seg.new`.
    pub(super) roll: Option<(Opened, Scan, u64)>,
    /// The segment that takes the next frame.
    pub(super) last: Opened,
    pub(super) scan: Scan,
    pub(super) torn: Option<Torn>,
    /// `.seg.new` files that are left over.
    pub(super) discard: Vec<SegmentName>,
    pub(super) report: Recovery,
}

/// Bytes to be cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Torn {
    pub(super) bytes: Range<u64>,
    pub(super) undecidable: Option<Range<Offset>>,
}

impl Plan {
    /// What the report says about the torn tail.
    pub(super) fn trimmed(&self, quarantine: String) -> Option<Trimmed> {
        let torn = self.torn.as_ref()?;
        Some(Trimmed {
            file: self.last.name.to_path(),
            position: torn.bytes.start,
            bytes: torn.bytes.end.saturating_sub(torn.bytes.start),
            from: self.scan.place.offset,
            undecidable: torn.undecidable.clone(),
            quarantine,
        })
    }

    pub(super) fn log_id(&self) -> u64 {
        self.last.header.log_id
    }

    pub(super) fn epoch(&self) -> u32 {
        self.last.header.epoch
    }
}

/// Looks at the whole log. `None` if there is none: no segment at all.
pub(super) fn make(storage: &Arc<dyn Storage>, anchors: &[Anchor]) -> Result<Option<Plan>> {
    let mut survey = Survey::take(storage)?;
    let Some(last) = survey.last.take() else {
        refuse_lost_log(storage, &survey, anchors)?;
        return Ok(None);
    };
    let mut plan = Plan {
        scan: scan_all(storage, &last)?,
        last,
        segments: survey.segments,
        roll: None,
        torn: None,
        discard: Vec::new(),
        report: Recovery {
            ignored_files: survey.ignored,
            ..Recovery::default()
        },
    };
    if let Stop::Sealed(seal, end) = plan.scan.stop {
        follow_roll(storage, &mut plan, &mut survey.fresh, (seal, end))?;
    }
    let (log_id, epoch) = (plan.log_id(), plan.epoch());
    let fresh_base = survey.fresh.iter().filter_map(|fresh| {
        let header = fresh.opened.as_ref()?.header;
        (header.log_id == log_id).then_some((header.base, fresh.name))
    });
    let witnesses = Witnesses {
        fresh: fresh_base.max(),
        anchor: sort_anchors(anchors, (log_id, epoch), &mut plan.report),
    };
    judge(storage, &mut plan, &witnesses)?;
    plan.discard = discardable(storage, &survey.fresh)?;
    if plan.scan.frames == 0 {
        plan.scan.upstreams = upstreams_before(storage, &plan.segments)?;
    }
    plan.report.end = plan.scan.place.offset;
    plan.report.proven_end =
        proven_place(storage, &plan.last, plan.scan.proven, plan.scan.place)?.offset;
    let catalog = catalog(storage, &plan.segments, Index::new(false), plan.scan.place);
    check_anchors(&catalog, anchors, (log_id, epoch))?;
    Ok(Some(plan))
}

pub(super) fn scan_all(storage: &Arc<dyn Storage>, segment: &Opened) -> Result<Scan> {
    let mut window = segment.window(storage, segment.len);
    let first = segment.first();
    scan::scan(&mut window, &segment.header, first, BTreeMap::new())
}

/// No segment: a new log, unless something proves that there was one.
fn refuse_lost_log(storage: &Arc<dyn Storage>, survey: &Survey, anchors: &[Anchor]) -> Result<()> {
    let opened = survey
        .fresh
        .iter()
        .filter_map(|fresh| fresh.opened.as_ref());
    if let Some(fresh) = opened.max_by_key(|opened| opened.header.base)
        && fresh.header.base > Offset::ZERO
    {
        return Err(Error::MissingSegment {
            before: "the start".to_owned(),
            after: fresh.name.to_file_name(),
            from: Offset::ZERO,
            to: fresh.header.base,
        });
    }
    if let Some(anchor) = anchors.iter().max_by_key(|anchor| anchor.checkpoint)
        && anchor.checkpoint > Offset::ZERO
    {
        return Err(shorter_than(anchor, Offset::ZERO));
    }
    discardable(storage, &survey.fresh).map(|_| ())
}

/// The names of left-over `.seg.new` files.
pub(super) fn discardable(
    storage: &Arc<dyn Storage>,
    fresh: &[survey::Fresh],
) -> Result<Vec<SegmentName>> {
    for fresh in fresh {
        refuse_frames(storage, fresh)?;
    }
    Ok(fresh.iter().map(|fresh| fresh.name).collect())
}

/// A segment gets its name before its first frame. One that lost its name later may hold
/// acknowledged records: no left-over, and nothing to go on with in silence, because readers would
/// not see them.
fn refuse_frames(storage: &Arc<dyn Storage>, fresh: &survey::Fresh) -> Result<()> {
    if !fresh.has_frame {
        return Ok(());
    }
    Err(Error::Corrupt {
        file: storage.path(&fresh.name.to_path()),
        position: super::super::segment::SEGMENT_HEADER_LEN,
        offset: fresh.name.base,
        reason: "frames stand in a segment that is not part of the log".to_owned(),
    })
}

/// The last `.seg` is sealed: the roll was interrupted, and its `.seg.new` becomes the last
/// segment.
fn follow_roll(
    storage: &Arc<dyn Storage>,
    plan: &mut Plan,
    fresh: &mut Vec<survey::Fresh>,
    (seal, end): (crate::frame::Seal, u64),
) -> Result<()> {
    let sealed = &plan.last;
    let mut window = sealed.window(storage, sealed.len);
    let place = Place {
        position: end,
        ..plan.scan.place
    };
    let rest = scan::rest(&mut window, sealed.header.salt, place, end)?;
    if rest.nonzero_end.is_some() {
        return Err(window.corrupt(end, seal.end, plan.scan.stop.reason()));
    }
    let Some(at) = fresh.iter().position(|fresh| fresh.name.base == seal.end) else {
        return Err(Error::MissingSegment {
            before: sealed.name.to_file_name(),
            after: "the end".to_owned(),
            from: seal.end,
            to: seal.end,
        });
    };
    let fresh = fresh.remove(at);
    refuse_frames(storage, &fresh)?;
    let Some(next) = fresh.opened else {
        // It was synced before the seal was written.
        return Err(Error::Corrupt {
            file: storage.path(&fresh.name.to_path()),
            position: 0,
            offset: seal.end,
            reason: "the segment's header is damaged".to_owned(),
        });
    };
    survey::check_follows(storage, (&sealed.header, &seal), &next)?;
    let scan = scan_all(storage, &next)?;
    if let Stop::Sealed(..) = scan.stop {
        let window = next.window(storage, 0);
        let reason = "a segment that was never part of the log is sealed";
        return Err(window.corrupt(scan.place.position, scan.place.offset, reason));
    }
    plan.segments.push(next.header);
    let sealed = std::mem::replace(&mut plan.last, next);
    let sealed_scan = std::mem::replace(&mut plan.scan, scan);
    plan.roll = Some((sealed, sealed_scan, end));
    Ok(())
}

/// What outside the last segment may prove that its records were durable.
#[derive(Debug)]
struct Witnesses<'a> {
    /// The highest base of a `.seg.new` of this log: written only after everything before it was
    /// synced.
    fresh: Option<(Offset, SegmentName)>,
    /// The anchor with the highest checkpoint.
    anchor: Option<&'a Anchor>,
}

fn judge(storage: &Arc<dyn Storage>, plan: &mut Plan, witnesses: &Witnesses<'_>) -> Result<()> {
    let place = plan.scan.place;
    let note_len = to_u64(HEADER_LEN);
    let from = match plan.scan.stop {
        Stop::Note => place.position.saturating_add(note_len),
        Stop::Blank
        | Stop::Sealed(..)
        | Stop::Short
        | Stop::BadHeader
        | Stop::BadPayload(_)
        | Stop::Incomplete(_) => place.position,
    };
    let mut window = plan.last.window(storage, plan.last.len);
    let rest = scan::rest(&mut window, plan.last.header.salt, place, from)?;
    let corrupt = |proof: String| {
        let reason = format!("{}, but {proof}", plan.scan.stop.reason());
        Err(window.corrupt(place.position, place.offset, reason))
    };
    if let Some(at) = rest.proof {
        return corrupt(format!(
            "the frame at byte {at} proves that more was synced"
        ));
    }
    if let Some((base, name)) = witnesses.fresh
        && base > place.offset
    {
        let name = name.to_file_name();
        return corrupt(format!(
            "{name} proves that the records below {base} were synced"
        ));
    }
    if let Some(anchor) = witnesses.anchor
        && anchor.checkpoint > place.offset
    {
        if rest.nonzero_end.is_none() {
            return Err(shorter_than(anchor, place.offset));
        }
        return corrupt(format!(
            "consumer {} had folded durable records up to {}",
            anchor.consumer, anchor.checkpoint
        ));
    }
    plan.torn = rest.nonzero_end.map(|end| Torn {
        bytes: place.position..end,
        undecidable: undecidable(&plan.scan, &rest),
    });
    Ok(())
}

/// The offsets that a torn tail may have held as acknowledged records.
fn undecidable(scan: &Scan, rest: &Rest) -> Option<Range<Offset>> {
    let from = scan.place.offset;
    let header_end = scan.place.position.saturating_add(to_u64(HEADER_LEN));
    if rest.nonzero_end <= Some(header_end) {
        return None;
    }
    let own_end = match scan.stop {
        // Of a seal or note nothing can be lost.
        Stop::BadPayload(header) if header.kind != FrameKind::Data => return None,
        Stop::BadPayload(header) => header.end(),
        Stop::BadHeader => from.next(),
        Stop::Blank | Stop::Note | Stop::Sealed(..) | Stop::Short | Stop::Incomplete(_) => {
            return None;
        }
    };
    Some(from..rest.later_end.unwrap_or(own_end).max(own_end))
}

fn shorter_than(anchor: &Anchor, end: Offset) -> Error {
    Error::LogShorterThanAnchor {
        consumer: anchor.consumer.clone(),
        checkpoint: anchor.checkpoint,
        end,
    }
}

/// The highest anchor of this log and epoch; those of others go into the report.
fn sort_anchors<'a>(
    anchors: &'a [Anchor],
    (log_id, epoch): (u64, u32),
    report: &mut Recovery,
) -> Option<&'a Anchor> {
    let (ours, others): (Vec<_>, Vec<_>) = anchors
        .iter()
        .partition(|anchor| anchor.log_id == log_id && anchor.epoch >= epoch);
    report.ignored_anchors = others.iter().map(|other| other.consumer.clone()).collect();
    ours.into_iter().max_by_key(|anchor| anchor.checkpoint)
}

/// Checks that the consumers folded the records that stand here.
fn check_anchors(catalog: &Catalog, anchors: &[Anchor], (log_id, epoch): (u64, u32)) -> Result<()> {
    for anchor in anchors {
        if anchor.log_id != log_id || anchor.epoch < epoch {
            continue;
        }
        // An anchor of a later epoch is of a log that this one is only an old copy of.
        let crc = reader::frame_crc_before(catalog, anchor.checkpoint)?;
        if crc != anchor.frame_crc || anchor.epoch > epoch {
            return Err(Error::Diverged {
                consumer: anchor.consumer.clone(),
                checkpoint: anchor.checkpoint,
            });
        }
    }
    Ok(())
}

/// The upstream table, where the last segment has no frame yet: an interrupted roll leaves it in
/// the segment before, whose first frame carries the whole table.
pub(super) fn upstreams_before(
    storage: &Arc<dyn Storage>,
    segments: &[SegmentHeader],
) -> Result<BTreeMap<String, u64>> {
    for header in segments.iter().rev().skip(1) {
        let segment = survey::open_segment(storage, SegmentName::live(header.base))?;
        let scan = scan_all(storage, &segment)?;
        if scan.frames > 0 {
            return Ok(scan.upstreams);
        }
    }
    Ok(BTreeMap::new())
}

/// The last place up to `end` that the frames themselves prove to be synced.
pub(super) fn proven_place(
    storage: &Arc<dyn Storage>,
    segment: &Opened,
    proven: u64,
    end: Place,
) -> Result<Place> {
    if proven >= end.position {
        return Ok(end);
    }
    let mut window = segment.window(storage, proven);
    let first = segment.first();
    Ok(scan::scan(&mut window, &segment.header, first, BTreeMap::new())?.place)
}

/// The catalog of these segments, readable up to `end`.
pub(super) fn catalog(
    storage: &Arc<dyn Storage>,
    segments: &[SegmentHeader],
    index: Index,
    end: Place,
) -> Catalog {
    let catalog = Catalog::new(Arc::clone(storage));
    if let Some((last, before)) = segments.split_last() {
        for header in before {
            catalog.add(Segment::unindexed(header));
        }
        catalog.add(Segment::indexed(last, index));
        catalog.publish(end.offset, end.position);
    }
    catalog
}
