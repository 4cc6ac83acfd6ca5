//! The way out of a refused store: a dry run that changes nothing and names the loss, an accepted
//! loss that is exactly that, and a crash at every storage call on the way.
//!
//! What is to be lost is known here from what was appended and which bytes were harmed, not from
//! the code under test.
#![cfg(feature = "sim")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::too_many_lines,
    clippy::case_sensitive_file_extension_comparisons,
    reason = "tests panic, index, count, and say how many cases they had"
)]

use std::sync::Arc;

use foldlog::orders::Orders;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::{CallKind, CrashMode, Fault, Filter, Repeat, SimDisk};
use foldlog::{
    Body, Consumer, ConsumerOptions, Error, Event, Ingested, Offset, Options, Repair,
    RepairOptions, Result, Store,
};

/// Records of one append.
const BATCH: u64 = 3;
const BATCHES: u64 = 16;

fn event(n: u64) -> Event {
    let version = [1, 2, 3, 3, 2, 1][n as usize % 6];
    let kind = ["reserve", "pay", "fulfill", "fulfill", "pay", "reserve"][n as usize % 6];
    Event::new(format!("<e{n}>"), format!("k{}", n / 3), version, kind)
        .with_payload(vec![b'!'; 150])
}

fn options(disk: &SimDisk, states: &FakeStates) -> Options {
    Store::options()
        .segment_bytes(4096)
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(states.clone()))
}

fn consumer(store: &Store) -> Result<Consumer<Orders>> {
    store.consumer_with("orders", Orders, ConsumerOptions::default())
}

#[derive(Clone)]
struct Patient {
    disk: SimDisk,
    states: FakeStates,
}

impl Patient {
    /// A store whose only records are `BATCHES` appends of the upstream, in several segments, all
    /// folded by a consumer, closed well. No record is a decision, so record n is event n.
    fn healthy() -> Self {
        let (disk, states) = (SimDisk::new(), FakeStates::new());
        let patient = Self { disk, states };
        patient.fill(0, BATCHES);
        patient
    }

    fn fill(&self, from: u64, to: u64) {
        let store = options(&self.disk, &self.states).open("store").unwrap();
        for batch in from..to {
            let events: Vec<Event> = (batch * BATCH..(batch + 1) * BATCH).map(event).collect();
            let stored = store.append_from("up", batch + 1, &events).unwrap();
            assert!(matches!(stored, Ingested::Stored(_)));
        }
        let orders = consumer(&store).unwrap();
        orders.catch_up().unwrap();
        orders.flush().unwrap();
        drop(orders);
        store.close().unwrap();
        drop(store);
        self.disk.settle();
    }

    fn fork(&self) -> Self {
        Self {
            disk: self.disk.fork(),
            states: self.states.copy(),
        }
    }

    fn open(&self) -> Result<Store> {
        options(&self.disk, &self.states).open("store")
    }

    fn repair(&self, how: RepairOptions) -> Result<Repair> {
        options(&self.disk, &self.states).repair("store", how)
    }

    fn accept(&self, offset: u64) -> Result<Repair> {
        self.repair(RepairOptions::default().accept_loss_from(Offset::new(offset)))
    }

    /// The dry run, which changes nothing.
    fn look(&self) -> Repair {
        let before = (self.disk.image_hash(), self.disk.files());
        let report = self.repair(RepairOptions::default()).unwrap();
        assert_eq!(before, (self.disk.image_hash(), self.disk.files()));
        assert!(!report.done);
        report
    }

    /// Segment files, in order.
    fn segments(&self) -> Vec<String> {
        let files = self.disk.files().into_iter();
        files.filter(|name| name.ends_with(".seg")).collect()
    }

    /// Harms the frame that holds event `n`, and answers the first record of that frame.
    fn harm_event(&self, n: u64) -> u64 {
        let id = format!("<e{n}>");
        for file in self.segments() {
            let mut bytes = self.disk.read_file(&file).unwrap();
            let found = bytes.windows(id.len()).position(|at| at == id.as_bytes());
            if let Some(at) = found {
                bytes[at] ^= 0x10;
                self.disk.write_file(&file, &bytes).unwrap();
                return n / BATCH * BATCH;
            }
        }
        panic!("no {id}");
    }

