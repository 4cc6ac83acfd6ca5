//! Reads one segment frame by frame to the end of its data, and looks at what stands behind it.
//!
//! Decides nothing: [`Scan`] says where the data ends and why, [`Rest`] what follows. What to think
//! of it is the table's matter (`plan.rs`).
//!
//! Invariants:
//! - A read error is an error, never the end of the data:
//!   `a_read_error_is_an_error_and_changes_nothing`.
//! - At most a chunk or one frame is in memory, whatever the bytes say:
//!   `a_length_that_lies_allocates_nothing`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::catalog::Index;
use super::super::reader::Window;
use super::super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentName};
use super::super::upstream;
use crate::error::{Error, Result};
use crate::event::{RecordError, split_record};
use crate::frame::{
    self, FLAG_TABLE, Fields, FrameAt, FrameKind, HEADER_LEN, Header, HeaderAt, Salt, Seal,
};
use crate::num::to_u64;
use crate::offset::Offset;
use crate::storage::{OpenMode, Storage, StorageFile};

/// A segment file that is open for looking at.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) name: SegmentName,
    pub(super) header: SegmentHeader,
    pub(super) file: Arc<dyn StorageFile>,
    pub(super) len: u64,
}

impl Opened {
    pub(super) fn window(&self, storage: &Arc<dyn Storage>, limit: u64) -> Window {
        Window::new(storage, self.name.to_path(), Arc::clone(&self.file), limit)
    }

    /// The place of the segment's first frame.
    pub(super) fn first(&self) -> Place {
        Place {
            position: SEGMENT_HEADER_LEN,
            offset: self.header.base,
            chain: self.header.chain,
        }
    }
}

/// Opens a file of the log for reading.
pub(super) fn open_file(
    storage: &dyn Storage,
    name: &str,
    mode: OpenMode,
) -> Result<Box<dyn StorageFile>> {
    storage
        .open(name, mode)
        .map_err(|error| Error::io("open", storage.path(name), None, 0, error))
}

/// A place between two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) position: u64,
    /// The offset of the next record.
    pub(super) offset: Offset,
    /// Header CRC of the last data frame before.
    pub(super) chain: u32,
}

/// Why the data ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Zeros where a header would be, or the end of the file.
    Blank,
    /// A note. Its place is the place of the next frame.
    Note,
    /// The seal, and where it ends.
    Sealed(Seal, u64),
    /// Something, but less than a header, and then the end of the file.
    Short,
    /// No header.
    BadHeader,
    /// A header, but the payload's checksum does not hold.
    BadPayload(Header),
    /// A header, but the file ends inside the payload.
    Incomplete(Header),
}

impl Stop {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Blank | Self::Note => "the data ends here",
            Self::Sealed(..) => "the segment is sealed here, but more bytes follow",
            Self::Short => "the file ends inside a frame's header",
            Self::BadHeader => "no valid frame here",
            Self::BadPayload(_) => "the payload's checksum does not hold",
            Self::Incomplete(_) => "the file ends inside this frame",
        }
    }
}

/// What a segment holds, up to the end of its data.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) place: Place,
    pub(super) stop: Stop,
    /// The frames read call all bytes before this position synced.
    pub(super) proven: u64,
    /// How many data frames were read.
    pub(super) frames: u64,
    pub(super) upstreams: BTreeMap<String, u64>,
    pub(super) index: Index,
}

/// Reads frames from `from` on, each checked in full.
///
/// # Errors
///
/// What the system answers to a read; [`Error::UnsupportedFormat`]; [`Error::Corrupt`] for bytes
/// whose checksum holds and that cannot stand here. Everything else is a [`Stop`].
pub(super) fn scan(
    window: &mut Window,
    header: &SegmentHeader,
    from: Place,
    upstreams: BTreeMap<String, u64>,
) -> Result<Scan> {
    let mut scan = Scan {
        place: from,
        stop: Stop::Blank,
        proven: from.position,
        frames: 0,
        upstreams,
        index: Index::new(true),
    };
    loop {
        if let Some(stop) = step(window, header, &mut scan)? {
            scan.stop = stop;
            return Ok(scan);
        }
    }
}

