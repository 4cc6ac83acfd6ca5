//! Counting, faults, the lock, the clock.

use std::sync::{Arc, Mutex};

use super::*;
use crate::storage::{read_full, write_full};

/// Makes one call of every kind on a disk that has `d/f` and `gone/x`, in the order of
/// [`CallKind::ALL`], and answers the errors.
fn one_of_each(disk: &SimDisk) -> Vec<Option<i32>> {
    let prepared = disk.open("d/f", OpenMode::Write).unwrap();
    let mut results = Vec::new();
    let mut note = |result: io::Result<()>| {
        results.push(result.err().map(|error| error.raw_os_error().unwrap_or(-1)));
    };
    note(disk.create_dir("new"));
    note(disk.list("").map(drop));
    note(disk.open("d/f", OpenMode::Read).map(drop));
    note(disk.open("d/g", OpenMode::Create).map(drop));
    note(disk.rename("d/f", "d/h"));
    note(disk.remove(if disk.read_file("d/h").is_some() {
        "d/h"
    } else {
        "d/f"
    }));
    note(disk.remove_dir("gone"));
    note(disk.sync_dir("d"));
    note(disk.try_lock().map(drop));
    note(disk.writer_is_live().map(drop));
    note(prepared.len().map(drop));
    note(prepared.read_at(&mut [0; 4], 0).map(drop));
    note(prepared.write_at(b"1234", 0).map(drop));
    note(prepared.set_len(9));
    note(prepared.sync());
    results
}

fn prepared() -> SimDisk {
    let disk = SimDisk::new();
    disk.write_file("d/f", b"content").unwrap();
    disk.write_file("gone/x", b"").unwrap();
    disk
}

