//! Random faults at any call of disk and state store, and threads of every kind at once: in the end
//! the state is the fold of the log.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::allow_attributes,
    clippy::disallowed_methods,
    clippy::cast_possible_wrap,
    missing_docs,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::state::StateError;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::{Fault, Filter, Repeat, SimDisk};
use foldlog::{Consumer, ConsumerOptions, Event, Poison, StateMachine, Store};

/// Refuses kind "bad"; counts.
struct Count;
impl StateMachine for Count {
    type State = u64;
    const REVISION: u32 = 1;
    fn apply(&self, n: Option<&u64>, event: &Event) -> Result<u64, Poison> {
        if event.kind == "bad" {
            return Err(Poison::new("bad"));
        }
        Ok(n.copied().unwrap_or(0) + 1)
    }
}

struct Rng(u64);
impl Rng {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn random_event(rng: &mut Rng) -> Event {
    let key = format!("k{}", rng.next(7));
    let version = rng.next(9) as i64;
    let kind = if rng.next(6) == 0 { "bad" } else { "good" };
    Event::new(
        format!("{key}-{version}-{}", rng.next(2)),
        key,
        version,
        kind,
    )
}

fn open(disk: &SimDisk, states: &FakeStates) -> foldlog::Result<Store> {
    Store::options()
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(states.clone()))
        .segment_bytes(4096)
        .open("sim")
}

fn consumer(store: &Store, partitions: u32) -> foldlog::Result<Consumer<Count>> {
    store.consumer_with(
        "c",
        Count,
        ConsumerOptions::default()
            .partitions(partitions)
            .flush_entries(5)
            .batch_max(3),
    )
}

fn step(store: &Store, c: &Consumer<Count>, rng: &mut Rng) -> foldlog::Result<()> {
    match rng.next(12) {
        0..=4 => {
            let n = 1 + rng.next(4);
            let events: Vec<_> = (0..n).map(|_| random_event(rng)).collect();
            store.append_batch(&events).map(drop)
        }
        5 => c.catch_up().map(drop),
        6 => c.settle().map(drop),
        7 => c.flush(),
        8 => c.rebuild().map(drop),
        9 => c.redrive_all(&foldlog::Filter::all(), 2, None).map(drop),
        10 => c.skip_all(&foldlog::Filter::all(), 1, None).map(drop),
        _ => c.discard_all(&foldlog::Filter::all(), 1, None).map(drop),
    }
}

/// Faults of disk and state store at any call; whatever happened, after healing and reopening the
/// state is the fold of the log, and whatever is served while open is too.
#[test]
fn faults_anywhere_never_leave_state_that_is_not_the_fold() {
    let mut sticky = 0;
    for seed in 1..400_u64 {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let disk = SimDisk::with_seed(seed);
        let states = FakeStates::new();
        for _ in 0..4 {
            disk.clear_faults();
            states.heal();
            let store = open(&disk, &states).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let partitions = 1 + (rng.next(3) as u32);
            let c = consumer(&store, partitions).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            for _ in 0..25 {
                if rng.next(4) == 0 {
                    let fault = match rng.next(3) {
                        0 => Fault::Io,
                        1 => Fault::NoSpace,
                        _ => Fault::TooManyFiles,
                    };
                    let nth = 1 + rng.next(30);
                    disk.fail(Filter::any(), nth, fault, Repeat::Once);
                }
                if rng.next(12) == 0 {
                    let nth = states.calls() + 1 + rng.next(30);
                    let error = StateError::Damaged {
                        op: "x",
                        reason: "injected".into(),
                    };
                    states.fail_at(nth, error, false);
                }
                drop(step(&store, &c, &mut rng));
            }
            disk.clear_faults();
            states.heal();
            // Live reads, with the disk well again: consistent, or a clear refusal.
            if c.catch_up().is_ok() {
                let verified = c.verify().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert_eq!(verified.kept, verified.folded, "seed {seed}");
                assert_eq!(verified.stored, verified.folded, "seed {seed}");
                assert!(verified.difference.is_empty(), "seed {seed}");
                assert!(c.counters().add_up(), "seed {seed}");
            } else {
                sticky += 1;
            }
            drop(c);
            drop(store);
            if rng.next(2) == 0 {
                let store = open(&disk, &states).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let c = consumer(&store, 2).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let verified = c.verify().unwrap();
                assert_eq!(verified.kept, verified.folded, "seed {seed}");
                assert_eq!(verified.stored, verified.folded, "seed {seed}");
                assert!(c.counters().add_up(), "seed {seed}");
                let replay = c.replay(foldlog::Offset::ZERO).unwrap();
                assert_eq!(replay.lost, 0, "seed {seed}");
            }
        }
    }
    println!("sticky {sticky}");
}

