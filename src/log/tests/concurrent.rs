//! Many threads on one log: who is answered when, by which sync, and what others see meanwhile.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use super::probe::{Call, EIO, Probe, Verdict};
use super::{BIG, image, options};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::log::{Ingested, Log};
use crate::offset::Offset;
use crate::storage::sim::{CallKind, CrashMode, Fault, Repeat, SimDisk};

const THREADS: usize = 16;
/// Long enough for a thread that is not held back to get through.
const MOMENT: Duration = Duration::from_millis(100);

fn event(id: impl std::fmt::Display, len: usize) -> Event {
    Event::new(id.to_string(), "k", 1, "x").with_payload(vec![1; len])
}

fn open(probe: &Probe) -> Log {
    Log::open(probe.storage(), options()).unwrap()
}

/// One thread is in its sync; the others have placed their frames behind it. Answers what each of
/// them got.
fn group_behind_a_stalled_sync(
    probe: &Probe,
    log: &Log,
    before_going_on: impl FnOnce(),
) -> (Result<()>, Vec<Result<()>>) {
    probe.stall();
    thread::scope(|scope| {
        let first = scope.spawn(|| log.append(&[event("first", 5)]).map(drop));
        probe.wait_stalled(1);
        let others: Vec<_> = (0..THREADS)
            .map(|n| scope.spawn(move || log.append(&[event(n, 5)]).map(drop)))
            .collect();
        thread::sleep(MOMENT);
        before_going_on();
        probe.go_on();
        let others = others.into_iter().map(|thread| thread.join().unwrap());
        (first.join().unwrap(), others.collect())
    })
}

#[test]
fn failed_sync_is_heard_by_all_16_of_the_group() {
    let disk = SimDisk::new();
    let probe = Probe::new(disk.clone());
    let log = open(&probe);
    let mut syncs = 0;
    let (first, others) = group_behind_a_stalled_sync(&probe, &log, || {
        probe.judge(move |call, _| {
            syncs += u32::from(call == Call::Sync);
            if call == Call::Sync && syncs == 2 {
                Verdict::Fail(EIO)
            } else {
                Verdict::Go
            }
        });
    });
    first.unwrap();
    assert_eq!(others.len(), THREADS);
    for answer in others {
        assert!(
            matches!(answer, Err(Error::OutcomeUnknown { .. })),
            "{answer:?}"
        );
    }
    assert!(matches!(
        log.append(&[event("x", 1)]),
        Err(Error::Stopped { .. })
    ));
    assert!(matches!(log.sync(), Err(Error::Stopped { .. })));
    assert_eq!(log.durable_end(), Offset::new(1));
    assert_eq!(image(&log).0.len(), 1);
    drop(log);
    for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Random] {
        let log = Log::open(Arc::new(disk.crash(mode, 1)), options()).unwrap();
        assert_eq!(image(&log).0[0].id, "first");
    }
}

#[test]
fn failed_write_is_heard_by_all_16_and_their_offsets_are_given_again() {
    for verdict in [Verdict::Fail(EIO), Verdict::Short(50)] {
        let probe = Probe::new(SimDisk::new());
        let log = open(&probe);
        let short = matches!(verdict, Verdict::Short(_));
        let mut writes = 0;
        let (first, others) = group_behind_a_stalled_sync(&probe, &log, || {
            probe.judge(move |call, _| {
                if call != Call::Write {
                    return Verdict::Go;
                }
                writes += 1;
                match (writes, short) {
                    (1, true) => Verdict::Short(50),
                    (1, false) | (2, true) => Verdict::Fail(EIO),
                    _ => Verdict::Go,
                }
            });
        });
        first.unwrap();
        for answer in others {
            assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
        }
        let offsets = log.append(&[event("after", 5)]).unwrap();
        assert_eq!(offsets, Offset::new(1)..Offset::new(2));
        log.close().unwrap();
        let log = open(&probe);
        let ids: Vec<String> = image(&log).0.into_iter().map(|event| event.id).collect();
        assert_eq!(ids, ["first", "after"]);
    }
}