    /// Makes zeros of everything from the frame of event `n` on in the last segment.
    fn forget_from(&self, n: u64) -> u64 {
        let file = self.segments().pop().unwrap();
        let mut bytes = self.disk.read_file(&file).unwrap();
        let id = format!("<e{}>", n / BATCH * BATCH - 1);
        let at = bytes.windows(id.len()).position(|at| at == id.as_bytes());
        // The record before ends with its payload of 150 bytes.
        let rest = &bytes[at.unwrap()..];
        let end = at.unwrap() + rest.windows(150).position(|at| at == [b'!'; 150]).unwrap() + 150;
        bytes[end..].fill(0);
        self.disk.write_file(&file, &bytes).unwrap();
        n / BATCH * BATCH
    }

    fn without_anchor(self) -> Self {
        self.disk.remove_file("state/orders/ANCHOR").unwrap();
        self
    }
}

/// The base of a segment file.
fn base(file: &str) -> u64 {
    file["log/".len()..][..20].parse().unwrap()
}

/// A store with something wrong, where its good part ends, and how many epochs it has seen.
struct Case {
    name: &'static str,
    patient: Patient,
    end: u64,
    /// Whether the log is refused at open (else its consumer is, or a deep read).
    refused: bool,
    /// Whether the consumer's state is of another log.
    other_log: bool,
    epoch: u32,
}

fn case(name: &'static str, harm: impl FnOnce(&Patient) -> u64) -> Case {
    let patient = Patient::healthy();
    let end = harm(&patient);
    patient.disk.settle();
    Case {
        name,
        patient,
        end,
        refused: true,
        other_log: false,
        epoch: 1,
    }
}

fn damaged_logs() -> Vec<Case> {
    let flip = |patient: &Patient, segment: usize, at: usize| {
        let file = &patient.segments()[segment];
        let mut bytes = patient.disk.read_file(file).unwrap();
        bytes[at] ^= 1;
        patient.disk.write_file(file, &bytes).unwrap();
        base(file)
    };
    let lose = |patient: &Patient, segment: usize| {
        let file = &patient.segments()[segment];
        patient.disk.remove_file(file).unwrap();
        base(file)
    };
    let last = BATCHES * BATCH - 1;
    vec![
        case("rot in the last frame", |p| p.harm_event(last)),
        Case {
            refused: false,
            ..case("rot in a sealed segment", |p| {
                let second = base(&p.segments()[1]);
                p.harm_event(second + BATCH)
            })
        },
        case("rot in the header of a segment", |p| flip(p, 2, 20)),
        case("rot in the first header", |p| flip(p, 0, 50)),
        case("rot in a seal", |p| {
            let file = p.segments()[1].clone();
            let bytes = p.disk.read_file(&file).unwrap();
            let seal = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            flip(p, 1, seal);
            base(&p.segments()[2])
        }),
        case("the first frame of the last segment", |p| {
            let base = base(&p.segments().pop().unwrap());
            p.harm_event(base)
        }),
        case("middle segment missing", |p| lose(p, 1)),
        case("first segment missing", |p| lose(p, 0)),
        case("last segment missing", |p| lose(p, p.segments().len() - 1)),
        case("all segments missing", |p| {
            for _ in p.segments() {
                lose(p, 0);
            }
            0
        }),
        case("log shorter than the anchor", |p| p.forget_from(last)),
    ]
}

