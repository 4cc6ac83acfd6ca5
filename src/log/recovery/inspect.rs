//! The log for readers only: the same checks as at a writing open, and nothing is written.
//!
//! Beside a live writer bytes may change while they are read, so records are served only up to the
//! end that frames and notes prove to be synced, and what looks wrong is looked at again before it
//! is believed. Without a writer all valid frames are served, and the report tells the proven end
//! and the end apart. A torn tail is a finding.
//!
//! Invariants:
//! - Nothing is written: `inspection_writes_nothing`.
//! - The end never goes back: `refresh_follows_a_writer_across_rolls`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::LogOptions;
use super::super::anchor::Anchor;
use super::super::catalog::{Catalog, Segment};
use super::super::segment::SegmentName;
use super::plan::{self, Plan};
use super::scan::{self, Opened, Place, Scan, Stop};
use super::{Recovery, accept, refuse_torn, survey};
use crate::error::{Error, Result};
use crate::offset::Offset;
use crate::storage::Storage;

/// How often something that looks wrong beside a live writer is looked at before it is believed,
/// and how long to wait in between: a write or a roll takes less.
const LOOKS: u32 = 10;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A log that is read and never written.
#[derive(Debug)]
pub(crate) struct Inspected {
    pub(crate) log_id: u64,
    pub(crate) epoch: u32,
    /// Readable up to [`Self::end`].
    pub(crate) catalog: Catalog,
    pub(crate) upstreams: BTreeMap<String, u64>,
    pub(crate) report: Recovery,
    /// Whether a writer held the lock at the last look.
    pub(crate) live: bool,
    storage: Arc<dyn Storage>,
    last: Opened,
    at: Place,
}

/// Opens a log for reading.
///
/// # Errors
///
/// Those of the decision table (`plan.rs`); [`Error::NoStore`]; in strict mode, without a writer,
/// [`Error::TornTail`]; what the system answers.
pub(crate) fn inspect(
    storage: &Arc<dyn Storage>,
    options: &LogOptions,
    anchors: &[Anchor],
) -> Result<Inspected> {
    patiently(&**storage, || first_look(storage, options, anchors))
}

/// Repeats what fails in a way that a writer at work can be the cause of.
fn patiently<T>(storage: &dyn Storage, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let mut looks = 1;
    loop {
        let live = writer_is_live(storage)?;
        match look() {
            Err(
                Error::Corrupt { .. }
                | Error::MissingSegment { .. }
                | Error::LogShorterThanAnchor { .. }
                | Error::RepairUnfinished { .. }
                | Error::Io { .. },
            ) if looks < LOOKS && (live || writer_is_live(storage)?) => {
                looks = looks.saturating_add(1);
                std::thread::sleep(LOOK_AGAIN_AFTER);
            }
            answer => return answer,
        }
    }
}

fn writer_is_live(storage: &dyn Storage) -> Result<bool> {
    storage
        .writer_is_live()
        .map_err(|error| Error::io("probe the lock of", storage.path(""), None, 0, error))
}

fn first_look(
    storage: &Arc<dyn Storage>,
    options: &LogOptions,
    anchors: &[Anchor],
) -> Result<Inspected> {
    let live = writer_is_live(&**storage)?;
    accept::refuse_pending(&**storage)?;
    let Some(mut plan) = plan::make(storage, anchors)? else {
        return Err(Error::NoStore {
            path: storage.path(""),
        });
    };
    let live = live || writer_is_live(&**storage)?;
    if let Some((sealed, scan, _)) = plan.roll.take() {
        // The segment after it is not part of the log yet, and empty.
        plan.segments.pop();
        let upstreams = std::mem::take(&mut plan.scan.upstreams);
        (plan.last, plan.scan, plan.torn) = (sealed, Scan { upstreams, ..scan }, None);
        plan.report.proven_end = plan.scan.place.offset;
    }
    if live {
        plan.scan = proven_part(storage, &plan)?;
    } else {
        refuse_torn(&**storage, &plan, options)?;
        plan.report.trimmed = plan.trimmed(String::new());
        let left_over = plan.discard.iter().map(|name| name.to_file_name());
        plan.report.ignored_files.extend(left_over);
    }
    let at = plan.scan.place;
    plan.report.end = at.offset;
    plan.report.trace();
    Ok(Inspected {
        log_id: plan.log_id(),
        epoch: plan.epoch(),
        catalog: plan::catalog(storage, &plan.segments, plan.scan.index, at),
        upstreams: plan.scan.upstreams,
        report: plan.report,
        live,
        storage: Arc::clone(storage),
        last: plan.last,
        at,
    })
}

