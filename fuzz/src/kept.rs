//! A store whose state is kept beside the log, in files and in entries of a state store, and what
//! must hold when any of them holds other bytes.
//!
//! Whatever opens must serve the state that a fold of the log from its first record comes to.

use std::sync::OnceLock;

use foldlog::sequence::Sequence;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::SimDisk;
use foldlog::{Consumer, ConsumerOptions, Event, Store};

use crate::set::{Script, options};

/// The files beside the log that say something.
const FILES: [&str; 5] = [
    "state/c/CURRENT",
    "state/c/ANCHOR",
    "state/c/MARK",
    "log/REPAIR",
    "WRITER",
];
const STATE: &str = "state/c/1";
const PARTITIONS: u32 = 2;

/// A store as it was closed, with rows, waiting events and letters in every state.
pub struct Kept {
    disk: SimDisk,
    states: FakeStates,
}

/// The same at every call.
pub fn kept() -> &'static Kept {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    KEPT.get_or_init(build)
}

fn consumer(store: &Store) -> foldlog::Result<Consumer<Sequence>> {
    let options = ConsumerOptions::default().partitions(PARTITIONS);
    store.consumer_with("c", Sequence, options)
}

fn build() -> Kept {
    let (disk, states) = (SimDisk::new(), FakeStates::new());
    let store = options(&disk, &states).open("store").expect("open");
    for n in 0..8_u8 {
        let key = format!("k{n}");
        let event = |id: &str, version| Event::new(format!("{id}{n}"), &*key, version, "kind");
        let batch = [event("a", 1), event("bad", 0), event("c", 3), event("d", 5)];
        store.append_batch(&batch).expect("append");
    }
    let consumer = consumer(&store).expect("consumer");
    for at in [1, 5] {
        let offset = foldlog::Offset::new(at);
        consumer.discard(offset, None).expect("discard");
    }
    for _ in 0..2 {
        consumer.settle().expect("settle");
    }
    for n in 0..4_u8 {
        let event = Event::new(format!("late{n}"), format!("l{n}"), 2, "kind");
        store.append(&event).expect("append");
    }
    consumer.catch_up().expect("catch up");
    consumer.flush().expect("flush");
    let waiting = consumer.waiting().count();
    let letters = consumer.dead_letters().count();
    assert!(waiting > 3 && letters > 7, "{waiting} wait, {letters} died");
    drop(consumer);
    store.close().expect("close");
    drop(store);
    assert!(!states.entries(STATE).is_empty());
    Kept { disk, states }
}

/// New bytes from old ones, as the script says: others, changed, cut, or with a checksum that
/// holds behind them, as most of the files end in one.
fn change(script: &mut Script<'_>, old: &[u8]) -> Vec<u8> {
    let mut bytes = old.to_vec();
    match script.byte() % 4 {
        0 => bytes = script.0.to_vec(),
        1 => {
            bytes = script.0.to_vec();
            bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        }
        2 => flip(script, &mut bytes),
        _ => {
            bytes.truncate(bytes.len().saturating_sub(4));
            flip(script, &mut bytes);
            bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        }
    }
    bytes
}

/// Changes bytes of it, cuts it or makes it longer.
fn flip(script: &mut Script<'_>, bytes: &mut Vec<u8>) {
    while let [place, with, rest @ ..] = script.0 {
        script.0 = rest;
        match bytes.get_mut(usize::from(*place)) {
            Some(byte) => *byte ^= with,
            None if *place > 250 => bytes.truncate(usize::from(*with)),
            None => bytes.push(*with),
        }
    }
}

/// Puts the bytes of the script into one place, opens the store, and checks its state.
pub fn check(script: &mut Script<'_>) {
    let kept = kept();
    let (disk, states) = (kept.disk.fork(), kept.states.copy());
    let place = script.byte();
    match FILES.get(usize::from(place)) {
        Some(name) => {
            let old = disk.read_file(name).unwrap_or_default();
            let bytes = change(script, &old);
            disk.write_file(name, &bytes).expect("a good path");
        }
        None => change_entry(script, &states),
    }
    for read_only in [true, false, false] {
        let store = options(&disk, &states).read_only(read_only).open("store");
        let Ok(store) = store else {
            continue;
        };
        let Ok(found) = consumer(&store) else {
            continue;
        };
        let copy = options(&disk.fork(), &FakeStates::new());
        let copy = copy.read_only(true).open("store");
        let copy = copy.expect("a log that has just been opened");
        let fresh = consumer(&copy).expect("a fold of a good log");
        compare(&found, &fresh);
    }
}

fn change_entry(script: &mut Script<'_>, states: &FakeStates) {
    let entries = states.entries(STATE);
    let (key, value) = script.pick(&entries);
    match script.byte() % 4 {
        0 => states.damage(STATE, key, None),
        1 => {
            // Under another key, or as one more entry.
            if script.byte() % 2 == 0 {
                states.damage(STATE, key, None);
            }
            let new = change(script, key);
            states.damage(STATE, &new, Some(value));
        }
        _ => {
            let new = change(script, value);
            states.damage(STATE, key, Some(&new));
        }
    }
}

fn compare(found: &Consumer<Sequence>, fresh: &Consumer<Sequence>) {
    assert_eq!(found.digest(), fresh.digest(), "wrong state");
    assert_eq!(found.checkpoint(), fresh.checkpoint(), "wrong checkpoint");
    let all = |consumer: &Consumer<Sequence>| {
        let rows: Vec<_> = consumer.rows().map(|row| row.expect("a row")).collect();
        let waiting: Vec<_> = consumer.waiting().map(|one| one.expect("waits")).collect();
        let letters: Vec<_> = consumer
            .dead_letters()
            .map(|letter| letter.expect("a letter"))
            .collect();
        (rows, waiting, letters)
    };
    assert!(all(found) == all(fresh), "wrong entries");
}