fn damaged_states() -> Vec<Case> {
    let last = BATCHES * BATCH - 1;
    let ahead = case("state ahead of the log", |p| p.forget_from(last));
    let ahead = Case {
        patient: ahead.patient.without_anchor(),
        refused: false,
        ..ahead
    };
    let diverged = || {
        let one = Patient::healthy();
        let other = one.fork();
        one.fill(BATCHES, BATCHES + 2);
        let store = other.open().unwrap();
        for n in 0..6 {
            store
                .append(&Event::new(format!("other{n}"), "k", 1, "x"))
                .unwrap();
        }
        store.close().unwrap();
        drop(store);
        for file in ["ANCHOR", "CURRENT"] {
            let name = format!("state/orders/{file}");
            let bytes = one.disk.read_file(&name).unwrap();
            other.disk.write_file(&name, &bytes).unwrap();
        }
        other.disk.settle();
        Case {
            name: "diverged",
            patient: Patient {
                disk: other.disk,
                states: one.states,
            },
            end: BATCHES * BATCH + 6,
            refused: true,
            other_log: false,
            epoch: 1,
        }
    };
    let foreign = {
        let (one, other) = (
            Patient::healthy(),
            Patient {
                disk: SimDisk::with_seed(77),
                states: FakeStates::new(),
            },
        );
        other.fill(0, BATCHES);
        for file in ["ANCHOR", "CURRENT"] {
            let name = format!("state/orders/{file}");
            let bytes = other.disk.read_file(&name).unwrap();
            one.disk.write_file(&name, &bytes).unwrap();
        }
        Case {
            name: "state of another log",
            patient: Patient {
                disk: one.disk,
                states: other.states,
            },
            end: BATCHES * BATCH,
            refused: false,
            other_log: true,
            epoch: 0,
        }
    };
    let diverged_state = diverged();
    let diverged_state = Case {
        name: "diverged, without anchor",
        patient: diverged_state.patient.without_anchor(),
        refused: false,
        ..diverged_state
    };
    vec![ahead, diverged(), diverged_state, foreign]
}

/// The records of the store, which must be the first ones that were appended.
fn check_records(store: &Store, case: &Case, context: &str) {
    let mut from = Offset::ZERO;
    while from < store.durable_end() {
        let batch = store.next_batch(from, 100).unwrap();
        for record in batch.records {
            let n = record.offset.get();
            let Body::Event(found) = record.body else {
                panic!("{context}: a decision")
            };
            let expected = event(n);
            if n < BATCHES * BATCH && n < case.end {
                assert_eq!(found, expected, "{context}");
            }
        }
        from = batch.next;
    }
}

/// Everything that must hold after the accepted loss.
fn check_repaired(patient: &Patient, case: &Case, context: &str) {
    let store = patient
        .open()
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(store.durable_end().get(), case.end, "{context}");
    assert_eq!(store.recovery().trimmed, None, "{context}");
    check_records(&store, case, context);
    let sound = store.verify().unwrap();
    assert_eq!(sound.records, case.end, "{context}");
    let upstream = (case.end / BATCH).min(BATCHES);
    assert_eq!(
        store.upstream_position("up").unwrap_or(0),
        upstream,
        "{context}: what is lost comes again from the upstream"
    );
    // Appending goes on at the accepted offset, also before any consumer is opened.
    let offset = store.append(&event(case.end)).unwrap();
    assert_eq!(offset.get(), case.end, "{context}");
    let orders = consumer(&store).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(orders.opening().rebuilt.is_some(), "{context}");
    assert!(orders.verify().unwrap().is_sound(), "{context}");
    assert_eq!(orders.checkpoint(), store.durable_end(), "{context}");
    let digest = orders.digest();
    orders.flush().unwrap();
    drop(orders);
    store.close().unwrap();
    drop(store);
    let store = patient.open().unwrap();
    assert!(store.recovery().ignored_anchors.is_empty(), "{context}");
    let orders = consumer(&store).unwrap();
    assert_eq!(orders.opening().rebuilt, None, "{context}");
    assert_eq!(orders.digest(), digest, "{context}");
    drop((orders, store));
    assert!(!patient.look().is_needed(), "{context}");
}

/// The log's files as they were.
fn originals(patient: &Patient) -> Vec<(String, Vec<u8>)> {
    let files = patient.segments().into_iter();
    files
        .map(|name| {
            let bytes = patient.disk.read_file(&name).unwrap();
            (name, bytes)
        })
        .collect()
}

/// Every file that the dry run named has a whole copy.
fn check_copies(
    patient: &Patient,
    report: &Repair,
    originals: &[(String, Vec<u8>)],
    context: &str,
) {
    let files = patient.disk.files();
    for lost in report.cut.iter().chain(&report.dropped) {
        let (_, bytes) = originals
            .iter()
            .find(|(name, _)| *name == lost.file)
            .unwrap();
        let stem = lost.file.strip_prefix("log/").unwrap();
        let copies = files.iter().filter(|name| {
            name.starts_with(&format!("{}/{stem}", report.quarantine)) && !name.ends_with(".part")
        });
        let copies: Vec<_> = copies
            .map(|name| patient.disk.read_file(name).unwrap())
            .collect();
        assert_eq!(copies.len(), 1, "{context}: {} {files:?}", lost.file);
        assert!(copies[0] == *bytes, "{context}: {}", lost.file);
    }
}

