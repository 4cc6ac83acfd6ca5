#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "lengths of a few kilobytes"
)]

use super::*;
use crate::event::Event;
use crate::log::segment::{SegmentHeader, SegmentHeaderAt};
use crate::log::{Ingested, Log, LogOptions, recovery};
use crate::storage::Storage;
use crate::storage::sim::SimDisk;

fn open(disk: &SimDisk) -> Log {
    let options = LogOptions {
        segment_bytes: 4096,
        ..LogOptions::default()
    };
    Log::open(Arc::new(disk.clone()), options).unwrap()
}

/// Frames of one to three events over some segments, and how many events that are.
fn filled(disk: &SimDisk) -> (Log, u64) {
    let log = open(disk);
    let mut made = 0;
    for frame in 0..60_u64 {
        let count = frame % 3 + 1;
        let events = (0..count)
            .map(|at| Event::new(format!("{}", made + at), "k", 1, "x").with_payload(vec![7; 60]));
        log.append(&events.collect::<Vec<_>>()).unwrap();
        if frame % 7 == 0 {
            let stored = log.append_from("u", frame + 1, &[]);
            assert!(matches!(stored, Ok(Ingested::Stored(_))));
        }
        made += count;
    }
    assert!(log.segments().len() > 3);
    (log, made)
}

/// The frames of a segment, from the bytes alone.
fn frames(bytes: &[u8]) -> Vec<(usize, Header)> {
    let SegmentHeaderAt::Valid(header) = SegmentHeader::decode(bytes) else {
        panic!()
    };
    let mut at = 64;
    let mut frames = Vec::new();
    while let HeaderAt::Valid(frame, _) =
        frame::decode_header(&bytes[at..], header.salt.at(at as u64))
    {
        frames.push((at, frame));
        at += frame.frame_len() as usize;
    }
    frames
}

fn catalog_of(disk: &SimDisk) -> Catalog {
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let options = LogOptions::default();
    recovery::inspect(&storage, &options, &[]).unwrap().catalog
}

fn ids(catalog: &Catalog, from: u64, to: u64) -> (Vec<String>, Option<Error>) {
    let mut cursor = Cursor::new(catalog, Offset::new(from), Offset::new(to));
    let mut ids = Vec::new();
    loop {
        assert_eq!(cursor.offset().get(), from + ids.len() as u64);
        match cursor.next() {
            Ok(Some(raw)) => {
                assert_eq!(raw.offset.get(), from + ids.len() as u64);
                ids.push(raw.event().unwrap().id);
            }
            Ok(None) => return (ids, None),
            Err(error) => {
                assert!(matches!(cursor.next(), Ok(None)), "nothing after an error");
                return (ids, Some(error));
            }
        }
    }
}

#[test]
fn every_range_of_a_log_comes_back_whole_across_segments() {
    let disk = SimDisk::new();
    let (log, end) = filled(&disk);
    log.close().unwrap();
    let catalog = catalog_of(&disk);
    assert_eq!(catalog.end().get(), end);
    for from in 0..=end {
        for to in (from..=end).step_by(7).chain([end]) {
            let expected: Vec<String> = (from..to).map(|n| n.to_string()).collect();
            let (found, error) = ids(&catalog, from, to);
            assert!(error.is_none(), "{from}..{to}: {error:?}");
            assert_eq!(found, expected, "{from}..{to}");
        }
    }
}

#[test]
fn headers_and_checksums_are_those_of_the_frames() {
    let disk = SimDisk::new();
    let (log, end) = filled(&disk);
    let catalog = catalog_of(&disk);
    // All frames, from the bytes alone.
    let mut crcs = vec![0_u32];
    for segment in log.segments() {
        let bytes = disk.read_file(&segment.file).unwrap();
        for (at, frame) in frames(&bytes) {
            let crc: [u8; 4] = bytes[at + 35..at + 39].try_into().unwrap();
            crcs.extend((0..frame.count).map(|_| u32::from_le_bytes(crc)));
        }
    }
    assert_eq!(crcs.len() as u64, end + 1);
    for (offset, crc) in crcs.iter().enumerate() {
        let offset = Offset::new(offset as u64);
        assert_eq!(frame_crc_before(&catalog, offset).unwrap(), *crc);
    }
    for from in 0..end {
        let mut headers = Headers::new(&catalog, Offset::new(from), Offset::new(end));
        let mut next = None;
        while let Some(frame) = headers.next().unwrap() {
            let first = frame.header.first.get();
            assert!(next.map_or(first <= from, |next| next == first));
            assert!(frame.header.end().get() > from);
            next = Some(frame.header.end().get());
        }
        assert_eq!(next, Some(end));
    }
    let mut cursor = Cursor::new(&catalog, Offset::ZERO, Offset::new(end));
    assert_eq!(cursor.frame_crc(), 0);
    for crc in &crcs[1..] {
        cursor.next().unwrap().unwrap();
        assert_eq!(cursor.frame_crc(), *crc);
    }
}