/// Takes the frame at the scan's place, or says why there is none.
fn step(window: &mut Window, segment: &SegmentHeader, scan: &mut Scan) -> Result<Option<Stop>> {
    let Place {
        position, offset, ..
    } = scan.place;
    let bytes = window.at(position, HEADER_LEN)?;
    let blank = bytes.iter().take(HEADER_LEN).all(|byte| *byte == 0);
    let salt = segment.salt.at(position);
    let header = match frame::decode_header(bytes, salt) {
        HeaderAt::Short | HeaderAt::Bad if blank => return Ok(Some(Stop::Blank)),
        HeaderAt::Short => return Ok(Some(Stop::Short)),
        HeaderAt::Bad => return Ok(Some(Stop::BadHeader)),
        HeaderAt::Unknown { version } => return Err(window.unsupported("frame", version)),
        HeaderAt::Valid(header, _) => header,
    };
    let nonsense = |what: &str| format!("the checksum holds, but {what}");
    if header.first != offset {
        let what = format!("this is a frame of offset {}", header.first);
        return Err(window.corrupt(position, offset, nonsense(&what)));
    }
    if header.end() == Offset::MAX {
        return Err(window.corrupt(position, offset, nonsense("its offsets do not exist")));
    }
    let bytes = window.at(position, crate::num::to_usize(header.frame_len()))?;
    let (crc, payload) = match frame::decode(bytes, salt) {
        FrameAt::Valid(_, crc, payload) => (crc, payload),
        FrameAt::BadPayload(header) => return Ok(Some(Stop::BadPayload(header))),
        FrameAt::Incomplete(header) => return Ok(Some(Stop::Incomplete(header))),
        FrameAt::Unknown { version } => return Err(window.unsupported("frame", version)),
        FrameAt::Bad => return Ok(Some(Stop::BadHeader)),
    };
    let synced = position.saturating_sub(header.unproven.into());
    let end = position.saturating_add(header.frame_len());
    let stop = match header.kind {
        FrameKind::Data => {
            let checked = take_records(payload, &header, &mut scan.upstreams);
            checked.map_err(|error| window.record_error(position, offset, &error))?;
            scan.index.note(offset, position);
            scan.frames = scan.frames.saturating_add(1);
            scan.place = Place {
                position: end,
                offset: header.end(),
                chain: crc,
            };
            None
        }
        FrameKind::Note if header.count == 0 && payload.is_empty() => Some(Stop::Note),
        FrameKind::Note => {
            return Err(window.corrupt(position, offset, nonsense("a note has no content")));
        }
        FrameKind::Seal => {
            let seal = Seal::decode(payload).filter(|seal| {
                seal.end == offset
                    && seal.records == offset.since(segment.base)
                    && (seal.chain == scan.place.chain || (seal.chain == 0 && scan.frames == 0))
            });
            let Some(seal) = seal else {
                let reason = nonsense("this seal is of other records");
                return Err(window.corrupt(position, offset, reason));
            };
            Some(Stop::Sealed(seal, end))
        }
    };
    scan.proven = scan.proven.max(synced);
    Ok(stop)
}

/// Checks that the payload is records to the last byte, and takes what it says about upstreams.
fn take_records(
    payload: &[u8],
    header: &Header,
    upstreams: &mut BTreeMap<String, u64>,
) -> Result<(), RecordError> {
    let (pairs, mut rest) = upstream::split(payload, header.flags)?;
    let mut offset = header.first;
    for _ in 0..header.count {
        (_, rest) = split_record(rest, offset, header.recorded_at_ms)?;
        offset = offset.next();
    }
    if !rest.is_empty() {
        let left = "bytes are left over behind the last record";
        return Err(RecordError::Body(left.to_owned()));
    }
    if header.flags & FLAG_TABLE != 0 {
        upstreams.clear();
    }
    for (name, position) in pairs {
        let stored = upstreams.entry(name).or_default();
        *stored = position.max(*stored);
    }
    Ok(())
}

/// What stands behind the end of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// The position after the last byte that is not zero.
    pub(super) nonzero_end: Option<u64>,
    /// The position of a frame header that proves that the bytes at the place were synced.
    pub(super) proof: Option<u64>,
    /// The highest end of the frame headers that prove nothing.
    pub(super) later_end: Option<Offset>,
}

/// Looks at every byte behind `place` for frame headers of this segment and for anything not zero
/// from `from` on (behind the note, where one stands at the place). Stops at a proof.
///
/// # Errors
///
/// What the system answers to a read; [`Error::UnsupportedFormat`] for a header of another version.
pub(super) fn rest(window: &mut Window, salt: Salt, place: Place, from: u64) -> Result<Rest> {
    let mut rest = Rest::default();
    let mut position = place.position;
    loop {
        let bytes = window.at(position, HEADER_LEN)?;
        let len = bytes.len();
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            let end = position.saturating_add(to_u64(last)).saturating_add(1);
            rest.nonzero_end = Some(end).filter(|end| *end > from).or(rest.nonzero_end);
            let heads = bytes.windows(HEADER_LEN).take(last.saturating_add(1));
            for (at, head) in heads.enumerate() {
                let at = position.saturating_add(to_u64(at));
                match look(head, salt, place, at) {
                    Seen::Nothing => {}
                    Seen::Later(end) => rest.later_end = rest.later_end.max(Some(end)),
                    Seen::Proof => {
                        rest.proof = Some(at);
                        return Ok(rest);
                    }
                    Seen::Unknown(version) => return Err(window.unsupported("frame", version)),
                }
            }
        }
        let Some(step) = len.checked_sub(HEADER_LEN) else {
            return Ok(rest);
        };
        position = position.saturating_add(to_u64(step)).saturating_add(1);
    }
}

enum Seen {
    Nothing,
    Later(Offset),
    Proof,
    Unknown(u8),
}

/// What the bytes at `at`, taken as a frame header, say about `place`.
fn look(head: &[u8], salt: Salt, place: Place, at: u64) -> Seen {
    if at <= place.position || head.iter().all(|byte| *byte == 0) {
        return Seen::Nothing;
    }
    match frame::decode_header(head, salt.at(at)) {
        HeaderAt::Valid(header, _) if header.first >= place.offset => {
            if at.saturating_sub(header.unproven.into()) > place.position {
                Seen::Proof
            } else {
                Seen::Later(header.end())
            }
        }
        // A checksum of 32 bits holds by chance once in 4 GiB of garbage; offsets of a frame that
        // can stand here make it a header. (Each record takes more than one byte.)
        HeaderAt::Unknown { version } => {
            let first = head.get(4..).and_then(|fields| Fields(fields).u64());
            let furthest = place.offset.plus(at.saturating_sub(place.position));
            if first.is_some_and(|first| (place.offset.get()..=furthest.get()).contains(&first)) {
                Seen::Unknown(version)
            } else {
                Seen::Nothing
            }
        }
        HeaderAt::Valid(..) | HeaderAt::Short | HeaderAt::Bad => Seen::Nothing,
    }
}