#[test]
fn frames_placed_behind_a_failing_write_fail_with_it() {
    for promised in [false, true] {
        let probe = Probe::new(SimDisk::new());
        let log = open(&probe);
        log.append(&[event("durable", 5)]).unwrap();
        probe.stall_at(Call::Write);
        thread::scope(|scope| {
            let first = scope.spawn(|| log.append(&[event("first", 5)]));
            probe.wait_stalled(1);
            let second = scope.spawn(|| log.append_from("u", 1, &[event("second", 5)]));
            thread::sleep(MOMENT);
            if promised {
                assert_eq!(log.write(&event("promised", 5)).unwrap(), Offset::new(3));
            }
            let mut failed = false;
            probe.judge(move |call, _| {
                if call == Call::Write && !std::mem::replace(&mut failed, true) {
                    return Verdict::Fail(EIO);
                }
                Verdict::Go
            });
            probe.go_on();
            let answer = first.join().unwrap();
            assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
            // Its bytes were never handed to the system; but its offset built on the first's.
            let answer = second.join().unwrap();
            if promised {
                assert!(matches!(answer, Err(Error::Stopped { .. })), "{answer:?}");
            } else {
                assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
            }
        });
        assert_eq!(log.durable_end(), Offset::new(1));
        assert_eq!(log.upstream_position("u"), None);
        let after = log.append(&[event("after", 5)]);
        if promised {
            // A `write` was told offset 3, which must never be another's.
            assert!(matches!(after, Err(Error::Stopped { .. })), "{after:?}");
        } else {
            assert_eq!(after.unwrap(), Offset::new(1)..Offset::new(2));
        }
    }
}

#[test]
fn whole_frame_of_a_write_that_failed_behind_it_is_not_there_after_a_crash() {
    for seed in 0..20 {
        let disk = SimDisk::new();
        let probe = Probe::new(disk.clone());
        let log = open(&probe);
        probe.stall();
        thread::scope(|scope| {
            let first = scope.spawn(|| log.append(&[event("first", 5)]));
            probe.wait_stalled(1);
            let small = scope.spawn(|| log.append(&[event("small", 5)]));
            thread::sleep(MOMENT / 5);
            let large = scope.spawn(|| log.append(&[event("large", 900)]));
            thread::sleep(MOMENT / 5);
            // The first half gets through, and in it the whole of the small frame.
            disk.fail(CallKind::Write, 1, Fault::Partial, Repeat::Once);
            probe.go_on();
            first.join().unwrap().unwrap();
            for other in [small, large] {
                let answer = other.join().unwrap();
                assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
            }
        });
        let after = Log::open(Arc::new(disk.crash(CrashMode::Random, seed)), options()).unwrap();
        assert_eq!(
            image(&after).0.len(),
            1,
            "they were told: nothing was stored"
        );
    }
}

#[test]
fn sync_does_not_fail_for_an_append_that_failed_alone() {
    let probe = Probe::new(SimDisk::new());
    let log = open(&probe);
    log.write(&event("written", 5)).unwrap();
    probe.stall();
    thread::scope(|scope| {
        let first = scope.spawn(|| log.sync());
        probe.wait_stalled(1);
        let second = scope.spawn(|| log.append(&[event("second", 5)]));
        thread::sleep(MOMENT);
        let third = scope.spawn(|| log.sync());
        thread::sleep(MOMENT);
        let mut failed = false;
        probe.judge(move |call, _| {
            if call == Call::Write && !std::mem::replace(&mut failed, true) {
                return Verdict::Fail(EIO);
            }
            Verdict::Go
        });
        probe.go_on();
        assert_eq!(first.join().unwrap().unwrap(), Offset::new(1));
        assert!(matches!(second.join().unwrap(), Err(Error::Io { .. })));
        assert_eq!(third.join().unwrap().unwrap(), Offset::new(1));
    });
}

#[test]
fn follower_is_not_answered_by_a_sync_that_started_before_its_write() {
    let probe = Probe::new(SimDisk::new());
    let log = open(&probe);
    let before = probe.syncs();
    probe.stall();
    thread::scope(|scope| {
        let first = scope.spawn(|| log.append(&[event("first", 5)]));
        probe.wait_stalled(1);
        let (tell, told) = mpsc::channel();
        let (log, probe) = (&log, &probe);
        scope.spawn(move || {
            log.append(&[event("second", 5)]).unwrap();
            tell.send(probe.syncs()).unwrap();
        });
        assert!(
            told.recv_timeout(MOMENT).is_err(),
            "answered without a sync"
        );
        probe.go_on();
        first.join().unwrap().unwrap();
        // The sync that was running, and one of its own.
        assert_eq!(told.recv().unwrap(), before + 2);
    });
    assert!(
        probe.longest_unsynced() <= 39,
        "only the note is not synced"
    );
}