/// Readers that page through state while rebuilds replace it hear no error.
#[test]
fn reads_go_on_while_a_rebuild_switches() {
    let (disk, states) = (SimDisk::new(), FakeStates::new());
    let store = open(&disk, &states).unwrap();
    let mut rng = Rng(7);
    let events: Vec<_> = (0..600).map(|_| random_event(&mut rng)).collect();
    store.append_batch(&events).unwrap();
    let c = consumer(&store, 3).unwrap();
    c.settle().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut errors = Vec::new();
            while !stop.load(Ordering::Acquire) {
                errors.extend(c.rows().filter_map(Result::err).map(|e| e.to_string()));
                errors.extend(c.waiting().filter_map(Result::err).map(|e| e.to_string()));
                errors.extend(
                    c.dead_letters()
                        .filter_map(Result::err)
                        .map(|e| e.to_string()),
                );
                errors.extend(c.get("k1").err().map(|e| e.to_string()));
            }
            errors
        });
        let mut failed = None;
        for _ in 0..60 {
            failed = failed.or(c.rebuild().err());
        }
        stop.store(true, Ordering::Release);
        assert!(failed.is_none(), "{failed:?}");
        assert_eq!(reader.join().unwrap(), Vec::<String>::new());
    });
}

struct StopAtEnd<'a>(&'a AtomicBool);
impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Threads: appenders, a runner, rebuilds, decisions, readers; at the end live = fold.
#[test]
fn threads_of_every_kind_end_in_the_fold() {
    let disk = SimDisk::new();
    let states = FakeStates::new();
    let store = open(&disk, &states).unwrap();
    let c = consumer(&store, 3).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let mut workers = Vec::new();
        for seed in 1..4 {
            let store = &store;
            workers.push(scope.spawn(move || {
                let mut rng = Rng(seed * 77_777);
                for _ in 0..400 {
                    store.append(&random_event(&mut rng)).unwrap();
                }
            }));
        }
        scope.spawn(|| c.run(&stop).unwrap());
        let (c1, c2) = (c.clone(), c.clone());
        workers.push(scope.spawn(move || {
            for _ in 0..15 {
                let done = c1.rebuild().unwrap();
                assert_eq!(done.before, done.after);
            }
        }));
        workers.push(scope.spawn(move || {
            for _ in 0..15 {
                drop(c2.redrive_all(&foldlog::Filter::all(), 3, None).unwrap());
                drop(c2.discard_all(&foldlog::Filter::all(), 1, None).unwrap());
                c2.settle().unwrap();
                assert!(c2.rows().all(|row| row.is_ok()));
                assert!(c2.waiting().all(|row| row.is_ok()));
                assert!(c2.dead_letters().all(|row| row.is_ok()));
                let v = c2.verify().unwrap();
                assert_eq!(v.kept, v.folded);
            }
        }));
        for worker in workers {
            worker.join().unwrap();
        }
    });
    c.catch_up().unwrap();
    let v = c.verify().unwrap();
    assert_eq!((v.kept, v.stored), (v.folded, v.folded));
}
