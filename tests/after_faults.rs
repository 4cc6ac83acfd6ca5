//! What a consumer and its store do after something failed, was closed, or went on beside them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::allow_attributes,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldlog::sequence::Sequence;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::{CallKind, Fault, Filter, Repeat, SimDisk};
use foldlog::{Error, Event, MapSource, Poison, StateMachine, Store};

fn ev(key: &str, version: i64) -> Event {
    Event::new(format!("{key}-{version}"), key, version, "k").with_payload("x")
}

fn sim(disk: &SimDisk, states: &FakeStates) -> Store {
    Store::options()
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(states.clone()))
        .open("sim")
        .unwrap()
}

#[test]
fn read_only_consumer_opens_although_the_writer_went_on_since_the_read_only_open() {
    let (disk, states) = (SimDisk::new(), FakeStates::new());
    let store = sim(&disk, &states);
    store.append(&ev("a", 1)).unwrap();
    let consumer = store.consumer("c", Sequence).unwrap();
    consumer.flush().unwrap();
    let reader = Store::options()
        .read_only(true)
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(states.clone()))
        .open("sim")
        .unwrap();
    for v in 2..10 {
        store.append(&ev("a", v)).unwrap();
    }
    consumer.catch_up().unwrap();
    consumer.flush().unwrap();
    let copy = reader.consumer("c", Sequence).unwrap();
    copy.catch_up().unwrap();
    assert!(copy.get("a").unwrap().unwrap().version >= 1);
}

#[test]
fn read_only_consumer_catches_up_with_a_live_writer() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.append(&ev("a", 1)).unwrap();
    let reader = Store::options().read_only(true).open(dir.path()).unwrap();
    let copy = reader.consumer("c", Sequence).unwrap();
    store.append(&ev("a", 2)).unwrap();
    copy.catch_up().unwrap();
    assert_eq!(copy.get("a").unwrap().unwrap().version, 2);
}

#[test]
fn run_ends_when_the_store_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.append(&ev("a", 1)).unwrap();
    let consumer = store.consumer("c", Sequence).unwrap();
    let stop = AtomicBool::new(false);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let answer = consumer.run(&stop);
            ended.store(true, Ordering::Release);
            answer
        });
        std::thread::sleep(Duration::from_millis(100));
        store.close().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let was = ended.load(Ordering::Acquire);
        stop.store(true, Ordering::Release);
        let answer = running.join().unwrap();
        assert!(was, "run went on after close");
        assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    });
}

struct Big;
impl StateMachine for Big {
    type State = Vec<u8>;
    const REVISION: u32 = 1;
    fn apply(&self, _: Option<&Vec<u8>>, _: &Event) -> Result<Vec<u8>, Poison> {
        Ok(vec![1; 1024 * 1024])
    }
}

#[test]
fn reconcile_repairs_many_large_states() {
    let disk = SimDisk::new();
    let states = FakeStates::new();
    let store = sim(&disk, &states);
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let events: Vec<Event> = keys.iter().map(|k| ev(k, 1)).collect();
    store.append_batch(&events).unwrap();
    let consumer = store.consumer("c", Big).unwrap();
    let mut source = MapSource::new();
    for key in &keys {
        source.insert(key.clone(), 1, vec![2; 1024 * 1024]);
    }
    let fixes = consumer.reconcile(&source, &keys, None).unwrap();
    assert_eq!(fixes.len(), 40);
}

#[test]
fn read_error_in_the_middle_of_a_record_is_over_when_the_disk_is_well_again() {
    let disk = SimDisk::new();
    let states = FakeStates::new();
    let store = sim(&disk, &states);
    let consumer = store.consumer("c", Sequence).unwrap();
    store.append(&ev("a", 2)).unwrap();
    consumer.catch_up().unwrap();
    store.append(&ev("a", 1)).unwrap();
    let mut failed = 0;
    for nth in 1..20 {
        disk.clear_faults();
        disk.fail(
            Filter::kinds(&[CallKind::Read]),
            nth,
            Fault::Io,
            Repeat::Once,
        );
        if let Err(error) = consumer.catch_up() {
            failed += 1;
            assert!(matches!(error, Error::Io { .. }), "{nth}: {error}");
        }
        println!(
            "nth {nth} cp {} {:?} add {}",
            consumer.checkpoint(),
            consumer.counters(),
            consumer.counters().add_up()
        );
        assert!(consumer.counters().add_up(), "nth {nth}");
    }
    disk.clear_faults();
    assert!(failed > 0);
    consumer.catch_up().unwrap();
    assert_eq!(consumer.get("a").unwrap().unwrap().version, 2);
}

#[test]
fn consumer_left_over_from_a_closed_store_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.append(&ev("a", 1)).unwrap();
    let consumer = store.consumer("c", Sequence).unwrap();
    store.close().unwrap();
    let again = Store::open(dir.path()).unwrap();
    let second = again.consumer("c", Sequence);
    println!("second while first alive: {:?}", second.as_ref().err());
    println!("rebuild {:?}", consumer.rebuild());
    println!("flush {:?}", consumer.flush());
    println!("catch_up {:?}", consumer.catch_up());
    println!("verify {:?}", consumer.verify());
    drop(second);
    drop(consumer);
    let third = again.consumer("c", Sequence).unwrap();
    println!("third {:?}", third.opening());
    assert!(third.opening().rebuilt.is_none());
}

#[test]
fn rebuild_of_an_empty_log_after_close() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let consumer = store.consumer("c", Sequence).unwrap();
    store.close().unwrap();
    let answer = consumer.rebuild();
    println!("{answer:?}");
    assert!(answer.is_err(), "rebuilt without the lock");
}

/// A state that encodes and does not decode.
struct Odd;
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum OddState {
    A(u8),
}
impl StateMachine for Odd {
    type State = OddState;
    const REVISION: u32 = 1;
    fn apply(&self, _: Option<&OddState>, _: &Event) -> Result<OddState, Poison> {
        Ok(OddState::A(1))
    }
}

#[test]
fn state_that_does_not_decode() {
    let disk = SimDisk::new();
    let states = FakeStates::new();
    let store = sim(&disk, &states);
    store.append(&ev("a", 1)).unwrap();
    let c = store.consumer("c", Odd).unwrap();
    println!("{:?}", c.get("a").map(|_| ()));
    store.append(&ev("a", 2)).unwrap();
    println!("{:?}", c.catch_up());
    println!("{:?}", c.catch_up());
    drop(c);
    println!("{:?}", store.consumer("c", Odd).map(|_| ()));
}

#[test]
fn store_that_cannot_be_read_is_not_a_missing_store() {
    let (disk, states) = (SimDisk::new(), FakeStates::new());
    drop(sim(&disk, &states));
    for (fault, want) in [(Fault::Io, "Io"), (Fault::TooManyFiles, "TooManyFiles")] {
        disk.fail(Filter::kinds(&[CallKind::List]), 1, fault, Repeat::Once);
        let answer = Store::options()
            .read_only(true)
            .storage(Arc::new(disk.clone()))
            .state_backend(Arc::new(states.clone()))
            .open("sim");
        let error = format!("{:?}", answer.unwrap_err());
        assert!(error.starts_with(want), "{error}");
    }
}