#[test]
fn every_kind_of_call_is_counted_and_can_fail_with_each_errno() {
    let disk = prepared();
    assert_eq!(one_of_each(&disk), vec![None; 15]);
    assert_eq!(disk.calls(), 16);
    for kind in CallKind::ALL {
        let expected = if kind == CallKind::Open { 2 } else { 1 };
        assert_eq!(disk.calls_of(kind), expected, "{kind:?}");
    }
    for (fault, errno) in [
        (Fault::Io, 5),
        (Fault::NoSpace, 28),
        (Fault::Interrupted, 4),
        (Fault::TooManyFiles, 24),
        (Fault::Permission, 13),
        (Fault::Partial, 5),
    ] {
        for (index, kind) in CallKind::ALL.into_iter().enumerate() {
            let disk = prepared();
            // The first open is the preparation's.
            let nth = if kind == CallKind::Open { 2 } else { 1 };
            disk.fail(kind, nth, fault, Repeat::Once);
            let mut expected = vec![None; 15];
            expected[index] = Some(errno);
            assert_eq!(one_of_each(&disk), expected, "{fault:?} {kind:?}");
            assert_eq!(disk.faults_struck(), 1);
        }
    }
    let no_space = io::Error::from_raw_os_error(28);
    assert_eq!(no_space.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_failed_call_has_no_effect() {
    let disk = prepared();
    let before = disk.image_hash();
    disk.fail(Filter::changes(), 1, Fault::Permission, Repeat::Forever);
    let refused = one_of_each(&disk).into_iter().flatten().count();
    assert_eq!(refused, 7);
    assert_eq!(disk.image_hash(), before);
}

#[test]
fn the_nth_call_fails_once_or_for_ever() {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    let tries = |n: u32| -> String {
        (0..n)
            .map(|_| {
                if file.write_at(b"x", 0).is_ok() {
                    '.'
                } else {
                    '!'
                }
            })
            .collect()
    };
    disk.fail(CallKind::Write, 3, Fault::Io, Repeat::Once);
    assert_eq!(tries(6), "..!...");
    disk.fail(CallKind::Write, 3, Fault::Io, Repeat::Forever);
    assert_eq!(tries(6), "..!!!!");
    disk.clear_faults();
    assert_eq!(tries(2), "..");
    disk.fail(CallKind::Write, 1, Fault::Interrupted, Repeat::Forever);
    assert_eq!(tries(5), "!.!.!");
    disk.clear_faults();
    disk.fail(
        Filter::kinds(&[CallKind::Write, CallKind::Len]).under("g"),
        1,
        Fault::Io,
        Repeat::Forever,
    );
    assert_eq!(tries(2), "..");
    disk.rename("f", "g").unwrap();
    assert_eq!(tries(2), "!!");
    assert!(file.len().is_err());
    assert!(file.sync().is_ok());
}

#[test]
fn short_and_interrupted_calls_are_continued_to_the_end() {
    for fault in [Fault::Short, Fault::Interrupted] {
        let disk = SimDisk::new();
        let file = file(&disk, "f");
        disk.fail(Filter::any(), 1, fault, Repeat::Forever);
        write_full(&*file, b"abcdefghij", 3).unwrap();
        let mut buf = [0; 20];
        assert_eq!(read_full(&*file, &mut buf, 0).unwrap(), 13);
        assert_eq!(&buf[..13], b"\0\0\0abcdefghij");
        assert!(disk.faults_struck() >= 3);
    }
}

#[test]
fn short_and_partial_writes_leave_the_first_half() {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    disk.fail(CallKind::Write, 1, Fault::Short, Repeat::Once);
    assert_eq!(file.write_at(b"12345", 0).unwrap(), 3);
    assert_eq!(disk.read_file("f").unwrap(), b"123");
    disk.fail(CallKind::Write, 1, Fault::Partial, Repeat::Once);
    assert!(file.write_at(b"abcd", 1).is_err());
    assert_eq!(disk.read_file("f").unwrap(), b"1ab");
}

#[test]
fn a_disk_that_lies_loses_what_it_called_synced() {
    let disk = SimDisk::new();
    disk.fail(
        Filter::kinds(&[CallKind::Sync, CallKind::SyncDir]),
        1,
        Fault::Lie,
        Repeat::Forever,
    );
    let file = file(&disk, "f");
    write(&*file, b"x", 0);
    file.sync().unwrap();
    assert_eq!(disk.read_file("f").unwrap(), b"x");
    assert!(disk.crash(CrashMode::DropAll, 0).files().is_empty());
    disk.clear_faults();
    disk.sync_dir("").unwrap();
    disk.fail(CallKind::Sync, 1, Fault::Lie, Repeat::Once);
    file.sync().unwrap();
    let bytes = |disk: &SimDisk| disk.crash(CrashMode::DropAll, 0).read_file("f").unwrap();
    assert_eq!(bytes(&disk), b"");
    file.sync().unwrap();
    assert_eq!(bytes(&disk), b"x", "the lie forgot nothing");
}

#[test]
fn room_runs_out_first_short_and_then_with_an_error() {
    let disk = SimDisk::new();
    let file = file(&disk, "f");
    write(&*file, b"12345", 0);
    disk.set_free_bytes(Some(3));
    assert_eq!(file.write_at(b"abcdef", 4).unwrap(), 4);
    assert_eq!(disk.read_file("f").unwrap(), b"1234abcd");
    let error = file.write_at(b"x", 8).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    write(&*file, b"in place", 0);
    disk.set_free_bytes(None);
    write(&*file, b"x", 8);
}

#[test]
fn the_crash_stops_at_its_call_and_everything_after_it() {
    let work = |disk: &SimDisk| -> io::Result<()> {
        let file = disk.open("f", OpenMode::Create)?;
        disk.sync_dir("")?;
        file.write_at(&sectors("A"), 0)?;
        file.sync()?;
        file.write_at(&sectors("B"), 0)?;
        file.sync()
    };
    let mut found = Vec::new();
    for at in 1..=7 {
        let disk = SimDisk::new();
        disk.crash_at(at);
        assert_eq!(work(&disk).is_ok(), at == 7);
        assert_eq!(disk.crashed(), at < 7);
        assert_eq!(disk.calls(), at.min(6));
        if disk.crashed() {
            assert!(disk.open("f", OpenMode::Read).is_err());
            assert!(disk.try_lock().is_err());
            assert_eq!(disk.calls(), at, "calls on a dead machine do not count");
        }
        let (dropped, kept) = (
            disk.crash(CrashMode::DropAll, 0),
            disk.crash(CrashMode::KeepAll, 0),
        );
        assert_eq!(dropped.calls(), 0);
        found.push(format!(
            "{}|{}",
            letters(&dropped, "f"),
            letters(&kept, "f")
        ));
    }
    assert_eq!(
        found,
        ["none|none", "none|", "|", "|A", "A|A", "A|B", "B|B"]
    );
}

#[test]
fn the_lock_is_one_writers_and_free_after_a_crash() {
    let disk = SimDisk::new();
    let Lock::Held(guard) = disk.try_lock().unwrap() else {
        panic!("busy")
    };
    let again = disk.clone();
    let Lock::Busy { pid } = again.try_lock().unwrap() else {
        panic!("held twice")
    };
    assert_eq!(pid, Some(std::process::id()));
    assert!(again.writer_is_live().unwrap());
    let after = disk.crash(CrashMode::Kill, 0);
    assert!(!after.writer_is_live().unwrap());
    let Lock::Held(new) = after.try_lock().unwrap() else {
        panic!("still locked")
    };
    drop(guard);
    assert!(!disk.writer_is_live().unwrap());
    assert!(after.writer_is_live().unwrap(), "another disk's lock");
    drop(new);
    assert!(!after.writer_is_live().unwrap());
}

#[test]
fn clock_and_random_numbers_are_deterministic_and_never_repeat_after_a_crash() {
    let (a, b) = (SimDisk::with_seed(1), SimDisk::with_seed(1));
    let draw = |disk: &SimDisk| -> Vec<u64> { (0..100).map(|_| disk.random()).collect() };
    let before = draw(&a);
    assert_eq!(before, draw(&b));
    let mut seen: BTreeSet<u64> = before.into_iter().collect();
    assert_eq!(seen.len(), 100);
    for seed in 0..10 {
        let numbers = draw(&a.crash(CrashMode::DropAll, seed));
        assert_eq!(numbers, draw(&b.crash(CrashMode::DropAll, seed)));
        for number in numbers {
            assert!(seen.insert(number));
        }
    }
    assert_ne!(draw(&SimDisk::with_seed(2)), draw(&SimDisk::with_seed(1)));
    a.set_now_ms(50);
    assert_eq!([a.now_ms(), a.now_ms()], [50, 51]);
    assert_eq!(a.crash(CrashMode::KeepAll, 0).now_ms(), 52);
}

#[test]
fn the_trace_tells_calls_in_order_with_present_names() {
    let disk = SimDisk::new();
    let file = file(&disk, "a");
    disk.start_trace();
    disk.fail(CallKind::Sync, 1, Fault::Io, Repeat::Once);
    write(&*file, b"xyz", 7);
    disk.rename("a", "b").unwrap();
    assert!(file.sync().is_err());
    file.set_len(1).unwrap();
    let lines: Vec<String> = disk.trace().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "3 Write a at 7 +3",
            "4 Rename a -> b",
            "5 Sync b (disturbed)",
            "6 SetLen b to 1"
        ]
    );
    assert!(disk.trace().is_empty(), "taken");
}

