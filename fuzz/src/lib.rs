//! What the fuzz targets share: a store on a simulated disk whose only log file holds bytes of our
//! choice, frames with good checksums around bytes of our choice, and what must hold when such a
//! store is opened.
//!
//! Everything goes through foldlog's public face. The layout of a frame is written down here a
//! second time, from the table in `src/frame.rs`, so that the two are compared.

pub mod kept;
pub mod set;

use std::sync::Arc;

use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::SimDisk;
use foldlog::{Error, Event, Offset, Options, Record, Store};

/// The only segment of a small store.
pub const SEGMENT: &str = "log/00000000000000000000.seg";
/// Length of a segment's header: where its first frame starts.
pub const SEGMENT_HEADER_LEN: usize = 64;
/// Length of a frame's header.
pub const FRAME_HEADER_LEN: usize = 39;

/// The events in every store that starts out whole.
pub fn known_events() -> Vec<Event> {
    (1..=3)
        .map(|version| Event::new(format!("e{version}"), "k", version, "kind").with_payload([7; 9]))
        .collect()
}

/// How to open a store on this disk.
pub fn options(disk: &SimDisk) -> Options {
    Store::options()
        .segment_bytes(4096)
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(FakeStates::new()))
}

/// A disk with a closed store of [`known_events`], one frame each.
pub fn whole_store() -> SimDisk {
    let disk = SimDisk::new();
    let store = options(&disk).open("store").expect("a new store");
    for event in known_events() {
        store.append(&event).expect("append");
    }
    store.close().expect("close");
    disk
}

/// The bytes of the only segment.
pub fn read(disk: &SimDisk) -> Vec<u8> {
    disk.read_file(SEGMENT).expect("the segment is there")
}

/// Puts these bytes into the only segment instead of what it held, durably.
pub fn write(disk: &SimDisk, bytes: &[u8]) {
    disk.write_file(SEGMENT, bytes).expect("a good path");
}

/// The two halves of a segment's salt, found from the checksums of its first frame.
pub fn salt(segment: &[u8]) -> (u32, u32) {
    let frame = &segment[SEGMENT_HEADER_LEN..];
    let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
    let len = usize::try_from(word(0)).expect("small");
    let payload = &frame[FRAME_HEADER_LEN..FRAME_HEADER_LEN + len];
    let header = &frame[..FRAME_HEADER_LEN - 4];
    (
        crc32fast::hash(payload) ^ word(31),
        crc32fast::hash(header) ^ word(35),
    )
}

/// The fields of a forged frame.
#[derive(Clone, Debug, Default)]
pub struct Forged<'a> {
    pub first: u64,
    pub count: u32,
    pub unproven: u32,
    pub kind: u8,
    pub flags: u8,
    pub version: u8,
    pub payload: &'a [u8],
}

impl Forged<'_> {
    /// The frame's bytes, with checksums that hold.
    pub fn bytes(&self, salt: (u32, u32)) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(
            u32::try_from(self.payload.len())
                .expect("small")
                .to_le_bytes(),
        );
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.unproven.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend([self.kind, self.flags, self.version]);
        bytes.extend((crc32fast::hash(self.payload) ^ salt.0).to_le_bytes());
        bytes.extend((crc32fast::hash(&bytes) ^ salt.1).to_le_bytes());
        assert_eq!(bytes.len(), FRAME_HEADER_LEN);
        bytes.extend(self.payload);
        bytes
    }
}

/// All records that can be read, or the error that stopped the reading.
pub fn read_all(store: &Store) -> (Vec<Record>, Option<Error>) {
    let mut records = Vec::new();
    let mut from = Offset::ZERO;
    loop {
        match store.next_batch(from, 3) {
            Ok(batch) if batch.records.is_empty() => return (records, None),
            Ok(batch) => {
                from = batch.next;
                records.extend(batch.records);
            }
            Err(error) => return (records, Some(error)),
        }
    }
}

/// Opens the store on a disk whose log holds any bytes, in every way there is, and checks what
/// must hold: a refusal and a read-only open leave the log as it was; what is served has no gap, is
/// the same at every open, and can be appended to. Answers what was read.
pub fn check_open(disk: &SimDisk) -> Vec<Record> {
    let before = read(disk);
    if let Ok(store) = options(disk).read_only(true).open("store") {
        read_all(&store);
    }
    assert!(read(disk) == before, "a read-only open wrote");
    if let Ok(store) = options(disk).strict(true).read_only(true).open("store") {
        read_all(&store);
    }
    assert!(read(disk) == before, "a read-only open wrote");

    let store = match options(disk).open("store") {
        Ok(store) => store,
        Err(_) => {
            assert!(read(disk) == before, "a refused open wrote");
            return Vec::new();
        }
    };
    let (records, error) = read_all(&store);
    for (place, record) in (0..).zip(&records) {
        assert_eq!(record.offset, Offset::new(place));
    }
    if error.is_none() {
        assert_eq!(
            Offset::new(records.len().try_into().expect("small")),
            store.durable_end()
        );
    }
    let event = Event::new("after", "k", 1, "kind");
    let appended = store.append(&event);
    let end = store.durable_end();
    drop(store);

    let store = options(disk)
        .open("store")
        .expect("what opened once opens again");
    assert_eq!(store.durable_end(), end);
    let (again, second) = read_all(&store);
    assert_eq!(error.is_some(), second.is_some());
    assert_eq!(again.get(..records.len()), Some(&*records));
    if error.is_none() && appended.is_ok() {
        let last = again.last().map(|record| record.body.clone());
        assert_eq!(last, Some(foldlog::Body::Event(event)));
        assert_eq!(again.len(), records.len() + 1);
    }
    records
}
