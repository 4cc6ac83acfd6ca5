//! Recovery that is itself interrupted, at every call, and then again.

use super::*;
use crate::frame::HEADER_LEN;
use crate::storage::sim::{CallKind, CrashMode, Fault, Filter, Repeat};

/// Disks with work for recovery, and what they hold in the end.
fn patients() -> Vec<(&'static str, SimDisk, Vec<&'static str>, usize)> {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]).data(&["c"]);
    let torn = lay.clone().sync().data(&["d"]).data(&["e"]);
    let torn = torn.flip(lay.at() + 50).zeros(600);
    let sealed = lay.clone().seal();
    let next = sealed.next().zeros(600);

    let roll = disk(&[&sealed]);
    roll.write_file(&next.fresh_name(), &next.bytes).unwrap();
    let undo = disk(&[&torn]);
    undo.write_file(&next.fresh_name(), &next.bytes).unwrap();
    let abc = vec!["a", "b", "c"];
    vec![
        ("nothing", SimDisk::new(), vec![], 0),
        ("unproven", disk(&[&lay.clone().zeros(600)]), abc.clone(), 0),
        ("torn", disk(&[&torn]), abc.clone(), 1),
        ("roll", roll, abc.clone(), 0),
        ("undo", undo, abc, 1),
    ]
}

fn calls_of(disk: &SimDisk) -> u64 {
    let disk = disk.fork();
    open(&disk).unwrap();
    disk.calls()
}

#[test]
fn recovery_killed_at_every_call_ends_the_same_with_one_quarantine_file() {
    let mut cases = 0;
    for (name, disk, expected, kept) in patients() {
        for first in 1..=calls_of(&disk) {
            let once = disk.fork();
            once.crash_at(first);
            // The last call of all is a note, which may fail.
            assert!(open(&once).is_err() || first == calls_of(&disk));
            let once = once.crash(CrashMode::Kill, first);
            for second in 1..=calls_of(&once) {
                let twice = once.fork();
                twice.crash_at(second);
                assert!(open(&twice).is_err() || second == calls_of(&once));
                let twice = twice.crash(CrashMode::Kill, second);
                let recovered = open(&twice).unwrap();
                assert_eq!(ids(&recovered), expected, "{name} {first} {second}");
                let mut files = quarantine(&twice);
                // A note that the kill cut in two is a torn tail of its own.
                files.retain(|(_, bytes)| bytes.len() > HEADER_LEN);
                assert_eq!(files.len(), kept, "{name} {first} {second}: {files:?}");
                // What was served survives the power loss that follows.
                drop(recovered);
                let dark = twice.crash(CrashMode::DropAll, 0);
                assert_eq!(ids(&open(&dark).unwrap()), expected);
                cases += 1;
            }
        }
    }
    assert!(cases > 1000, "{cases}");
}

