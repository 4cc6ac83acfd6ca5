//! The calls of a log: limits, answers, reading.

use std::sync::Arc;
use std::time::Duration;

use super::Step::{Append, From, Write};
use super::{BIG, Model, image, options};
use crate::error::Error;
use crate::event::{Action, Body, Decision, Event};
use crate::frame::{HEADER_LEN, SEAL_LEN, Salt};
use crate::limits;
use crate::log::catalog::{Catalog, Segment};
use crate::log::commit::Writer;
use crate::log::draft::Draft;
use crate::log::reader::Cursor;
use crate::log::recovery::Tail;
use crate::log::segment::{self, SEGMENT_HEADER_LEN, SegmentHeader, SegmentName};
use crate::log::upstream::Table;
use crate::log::{Ingested, Log, LogOptions, Side};
use crate::offset::Offset;
use crate::storage::Storage;
use crate::storage::sim::{CrashMode, Filter, SimDisk};

fn at(offset: u64) -> Offset {
    Offset::new(offset)
}

fn new_log(options: LogOptions) -> (SimDisk, Log, Model) {
    let disk = SimDisk::new();
    let log = Log::open(Arc::new(disk.clone()), options).unwrap();
    (disk, log, Model::default())
}

fn decision(note: &str) -> Decision {
    Decision {
        consumer: "c".to_owned(),
        note: Some(note.to_owned()),
        action: Action::Redeliver { below: at(3) },
    }
}

#[test]
fn batch_is_bounded_by_count_and_bytes_and_always_has_one_record_if_there_is_one() {
    let options = LogOptions {
        batch_bytes_max: 250,
        ..options()
    };
    let (_, log, mut model) = new_log(options);
    model.step(&log, Append(&[100, 100, 100, 900])).unwrap();
    for _ in 0..2 {
        model.step(&log, Append(&[100])).unwrap();
    }
    let lens = |from: u64, max: usize| {
        let batch = log.next_batch(at(from), max).unwrap();
        assert_eq!(batch.next, at(from + batch.records.len() as u64));
        batch.records.len()
    };
    // Bodies are a few bytes longer than their payload of 100.
    assert_eq!((lens(0, 1), lens(0, 2), lens(0, 9)), (1, 2, 2));
    assert_eq!((lens(2, 9), lens(3, 9), lens(4, usize::MAX)), (1, 1, 2));
    assert_eq!(lens(6, 9), 0);
    assert!(matches!(log.next_batch(at(0), 0), Err(Error::ZeroBatch)));
    let beyond = log.next_batch(at(7), 1);
    let Err(Error::OffsetOutOfRange {
        requested,
        first,
        end,
    }) = beyond
    else {
        panic!("{beyond:?}")
    };
    assert_eq!((requested, first, end), (at(7), at(0), at(6)));
    assert!(matches!(
        log.read(at(6)),
        Err(Error::OffsetOutOfRange { .. })
    ));
    assert_eq!(log.read(at(5)).unwrap().offset, at(5));
}

#[test]
fn decisions_are_found_among_events_from_any_offset_across_segments() {
    let (_, log, mut model) = new_log(options());
    let mut expected = Vec::new();
    for n in 0..12 {
        if n % 3 == 1 {
            let offset = log.append_decision(&decision(&n.to_string()), 7).unwrap();
            expected.push((offset, decision(&n.to_string())));
        } else {
            let events = model.events(&[BIG]);
            log.append(&events).unwrap();
        }
    }
    assert!(log.segments().len() > 2);
    assert_eq!(expected.len(), 4);
    for from in 0..=12 {
        let mut rest = expected.clone();
        rest.retain(|(offset, _)| *offset >= at(from));
        assert_eq!(log.decisions(at(from)).unwrap(), rest);
    }
    let (offset, decision) = expected.pop().unwrap();
    assert_eq!(log.read(offset).unwrap().body, Body::Decision(decision));
}

