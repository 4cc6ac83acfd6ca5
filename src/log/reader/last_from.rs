//! The last event that came from an upstream: what a resumed input is compared with.

use super::Walk;
use crate::error::Result;
use crate::frame::FLAG_UPSTREAM;
use crate::log::catalog::Catalog;
use crate::log::segment::SEGMENT_HEADER_LEN;
use crate::log::upstream;
use crate::offset::Offset;

/// The offset of the last record below `end` that was appended from `upstream`; `None` if none was.
///
/// Segments are searched from the last to the first: what was interrupted lately is found at once.
///
/// # Errors
///
/// As [`super::Cursor::next`].
pub(crate) fn last_from(catalog: &Catalog, upstream: &str, end: Offset) -> Result<Option<Offset>> {
    let mut to = end;
    while let Some(last) = to.get().checked_sub(1).map(Offset::new) {
        let Some((segment, _)) = catalog.segment_of(last) else {
            break;
        };
        let base = segment.header.base;
        let mut walk = Walk::open(catalog, segment, (base, SEGMENT_HEADER_LEN))?;
        let mut found = None;
        while walk.expected < to {
            let Some((header, _)) = walk.header()? else {
                break;
            };
            if header.flags & FLAG_UPSTREAM != 0 && header.count > 0 {
                let position = walk.position;
                let payload = walk.payload(&header)?;
                let pairs = upstream::split(payload, header.flags).map(|(pairs, _)| pairs);
                let pairs = pairs
                    .map_err(|error| walk.window.record_error(position, header.first, &error))?;
                if pairs.iter().any(|(name, _)| name == upstream) {
                    found = header.end().get().checked_sub(1).map(Offset::new);
                }
            }
            walk.skip(&header);
        }
        if found.is_some() {
            return Ok(found);
        }
        to = base;
    }
    Ok(None)
}
