//! Generations over a real directory, with the fake store.
#![cfg(feature = "sim")]
#![expect(clippy::disallowed_methods, reason = "a test")]

use std::fs;
use std::sync::Arc;

use super::fake::{FakeStates, Keep};
use super::generation::{Current, Found, Generations, check_consumer};
use super::ground_tests::{Model, flush, found};
use super::sled_store::SledBackend;
use super::{StateBackend, StateError};
use crate::Error;
use crate::storage::Storage;
use crate::storage::disk::Disk;

struct Fixture {
    root: tempfile::TempDir,
    states: FakeStates,
    generations: Generations,
}

fn fixture() -> Fixture {
    let root = tempfile::tempdir().unwrap();
    let states = FakeStates::new();
    let storage = Arc::new(Disk::open(root.path()));
    let generations = Generations::new(storage, Arc::new(states.clone()), "orders").unwrap();
    Fixture {
        root,
        states,
        generations,
    }
}

impl Fixture {
    /// A live generation with one flush; answers its number.
    fn live(&self) -> u64 {
        let (number, store) = self.generations.create().unwrap();
        found(&*store);
        flush(&*store, &mut Model::default(), 1, &["a".to_owned()]);
        drop(store);
        self.generations.switch(number).unwrap();
        number
    }

    fn current_file(&self) -> std::path::PathBuf {
        self.root.path().join("state/orders/CURRENT")
    }
}

fn number_of(found: &Found) -> Option<u64> {
    match found {
        Found::Live { number, .. } => Some(*number),
        Found::Nothing | Found::Lost { .. } | Found::Damaged { .. } => None,
    }
}

#[test]
fn names_of_consumers_are_names_of_directories() {
    let longest = "x".repeat(64);
    for good in ["orders", "a", "0", "a-b_c", longest.as_str()] {
        check_consumer(good).unwrap();
    }
    assert!(matches!(check_consumer(""), Err(Error::Empty { .. })));
    let longer = "x".repeat(65);
    assert!(matches!(
        check_consumer(&longer),
        Err(Error::TooLarge { .. })
    ));
    for bad in ["Orders", "a/b", "..", ".", "a b", "é", "a\0", "a.b"] {
        let error = check_consumer(bad).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{bad:?}: {error:?}");
    }
}

#[test]
fn a_new_consumer_has_nothing_and_looking_creates_nothing() {
    let f = fixture();
    assert_eq!(f.generations.current().unwrap(), Current::Missing);
    assert!(matches!(f.generations.open_live().unwrap(), Found::Nothing));
    assert_eq!(fs::read_dir(f.root.path()).unwrap().count(), 0);
}

#[test]
fn current_is_these_bytes_and_every_flip_cut_and_addition_is_unreadable() {
    let f = fixture();
    f.generations.switch(258).unwrap();
    let bytes = fs::read(f.current_file()).unwrap();
    // The CRC-32 was computed with another program over the 24 bytes before it.
    assert_eq!(
        bytes,
        b"FOLDCURR\x01\0\0\0\x02\x01\0\0\0\0\0\0\0\0\0\0\xcf\x33\xc3\xf9"
    );
    assert_eq!(f.generations.current().unwrap(), Current::Live(258));
    let is_unreadable = |bytes: &[u8]| {
        fs::write(f.current_file(), bytes).unwrap();
        matches!(f.generations.current().unwrap(), Current::Unreadable(_))
    };
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(is_unreadable(&flipped), "bit {bit}");
    }
    for end in 0..bytes.len() {
        assert!(is_unreadable(&bytes[..end]), "cut at {end}");
    }
    for more in [1, 2, 5_000] {
        let longer = [bytes.clone(), vec![0; more]].concat();
        assert!(is_unreadable(&longer), "{more} more");
    }
    assert!(matches!(
        f.generations.open_live().unwrap(),
        Found::Lost { .. }
    ));
}

#[test]
fn a_rebuild_takes_the_place_of_the_old_generation_and_left_overs_go() {
    let f = fixture();
    assert_eq!(f.live(), 1);
    assert_eq!(number_of(&f.generations.open_live().unwrap()), Some(1));
    // Two rebuilds that were interrupted.
    drop(f.generations.create().unwrap());
    drop(f.generations.create().unwrap());
    assert_eq!(f.generations.numbers().unwrap(), [1, 2, 3]);
    assert_eq!(number_of(&f.generations.open_live().unwrap()), Some(1));
    assert_eq!(f.live(), 4);
    assert_eq!(number_of(&f.generations.open_live().unwrap()), Some(4));
    let removed = f.generations.remove_left_overs(Some(4)).unwrap();
    assert_eq!(
        removed,
        ["state/orders/1", "state/orders/2", "state/orders/3"]
    );
    assert_eq!(f.generations.numbers().unwrap(), [4]);
    assert_eq!(f.live(), 5);
}