#[test]
fn frame_crc_before_is_that_of_the_frame_with_the_record_before() {
    let (disk, log, mut model) = new_log(LogOptions::default());
    for step in [Append(&[1, 2, 3]), From("u", 1, 0), Append(&[4])] {
        model.step(&log, step).unwrap();
    }
    // By hand: the header's last four bytes, of the first frame and of the third.
    let bytes = disk.read_file("log/00000000000000000000.seg").unwrap();
    let crc = |position: usize| {
        u32::from_le_bytes(bytes[position + 35..position + 39].try_into().unwrap())
    };
    let len = |position: usize| {
        39 + u32::from_le_bytes(bytes[position..position + 4].try_into().unwrap()) as usize
    };
    let third = 64 + len(64) + len(64 + len(64));
    assert_eq!(log.frame_crc_before(at(0)).unwrap(), 0);
    for offset in 1..=3 {
        assert_eq!(log.frame_crc_before(at(offset)).unwrap(), crc(64));
    }
    assert_eq!(log.frame_crc_before(at(4)).unwrap(), crc(third));
    assert!(matches!(
        log.frame_crc_before(at(5)),
        Err(Error::OffsetOutOfRange { .. })
    ));
}

#[test]
fn what_is_refused_changes_nothing() {
    let (disk, log, mut model) = new_log(options());
    model.step(&log, From("u", 5, 1)).unwrap();
    let hash = disk.image_hash();
    let empty = Event::new("", "k", 1, "x");
    assert!(matches!(
        log.append(&[]),
        Err(Error::Empty { what: "batch" })
    ));
    assert!(matches!(
        log.append(std::slice::from_ref(&empty)),
        Err(Error::Empty { what: "id" })
    ));
    assert!(matches!(log.write(&empty), Err(Error::Empty { .. })));
    assert!(matches!(
        log.append_from("", 1, &[]),
        Err(Error::Empty { what: "upstream" })
    ));
    for position in [0, 4, 5] {
        let answer = log
            .append_from("u", position, &[Event::new("e", "k", 1, "x")])
            .unwrap();
        assert_eq!(answer, Ingested::AlreadyStored { position: 5 });
    }
    assert_eq!(log.sync().unwrap(), at(1));
    assert_eq!(disk.image_hash(), hash);
    for segment_bytes in [
        0,
        limits::SEGMENT_BYTES_MIN - 1,
        limits::SEGMENT_BYTES_MAX + 1,
    ] {
        let options = LogOptions {
            segment_bytes,
            ..LogOptions::default()
        };
        let answer = Log::open(Arc::new(SimDisk::new()), options);
        assert!(matches!(answer, Err(Error::Invalid { .. })));
    }
}

#[test]
fn upstream_table_is_bounded_and_known_upstreams_go_on() {
    let (_, log, _) = new_log(LogOptions::default());
    for n in 0..limits::UPSTREAMS_MAX {
        assert_eq!(
            log.append_from(&format!("u{n}"), 1, &[]).unwrap(),
            Ingested::Stored(at(0)..at(0))
        );
    }
    assert!(matches!(
        log.append_from("one more", 1, &[]),
        Err(Error::TooLarge { .. })
    ));
    assert!(matches!(
        log.append_from("u3", 2, &[]),
        Ok(Ingested::Stored(_))
    ));
    assert_eq!(log.upstreams().len(), limits::UPSTREAMS_MAX);
}

#[test]
fn forks_copy_is_refused_and_does_not_take_the_lock_from_its_parent() {
    let (disk, log, mut model) = new_log(options());
    model.step(&log, Write(1)).unwrap();
    let mut copy = log;
    let Side::Writer { writer, .. } = &mut Arc::get_mut(&mut copy.inner).unwrap().side else {
        panic!()
    };
    // As if this were the child.
    writer.process += 1;
    let calls = disk.calls();
    assert!(matches!(
        copy.append(&model.events(&[1])),
        Err(Error::Closed)
    ));
    assert!(matches!(
        copy.write(&model.events(&[1])[0]),
        Err(Error::Closed)
    ));
    assert!(matches!(copy.append_from("u", 1, &[]), Err(Error::Closed)));
    assert!(matches!(copy.sync(), Err(Error::Closed)));
    assert!(matches!(copy.next_batch(at(0), 1), Err(Error::Closed)));
    assert!(matches!(copy.close(), Err(Error::Closed)));
    drop(copy);
    assert_eq!(disk.calls(), calls);
    let second = Log::open(Arc::new(disk), options());
    assert!(matches!(second, Err(Error::Locked { .. })));
}

