//! Crashes at every call and failures of every call, of small workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;

use super::Step::{Append, From, Reopen, Sync, Write};
use super::probe::Probe;
use super::{BIG, Model, Step, image, options};
use crate::error::Error;
use crate::event::Event;
use crate::frame::HEADER_LEN;
use crate::log::Log;
use crate::offset::Offset;
use crate::storage::Storage;
use crate::storage::sim::{CallKind, CrashMode, Fault, Filter, Repeat, SimDisk};

const WORKLOADS: &[(&str, &[Step])] = &[
    (
        "few",
        &[
            Append(&[10]),
            Append(&[20, 600, 30]),
            Write(5),
            Write(6),
            Sync,
            Append(&[0]),
        ],
    ),
    (
        "rolls",
        &[
            Append(&[BIG]),
            Append(&[BIG, 7]),
            Append(&[BIG]),
            Append(&[BIG]),
            Append(&[BIG]),
            Append(&[BIG]),
            Append(&[BIG]),
        ],
    ),
    (
        "upstreams",
        &[
            From("a", 1, 1),
            From("b", 5, 0),
            Append(&[BIG]),
            Append(&[BIG]),
            Append(&[BIG]),
            From("a", 2, 2),
            Append(&[BIG]),
            Append(&[BIG]),
            Append(&[BIG]),
            From("b", 6, 0),
            From("a", 7, 1),
        ],
    ),
    (
        "larger than a segment",
        &[
            Append(&[10]),
            Append(&[9000]),
            From("a", 1, 1),
            Append(&[5000]),
            Append(&[10]),
        ],
    ),
    (
        "reopened",
        &[
            Append(&[BIG]),
            Reopen,
            Append(&[BIG]),
            Write(BIG),
            Reopen,
            From("u", 3, 0),
            Append(&[BIG]),
            Append(&[BIG]),
        ],
    ),
    (
        "pipelined",
        &[
            Write(BIG),
            Write(BIG),
            Write(BIG),
            Write(BIG),
            Write(BIG),
            Sync,
            Write(9),
            Append(&[4]),
            Write(7),
        ],
    ),
    (
        "no records",
        &[
            From("a", 1, 0),
            From("a", 2, 0),
            From("b", 1, 0),
            Append(&[1]),
            From("a", 3, 0),
        ],
    ),
];

/// How many seeds of a mode are tried.
fn seeds(mode: CrashMode, disk: &SimDisk) -> u64 {
    match mode {
        CrashMode::Prefix | CrashMode::TornPrefix => (disk.pending() as u64 + 1).min(12),
        CrashMode::Random | CrashMode::TornSectors => 12,
        mode if mode.is_seeded() => 4,
        _ => 1,
    }
}

#[derive(Default)]
struct Tally {
    cases: u64,
    images: BTreeSet<(u128, usize, usize)>,
    failures: Vec<String>,
}

impl Tally {
    /// All the ways in which the machine may go down now.
    fn crash(&mut self, what: &str, disk: &SimDisk, model: &Model) {
        for mode in CrashMode::ALL {
            for seed in 0..seeds(mode, disk) {
                self.cases += 1;
                let after = disk.crash(mode, seed);
                let key = (after.image_hash(), model.acked, model.attempts.len());
                if !self.images.insert(key) && mode != CrashMode::Kill {
                    continue;
                }
                let answer = if mode == CrashMode::Kill {
                    survives_again(&after, model)
                } else {
                    Ok(())
                };
                let answer = answer.and_then(|()| {
                    let storage: Arc<dyn Storage> = Arc::new(after);
                    model.clone().check(&storage)
                });
                if let Err(error) = answer {
                    self.failures
                        .push(format!("{what}, {mode:?} {seed}: {error}"));
                }
            }
        }
    }

    fn end(self, name: &str) {
        let Self {
            cases,
            images,
            failures,
        } = self;
        println!("{name}: {cases} cases, {} distinct images", images.len());
        assert!(
            failures.is_empty(),
            "{} failed, first: {}",
            failures.len(),
            failures[0]
        );
    }
}

/// What a log shows after a mere kill must survive the power loss that comes next.
fn survives_again(after: &SimDisk, model: &Model) -> Result<(), String> {
    let disk = after.fork();
    let fail = |error: Error| error.to_string();
    let log = Log::open(Arc::new(disk.clone()), options()).map_err(fail)?;
    let mut shown = model.clone();
    shown.settle(&log)?;
    let lost = disk.crash(CrashMode::DropAll, 0);
    let again = Log::open(Arc::new(lost), options()).map_err(fail)?;
    if image(&again) != image(&log) {
        return Err("what was shown after the kill is not what survived the power loss".to_owned());
    }
    Ok(())
}