#[test]
fn nothing_is_visible_while_its_sync_runs() {
    let disk = SimDisk::new();
    let probe = Probe::new(disk.clone());
    let log = open(&probe);
    log.append_from("u", 1, &[event("first", 5)])
        .unwrap_stored();
    probe.stall();
    thread::scope(|scope| {
        let thread = scope.spawn(|| log.append_from("u", 2, &[event("second", 5)]));
        probe.wait_stalled(1);
        assert_eq!(log.durable_end(), Offset::new(1));
        assert_eq!(log.upstream_position("u"), Some(1));
        assert_eq!(image(&log).0.len(), 1);
        assert!(matches!(
            log.read(Offset::new(1)),
            Err(Error::OffsetOutOfRange { .. })
        ));
        assert!(!log.wait_for(Offset::new(1), Duration::from_millis(20)));
        // What a power loss at this moment leaves is all that anyone has seen.
        let lost = Log::open(Arc::new(disk.crash(CrashMode::DropAll, 0)), options()).unwrap();
        assert_eq!(image(&lost), image(&log));
        let waiter = scope.spawn(|| log.wait_for(Offset::new(1), Duration::from_secs(60)));
        probe.go_on();
        assert!(waiter.join().unwrap());
        thread.join().unwrap().unwrap_stored();
    });
    assert_eq!(log.upstream_position("u"), Some(2));
}

trait Stored {
    fn unwrap_stored(self) -> std::ops::Range<Offset>;
}

impl Stored for Ingested {
    fn unwrap_stored(self) -> std::ops::Range<Offset> {
        let Self::Stored(offsets) = self else {
            panic!("{self:?}")
        };
        offsets
    }
}

impl Stored for Result<Ingested> {
    fn unwrap_stored(self) -> std::ops::Range<Offset> {
        self.unwrap().unwrap_stored()
    }
}

#[test]
fn taken_position_is_answered_when_the_frame_that_took_it_is_durable() {
    let probe = Probe::new(SimDisk::new());
    let log = open(&probe);
    probe.stall();
    thread::scope(|scope| {
        let first = scope.spawn(|| log.append_from("u", 7, &[event("first", 5)]));
        probe.wait_stalled(1);
        let (tell, told) = mpsc::channel();
        for position in [7, 3] {
            let (tell, log) = (tell.clone(), &log);
            scope.spawn(move || {
                let answer = log.append_from("u", position, &[event("again", 5)]);
                tell.send(answer.unwrap()).unwrap();
            });
        }
        assert!(
            told.recv_timeout(MOMENT).is_err(),
            "answered before the sync"
        );
        probe.go_on();
        first.join().unwrap().unwrap_stored();
        for _ in 0..2 {
            let answer = told.recv().unwrap();
            assert_eq!(answer, Ingested::AlreadyStored { position: 7 });
        }
    });
    assert_eq!(image(&log).0.len(), 1);
}

#[test]
fn position_taken_by_a_frame_that_failed_is_free_again() {
    let probe = Probe::new(SimDisk::new());
    let log = open(&probe);
    // The first thread's sync runs; the second has the position in memory; its write will fail.
    probe.stall();
    thread::scope(|scope| {
        let first = scope.spawn(|| log.append(&[event("first", 5)]));
        probe.wait_stalled(1);
        let second = scope.spawn(|| log.append_from("u", 7, &[event("second", 5)]));
        thread::sleep(MOMENT);
        let third = scope.spawn(|| log.append_from("u", 7, &[event("third", 5)]));
        thread::sleep(MOMENT);
        let mut failed = false;
        probe.judge(move |call, _| {
            if call == Call::Write && !std::mem::replace(&mut failed, true) {
                return Verdict::Fail(EIO);
            }
            Verdict::Go
        });
        probe.go_on();
        first.join().unwrap().unwrap();
        assert!(matches!(second.join().unwrap(), Err(Error::Io { .. })));
        third.join().unwrap().unwrap_stored();
    });
    assert_eq!(log.upstream_position("u"), Some(7));
    assert_eq!(image(&log).0[1].id, "third");
}