#[test]
fn log_on_the_real_disk_comes_back_after_rolls_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk = crate::storage::disk::Disk::open(dir.path().join("new/store"));
        Log::open(Arc::new(disk), options()).unwrap()
    };
    let mut log = open();
    let mut model = Model::default();
    for n in 0..20 {
        let step = match n % 4 {
            0 => From("u", n, 1),
            1 => Write(BIG),
            _ => Append(&[BIG, 10]),
        };
        model.step(&log, step).unwrap();
        if n % 7 == 6 {
            let me = std::process::id();
            let second = Log::open(
                Arc::new(crate::storage::disk::Disk::open(
                    dir.path().join("new/store"),
                )),
                options(),
            );
            assert!(matches!(second, Err(Error::Locked { pid: Some(pid), .. }) if pid == me));
            log.close().unwrap();
            log = open();
            model.acked = model.attempts.len();
            model.settle(&log).unwrap();
        }
    }
    assert!(log.segments().len() > 3);
    drop(log);
    assert_eq!(image(&open()), model.image(20));
}

#[test]
fn waiting_ends_with_the_record_the_timeout_or_the_close() {
    let (_, log, mut model) = new_log(options());
    assert!(!log.wait_for(at(0), Duration::ZERO));
    assert!(!log.wait_for(at(0), Duration::from_millis(5)));
    model.step(&log, Append(&[1])).unwrap();
    assert!(log.wait_for(at(0), Duration::ZERO));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| log.wait_for(at(1), Duration::MAX));
        std::thread::sleep(Duration::from_millis(20));
        log.close().unwrap();
        assert!(!waiter.join().unwrap());
    });
}

#[test]
fn last_offset_is_never_given() {
    let base = at(u64::MAX - 3);
    let (writer, _) = writer_at(base, SEGMENT_HEADER_LEN);
    let draft = |n: usize| Draft::events(&vec![Event::new("e", "k", 1, "x"); n]).unwrap();
    assert!(matches!(writer.append(&draft(3)), Err(Error::Overflow)));
    assert_eq!(writer.append(&draft(2)).unwrap(), base..at(u64::MAX - 1));
    for n in 1..3 {
        assert!(matches!(writer.append(&draft(n)), Err(Error::Overflow)));
    }
    assert_eq!(writer.durable_end(), at(u64::MAX - 1));
}

#[test]
fn read_only_log_follows_a_writer_and_writes_nothing() {
    let (disk, log, mut model) = new_log(options());
    model.step(&log, Append(&[1])).unwrap();
    disk.start_trace();
    let read_only = LogOptions {
        read_only: true,
        ..options()
    };
    let reader = Log::open(Arc::new(disk.clone()), read_only).unwrap();
    assert!(matches!(
        reader.append(&model.events(&[1])),
        Err(Error::ReadOnly)
    ));
    assert!(matches!(reader.sync(), Err(Error::ReadOnly)));
    assert!(disk.trace().iter().all(|call| !call.kind.changes()));
    model.made = 1;
    for n in 2..12 {
        let step = if n % 4 == 0 {
            From("u", n, 1)
        } else {
            Append(&[BIG])
        };
        model.step(&log, step).unwrap();
        // Proven by the note behind it.
        drop(disk.trace());
        assert!(reader.wait_for(at(n - 1), Duration::from_secs(5)), "{n}");
        assert_eq!(image(&reader), image(&log));
        assert!(disk.trace().iter().all(|call| !call.kind.changes()));
    }
    assert!(!reader.wait_for(at(11), Duration::from_millis(50)));
    reader.close().unwrap();
    assert!(matches!(reader.next_batch(at(0), 1), Err(Error::Closed)));
    log.close().unwrap();
    // A disk that refuses every change, and no writer.
    let after = disk.crash(CrashMode::KeepAll, 0);
    after.fail(
        Filter::changes(),
        1,
        crate::storage::sim::Fault::Permission,
        crate::storage::sim::Repeat::Forever,
    );
    let reader = Log::open(Arc::new(after), read_only).unwrap();
    assert_eq!(image(&reader), model.image(model.attempts.len()));
}