/// The scan of the last segment, up to where it is proven.
fn proven_part(storage: &Arc<dyn Storage>, plan: &Plan) -> Result<Scan> {
    let mut window = plan.last.window(storage, plan.scan.proven);
    let (header, first) = (&plan.last.header, plan.last.first());
    let mut scan = scan::scan(&mut window, header, first, BTreeMap::new())?;
    if scan.frames == 0 {
        scan.upstreams = plan::upstreams_before(storage, &plan.segments)?;
    }
    Ok(scan)
}

impl Inspected {
    /// The end of what is served.
    pub(crate) fn end(&self) -> Offset {
        self.at.offset
    }

    /// Looks for what a writer has added since, across rolls; answers the new end.
    ///
    /// # Errors
    ///
    /// As [`inspect`]. What was served before stays readable.
    pub(crate) fn refresh(&mut self) -> Result<Offset> {
        let storage = Arc::clone(&self.storage);
        patiently(&*storage, || self.advance())?;
        Ok(self.end())
    }

    fn advance(&mut self) -> Result<()> {
        let live = writer_is_live(&*self.storage)?;
        loop {
            let scan = self.scan(None)?;
            let Stop::Sealed(seal, _) = scan.stop else {
                self.live = live || writer_is_live(&*self.storage)?;
                return self.take_tail(scan);
            };
            self.take(scan);
            self.report.proven_end = self.report.proven_end.max(self.at.offset);
            let name = SegmentName::live(seal.end);
            let next = match survey::open_segment(&self.storage, name) {
                // The roll is under way, or was interrupted.
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    return Ok(());
                }
                next => next?,
            };
            survey::check_follows(&self.storage, (&self.last.header, &seal), &next)?;
            self.catalog.add(Segment::new(&next.header));
            self.epoch = next.header.epoch;
            self.at = next.first();
            self.last = next;
        }
    }

    /// Reads on from where serving ended.
    fn scan(&mut self, limit: Option<u64>) -> Result<Scan> {
        let len = self.last.file.len();
        let name = self.last.name.to_path();
        self.last.len =
            len.map_err(|error| Error::io("stat", self.storage.path(&name), None, 0, error))?;
        let limit = limit.unwrap_or(self.last.len);
        let mut window = self.last.window(&self.storage, limit);
        scan::scan(
            &mut window,
            &self.last.header,
            self.at,
            self.upstreams.clone(),
        )
    }

    fn take_tail(&mut self, scan: Scan) -> Result<()> {
        let proven = scan.proven;
        if !self.live {
            if scan.place != self.at {
                self.check_rest(&scan)?;
                self.take(scan);
            }
            let place = plan::proven_place(&self.storage, &self.last, proven, self.at)?;
            self.report.proven_end = self.report.proven_end.max(place.offset);
        } else if proven > self.at.position {
            let scan = self.scan(Some(proven))?;
            self.take(scan);
            self.report.proven_end = self.report.proven_end.max(self.at.offset);
        }
        Ok(())
    }

    /// Without a writer, what stands behind the new end is settled.
    fn check_rest(&self, scan: &Scan) -> Result<()> {
        let mut window = self.last.window(&self.storage, self.last.len);
        let place = scan.place;
        let rest = scan::rest(&mut window, self.last.header.salt, place, place.position)?;
        match rest.proof {
            None => Ok(()),
            Some(at) => {
                let reason = format!("the frame at byte {at} proves that more was synced");
                Err(window.corrupt(place.position, place.offset, reason))
            }
        }
    }

    fn take(&mut self, scan: Scan) {
        for (offset, position) in scan.index.entries() {
            self.catalog.note(*offset, *position);
        }
        self.catalog.publish(scan.place.offset, scan.place.position);
        self.at = scan.place;
        self.upstreams = scan.upstreams;
        self.report.end = self.at.offset;
    }
}