#[test]
fn every_crash_leaves_all_that_was_acknowledged_and_whole_frames_only() {
    for (name, steps) in WORKLOADS {
        let disk = SimDisk::new();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        Model::default().run(&storage, steps).unwrap();
        let mut tally = Tally::default();
        for call in 1..=disk.calls() {
            let disk = SimDisk::new();
            disk.crash_at(call);
            let storage: Arc<dyn Storage> = Arc::new(disk.clone());
            let mut model = Model::default();
            // The last calls (reading, letting go of the lock) may fail without anyone's harm.
            drop(model.run(&storage, steps));
            assert!(disk.crashed());
            tally.crash(&format!("{name}, call {call}"), &disk, &model);
        }
        tally.end(name);
    }
}

#[test]
fn every_failing_call_is_answered_and_the_log_goes_on_or_stops() {
    let faults = [
        Fault::Io,
        Fault::NoSpace,
        Fault::TooManyFiles,
        Fault::Interrupted,
        Fault::Short,
        Fault::Partial,
    ];
    for (name, steps) in WORKLOADS {
        let disk = SimDisk::new();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        Model::default().run(&storage, steps).unwrap();
        let mut tally = Tally::default();
        for (fault, repeat) in faults
            .iter()
            .flat_map(|f| [(*f, Repeat::Once), (*f, Repeat::Forever)])
        {
            for call in 1..=disk.calls() {
                let disk = SimDisk::new();
                disk.fail(Filter::any(), call, fault, repeat);
                let storage: Arc<dyn Storage> = Arc::new(disk.clone());
                let mut model = Model::default();
                drop(model.run(&storage, steps));
                disk.clear_faults();
                let what = format!("{name}, {fault:?} {repeat:?} at call {call}");
                for mode in [
                    CrashMode::DropAll,
                    CrashMode::KeepAll,
                    CrashMode::Kill,
                    CrashMode::Random,
                ] {
                    tally.cases += 1;
                    let after = disk.crash(mode, call);
                    let key = (after.image_hash(), model.acked, model.attempts.len());
                    if !tally.images.insert(key) {
                        continue;
                    }
                    let storage: Arc<dyn Storage> = Arc::new(after);
                    if let Err(error) = model.clone().check(&storage) {
                        tally.failures.push(format!("{what}, {mode:?}: {error}"));
                    }
                }
            }
        }
        tally.end(name);
    }
}

