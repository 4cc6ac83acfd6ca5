//! Rolls, preallocation and the bytes that a writer leaves.

use std::sync::Arc;

use super::Step::{Append, From, Sync, Write};
use super::probe::{Call, EIO, EMFILE, ENOSPC, Probe, Verdict};
use super::{BIG, Model, image, options};
use crate::error::Error;
use crate::frame::{self, FLAG_TABLE, FLAG_UPSTREAM, FrameAt, FrameKind, Header, SEAL_LEN};
use crate::log::segment::{SEGMENT_HEADER_LEN, SegmentHeader, SegmentHeaderAt};
use crate::log::{Log, LogOptions, PREALLOCATE_BYTES};
use crate::offset::Offset;
use crate::storage::Storage;
use crate::storage::sim::{CallKind, CrashMode, Fault, Repeat, SimDisk};

/// The frames of a segment file, each with its position, up to the first place without one.
fn frames(disk: &SimDisk, base: u64) -> Vec<(u64, Header)> {
    let bytes = disk.read_file(&format!("log/{base:020}.seg")).unwrap();
    let SegmentHeaderAt::Valid(header) = SegmentHeader::decode(&bytes) else {
        panic!("no header")
    };
    let mut position = SEGMENT_HEADER_LEN;
    let mut found = Vec::new();
    while let FrameAt::Valid(frame, _, _) =
        frame::decode(&bytes[position as usize..], header.salt.at(position))
    {
        found.push((position, frame));
        position += frame.frame_len();
    }
    found
}

fn new_log(options: LogOptions) -> (SimDisk, Probe, Log, Model) {
    let disk = SimDisk::new();
    let probe = Probe::new(disk.clone());
    let log = Log::open(probe.storage(), options).unwrap();
    (disk, probe, log, Model::default())
}

#[test]
fn unproven_counts_the_bytes_that_no_sync_had_covered_when_the_frame_was_made() {
    let (disk, _, log, mut model) = new_log(options());
    for step in [
        Append(&[1]),
        Write(2),
        Write(3),
        Append(&[4]),
        Append(&[5]),
        From("u", 1, 0),
    ] {
        model.step(&log, step).unwrap();
    }
    let found = frames(&disk, 0);
    let unproven: Vec<u64> = found
        .iter()
        .map(|(_, frame)| frame.unproven.into())
        .collect();
    let at = |n: usize| found[n].0;
    assert_eq!(unproven, [0, 0, at(2) - at(1), at(3) - at(1), 0, 0, 0]);
    let kinds: Vec<FrameKind> = found.iter().map(|(_, frame)| frame.kind).collect();
    assert_eq!(kinds[..6], [FrameKind::Data; 6]);
    assert_eq!(kinds[6], FrameKind::Note, "nothing is pending");
    assert_eq!(found[6].1.first, Offset::new(5));
    assert_eq!((found[5].1.flags, found[5].1.count), (FLAG_UPSTREAM, 0));
}

#[test]
fn note_is_written_over_by_the_next_frame_and_close_syncs_one() {
    let (disk, _, log, mut model) = new_log(options());
    model.step(&log, Append(&[1])).unwrap();
    let note = frames(&disk, 0)[1];
    assert_eq!(note.1.kind, FrameKind::Note);
    model.step(&log, Append(&[1])).unwrap();
    assert_eq!(frames(&disk, 0)[1].1.kind, FrameKind::Data);
    let last = frames(&disk.crash(CrashMode::DropAll, 0), 0);
    assert_eq!(
        last.last().unwrap().1.kind,
        FrameKind::Data,
        "the note is not synced"
    );
    log.close().unwrap();
    let last = frames(&disk.crash(CrashMode::DropAll, 0), 0);
    assert_eq!(last.last().unwrap().1.kind, FrameKind::Note);
}

#[test]
fn one_commit_is_one_write_and_one_sync() {
    let (disk, _, log, mut model) = new_log(LogOptions::default());
    for len in 0..50 {
        model.step(&log, Write(len)).unwrap();
    }
    let (writes, syncs) = (
        disk.calls_of(CallKind::Write),
        disk.calls_of(CallKind::Sync),
    );
    model.step(&log, Sync).unwrap();
    assert_eq!(
        disk.calls_of(CallKind::Write) - writes,
        2,
        "the frames, and a note"
    );
    assert_eq!(disk.calls_of(CallKind::Sync) - syncs, 1);
}

