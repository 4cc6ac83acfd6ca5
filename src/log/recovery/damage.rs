//! Where a log that opening refuses stops being whole, and what would be lost by going on from
//! there. Reads, and writes nothing.
//!
//! Opening stops at the first thing that is wrong (`plan.rs`), and of sealed segments looks at no
//! record. Here every frame is read: the log is good up to the first segment that does not join
//! on, or the first frame in it that does not hold. All behind that is lost, also what can still be
//! read: offsets must have no hole.

use std::sync::Arc;

use super::super::anchor::Anchor;
use super::super::catalog::Catalog;
use super::super::reader;
use super::super::segment::{SegmentHeader, SegmentHeaderAt, SegmentName};
use super::scan::{self, Opened, Place, Scan, Stop};
use super::{plan, survey};
use crate::error::{Error, Result};
use crate::frame::{HEADER_LEN, Seal};
use crate::num::to_u64;
use crate::offset::Offset;
use crate::storage::Storage;

/// A file, or the end of one, that goes out of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct LostBytes {
    /// The file, inside the store's directory.
    pub file: String,
    /// The first byte that goes; 0 where the whole file does.
    pub position: u64,
    /// How many bytes, up to the last that is not zero or, of a whole file, in all.
    pub bytes: u64,
}

/// What becomes of the last segment that is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// No segment is.
    Nothing,
    /// It is sealed where the log ends, and stays as it is.
    Whole(Offset),
    /// It is cut at this position and sealed there.
    Cut(Offset, u64),
    /// It has no record before this position: another file takes its name.
    Replace(Offset, u64),
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Damage {
    /// What is wrong, in the order of the log.
    pub(crate) findings: Vec<Error>,
    /// The records below it are whole; those from it on are lost.
    pub(crate) end: Offset,
    /// At least the records below it existed.
    pub(crate) known_end: Offset,
    /// `None` if nothing tells.
    pub(crate) log_id: Option<u64>,
    /// The log's epoch.
    pub(crate) epoch: u32,
    /// The highest epoch of this log that anything tells of.
    pub(crate) epoch_max: u32,
    /// The bytes behind the good ones, where there are any.
    pub(crate) cut: Option<LostBytes>,
    /// Files that go as a whole.
    pub(crate) dropped: Vec<LostBytes>,
    pub(super) keep: Keep,
    /// The last good segment, its frames known to be synced up to the first position and good up
    /// to the second.
    pub(super) last: Option<(Opened, u64, u64)>,
    /// Header CRC of the last data frame before the new segment.
    pub(super) chain: u32,
    catalog: Catalog,
}

impl Damage {
    /// Header CRC of the frame before `offset`, which is in the good part.
    pub(crate) fn frame_crc_before(&self, offset: Offset) -> Result<u32> {
        reader::frame_crc_before(&self.catalog, offset)
    }
}

/// Whether an error says what is wrong with the log, and not why it could not be looked at.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. }
            | Error::MissingSegment { .. }
            | Error::LogShorterThanAnchor { .. }
            | Error::Diverged { .. }
    )
}

/// Looks at everything. Without damage the end is that of the log, a torn tail not counted.
///
/// # Errors
///
/// [`Error::NoStore`]; [`Error::UnsupportedFormat`]; what the system answers.
pub(crate) fn look(storage: &Arc<dyn Storage>, anchors: &[Anchor]) -> Result<Damage> {
    let refusal = match plan::make(storage, anchors) {
        Ok(Some(_)) => None,
        Ok(None) => {
            return Err(Error::NoStore {
                path: storage.path(""),
            });
        }
        Err(error) if is_damage(&error) => Some(error),
        Err(error) => return Err(error),
    };
    let files = Files::list(storage)?;
    let walk = Walk::take(storage, &files.live)?;
    let mut damage = walk.judge(storage, &files, anchors)?;
    let first = damage.findings.is_empty();
    damage.findings.extend(refusal.filter(|refusal| {
        // Found again on the walk, but for what anchors say.
        first
            || !matches!(
                refusal,
                Error::Corrupt { .. } | Error::MissingSegment { .. }
            )
    }));
    Ok(damage)
}

/// The log's files, in order.
struct Files {
    live: Vec<SegmentName>,
    fresh: Vec<SegmentName>,
}