fn is_refused_as(error: &Error, before: &str) -> bool {
    error.to_string() == before
}

fn all() -> Vec<Case> {
    let mut cases = damaged_logs();
    cases.extend(damaged_states());
    cases
}

#[test]
fn dry_run_names_the_loss_and_accepting_it_loses_exactly_that() {
    for case in all() {
        let context = case.name;
        let patient = &case.patient;
        let opened = patient.open();
        assert_eq!(
            opened.is_err(),
            case.refused,
            "{context}: {:?}",
            opened.err()
        );
        drop(opened);
        let originals = originals(patient);
        let report = patient.look();
        assert!(report.is_needed(), "{context}");
        assert_eq!(report.loss_from.get(), case.end, "{context}: {report:?}");
        assert_eq!(report.epoch, case.epoch, "{context}");
        let names: Vec<&str> = report
            .consumers
            .iter()
            .map(|c| c.consumer.as_str())
            .collect();
        assert_eq!(names, ["orders"], "{context}");
        assert_eq!(report.consumers[0].other_log, case.other_log, "{context}");
        // Another offset is refused and touches nothing, not even the lock's file.
        for wrong in [case.end + 1, case.end.wrapping_sub(1), u64::MAX] {
            let before = patient.disk.image_hash();
            let refused = patient.accept(wrong);
            assert!(
                matches!(refused, Err(Error::Invalid { .. })),
                "{context} {refused:?}"
            );
            assert_eq!(patient.disk.image_hash(), before, "{context}");
        }
        let done = patient.accept(case.end).unwrap();
        assert!(done.done && !done.unfinished, "{context}");
        let mut as_said = done.clone();
        (as_said.kept, as_said.done) = (Vec::new(), false);
        assert_eq!(as_said, report, "{context}: what was done is what was said");
        check_copies(patient, &report, &originals, context);
        assert_eq!(
            done.kept.len(),
            usize::from(report.cut.is_some()) + report.dropped.len() + usize::from(case.other_log),
            "{context}"
        );
        // Accepting again finds nothing, and changes no record.
        assert!(!patient.accept(case.end).unwrap().is_needed(), "{context}");
        check_repaired(patient, &case, context);
        check_copies(patient, &report, &originals, context);
    }
}

#[test]
fn a_store_that_is_well_is_not_touched() {
    let patient = Patient::healthy();
    let report = patient.look();
    assert!(!report.is_needed());
    assert_eq!(report.loss_from.get(), BATCHES * BATCH);
    let before = patient.disk.image_hash();
    assert!(!patient.accept(3).unwrap().is_needed());
    assert_eq!(patient.disk.image_hash(), before);
    let none = Patient {
        disk: SimDisk::new(),
        states: FakeStates::new(),
    };
    let answer = none.repair(RepairOptions::default());
    assert!(matches!(answer, Err(Error::NoStore { .. })), "{answer:?}");
}

#[test]
fn a_store_with_a_writer_is_left_to_it() {
    let patient = Patient::healthy();
    let store = patient.open().unwrap();
    for how in [
        RepairOptions::default(),
        RepairOptions::default().accept_loss_from(Offset::new(3)),
    ] {
        assert!(matches!(patient.repair(how), Err(Error::Locked { .. })));
    }
    drop(store);
}

/// What was lost twice has two epochs and two sets of copies; a log restored from before is told
/// from the repaired one.
#[test]
fn a_second_loss_is_of_the_next_epoch_and_an_older_log_is_refused() {
    let patient = Patient::healthy();
    let old = originals(&patient);
    patient.harm_event(BATCHES * BATCH - 1);
    let first = patient.accept((BATCHES - 1) * BATCH).unwrap();
    patient.fill(BATCHES - 1, BATCHES);
    let end = patient.harm_event(BATCH);
    let second = patient.accept(end).unwrap();
    assert_eq!((first.epoch, second.epoch), (1, 2));
    assert_ne!(first.quarantine, second.quarantine);
    for kept in first.kept.iter().chain(&second.kept) {
        assert!(patient.disk.read_file(kept).is_some(), "{kept}");
    }
    patient.fill(1, 3);
    for file in patient.segments() {
        patient.disk.remove_file(&file).unwrap();
    }
    for (name, bytes) in &old {
        patient.disk.write_file(name, bytes).unwrap();
    }
    let refused = patient.open().unwrap_err();
    assert!(matches!(refused, Error::Diverged { .. }), "{refused}");
    // And that, too, has a way out, of a later epoch than either.
    let report = patient.look();
    assert_eq!((report.loss_from.get(), report.epoch), (BATCHES * BATCH, 3));
    patient.accept(BATCHES * BATCH).unwrap();
    assert!(consumer(&patient.open().unwrap()).is_ok());
}