#[test]
fn every_segment_ends_in_a_seal_within_its_bytes_and_the_next_goes_on_there() {
    let (disk, probe, log, mut model) = new_log(options());
    for n in 0..30 {
        let step = if n % 3 == 0 {
            Append(&[BIG])
        } else {
            Append(&[700, 10])
        };
        model.step(&log, step).unwrap();
    }
    assert_eq!(probe.violations(), Vec::<String>::new());
    let segments = log.segments();
    assert!(segments.len() > 5);
    for (at, segment) in segments.iter().enumerate() {
        let found = frames(&disk, segment.base.get());
        let (position, last) = found.last().unwrap();
        if at + 1 == segments.len() {
            assert_eq!(last.kind, FrameKind::Note);
            continue;
        }
        assert_eq!(last.kind, FrameKind::Seal);
        assert_eq!(last.first, segments[at + 1].base);
        let len = disk.read_file(&segment.file).unwrap().len() as u64;
        assert_eq!(len, options().segment_bytes);
        assert!(position + SEAL_LEN as u64 <= len);
        // The frame that went to the next segment would not have fitted before the seal.
        let next = frames(&disk, segments[at + 1].base.get())[0].1.frame_len();
        assert!(position + next + SEAL_LEN as u64 > len);
    }
}

#[test]
fn frame_that_just_fits_before_the_seal_does_not_roll() {
    // Length of the one frame of an event with an empty payload, from a log of its own.
    let (disk, _, log, mut model) = new_log(options());
    model.step(&log, Append(&[0])).unwrap();
    let empty = frames(&disk, 0)[0].1.frame_len();
    // Longer payloads take two bytes more for lengths of two places.
    let room = options().segment_bytes - SEGMENT_HEADER_LEN - SEAL_LEN as u64;
    for over in [0, 1] {
        let (disk, _, log, mut model) = new_log(options());
        model.step(&log, Append(&[0])).unwrap();
        let left = room - empty;
        let events = model.events(&[usize::try_from(left).unwrap()]);
        let draft = |len: usize| {
            let mut event = events[0].clone();
            event.payload.truncate(len);
            event
        };
        let mut len = usize::try_from(left).unwrap();
        let frame_len = |len| {
            crate::log::draft::Draft::events(&[draft(len)])
                .unwrap()
                .frame_len()
        };
        while frame_len(len) > left + over {
            len -= 1;
        }
        assert_eq!(frame_len(len), left + over);
        log.append(&[draft(len)]).unwrap();
        assert_eq!(log.segments().len(), 1 + usize::try_from(over).unwrap());
        // Full, or one byte short of it: in both cases there is no room for the smallest frame.
        log.append(&[draft(0)]).unwrap();
        assert_eq!(log.segments().len(), 2 + usize::try_from(over).unwrap());
        drop(log);
        let log = Log::open(Arc::new(disk), options()).unwrap();
        assert_eq!(log.durable_end(), Offset::new(3));
    }
}

#[test]
fn segment_file_grows_by_chunks_of_zeros_up_to_its_size() {
    let segment_bytes = 2 * PREALLOCATE_BYTES + 100_000;
    let options = LogOptions {
        segment_bytes,
        ..LogOptions::default()
    };
    let (disk, _, log, mut model) = new_log(options);
    let len = || {
        disk.read_file("log/00000000000000000000.seg")
            .unwrap()
            .len() as u64
    };
    assert_eq!(len(), PREALLOCATE_BYTES);
    model.step(&log, Append(&[3_000_000])).unwrap();
    assert_eq!(len(), PREALLOCATE_BYTES);
    model.step(&log, Append(&[3_000_000])).unwrap();
    assert_eq!(len(), 2 * PREALLOCATE_BYTES);
    model.step(&log, Append(&[2_400_000])).unwrap();
    assert_eq!(len(), segment_bytes);
    model.step(&log, Append(&[1_000_000])).unwrap();
    assert_eq!(len(), segment_bytes);
    assert_eq!(log.segments().len(), 2);
    assert_eq!(image(&log), model.image(4));
}

