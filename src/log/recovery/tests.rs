//! Recovery on logs whose bytes are laid by hand, frame by frame, without the writer.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "lengths of a few kilobytes"
)]

mod crash;
mod damage;
mod inspect;
mod table;

use std::sync::Arc;

use super::{Recovered, recover};
use crate::error::{Error, Result};
use crate::event::{Event, encode_event};
use crate::frame::{self, FLAG_UPSTREAM, FrameKind, Header, Salt, Seal};
use crate::log::LogOptions;
use crate::log::anchor::{self, Anchor};
use crate::log::catalog::Catalog;
use crate::log::reader::Cursor;
use crate::log::segment::{self, SegmentHeader};
use crate::log::upstream;
use crate::offset::Offset;
use crate::storage::sim::SimDisk;
use crate::storage::{Lock, Storage};

pub(super) const LOG_ID: u64 = 77;

/// One segment's bytes, laid frame by frame.
#[derive(Clone, Debug)]
pub(super) struct Lay {
    pub(super) header: SegmentHeader,
    pub(super) bytes: Vec<u8>,
    pub(super) end: u64,
    pub(super) chain: u32,
    /// Frames say that the bytes before this position were synced.
    synced: usize,
}

impl Lay {
    pub(super) fn first() -> Self {
        Self::new(0, 0)
    }

    pub(super) fn new(base: u64, chain: u32) -> Self {
        let header = SegmentHeader {
            log_id: LOG_ID,
            epoch: 0,
            salt: Salt(0x0bad_cafe_0000_0001 + base),
            base: Offset::new(base),
            chain,
        };
        Self::with(header)
    }

    pub(super) fn with(header: SegmentHeader) -> Self {
        Self {
            header,
            bytes: header.encode().to_vec(),
            end: header.base.get(),
            chain: header.chain,
            synced: 64,
        }
    }

    pub(super) fn at(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn frame(&mut self, kind: FrameKind, flags: u8, count: u32, payload: &[u8]) -> u32 {
        let header = Header {
            payload_len: 0,
            first: Offset::new(self.end),
            count,
            unproven: u32::try_from(self.bytes.len() - self.synced).unwrap(),
            recorded_at_ms: 1,
            kind,
            flags,
            payload_crc: 0,
        };
        let (bytes, crc) = frame::encode(header, payload, self.header.salt.at(self.at()));
        self.bytes.extend_from_slice(&bytes);
        crc
    }

    /// A data frame with one event per id.
    pub(super) fn data(mut self, ids: &[&str]) -> Self {
        let mut payload = Vec::new();
        for id in ids {
            // Not a zero at the end: a cut byte must be missed even where zeros follow.
            let event = Event::new(*id, "k", 1, "x").with_payload(*b"!");
            encode_event(&mut payload, &event).unwrap();
        }
        self.chain = self.frame(FrameKind::Data, 0, ids.len() as u32, &payload);
        self.end += ids.len() as u64;
        self
    }

    /// A data frame of any content.
    pub(super) fn raw(mut self, flags: u8, count: u32, payload: &[u8]) -> Self {
        self.chain = self.frame(FrameKind::Data, flags, count, payload);
        self.end += u64::from(count);
        self
    }

    /// A frame without records that moves an upstream.
    pub(super) fn upstream(self, name: &str, position: u64, flag: u8) -> Self {
        let mut payload = Vec::new();
        upstream::put(&mut payload, [(name, position)]).unwrap();
        self.raw(FLAG_UPSTREAM | flag, 0, &payload)
    }

    /// All frames so far are synced, and those that follow know it.
    pub(super) fn sync(mut self) -> Self {
        self.synced = self.bytes.len();
        self
    }

    pub(super) fn note(mut self) -> Self {
        self = self.sync();
        self.frame(FrameKind::Note, 0, 0, &[]);
        self
    }

    pub(super) fn seal(mut self) -> Self {
        self = self.sync();
        let seal = Seal {
            end: Offset::new(self.end),
            records: self.end - self.header.base.get(),
            chain: self.chain,
        };
        self.frame(FrameKind::Seal, 0, 0, &seal.encode());
        self
    }

    pub(super) fn zeros(self, count: usize) -> Self {
        self.put(&vec![0; count])
    }

    pub(super) fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn flip(mut self, byte: u64) -> Self {
        self.bytes[byte as usize] ^= 0x10;
        self
    }

    /// The segment after this one.
    pub(super) fn next(&self) -> Self {
        Self::new(self.end, self.chain)
    }

    pub(super) fn name(&self) -> String {
        segment::path(self.header.base)
    }

    pub(super) fn fresh_name(&self) -> String {
        segment::path_new(self.header.base)
    }
}

/// A disk with these segments.
pub(super) fn disk(segments: &[&Lay]) -> SimDisk {
    let disk = SimDisk::new();
    for segment in segments {
        disk.write_file(&segment.name(), &segment.bytes).unwrap();
    }
    disk
}

pub(super) fn storage(disk: &SimDisk) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

pub(super) fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 4096,
        ..LogOptions::default()
    }
}

pub(super) fn anchor(checkpoint: u64, frame_crc: u32) -> Anchor {
    Anchor {
        log_id: LOG_ID,
        epoch: 0,
        consumer: "orders".to_owned(),
        checkpoint: Offset::new(checkpoint),
        frame_crc,
    }
}

pub(super) fn plant(disk: &SimDisk, anchor: &Anchor) {
    disk.create_dir(&format!("state/{}", anchor.consumer))
        .unwrap();
    anchor::write(disk, anchor).unwrap();
    disk.settle();
}

/// Opens for writing as the log does, with the anchors that stand there.
pub(super) fn open(disk: &SimDisk) -> Result<Recovered> {
    let (anchors, _) = anchor::read_all(disk)?;
    recover(&storage(disk), &options(), &anchors)
}

/// Opens, expecting an error that changes nothing, not even names.
pub(super) fn refused(disk: &SimDisk) -> Error {
    let before = disk.image_hash();
    let error = open(disk).expect_err("opened");
    assert_eq!(before, disk.image_hash(), "changed, and then {error}");
    assert_eq!(open(disk).unwrap_err().to_string(), error.to_string());
    error
}

pub(super) fn ids_of(catalog: &Catalog) -> Result<Vec<String>> {
    let mut cursor = Cursor::new(catalog, Offset::ZERO, catalog.end());
    let mut ids = Vec::new();
    while let Some(raw) = cursor.next()? {
        assert_eq!(raw.offset, Offset::new(ids.len() as u64));
        ids.push(raw.event().unwrap().id);
    }
    Ok(ids)
}

pub(super) fn ids(recovered: &Recovered) -> Vec<String> {
    ids_of(&recovered.catalog).unwrap()
}

pub(super) fn quarantine(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let files = disk.files().into_iter();
    files
        .filter(|name| name.starts_with("quarantine/"))
        .map(|name| (name.clone(), disk.read_file(&name).unwrap()))
        .collect()
}

/// Position and offset of a corruption.
pub(super) fn corrupt_at(error: &Error) -> (String, u64, u64) {
    let Error::Corrupt {
        file,
        position,
        offset,
        ..
    } = error
    else {
        panic!("{error}")
    };
    let file = file.file_name().unwrap().to_string_lossy().into_owned();
    (file, *position, offset.get())
}

/// Holds the writer's lock as another process would.
pub(super) fn lock(disk: &SimDisk) -> Lock {
    let lock = disk.try_lock().unwrap();
    assert!(matches!(lock, Lock::Held(_)));
    lock
}