/// Acknowledged means synced, and no step of a roll comes before the one it builds on.
#[test]
fn calls_come_in_the_order_that_durability_needs() {
    for (name, steps) in WORKLOADS {
        let probe = Probe::new(SimDisk::new());
        let log = Log::open(probe.storage(), options()).unwrap();
        let mut model = Model::default();
        for step in *steps {
            if matches!(step, Reopen) {
                continue;
            }
            model.step(&log, *step).unwrap();
            let longest = probe.longest_unsynced();
            // A note is the one thing that is written and not synced.
            assert!(longest <= HEADER_LEN as u64, "{name}, {step:?}: {longest}");
        }
        log.close().unwrap();
        assert_eq!(probe.longest_unsynced(), 0, "{name}");
        assert_eq!(probe.violations(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn crash_under_many_threads_leaves_every_acknowledged_record_at_its_offset() {
    let mut kept = 0;
    for round in 0..80_u64 {
        let disk = SimDisk::new();
        let log = Log::open(Arc::new(disk.clone()), options()).unwrap();
        disk.crash_at(disk.calls() + 1 + round * 2);
        let acked: BTreeMap<Offset, String> = thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    let log = &log;
                    scope.spawn(move || {
                        let mut acked = Vec::new();
                        for n in 0.. {
                            let id = format!("{thread}-{n}");
                            let event = Event::new(&*id, "k", 1, "x").with_payload([1; 400]);
                            match log.append(&[event]) {
                                Ok(offsets) => acked.push((offsets.start, id)),
                                Err(_) => break,
                            }
                        }
                        acked
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.flatten().collect()
        });
        drop(log);
        kept += acked.len();
        for (mode, seed) in [
            (CrashMode::DropAll, 0),
            (CrashMode::KeepAll, 0),
            (CrashMode::TornSectors, round),
            (CrashMode::Random, round),
        ] {
            let log = Log::open(Arc::new(disk.crash(mode, seed)), options()).unwrap();
            let found = image(&log).0;
            let ids: BTreeSet<&str> = found.iter().map(|event| event.id.as_str()).collect();
            assert_eq!(ids.len(), found.len(), "nothing twice");
            for (offset, id) in &acked {
                assert_eq!(
                    found[offset.get() as usize].id,
                    *id,
                    "round {round}, {mode:?}"
                );
            }
        }
    }
    println!("{kept} acknowledged records");
    assert!(kept > 1000);
}

/// The proof that the tests above can fail: with a disk that lies about a sync they do.
#[test]
fn lying_disk_is_noticed() {
    let (name, steps) = WORKLOADS[1];
    let mut noticed = 0;
    for nth in 1..40 {
        let disk = SimDisk::new();
        disk.fail(CallKind::Sync, nth, Fault::Lie, Repeat::Forever);
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let mut model = Model::default();
        model.run(&storage, steps).unwrap();
        let after: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
        noticed += u32::from(disk.faults_struck() > 0 && model.check(&after).is_err());
    }
    assert!(noticed > 5, "{name}: {noticed}");
}

#[test]
fn append_after_a_full_disk_reuses_the_place_and_the_offset() {
    let disk = SimDisk::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let log = Log::open(Arc::clone(&storage), options()).unwrap();
    let mut model = Model::default();
    for _ in 0..3 {
        model.step(&log, Append(&[10])).unwrap();
    }
    for free in [0, 1, 40, 700, 3000] {
        disk.set_free_bytes(Some(free));
        let answer = model.step(&log, Append(&[9000]));
        assert!(
            matches!(answer, Err(Error::NoSpace { .. })),
            "{free}: {answer:?}"
        );
        disk.set_free_bytes(None);
        model.step(&log, Append(&[11])).unwrap();
    }
    log.close().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(disk.crash(CrashMode::DropAll, 0));
    model.check(&storage).unwrap();
}

#[test]
fn failed_first_write_of_a_store_leaves_offset_0_for_the_next() {
    for fault in [Fault::Io, Fault::NoSpace, Fault::Partial] {
        let disk = SimDisk::new();
        let storage: Arc<dyn Storage> = Arc::new(disk.clone());
        let log = Log::open(Arc::clone(&storage), options()).unwrap();
        let mut model = Model::default();
        disk.fail(CallKind::Write, 1, fault, Repeat::Once);
        assert!(model.step(&log, Append(&[700, 700])).is_err());
        model.step(&log, Append(&[5])).unwrap();
        drop(log);
        model.check(&storage).unwrap();
    }
}

#[test]
fn failed_write_behind_a_returned_write_stops_the_handle() {
    let disk = SimDisk::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let log = Log::open(Arc::clone(&storage), options()).unwrap();
    let mut model = Model::default();
    model.step(&log, Append(&[5])).unwrap();
    model.step(&log, Write(5)).unwrap();
    disk.fail(CallKind::Write, 1, Fault::Io, Repeat::Once);
    let answer = model.step(&log, Append(&[5]));
    assert!(
        matches!(answer, Err(Error::OutcomeUnknown { .. })),
        "{answer:?}"
    );
    for step in [Append(&[5]), Write(5), Sync, From("u", 1, 1), Reopen] {
        let answer = model.step(&log, step);
        assert!(
            matches!(answer, Err(Error::Stopped { .. })),
            "{step:?}: {answer:?}"
        );
    }
    assert!(matches!(
        log.append(&[]),
        Err(Error::Empty { .. } | Error::Closed)
    ));
    drop(log);
    model.check(&storage).unwrap();
}

#[test]
fn failed_sync_stops_appends_and_reads_go_on() {
    let disk = SimDisk::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let log = Log::open(Arc::clone(&storage), options()).unwrap();
    let mut model = Model::default();
    model.step(&log, Append(&[5])).unwrap();
    disk.fail(CallKind::Sync, 1, Fault::Io, Repeat::Once);
    let answer = model.step(&log, From("u", 1, 1));
    assert!(
        matches!(answer, Err(Error::OutcomeUnknown { .. })),
        "{answer:?}"
    );
    let answer = model.step(&log, Append(&[5]));
    assert!(matches!(answer, Err(Error::Stopped { .. })), "{answer:?}");
    // The failed frame is readable in the file, and must not be here.
    assert_eq!(image(&log), model.image(1));
    drop(log);
    for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Kill] {
        let storage: Arc<dyn Storage> = Arc::new(disk.crash(mode, 0));
        model.clone().check(&storage).unwrap();
    }
}