#[test]
fn zeros_ahead_are_only_for_speed() {
    let options = LogOptions {
        segment_bytes: 3 * PREALLOCATE_BYTES,
        ..LogOptions::default()
    };
    let (disk, _, log, mut model) = new_log(options);
    model.step(&log, Append(&[3_000_000])).unwrap();
    // Room for the frame, not for the chunk behind it.
    disk.set_free_bytes(Some(3_000_000));
    model.step(&log, Append(&[3_000_000])).unwrap();
    model.step(&log, Append(&[100])).unwrap();
    let answer = model.step(&log, Append(&[3_000_000]));
    assert!(matches!(answer, Err(Error::NoSpace { .. })), "{answer:?}");
    disk.set_free_bytes(None);
    model.step(&log, Append(&[3_000_000])).unwrap();
    drop(log);
    let log = Log::open(Arc::new(disk.crash(CrashMode::DropAll, 0)), options).unwrap();
    model.settle(&log).unwrap();
}

/// Fails the first matching call, once.
fn fail_once(probe: &Probe, wanted: Call, under: &'static str, errno: i32) {
    let mut done = false;
    probe.judge(move |call, name| {
        if call == wanted && name.contains(under) && !std::mem::replace(&mut done, true) {
            Verdict::Fail(errno)
        } else {
            Verdict::Go
        }
    });
}

#[test]
fn roll_that_fails_before_the_seal_fails_one_call_and_the_next_succeeds() {
    for (call, under, errno) in [
        (Call::Create, ".seg.new", EMFILE),
        (Call::Create, ".seg.new", ENOSPC),
        (Call::Write, ".seg.new", ENOSPC),
        (Call::Write, ".seg.new", EIO),
        (Call::Sync, ".seg.new", EIO),
        (Call::SyncDir, "log", EMFILE),
        // The seal itself: erased.
        (Call::Write, "0.seg", ENOSPC),
        // After the seal: the next call goes on.
        (Call::Rename, ".seg.new", ENOSPC),
    ] {
        let (disk, probe, log, mut model) = new_log(options());
        for _ in 0..3 {
            model.step(&log, Append(&[BIG])).unwrap();
        }
        if under == "0.seg" {
            let mut done = false;
            probe.judge(move |call, name| {
                if call == Call::Write
                    && name.ends_with(".seg")
                    && !std::mem::replace(&mut done, true)
                {
                    Verdict::Fail(ENOSPC)
                } else {
                    Verdict::Go
                }
            });
        } else {
            fail_once(&probe, call, under, errno);
        }
        let answer = model.step(&log, Append(&[BIG]));
        let expected = match errno {
            EMFILE => matches!(answer, Err(Error::TooManyFiles { .. })),
            ENOSPC => matches!(answer, Err(Error::NoSpace { .. })),
            _ => matches!(answer, Err(Error::Io { .. })),
        };
        assert!(expected, "{call:?} {errno}: {answer:?}");
        assert_eq!(log.segments().len(), 1);
        model.step(&log, Append(&[BIG])).unwrap();
        assert_eq!(log.segments().len(), 2);
        assert_eq!(probe.violations(), Vec::<String>::new());
        let files = disk.files();
        assert!(
            !files.iter().any(|name| name.ends_with(".new")),
            "{files:?}"
        );
        drop(log);
        let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
        model.check(&storage).unwrap();
    }
}

#[test]
fn directory_sync_without_a_descriptor_is_repeated_by_the_next_call() {
    let (disk, probe, log, mut model) = new_log(options());
    for _ in 0..3 {
        model.step(&log, Append(&[BIG])).unwrap();
    }
    // The second one: the first is that of the new file.
    let mut dirs = 0;
    probe.judge(move |call, _| {
        dirs += u32::from(call == Call::SyncDir);
        if call == Call::SyncDir && (2..5).contains(&dirs) {
            Verdict::Fail(EMFILE)
        } else {
            Verdict::Go
        }
    });
    for _ in 2..5 {
        let answer = model.step(&log, Append(&[BIG]));
        assert!(
            matches!(answer, Err(Error::TooManyFiles { .. })),
            "{answer:?}"
        );
    }
    // A kill now: open finds a sealed segment with an empty successor.
    let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
    model.clone().check(&storage).unwrap();
    model.step(&log, Append(&[1])).unwrap();
    assert_eq!(log.segments().len(), 2);
    log.close().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
    model.check(&storage).unwrap();
}

#[test]
fn closing_between_seal_and_name_leaves_a_log_that_opens() {
    let (disk, probe, log, mut model) = new_log(options());
    for _ in 0..3 {
        model.step(&log, Append(&[BIG])).unwrap();
    }
    probe.judge(|call, _| {
        if call == Call::Rename {
            Verdict::Fail(ENOSPC)
        } else {
            Verdict::Go
        }
    });
    assert!(matches!(
        model.step(&log, Append(&[BIG])),
        Err(Error::NoSpace { .. })
    ));
    log.close().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
    model.check(&storage).unwrap();
}

