//! Reading durable records: one by one ([`Cursor`]), or only the headers of their frames
//! ([`Headers`]).
//!
//! Files are read forward in chunks, at most [`CHUNK_MAX`] or one frame at a time. Nothing is
//! handed out before the checksum of its frame held and its offset was the expected one.
//!
//! Invariants:
//! - Each record of a range comes once, in order, or there is an error:
//!   `every_range_of_a_log_comes_back_whole_across_segments`.
//! - Damage is an error with file, byte and offset, and records before it can be read:
//!   `damage_in_a_sealed_segment_stops_the_cursor_just_before_it`.
//! - A frame that is longer than a chunk is read: `a_frame_longer_than_a_chunk_is_read`.

use std::sync::Arc;

use super::catalog::{Catalog, Index, Segment};
use super::segment::SEGMENT_HEADER_LEN;
use super::upstream;
use crate::error::{Error, Result};
use crate::event::{RawRecord, RecordError, split_record};
use crate::frame::{self, FrameKind, HEADER_LEN, Header, HeaderAt};
use crate::num::{to_u64, to_usize};
use crate::offset::Offset;

mod last_from;
mod window;

pub(crate) use last_from::last_from;
pub(crate) use window::{CHUNK_MAX, Window};

/// Goes from frame to frame through one segment.
#[derive(Debug)]
struct Walk {
    segment: Arc<Segment>,
    window: Window,
    position: u64,
    expected: Offset,
}

impl Walk {
    /// Starts at the frame at `place`, whose first offset is known.
    fn open(catalog: &Catalog, segment: Arc<Segment>, place: (Offset, u64)) -> Result<Self> {
        let limit = catalog
            .active_limit(segment.header.base)
            .unwrap_or(u64::MAX);
        let file = catalog.file(&segment)?;
        Ok(Self {
            window: Window::new(catalog.storage(), segment.name(), file, limit),
            segment,
            position: place.1,
            expected: place.0,
        })
    }

    /// Starts at the last known place at or before `offset`, in the segment that holds it.
    fn seek(catalog: &Catalog, offset: Offset) -> Result<Self> {
        let Some((segment, _)) = catalog.segment_of(offset) else {
            return Err(Error::OffsetOutOfRange {
                requested: offset,
                first: Offset::ZERO,
                end: catalog.end(),
            });
        };
        let place = match segment.place(offset) {
            Some(place) => place,
            None => build_index(catalog, &segment, offset)?,
        };
        Self::open(catalog, segment, place)
    }

    /// The header of the data frame here; `None` at the segment's seal.
    fn header(&mut self) -> Result<Option<(Header, u32)>> {
        let (position, expected) = (self.position, self.expected);
        let bytes = self.window.at(position, HEADER_LEN)?;
        match frame::decode_header(bytes, self.segment.header.salt.at(position)) {
            HeaderAt::Valid(header, _) if header.first != expected => Err(self.window.corrupt(
                position,
                expected,
                format!("a frame of offset {} stands here", header.first),
            )),
            HeaderAt::Valid(header, crc) => match header.kind {
                FrameKind::Data => Ok(Some((header, crc))),
                FrameKind::Seal => Ok(None),
                FrameKind::Note => Err(self.window.corrupt(position, expected, "no frame here")),
            },
            HeaderAt::Unknown { version } => Err(self.window.unsupported("frame", version)),
            HeaderAt::Short => Err(self
                .window
                .corrupt(position, expected, "the file ends here")),
            HeaderAt::Bad => Err(self
                .window
                .corrupt(position, expected, "no valid frame here")),
        }
    }

    /// The payload of the frame here, checked.
    fn payload(&mut self, header: &Header) -> Result<&[u8]> {
        let len = to_usize(header.frame_len());
        let payload_len = to_usize(header.payload_len.into());
        let salt = self.segment.header.salt;
        let bytes = self.window.at(self.position, len)?;
        let payload = bytes
            .get(HEADER_LEN..)
            .and_then(|rest| rest.get(..payload_len));
        let reason = match payload {
            None => "the file ends inside this frame",
            Some(payload) if frame::payload_crc(payload, salt) != header.payload_crc => {
                "the payload's checksum does not hold"
            }
            // Asked for again: the borrow checker does not see that the errors below no longer
            // need the window.
            Some(_) => {
                let bytes = self.window.loaded(self.position);
                let rest = bytes.get(HEADER_LEN..).unwrap_or_default();
                return Ok(rest.get(..payload_len).unwrap_or_default());
            }
        };
        Err(self.window.corrupt(self.position, self.expected, reason))
    }