/// Kinds of damage for the crash tests: one for each thing that can become of the last segment,
/// and the ones with files to drop.
fn crash_cases() -> Vec<Case> {
    let names = [
        "rot in the last frame",
        "rot in a sealed segment",
        "the first frame of the last segment",
        "middle segment missing",
        "first segment missing",
        "all segments missing",
        "log shorter than the anchor",
        "state of another log",
    ];
    let mut cases = all();
    cases.retain(|case| names.contains(&case.name));
    assert_eq!(cases.len(), names.len());
    cases
}

#[test]
fn accepted_loss_survives_a_crash_at_every_call() {
    let (mut cases, mut refused, mut repaired) = (0, 0, 0);
    for case in crash_cases() {
        let originals = originals(&case.patient);
        let report = case.patient.look();
        let before = case
            .patient
            .fork()
            .open()
            .err()
            .map(|error| error.to_string());
        let calls = {
            let whole = case.patient.fork();
            let before = whole.disk.calls();
            whole.accept(case.end).unwrap();
            whole.disk.calls() - before
        };
        for call in 1..=calls {
            for (number, mode) in CrashMode::ALL.into_iter().enumerate() {
                let seed = call * 31 + number as u64;
                let context = format!("{} {call} {mode:?} {seed}", case.name);
                let crashed = case.patient.fork();
                crashed.disk.crash_at(crashed.disk.calls() + call);
                let whole = crashed.accept(case.end).is_ok();
                assert!(!whole || call == calls, "{context}");
                let image = Patient {
                    disk: crashed.disk.crash(mode, seed),
                    states: crashed.states.copy(),
                };
                // A plain open: refused as before, or repaired with all copies.
                let opened = image.fork();
                match opened.open() {
                    Err(error) => {
                        let before = before.as_deref().unwrap_or_default();
                        assert!(is_refused_as(&error, before), "{context}: {error}");
                        refused += 1;
                    }
                    Ok(store) => {
                        let end = store.durable_end().get();
                        let is_before = before.is_none() && end == BATCHES * BATCH;
                        assert!(is_before || end == case.end, "{context}: {end}");
                        drop(store);
                        if case.refused || end != BATCHES * BATCH {
                            check_copies(&opened, &report, &originals, &context);
                            check_repaired(&opened, &case, &context);
                            repaired += 1;
                        }
                    }
                }
                // Once more, every third time interrupted at another call first.
                let mut images = vec![image.fork()];
                if seed.is_multiple_of(3) {
                    image.disk.crash_at(1 + seed % calls);
                    drop(image.accept(case.end));
                    images.push(Patient {
                        disk: image.disk.crash(mode, seed + 1),
                        states: image.states.copy(),
                    });
                }
                for image in images {
                    image
                        .accept(case.end)
                        .unwrap_or_else(|error| panic!("{context}: {error}"));
                    check_copies(&image, &report, &originals, &context);
                    check_repaired(&image, &case, &context);
                    cases += 1;
                }
            }
        }
    }
    eprintln!("{cases} repairs after a crash; plain open: {refused} refused, {repaired} repaired");
    assert!(
        refused > 500 && repaired > 500 && cases > 3000,
        "{cases} {refused} {repaired}"
    );
}