#[test]
fn failed_sync_of_a_seal_or_of_the_named_directory_stops_the_handle() {
    for dir in [false, true] {
        let (disk, probe, log, mut model) = new_log(options());
        for _ in 0..3 {
            model.step(&log, Append(&[BIG])).unwrap();
        }
        let mut seen = 0;
        probe.judge(move |call, name| {
            let hit = if dir {
                call == Call::SyncDir
            } else {
                call == Call::Sync && name.ends_with(".seg")
            };
            seen += u32::from(hit);
            if hit && seen == 2 {
                Verdict::Fail(EIO)
            } else {
                Verdict::Go
            }
        });
        for _ in 0..2 {
            let answer = model.step(&log, Append(&[BIG]));
            assert!(matches!(answer, Err(Error::Stopped { .. })), "{answer:?}");
        }
        assert_eq!(image(&log), model.image(3));
        drop(log);
        let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
        model.check(&storage).unwrap();
    }
}

#[test]
fn table_stands_first_in_each_segment_and_survives_a_crash_right_after_the_roll() {
    let (disk, probe, log, mut model) = new_log(options());
    for step in [
        From("a", 3, 1),
        From("b", 9, 0),
        Append(&[BIG]),
        Append(&[BIG]),
        Append(&[BIG]),
    ] {
        model.step(&log, step).unwrap();
    }
    model.step(&log, Append(&[BIG])).unwrap();
    let segments = log.segments();
    assert_eq!(segments.len(), 2);
    let found = frames(&disk, segments[1].base.get());
    assert_eq!((found[0].1.flags, found[0].1.count), (FLAG_TABLE, 0));
    assert_eq!(found[1].1.count, 1);
    // Roll on, with a crash at the write that would bring the table.
    for _ in 0..2 {
        model.step(&log, Append(&[BIG])).unwrap();
    }
    let mut named = false;
    probe.judge(move |call, name| {
        named |= call == Call::Rename;
        if named && call == Call::Write && name.ends_with(".seg") {
            Verdict::Fail(EIO)
        } else {
            Verdict::Go
        }
    });
    let answer = model.step(&log, Append(&[BIG]));
    assert!(
        matches!(answer, Err(Error::OutcomeUnknown { .. })),
        "{answer:?}"
    );
    let last = log.segments().pop().unwrap();
    let after = disk.crash(CrashMode::DropAll, 0);
    assert!(frames(&after, last.base.get()).is_empty());
    let storage: Arc<dyn Storage> = Arc::new(after.clone());
    model.check(&storage).unwrap();
    assert_eq!(frames(&after, last.base.get())[0].1.flags, FLAG_TABLE);
}

#[test]
fn segment_without_records_grows_because_its_successor_would_have_its_name() {
    let (disk, _, log, mut model) = new_log(options());
    for position in 0..200 {
        model.step(&log, From("upstream", position, 0)).unwrap();
    }
    assert_eq!(log.segments().len(), 1);
    assert!(
        disk.read_file("log/00000000000000000000.seg")
            .unwrap()
            .len()
            > 2 * 4096
    );
    model.step(&log, Append(&[1])).unwrap();
    model.step(&log, Append(&[1])).unwrap();
    assert_eq!(log.segments().len(), 2);
    drop(log);
    let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
    model.check(&storage).unwrap();
}

#[test]
fn written_frames_are_committed_before_they_take_too_much_memory() {
    let (disk, _, log, mut model) = new_log(LogOptions::default());
    for _ in 0..5 {
        model.step(&log, Write(7_000_000)).unwrap();
    }
    // Two fit into what may wait; the third made the first two durable.
    assert_eq!(log.durable_end(), Offset::new(4));
    model.step(&log, Sync).unwrap();
    assert_eq!(log.durable_end(), Offset::new(5));
    drop((disk, model));
}

#[test]
fn failure_of_a_note_is_nobodys_failure() {
    let (disk, _, log, mut model) = new_log(options());
    disk.fail(CallKind::Write, 2, Fault::Partial, Repeat::Once);
    model.step(&log, Append(&[1])).unwrap();
    assert_eq!(disk.faults_struck(), 1);
    model.step(&log, Append(&[1])).unwrap();
    drop(log);
    let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::KeepAll, 0));
    model.check(&storage).unwrap();
}
