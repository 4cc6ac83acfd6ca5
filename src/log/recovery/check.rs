//! Reads a segment to its last byte, for `verify`: frames without records too, and what stands
//! behind the seal.
//!
//! Invariants:
//! - Any damaged byte of a segment is found:
//!   `damage_in_a_sealed_segment_stops_the_cursor_just_before_it`.

use std::collections::BTreeMap;

use super::super::catalog::{Catalog, SegmentInfo};
use super::super::segment::SegmentName;
use super::scan::{self, Place, Stop};
use super::survey;
use crate::error::Result;

/// What a segment was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Data frames.
    pub(crate) frames: u64,
    /// The position behind the last one.
    pub(crate) bytes: u64,
}

/// Checks one of the catalog's segments: every frame, and for a sealed one that nothing but zeros
/// is behind its seal. Of the active one the durable part.
///
/// # Errors
///
/// What is wrong with it, or what the system answers.
pub(crate) fn check(catalog: &Catalog, info: &SegmentInfo) -> Result<Checked> {
    let storage = catalog.storage();
    let segment = survey::open_segment(storage, SegmentName::live(info.base))?;
    let limit = catalog
        .active_limit(info.base)
        .filter(|_| !info.sealed)
        .unwrap_or(segment.len);
    let mut window = segment.window(storage, limit);
    let first = segment.first();
    let scan = scan::scan(&mut window, &segment.header, first, BTreeMap::new())?;
    let place = scan.place;
    let whole = match scan.stop {
        Stop::Sealed(_, end) => {
            let behind = Place {
                position: end,
                ..place
            };
            let rest = scan::rest(&mut window, segment.header.salt, behind, end)?;
            if rest.nonzero_end.is_some() {
                return Err(window.corrupt(end, place.offset, scan.stop.reason()));
            }
            place.offset == info.end
        }
        // The active segment, read up to its durable end.
        Stop::Blank => !info.sealed && place.offset == info.end,
        Stop::Note | Stop::Short | Stop::BadHeader | Stop::BadPayload(_) | Stop::Incomplete(_) => {
            false
        }
    };
    if !whole {
        return Err(window.corrupt(place.position, place.offset, scan.stop.reason()));
    }
    Ok(Checked {
        frames: scan.frames,
        bytes: place.position,
    })
}