#[test]
fn one_of_many_calls_with_the_same_position_stores() {
    let probe = Probe::new(SimDisk::new());
    let log = open(&probe);
    for position in 1..20 {
        let start = Barrier::new(8);
        let stored: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let (log, start) = (&log, &start);
                    scope.spawn(move || {
                        start.wait();
                        let answer = log.append_from("u", position, &[event(n, 5)]).unwrap();
                        assert_eq!(log.upstream_position("u"), Some(position));
                        usize::from(matches!(answer, Ingested::Stored(_)))
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!(stored, 1);
    }
    assert_eq!(log.durable_end(), Offset::new(19));
}

#[test]
fn offsets_are_contiguous_and_order_is_kept_under_16_writers_and_4_readers() {
    const EACH: usize = 60;
    let disk = SimDisk::new();
    let probe = Probe::new(disk.clone());
    let log = open(&probe);
    let offsets = thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|n| {
                let log = &log;
                scope.spawn(move || {
                    let mut offsets = Vec::new();
                    for i in 0..EACH {
                        let event =
                            event(format_args!("{n}-{i}"), if i % 7 == 0 { BIG } else { 9 });
                        let range = log.append(std::slice::from_ref(&event)).unwrap();
                        assert!(log.durable_end() >= range.end);
                        let record = log.read(range.start).unwrap();
                        assert_eq!(record.body, crate::event::Body::Event(event));
                        offsets.push(range.start);
                    }
                    assert!(offsets.is_sorted(), "one thread's offsets rise");
                    offsets
                })
            })
            .collect();
        for n in 0..4 {
            let log = &log;
            scope.spawn(move || {
                let mut next = Offset::ZERO;
                while next < Offset::new((THREADS * EACH) as u64) {
                    log.wait_for(next, Duration::from_secs(60));
                    let batch = log.next_batch(next, 1 + n * 7).unwrap();
                    for record in &batch.records {
                        assert_eq!(record.offset, next);
                        next = next.next();
                    }
                    assert_eq!(batch.next, next);
                }
            });
        }
        let joined = writers.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect::<BTreeSet<Offset>>()
    });
    let expected: BTreeSet<Offset> = (0..THREADS * EACH).map(|n| Offset::new(n as u64)).collect();
    assert_eq!(offsets, expected);
    assert_eq!(probe.violations(), Vec::<String>::new());
    assert!(log.segments().len() > 20);
    // Fewer syncs than appends, or there was no group commit; a roll needs three of its own.
    let rolls = log.segments().len() as u64;
    println!(
        "{} syncs, {rolls} segments, {} writes",
        probe.syncs(),
        probe.writes()
    );
    let after = Log::open(Arc::new(disk.crash(CrashMode::DropAll, 0)), options()).unwrap();
    assert_eq!(image(&after), image(&log));
}

#[test]
fn close_during_appends_answers_every_call_once() {
    for round in 0..10 {
        let disk = SimDisk::new();
        let probe = Probe::new(disk.clone());
        let log = open(&probe);
        let stored: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|n| {
                    let log = &log;
                    scope.spawn(move || {
                        for i in 0.. {
                            match log.append(&[event(format_args!("{n}-{i}"), 300)]) {
                                Ok(_) => {}
                                Err(Error::Closed) => return i,
                                Err(error) => panic!("{error}"),
                            }
                        }
                        0
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(round));
            log.close().unwrap();
            log.close().unwrap();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert!(matches!(log.sync(), Err(Error::Closed)));
        assert!(matches!(
            log.next_batch(Offset::ZERO, 1),
            Err(Error::Closed)
        ));
        assert!(!log.wait_for(Offset::new(u64::MAX - 1), Duration::from_secs(60)));
        let after = Log::open(Arc::new(disk.crash(CrashMode::DropAll, 0)), options()).unwrap();
        assert_eq!(after.durable_end(), Offset::new(stored as u64));
    }
}

#[test]
fn dropping_the_last_handle_closes_and_lets_go_of_the_lock() {
    let disk = SimDisk::new();
    let log = Log::open(Arc::new(disk.clone()), options()).unwrap();
    let clone = log.clone();
    log.write(&event("e", 5)).unwrap();
    drop(log);
    assert!(matches!(
        Log::open(Arc::new(disk.clone()), options()),
        Err(Error::Locked { .. })
    ));
    drop(clone);
    let log = Log::open(Arc::new(disk.crash(CrashMode::DropAll, 0)), options()).unwrap();
    assert_eq!(log.durable_end(), Offset::new(1));
    drop(log);
    drop(Log::open(Arc::new(disk), options()).unwrap());
}

#[test]
fn closing_a_stopped_log_says_so_and_lets_go_of_the_lock() {
    let disk = SimDisk::new();
    let probe = Probe::new(disk.clone());
    let log = open(&probe);
    probe.judge(|call, _| {
        if call == Call::Sync {
            Verdict::Fail(EIO)
        } else {
            Verdict::Go
        }
    });
    assert!(log.append(&[event("e", 5)]).is_err());
    probe.acquit();
    assert!(matches!(log.close(), Err(Error::Stopped { .. })));
    assert!(log.close().is_ok());
    assert!(matches!(log.append(&[event("e", 5)]), Err(Error::Closed)));
    drop(Log::open(Arc::new(disk), options()).unwrap());
}

#[test]
fn second_writer_is_refused_and_touches_nothing() {
    let disk = SimDisk::new();
    let log = Log::open(Arc::new(disk.clone()), options()).unwrap();
    log.write(&event("e", 5)).unwrap();
    let (hash, pending) = (disk.image_hash(), disk.pending());
    let second = Log::open(Arc::new(disk.clone()), options());
    assert!(matches!(second, Err(Error::Locked { .. })));
    assert_eq!((disk.image_hash(), disk.pending()), (hash, pending));
    log.close().unwrap();
}