    fn skip(&mut self, header: &Header) {
        self.position = self.position.saturating_add(header.frame_len());
        self.expected = header.end();
    }

    /// Goes on to the frame that holds `offset`, across segments.
    fn find(&mut self, catalog: &Catalog, offset: Offset) -> Result<(Header, u32)> {
        loop {
            match self.header()? {
                Some((header, crc)) if header.end() > offset => return Ok((header, crc)),
                Some((header, _)) => self.skip(&header),
                None => self.enter_next(catalog)?,
            }
        }
    }

    fn enter_next(&mut self, catalog: &Catalog) -> Result<()> {
        let next = catalog
            .segment_of(self.expected)
            .map(|(segment, _)| segment);
        // Each step goes to a higher base, so a seal that lies cannot make this loop for ever.
        let next = next.filter(|next| {
            next.header.base == self.expected && next.header.base > self.segment.header.base
        });
        let Some(next) = next else {
            return Err(self.window.corrupt(
                self.position,
                self.expected,
                "the segment is sealed here, and the next does not go on from it",
            ));
        };
        let place = (next.header.base, SEGMENT_HEADER_LEN);
        *self = Self::open(catalog, next, place)?;
        Ok(())
    }
}

/// Makes the index of a sealed segment by one pass over its headers; answers the place for
/// `offset`. At damage it ends early: who reads that far meets the damage and names it.
fn build_index(catalog: &Catalog, segment: &Arc<Segment>, offset: Offset) -> Result<(Offset, u64)> {
    let base = (segment.header.base, SEGMENT_HEADER_LEN);
    let mut walk = Walk::open(catalog, Arc::clone(segment), base)?;
    let mut index = Index::new(true);
    loop {
        match walk.header() {
            Ok(Some((header, _))) => {
                index.note(header.first, walk.position);
                walk.skip(&header);
            }
            Ok(None) | Err(Error::Corrupt { .. } | Error::UnsupportedFormat { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    catalog.keep_index(segment, index);
    Ok(segment.place(offset).unwrap_or(base))
}

/// The records of a range, one after the other.
///
/// Lends each record from its own buffer: one frame in memory, no copy.
#[derive(Debug)]
pub(crate) struct Cursor {
    catalog: Catalog,
    walk: Option<Walk>,
    next: Offset,
    to: Offset,
    frame: Frame,
}

/// The frame a cursor is in, and how far it got.
#[derive(Debug, Default)]
struct Frame {
    crc: u32,
    recorded_at_ms: u64,
    /// Where the frame starts, for messages.
    position: u64,
    /// Where the records not yet handed out start.
    rest: u64,
    rest_len: usize,
    left: u32,
}

impl Cursor {
    /// The records of `from..to`. Both are at most the durable end. No I/O happens yet.
    pub(crate) fn new(catalog: &Catalog, from: Offset, to: Offset) -> Self {
        Self {
            catalog: catalog.clone(),
            walk: None,
            next: from,
            to,
            frame: Frame::default(),
        }
    }

    /// The offset of the record that comes next.
    pub(crate) fn offset(&self) -> Offset {
        self.next
    }

    /// Whether nothing comes any more.
    pub(crate) fn is_at_end(&self) -> bool {
        self.next >= self.to
    }

    /// Header CRC of the frame that held the last record; 0 before the first.
    pub(crate) fn frame_crc(&self) -> u32 {
        self.frame.crc
    }

    /// The error for the record at `offset`, the last one handed out, whose body makes no sense.
    pub(crate) fn blame(&self, offset: Offset, error: &RecordError) -> Error {
        match &self.walk {
            Some(walk) => walk.window.record_error(self.frame.position, offset, error),
            None => Error::OffsetOutOfRange {
                requested: offset,
                first: Offset::ZERO,
                end: self.to,
            },
        }
    }

    /// The next record, or `None` at the end of the range and after an error.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] and [`Error::UnsupportedFormat`] where the log is damaged or newer than
    /// this build, and what the system answers to a read. All records before were handed out.
    pub(crate) fn next(&mut self) -> Result<Option<RawRecord<'_>>> {
        if self.next >= self.to {
            return Ok(None);
        }
        if self.frame.left == 0
            && let Err(error) = self.load()
        {
            self.to = self.next;
            return Err(error);
        }
        match self.take() {
            Ok((rest_len, left)) => {
                let Self {
                    walk: Some(walk),
                    frame,
                    ..
                } = self
                else {
                    return Ok(None);
                };
                // Split a second time, for the borrow checker: nothing is decoded by it.
                let bytes = walk.window.loaded(frame.rest);
                let bytes = bytes.get(..frame.rest_len).unwrap_or_default();
                let used = frame.rest_len.saturating_sub(rest_len);
                let split = split_record(bytes, self.next, frame.recorded_at_ms);
                frame.rest = frame.rest.saturating_add(to_u64(used));
                frame.rest_len = rest_len;
                frame.left = left;
                self.next = self.next.next();
                Ok(split.ok().map(|(record, _)| record))
            }
            Err(error) => {
                self.to = self.next;
                Err(error)
            }
        }
    }

    /// Looks at the next record of the frame: how many bytes and records are left behind it.
    fn take(&self) -> Result<(usize, u32)> {
        let Some(walk) = &self.walk else {
            return Ok((0, 0));
        };
        let frame = &self.frame;
        let bytes = walk.window.loaded(frame.rest);
        let bytes = bytes.get(..frame.rest_len).unwrap_or_default();
        let (_, rest) = split_record(bytes, self.next, frame.recorded_at_ms)
            .map_err(|error| walk.window.record_error(frame.position, self.next, &error))?;
        let left = frame.left.saturating_sub(1);
        if left == 0 && !rest.is_empty() {
            let error = RecordError::Body("bytes are left over behind the last record".to_owned());
            let error = &error;
            return Err(walk.window.record_error(frame.position, self.next, error));
        }
        Ok((rest.len(), left))
    }

    /// Loads the frame that holds `self.next` and passes over the records before it.
    fn load(&mut self) -> Result<()> {
        let walk = match &mut self.walk {
            Some(walk) => walk,
            none => none.insert(Walk::seek(&self.catalog, self.next)?),
        };
        let (header, crc) = walk.find(&self.catalog, self.next)?;
        let position = walk.position;
        let payload = walk.payload(&header)?;
        let records = upstream::skip(payload, header.flags).map(<[u8]>::len);
        let rest_len =
            records.map_err(|error| walk.window.record_error(position, header.first, &error))?;
        walk.skip(&header);
        let to = self.next;
        self.frame = Frame {
            crc,
            recorded_at_ms: header.recorded_at_ms,
            position,
            rest: walk.position.saturating_sub(to_u64(rest_len)),
            rest_len,
            left: header.count,
        };
        self.next = header.first;
        while self.next < to {
            let (rest_len, left) = self.take()?;
            let used = self.frame.rest_len.saturating_sub(rest_len);
            self.frame.rest = self.frame.rest.saturating_add(to_u64(used));
            self.frame.rest_len = rest_len;
            self.frame.left = left;
            self.next = self.next.next();
        }
        Ok(())
    }
}

/// A frame as its header tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameInfo {
    pub(crate) header: Header,
    /// Header CRC, which covers the payload's and so stands for the whole frame.
    pub(crate) crc: u32,
}

/// The headers of the data frames that hold a range of records; payloads are passed over by their
/// length, unread where they are long.
#[derive(Debug)]
pub(crate) struct Headers {
    catalog: Catalog,
    walk: Option<Walk>,
    next: Offset,
    to: Offset,
}

impl Headers {
    /// The frames that hold records of `from..to`. Both are at most the durable end.
    pub(crate) fn new(catalog: &Catalog, from: Offset, to: Offset) -> Self {
        Self {
            catalog: catalog.clone(),
            walk: None,
            next: from,
            to,
        }
    }

    /// The next frame, or `None` at the end of the range.
    ///
    /// # Errors
    ///
    /// As [`Cursor::next`].
    pub(crate) fn next(&mut self) -> Result<Option<FrameInfo>> {
        if self.next >= self.to {
            return Ok(None);
        }
        let walk = match &mut self.walk {
            Some(walk) => walk,
            none => none.insert(Walk::seek(&self.catalog, self.next)?),
        };
        let (header, crc) = walk.find(&self.catalog, self.next)?;
        walk.skip(&header);
        self.next = header.end();
        Ok(Some(FrameInfo { header, crc }))
    }
}

/// Header CRC of the frame that holds the record before `offset`; 0 for the first offset.
///
/// # Errors
///
/// As [`Cursor::next`].
pub(crate) fn frame_crc_before(catalog: &Catalog, offset: Offset) -> Result<u32> {
    let Some(last) = offset.get().checked_sub(1).map(Offset::new) else {
        return Ok(0);
    };
    let frame = Headers::new(catalog, last, offset).next()?;
    Ok(frame.map_or(0, |frame| frame.crc))
}

#[cfg(test)]
#[cfg(feature = "sim")]
mod tests;