#[test]
fn recovery_that_loses_power_at_every_call_loses_no_record_and_no_copy() {
    let mut cases = 0;
    for (name, disk, expected, kept) in patients() {
        let tail = disk.read_file(&Lay::first().name());
        for call in 1..=calls_of(&disk).saturating_add(1) {
            for mode in CrashMode::ALL {
                for seed in 0..if mode.is_seeded() { 6 } else { 1 } {
                    let once = disk.fork();
                    once.crash_at(call);
                    let whole = open(&once).is_ok();
                    let once = once.crash(mode, seed);
                    // And the same again while it mends.
                    let again = once.fork();
                    again.crash_at(call);
                    whole
                        .then_some(())
                        .or_else(|| open(&again).err().map(|_| ()));
                    let again = again.crash(mode, seed + 100);
                    for disk in [once, again] {
                        let recovered = open(&disk).unwrap();
                        assert_eq!(ids(&recovered), expected, "{name} {call} {mode:?} {seed}");
                        let files = quarantine(&disk);
                        if let Some(tail) = tail.as_ref().filter(|_| kept > 0) {
                            let whole_copy = |bytes: &[u8]| {
                                tail.windows(bytes.len()).any(|there| there == bytes)
                                    && bytes.len() > 100
                            };
                            assert!(
                                files.iter().any(|(_, bytes)| whole_copy(bytes)),
                                "{name} {call} {mode:?} {seed}: {files:?}"
                            );
                        }
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 5000, "{cases}");
}

/// F06: a failed sync leaves bytes that can be read and are not on disk.
#[test]
fn what_a_failed_sync_left_is_written_again_before_it_is_served() {
    let disk = SimDisk::new();
    let log = crate::log::Log::open(storage(&disk), options()).unwrap();
    log.append(&[Event::new("a", "k", 1, "x")]).unwrap();
    disk.fail(Filter::kinds(&[CallKind::Sync]), 1, Fault::Io, Repeat::Once);
    let failed = log.append(&[Event::new("b", "k", 1, "x")]);
    assert!(matches!(failed, Err(Error::OutcomeUnknown { .. })));
    drop(log);
    let killed = disk.crash(CrashMode::Kill, 0);
    let recovered = open(&killed).unwrap();
    assert_eq!(ids(&recovered), ["a", "b"]);
    assert!(recovered.report.rewritten_bytes > 0);
    killed.evict();
    assert_eq!(ids(&open(&killed).unwrap()), ["a", "b"]);
    let dark = killed.crash(CrashMode::DropAll, 0);
    assert_eq!(ids(&open(&dark).unwrap()), ["a", "b"]);
}

/// F12: without space for the copy nothing is cut, and with space again all goes on.
#[test]
fn a_full_disk_cuts_nothing() {
    for (name, disk, expected, kept) in patients() {
        if kept == 0 {
            continue;
        }
        for free in [0, 10, 100] {
            let disk = disk.fork();
            disk.set_free_bytes(Some(free));
            let before = disk.read_file(&Lay::first().name());
            let error = open(&disk).unwrap_err();
            let Error::NoSpace { needed, .. } = error else {
                panic!("{name} {free}: {error}")
            };
            assert!(needed > 100, "says how much it needs");
            assert_eq!(disk.read_file(&Lay::first().name()), before);
            disk.set_free_bytes(None);
            assert_eq!(ids(&open(&disk).unwrap()), expected);
            assert_eq!(quarantine(&disk).len(), kept);
        }
    }
}

/// Every call fails once, in every way that a call can.
#[test]
fn a_recovery_that_fails_is_done_again_by_the_next() {
    let faults = [
        Fault::Io,
        Fault::NoSpace,
        Fault::TooManyFiles,
        Fault::Partial,
        Fault::Short,
        Fault::Interrupted,
    ];
    let mut struck = 0;
    for (name, disk, expected, _) in patients() {
        for call in 1..=calls_of(&disk) {
            for fault in faults {
                let disk = disk.fork();
                disk.fail(Filter::any(), call, fault, Repeat::Once);
                let failed = open(&disk).is_err();
                struck += disk.faults_struck();
                disk.clear_faults();
                if fault == Fault::Short {
                    assert!(!failed, "{name} {call}: short calls are continued");
                }
                for disk in [disk.crash(CrashMode::DropAll, 0), disk] {
                    let recovered = open(&disk).unwrap();
                    assert_eq!(ids(&recovered), expected, "{name} {call} {fault:?}");
                }
            }
        }
    }
    assert!(struck > 500, "{struck}");
}

/// What is appended after a repair survives every crash, whatever the disk held before.
#[test]
fn appends_behind_a_repair_survive_every_crash() {
    let append = |disk: &SimDisk, acked: &mut Vec<String>| -> Result<()> {
        let log = crate::log::Log::open(storage(disk), options())?;
        for id in ["x", "y"] {
            log.append(&[Event::new(id, "k", 1, "x").with_payload(vec![5; 500])])?;
            acked.push(id.to_owned());
        }
        log.close()
    };
    let mut cases = 0;
    for (name, disk, expected, _) in patients() {
        let calls = {
            let disk = disk.fork();
            append(&disk, &mut Vec::new()).unwrap();
            disk.calls()
        };
        for call in 1..=calls {
            for mode in CrashMode::ALL {
                for seed in 0..if mode.is_seeded() { 8 } else { 1 } {
                    let disk = disk.fork();
                    disk.crash_at(call);
                    let mut acked: Vec<String> = expected.iter().map(|id| (*id).into()).collect();
                    append(&disk, &mut acked).ok();
                    let disk = disk.crash(mode, seed);
                    let recovered = open(&disk);
                    let found = recovered.map(|recovered| ids(&recovered));
                    let found = found.unwrap_or_else(|error| {
                        panic!("{name} {call} {mode:?} {seed}: {error}");
                    });
                    assert_eq!(found[..acked.len()], acked, "{name} {call} {mode:?} {seed}");
                    assert!(found.len() <= expected.len() + 2);
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 5000, "{cases}");
}

/// A kill leaves names and bytes that look durable and are not.
#[test]
fn what_is_appended_after_a_killed_recovery_survives_power_loss() {
    let mut cases = 0;
    for (name, disk, expected, _) in patients() {
        for call in 1..=calls_of(&disk) {
            let killed = disk.fork();
            killed.crash_at(call);
            open(&killed).map(drop).ok();
            let killed = killed.crash(CrashMode::Kill, call);
            let log = crate::log::Log::open(storage(&killed), options()).unwrap();
            log.append(&[Event::new("x", "k", 1, "x")]).unwrap();
            for mode in [CrashMode::DropAll, CrashMode::NamesLost] {
                let dark = killed.crash(mode, 0);
                let found = open(&dark).map(|recovered| ids(&recovered));
                let found = found.unwrap_or_else(|error| panic!("{name} {call} {mode:?}: {error}"));
                assert_eq!(found[..found.len() - 1], expected, "{name} {call} {mode:?}");
                assert_eq!(found.last().map(|id| &id[..]), Some("x"));
                cases += 1;
            }
        }
    }
    assert!(cases > 100, "{cases}");
}