#[test]
fn damage_in_a_sealed_segment_stops_the_cursor_just_before_it() {
    let disk = SimDisk::new();
    let (log, end) = filled(&disk);
    log.close().unwrap();
    let (first, second) = (log.segments()[0].clone(), log.segments()[1].clone());
    let whole = disk.read_file(&second.file).unwrap();
    let frames = frames(&whole);
    let mut damaged = 0;
    for byte in (64..whole.len()).step_by(5) {
        let mut bad = whole.clone();
        bad[byte] ^= 1;
        let disk = disk.fork();
        disk.write_file(&second.file, &bad).unwrap();
        // Damage to the seal is met at open.
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let Ok(inspected) = recovery::inspect(&storage, &LogOptions::default(), &[]) else {
            continue;
        };
        damaged += 1;
        let catalog = inspected.catalog;
        let error = recovery::check(&catalog, &second).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{byte}: {error}");
        assert!(recovery::check(&catalog, &first).is_ok());
        let (found, error) = ids(&catalog, 0, end);
        if error.is_none() {
            // In the positions of upstreams, which a reader of records passes over.
            let frame = frames.iter().rfind(|(at, _)| *at <= byte).unwrap();
            assert_eq!(frame.1.count, 0, "{byte}");
            assert_eq!(found.len() as u64, end);
            continue;
        }
        let Some(Error::Corrupt {
            position, offset, ..
        }) = error
        else {
            panic!("{byte}: {error:?}")
        };
        assert!(position <= byte as u64);
        assert_eq!(offset.get(), found.len() as u64, "{byte}");
        assert!((second.base.get()..=second.end.get()).contains(&offset.get()));
        let expected: Vec<String> = (0..offset.get()).map(|n| n.to_string()).collect();
        assert_eq!(found, expected);
        // Behind the damaged segment all is well; inside it, what is read is right or an error.
        let (found, error) = ids(&catalog, second.end.get(), end);
        assert!(error.is_none() && found.len() as u64 == end - second.end.get());
        for from in second.base.get()..second.end.get() {
            let (found, error) = ids(&catalog, from, second.end.get());
            let expected: Vec<String> = (from..second.end.get()).map(|n| n.to_string()).collect();
            assert_eq!(found, expected[..found.len()]);
            assert!(error.is_some() || found.len() == expected.len());
            assert!(error.is_some() || from > offset.get(), "{byte} {from}");
        }
    }
    assert!(damaged > 100);
}

#[test]
fn a_frame_longer_than_a_chunk_is_read() {
    let disk = SimDisk::new();
    let log = open(&disk);
    for (n, len) in [10, 3 * CHUNK_MAX, 10, CHUNK_MAX, 1]
        .into_iter()
        .enumerate()
    {
        let event = Event::new(n.to_string(), "k", 1, "x").with_payload(vec![n as u8; len]);
        log.append(&[event]).unwrap();
    }
    drop(log);
    let log = open(&disk);
    let catalog = catalog_of(&disk);
    assert_eq!(ids(&catalog, 0, 5).0, ["0", "1", "2", "3", "4"]);
    for from in 0..5 {
        assert_eq!(ids(&catalog, from, from + 1).0, [from.to_string()]);
    }
    drop(log);
}

#[test]
fn one_read_deep_in_a_segment_reads_little() {
    let disk = SimDisk::new();
    let log = Log::open(Arc::new(disk.clone()), LogOptions::default()).unwrap();
    for frame in 0..200 {
        let events = (0..50).map(|n| Event::new(format!("{frame}-{n}"), "k", 1, "x"));
        log.append(&events.collect::<Vec<_>>()).unwrap();
    }
    let reads = |disk: &SimDisk| -> u64 {
        let reads = disk.trace().into_iter();
        let reads = reads.filter(|call| call.kind == crate::storage::sim::CallKind::Read);
        reads.map(|call| call.len).sum()
    };
    let read = |log: &Log, offset: u64| {
        disk.start_trace();
        drop(disk.trace());
        log.read(Offset::new(offset)).unwrap();
        reads(&disk)
    };
    assert!(read(&log, 9_000) <= 128 * 1024);
    log.close().unwrap();
    drop(log);
    let log = Log::open(Arc::new(disk.clone()), LogOptions::default()).unwrap();
    assert!(read(&log, 9_000) <= 128 * 1024);
    // The tail is read no further than it is durable.
    assert!(read(&log, 9_999) <= 32 * 1024);
}

#[test]
fn a_read_error_while_serving_is_that_error_and_no_end() {
    use crate::storage::sim::{CallKind, Fault, Filter, Repeat};
    let disk = SimDisk::new();
    let (log, end) = filled(&disk);
    log.close().unwrap();
    let catalog = catalog_of(&disk);
    for nth in 1.. {
        let struck = disk.faults_struck();
        let kinds = Filter::kinds(&[CallKind::Read]);
        disk.fail(kinds, nth, Fault::Io, Repeat::Once);
        let (found, error) = ids(&catalog, 0, end);
        disk.clear_faults();
        if disk.faults_struck() == struck {
            assert!(error.is_none());
            assert_eq!(found.len() as u64, end);
            assert!(nth > 4);
            break;
        }
        assert!(matches!(error, Some(Error::Io { .. })), "{error:?}");
    }
}