#[test]
fn foreign_names_beside_the_generations_are_left_alone() {
    let f = fixture();
    f.live();
    for name in ["state/orders/backup", "state/orders/01", "state/orders/-1"] {
        drop(f.states.open(name).unwrap());
    }
    assert_eq!(f.generations.numbers().unwrap(), [1]);
    f.generations.remove_left_overs(None).unwrap();
    assert_eq!(
        f.states.list("state/orders").unwrap(),
        ["-1", "01", "backup"]
    );
}

#[test]
fn damaged_and_emptied_state_is_told_and_set_aside_under_a_name_of_its_own() {
    let f = fixture();
    let mut names = Vec::new();
    for round in 0..3 {
        let number = f.live();
        let dir = f.generations.path(number);
        if round == 1 {
            f.states.crash(Keep::Lose(99));
        } else {
            f.states.damage(&dir, b"ka", None);
        }
        let found = f.generations.open_live().unwrap();
        assert!(matches!(found, Found::Damaged { number: n, .. } if n == number));
        names.push(f.generations.set_aside(number).unwrap());
        // The damaged one is gone from its place, and nothing else is taken for it.
        assert!(matches!(
            f.generations.open_live().unwrap(),
            Found::Lost { .. }
        ));
        fs::remove_file(f.current_file()).unwrap();
    }
    assert_eq!(
        names,
        [
            "quarantine/state-orders-1",
            "quarantine/state-orders-1-2",
            "quarantine/state-orders-1-3"
        ]
    );
}

#[test]
fn the_number_that_current_names_is_not_given_to_an_unfinished_generation() {
    let f = fixture();
    let number = f.live();
    f.generations.set_aside(number).unwrap();
    let (fresh, store) = f.generations.create().unwrap();
    found(&*store);
    drop(store);
    assert_eq!((number, fresh), (1, 2));
    assert!(matches!(
        f.generations.open_live().unwrap(),
        Found::Lost { .. }
    ));
}

#[test]
fn a_store_in_use_or_without_space_is_no_damage() {
    let f = fixture();
    let number = f.live();
    let store = f.states.open(&f.generations.path(number)).unwrap();
    let error = f.generations.open_live().unwrap_err();
    assert!(matches!(error, Error::State { .. }), "{error:?}");
    drop(store);
    let full = StateError::Io {
        op: "open",
        file: "db".into(),
        source: Arc::new(std::io::Error::from_raw_os_error(28)),
    };
    f.states.fail_at(f.states.calls(), full, false);
    let error = f.generations.open_live().unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    assert_eq!(number_of(&f.generations.open_live().unwrap()), Some(number));
}

#[test]
fn a_missing_current_beside_generations_is_lost_never_new() {
    let f = fixture();
    f.live();
    fs::remove_file(f.current_file()).unwrap();
    assert!(matches!(
        f.generations.open_live().unwrap(),
        Found::Lost { .. }
    ));
}

#[test]
fn the_same_steps_work_over_sled() {
    let root = tempfile::tempdir().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(Disk::open(root.path()));
    let backend = Arc::new(SledBackend::new(Arc::clone(&storage)));
    let generations = Generations::new(storage, backend, "orders").unwrap();
    for expected in 1..=3 {
        let (number, store) = generations.create().unwrap();
        assert_eq!(number, expected);
        found(&*store);
        flush(&*store, &mut Model::default(), 1, &["a".to_owned()]);
        store.sync().unwrap();
        drop(store);
        generations.switch(number).unwrap();
        let found = generations.open_live().unwrap();
        assert_eq!(number_of(&found), Some(number));
        drop(found);
        generations.remove_left_overs(Some(number)).unwrap();
        assert_eq!(generations.numbers().unwrap(), [number]);
    }
    let dir = root.path().join("state/orders/3");
    fs::write(dir.join("snap.0000000000000001.generating"), b"").unwrap();
    let found = generations.open_live().unwrap();
    assert!(
        matches!(found, Found::Damaged { number: 3, .. }),
        "{found:?}"
    );
    assert_eq!(
        generations.set_aside(3).unwrap(),
        "quarantine/state-orders-3"
    );
    assert!(root.path().join("quarantine/state-orders-3/db").is_file());
}