#[test]
fn a_crash_is_the_same_for_the_same_seed_and_leaves_the_disk_as_it_was() {
    let disk = SimDisk::new();
    for name in ["a", "b", "c"] {
        let file = disk.open(name, OpenMode::Create).unwrap();
        write(&*file, &sectors("ABC"), 0);
    }
    let before = disk.image_hash();
    for mode in CrashMode::ALL {
        let images: Vec<u128> = (0..50)
            .map(|seed| disk.crash(mode, seed).image_hash())
            .collect();
        let again: Vec<u128> = (0..50)
            .map(|seed| disk.crash(mode, seed).image_hash())
            .collect();
        assert_eq!(images, again);
        let distinct: BTreeSet<u128> = images.into_iter().collect();
        assert!(mode.is_seeded() || distinct.len() == 1, "{mode:?}");
    }
    assert_eq!(disk.image_hash(), before);
    assert_eq!(disk.pending(), 6);
}

/// A life with a call of every changing kind; stops at the first error.
fn changes(disk: &SimDisk) -> io::Result<()> {
    disk.create_dir("d/e")?;
    let file = disk.open("d/f", OpenMode::Create)?;
    file.write_at(&sectors("ABC"), 0)?;
    disk.sync_dir("d")?;
    file.sync()?;
    file.set_len(700)?;
    disk.rename("d/f", "d/g")?;
    file.write_at(&sectors("DEF"), 300)?;
    disk.sync_dir("d")?;
    disk.remove("d/g")?;
    disk.remove_dir("d")
}