impl Files {
    fn list(storage: &Arc<dyn Storage>) -> Result<Self> {
        let entries = survey::list(&**storage)?.into_iter();
        let names = entries.filter(|entry| !entry.is_dir);
        let mut names: Vec<_> = names
            .filter_map(|entry| SegmentName::parse(&entry.name))
            .collect();
        names.sort_unstable();
        let (fresh, live) = names.into_iter().partition(|name| name.fresh);
        Ok(Self { live, fresh })
    }
}

/// A walk along the segments, up to the first that is not whole.
#[derive(Default)]
struct Walk {
    headers: Vec<SegmentHeader>,
    last: Option<(Opened, Scan)>,
    /// What ends the walk.
    found: Option<Error>,
}

impl Walk {
    fn take(storage: &Arc<dyn Storage>, names: &[SegmentName]) -> Result<Self> {
        let mut walk = Self::default();
        for (at, name) in names.iter().enumerate() {
            let next = names.get(at.saturating_add(1));
            match walk.step(storage, *name, next) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => {
                    walk.found = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(walk)
    }

    /// Takes one segment as far as it is good, or says why it is not.
    fn step(
        &mut self,
        storage: &Arc<dyn Storage>,
        name: SegmentName,
        next: Option<&SegmentName>,
    ) -> Result<()> {
        let segment = survey::open_segment(storage, name)?;
        match &self.last {
            None => survey::check_first(storage, &segment)?,
            Some((before, scan)) => {
                let Stop::Sealed(seal, _) = scan.stop else {
                    return Ok(());
                };
                check_joint(storage, (before, &seal), &segment)?;
            }
        }
        let (scan, wrong) = scan_good_part(storage, &segment)?;
        let (stop, place) = (scan.stop, scan.place);
        self.headers.push(segment.header);
        let window = segment.window(storage, 0);
        let behind = behind(storage, &segment, &scan)?;
        self.last = Some((segment, scan));
        if let Some(error) = wrong {
            return Err(error);
        }
        match (stop, next) {
            (Stop::Sealed(_, end), _) if behind.is_some() => {
                Err(window.corrupt(end, place.offset, stop.reason()))
            }
            (Stop::Sealed(..), _) | (_, None) => Ok(()),
            (_, Some(next)) => {
                let next = next.to_file_name();
                let reason = format!("{} before the seal, and {next} follows", stop.reason());
                Err(window.corrupt(place.position, place.offset, reason))
            }
        }
    }

    fn judge(
        self,
        storage: &Arc<dyn Storage>,
        files: &Files,
        anchors: &[Anchor],
    ) -> Result<Damage> {
        let end = self.last.as_ref().map(|(_, scan)| scan.place);
        let offset = end.map_or(Offset::ZERO, |place| place.offset);
        let mut damage = Damage {
            findings: self.found.into_iter().collect(),
            end: offset,
            known_end: offset,
            log_id: self.headers.first().map(|header| header.log_id),
            epoch: self.headers.last().map_or(0, |header| header.epoch),
            epoch_max: 0,
            cut: None,
            dropped: Vec::new(),
            keep: Keep::Nothing,
            last: None,
            chain: 0,
            catalog: Catalog::new(Arc::clone(storage)),
        };
        let kept = self.headers.len();
        if let Some((segment, scan)) = self.last {
            damage.keep_last(storage, segment, scan, &self.headers)?;
        }
        let live = files.live.iter().skip(kept);
        for name in live.chain(&files.fresh) {
            damage.drop_file(storage, *name)?;
        }
        damage.hear(anchors);
        damage.epoch_max = damage.epoch_max.max(damage.epoch);
        Ok(damage)
    }
}

fn check_joint(
    storage: &Arc<dyn Storage>,
    (before, seal): (&Opened, &Seal),
    next: &Opened,
) -> Result<()> {
    if seal.end < next.header.base {
        return Err(Error::MissingSegment {
            before: before.name.to_file_name(),
            after: next.name.to_file_name(),
            from: seal.end,
            to: next.header.base,
        });
    }
    survey::check_follows(storage, (&before.header, seal), next)
}

/// Reads a segment up to the first frame that does not hold, also one whose checksum holds and
/// that cannot stand there.
fn scan_good_part(storage: &Arc<dyn Storage>, segment: &Opened) -> Result<(Scan, Option<Error>)> {
    match plan::scan_all(storage, segment) {
        Ok(scan) => Ok((scan, None)),
        Err(Error::Corrupt {
            file,
            position,
            offset,
            reason,
        }) => {
            let mut window = segment.window(storage, position);
            let first = segment.first();
            let scan = scan::scan(&mut window, &segment.header, first, <_>::default())?;
            let error = Error::Corrupt {
                file,
                position,
                offset,
                reason,
            };
            if scan.place.position != position {
                // The file changed in between.
                return Err(error);
            }
            Ok((scan, Some(error)))
        }
        Err(error) => Err(error),
    }
}

/// Where the bytes behind the good ones end, if there are any but a note or the seal.
fn behind(storage: &Arc<dyn Storage>, segment: &Opened, scan: &Scan) -> Result<Option<u64>> {
    let from = match scan.stop {
        Stop::Sealed(_, end) => end,
        Stop::Note => scan.place.position.saturating_add(to_u64(HEADER_LEN)),
        Stop::Blank | Stop::Short | Stop::BadHeader | Stop::BadPayload(_) | Stop::Incomplete(_) => {
            scan.place.position
        }
    };
    let mut window = segment.window(storage, segment.len);
    let end = survey::data_end(&mut window, segment.len)?;
    Ok(end.filter(|end| *end > from))
}

impl Damage {
    fn keep_last(
        &mut self,
        storage: &Arc<dyn Storage>,
        segment: Opened,
        scan: Scan,
        headers: &[SegmentHeader],
    ) -> Result<()> {
        let Place {
            position, offset, ..
        } = scan.place;
        let base = segment.header.base;
        let behind = behind(storage, &segment, &scan)?;
        self.chain = scan.place.chain;
        let mut good = position;
        self.keep = match scan.stop {
            _ if offset == base => {
                self.chain = segment.header.chain;
                Keep::Replace(base, position)
            }
            Stop::Sealed(_, end) if behind.is_none() => {
                good = end;
                Keep::Whole(base)
            }
            Stop::Blank
            | Stop::Note
            | Stop::Sealed(..)
            | Stop::Short
            | Stop::BadHeader
            | Stop::BadPayload(_)
            | Stop::Incomplete(_) => Keep::Cut(base, position),
        };
        if let Stop::BadPayload(header) | Stop::Incomplete(header) = scan.stop {
            self.known_end = self.known_end.max(header.end());
        }
        self.cut = behind.map(|end| LostBytes {
            file: segment.name.to_path(),
            position,
            bytes: end.saturating_sub(position),
        });
        self.catalog = plan::catalog(storage, headers, scan.index, scan.place);
        self.last = Some((segment, scan.proven.min(good), good));
        Ok(())
    }

    /// A file that is no part of what is kept.
    fn drop_file(&mut self, storage: &Arc<dyn Storage>, name: SegmentName) -> Result<()> {
        let (file, len, header) = survey::open_header(storage, name)?;
        self.dropped.push(LostBytes {
            file: name.to_path(),
            position: 0,
            bytes: len,
        });
        let header = match header {
            SegmentHeaderAt::Valid(header) => header,
            SegmentHeaderAt::Unknown { version } => {
                return Err(Error::UnsupportedFormat {
                    file: storage.path(&name.to_path()),
                    what: "segment",
                    found: version.into(),
                    supported: SegmentHeader::supported(),
                });
            }
            SegmentHeaderAt::Bad => return Ok(()),
        };
        if *self.log_id.get_or_insert(header.log_id) != header.log_id {
            return Ok(());
        }
        self.epoch_max = self.epoch_max.max(header.epoch);
        self.known_end = self.known_end.max(header.base);
        let segment = Opened {
            name,
            header,
            file,
            len,
        };
        if let Some(seal) = survey::find_seal(storage, &segment)? {
            self.known_end = self.known_end.max(seal.end);
        }
        Ok(())
    }

    /// What the consumers' anchors tell of the log.
    fn hear(&mut self, anchors: &[Anchor]) {
        if self.log_id.is_none() {
            let highest = anchors.iter().max_by_key(|anchor| anchor.checkpoint);
            self.log_id = highest.map(|anchor| anchor.log_id);
        }
        for anchor in anchors {
            if Some(anchor.log_id) == self.log_id {
                self.epoch_max = self.epoch_max.max(anchor.epoch);
                if anchor.epoch >= self.epoch {
                    self.known_end = self.known_end.max(anchor.checkpoint);
                }
            }
        }
    }
}