#[test]
fn read_only_log_needs_a_store() {
    let read_only = LogOptions {
        read_only: true,
        ..options()
    };
    let disk = SimDisk::new();
    let answer = Log::open(Arc::new(disk.clone()), read_only);
    assert!(matches!(answer, Err(Error::NoStore { .. })), "{answer:?}");
    assert_eq!(disk.files(), Vec::<String>::new());
}

/// A writer over a log whose only segment has base `base` and frames up to `position`.
fn writer_at(base: Offset, position: u64) -> (Writer, Catalog) {
    let storage: Arc<dyn Storage> = Arc::new(SimDisk::new());
    storage.create_dir(segment::DIR).unwrap();
    let header = SegmentHeader {
        log_id: 1,
        epoch: 0,
        salt: Salt(9),
        base,
        chain: 0,
    };
    let file = segment::create(&*storage, &header, 4096).unwrap();
    segment::publish(&*storage, base).unwrap();
    let catalog = Catalog::new(Arc::clone(&storage));
    catalog.add(Segment::new(&header));
    let tail = Tail {
        file,
        name: SegmentName::live(base).to_path(),
        salt: header.salt,
        position,
        end: base,
        chain: 0,
        allocated: position,
        records_in_segment: 0,
    };
    let table = Table::default();
    let writer = Writer::new(storage, options(), (1, 0), catalog.clone(), tail, table);
    (writer, catalog)
}

#[test]
fn segment_of_positions_alone_keeps_room_for_the_largest_frame() {
    let kept = u64::try_from(limits::FRAME_BYTES_MAX + HEADER_LEN + SEAL_LEN).unwrap();
    let (writer, _) = writer_at(at(0), u64::from(u32::MAX) - kept - 1000);
    let mut taken = 0;
    let refused = loop {
        let draft = Draft::upstream("u", taken, &[]).unwrap();
        match writer.append_from("u", taken, &draft) {
            Ok(stored) => assert_eq!(stored, Ingested::Stored(at(0)..at(0))),
            Err(error) => break error,
        }
        taken += 1;
    };
    assert!(
        matches!(
            refused,
            Error::TooLarge {
                what: "segment without records",
                ..
            }
        ),
        "{refused}"
    );
    // 39 bytes of header, 4 of length, 4 of pairs: by the tables of the design page.
    assert_eq!(taken, 1000 / 47);
    // The handle is not stopped, the largest frame still fits, and behind it the log rolls.
    let payload = vec![0; limits::PAYLOAD_BYTES_MAX];
    let big: Vec<Event> = (0..3)
        .map(|n| Event::new(format!("e{n}"), "k", n, "x").with_payload(payload.clone()))
        .collect();
    let draft = Draft::events(&big).unwrap();
    assert_eq!(writer.append(&draft).unwrap(), at(0)..at(3));
    let draft = Draft::upstream("u", 99, &[]).unwrap();
    let stored = writer.append_from("u", 99, &draft).unwrap();
    assert_eq!(stored, Ingested::Stored(at(3)..at(3)));
    assert_eq!(writer.upstream_position("u"), Some(99));
}

#[test]
fn offsets_beyond_32_bits_are_given_rolled_and_read() {
    let base = at((1 << 32) - 2);
    let (writer, catalog) = writer_at(base, SEGMENT_HEADER_LEN);
    for n in 0..40 {
        let event = Event::new(format!("e{n}"), "k", 1, "x").with_payload(vec![b'p'; 400]);
        let first = base.plus(n);
        let draft = Draft::events(&[event]).unwrap();
        assert_eq!(writer.append(&draft).unwrap(), first..first.plus(1));
    }
    let end = at((1 << 32) + 38);
    assert_eq!((writer.durable_end(), catalog.end()), (end, end));
    assert!(catalog.segments().len() > 2, "it rolled beyond 2^32");
    for from in [base, at((1 << 32) - 1), at(1 << 32), at((1 << 32) + 37)] {
        let mut cursor = Cursor::new(&catalog, from, end);
        for offset in from.get()..end.get() {
            let raw = cursor.next().unwrap().unwrap();
            assert_eq!(raw.offset, at(offset));
            let id = raw.event().unwrap().id;
            assert_eq!(id, format!("e{}", offset - base.get()));
        }
        assert!(cursor.next().unwrap().is_none());
    }
}