#[test]
fn one_run_shows_the_crash_at_every_call() {
    let picture = |disk: &SimDisk| -> Vec<u128> {
        let modes = CrashMode::ALL.into_iter();
        let seeds = modes.flat_map(|mode| (0..8).map(move |seed| (mode, seed)));
        let images = seeds.map(|(mode, seed)| disk.crash(mode, seed).image_hash());
        images.collect()
    };
    let shown = Arc::new(Mutex::new(Vec::new()));
    let disk = SimDisk::with_seed(3);
    let notes = Arc::clone(&shown);
    disk.on_call(move |dead| {
        assert!(dead.crashed());
        notes.lock().unwrap().push(picture(dead));
    });
    changes(&disk).unwrap();
    disk.clear_on_call();
    assert_eq!(disk.calls(), 11);
    let expected: Vec<_> = (1..=11)
        .map(|at| {
            let disk = SimDisk::with_seed(3);
            disk.crash_at(at);
            assert!(changes(&disk).is_err());
            picture(&disk)
        })
        .collect();
    assert!(*shown.lock().unwrap() == expected);
}

#[test]
fn every_kind_of_call_fails_for_ever_until_the_faults_are_taken_away() {
    for kind in CallKind::ALL {
        for fault in [Fault::Io, Fault::NoSpace, Fault::TooManyFiles] {
            let disk = prepared();
            let file = disk.open("d/f", OpenMode::Write).unwrap();
            disk.fail(kind, 2, fault, Repeat::Forever);
            let call = || match kind {
                CallKind::CreateDir => disk.create_dir("d"),
                CallKind::List => disk.list("").map(drop),
                CallKind::Open => disk.open("d/f", OpenMode::Read).map(drop),
                CallKind::Create => disk.open("d/new", OpenMode::Create).map(drop),
                CallKind::Rename => disk.rename("d/f", "d/f"),
                CallKind::Remove => {
                    disk.write_file("d/x", b"")?;
                    disk.remove("d/x")
                }
                CallKind::RemoveDir => {
                    disk.write_file("x/y", b"")?;
                    disk.remove_dir("x")
                }
                CallKind::SyncDir => disk.sync_dir("d"),
                CallKind::TryLock => disk.try_lock().map(drop),
                CallKind::WriterIsLive => disk.writer_is_live().map(drop),
                CallKind::Len => file.len().map(drop),
                CallKind::Read => file.read_at(&mut [0; 4], 0).map(drop),
                CallKind::Write => file.write_at(b"1234", 0).map(drop),
                CallKind::SetLen => file.set_len(9),
                CallKind::Sync => file.sync(),
            };
            let heard: Vec<bool> = (0..4).map(|_| call().is_ok()).collect();
            assert_eq!(heard, [true, false, false, false], "{kind:?} {fault:?}");
            assert_eq!(disk.faults_struck(), 3);
            disk.clear_faults();
            assert!(call().is_ok(), "{kind:?} {fault:?}");
        }
    }
}