/// A reader finishes nothing, and says what has to be finished.
#[test]
fn a_reader_says_that_a_repair_is_unfinished() {
    let patient = Patient::healthy();
    let end = patient.harm_event(BATCH);
    let mut seen = 0;
    for call in 1.. {
        let crashed = patient.fork();
        crashed.disk.crash_at(crashed.disk.calls() + call);
        if crashed.accept(end).is_ok() {
            break;
        }
        let image = Patient {
            disk: crashed.disk.crash(CrashMode::KeepAll, 0),
            states: crashed.states,
        };
        let before = image.disk.image_hash();
        let opened = options(&image.disk, &image.states)
            .read_only(true)
            .open("store");
        if let Err(Error::RepairUnfinished { offset, .. }) = opened {
            assert_eq!(offset.get(), end);
            let report = image.look();
            assert!(report.unfinished && report.is_needed());
            assert_eq!(image.disk.image_hash(), before);
            let store = image.open().unwrap();
            assert_eq!(store.recovery().finished_repair, Some(Offset::new(end)));
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

/// Without room for the copies nothing is cut.
#[test]
fn a_full_disk_cuts_nothing_that_is_not_kept() {
    let patient = Patient::healthy();
    let end = patient.harm_event(BATCH);
    let originals = originals(&patient);
    for free in [0, 1000, 5000] {
        let full = patient.fork();
        full.disk.set_free_bytes(Some(free));
        let answer = full.accept(end);
        assert!(matches!(answer, Err(Error::NoSpace { .. })), "{answer:?}");
        for (name, bytes) in &originals {
            assert_eq!(full.disk.read_file(name).as_ref(), Some(bytes));
        }
        full.disk.set_free_bytes(None);
        assert!(full.accept(end).unwrap().done);
    }
}

/// A failed sync leaves records that can be read and are not on disk. A repair that counts them as
/// good puts them there before it seals them in.
#[test]
fn unproven_records_are_on_disk_before_they_are_sealed() {
    let patient = Patient::healthy();
    // The anchor proves one record more than there will be.
    let anchor = patient.fork();
    anchor.fill(BATCHES, BATCHES + 2);
    let anchor = anchor.disk.read_file("state/orders/ANCHOR").unwrap();
    let store = patient.open().unwrap();
    patient
        .disk
        .fail(Filter::kinds(&[CallKind::Sync]), 1, Fault::Io, Repeat::Once);
    let failed = store.append(&event(BATCHES * BATCH));
    assert!(matches!(failed, Err(Error::OutcomeUnknown { .. })));
    drop(store);
    let killed = Patient {
        disk: patient.disk.crash(CrashMode::Kill, 0),
        states: patient.states.copy(),
    };
    killed
        .disk
        .write_file("state/orders/ANCHOR", &anchor)
        .unwrap();
    let end = BATCHES * BATCH + 1;
    assert_eq!(killed.look().loss_from.get(), end);
    for call in 1..1000 {
        let crashed = killed.fork();
        crashed.disk.crash_at(call);
        let whole = crashed.accept(end).is_ok();
        for mode in [CrashMode::DropAll, CrashMode::SizeGarbage] {
            let image = Patient {
                disk: crashed.disk.crash(mode, call),
                states: crashed.states.copy(),
            };
            if let Ok(store) = image.open() {
                assert_eq!(store.durable_end().get(), end, "{call} {mode:?}");
                assert_eq!(store.verify().unwrap().records, end, "{call} {mode:?}");
            } else {
                assert!(!whole, "{call} {mode:?}");
            }
        }
        if whole {
            return;
        }
    }
    panic!("it never ended");
}

/// Positions that moved without a record stand in the segment that is replaced, and only there.
#[test]
fn upstream_positions_of_a_replaced_segment_are_kept() {
    let patient = Patient::healthy();
    let store = patient.open().unwrap();
    let segments = store.segments().len();
    let mut position = 1000;
    while store.segments().len() == segments {
        position += 1;
        let stored = store.append_from("up", position, &[]).unwrap();
        assert!(matches!(stored, Ingested::Stored(_)));
    }
    store.append_batch(&[event(BATCHES * BATCH)]).unwrap();
    store.close().unwrap();
    drop(store);
    let end = patient.harm_event(BATCHES * BATCH);
    assert!(patient.open().is_err());
    assert_eq!(patient.look().loss_from.get(), end);
    patient.accept(end).unwrap();
    for _ in 0..2 {
        let store = patient.open().unwrap();
        assert_eq!(store.durable_end().get(), end);
        assert_eq!(store.upstream_position("up"), Some(position));
    }
}
