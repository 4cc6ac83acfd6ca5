//! The ground and the audit over the fake store, against a model in memory.
#![cfg(feature = "sim")]
#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "a test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fake::{FakeStates, Keep};
use super::ground::{Share, StateGround, audit};
use super::meta::{self, Global, Meta, PartitionMeta};
use super::{StateBackend, StateError, StateStore};
use crate::fold::digest;
use crate::fold::ground::Ground;
use crate::fold::key::{KeyState, RawRow, Waiting};
use crate::fold::letter::{Class, DeadLetter, Death};
use crate::fold::overlay::{Changes, Totals};
use crate::offset::Offset;

const DIR: &str = "state/c/1";

/// What a store should hold, kept the simple way.
#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) keys: BTreeMap<String, KeyState>,
    letters: BTreeMap<Offset, DeadLetter>,
}

impl Model {
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let counters = &mut totals.counters;
        for (key, state) in &self.keys {
            totals.digest = totals.digest.plus(digest::of_key(key, state));
            counters.rows += u64::from(state.row.is_some());
            counters.waiting += state.waiting.len() as u64;
            counters.held += state.held();
        }
        for letter in self.letters.values() {
            totals.digest = totals.digest.plus(digest::of_letter(letter));
            counters.dead += u64::from(letter.is_open());
        }
        totals
    }

    fn waiting(&self) -> Vec<(Offset, String)> {
        let mut all: Vec<_> = self
            .keys
            .iter()
            .flat_map(|(key, state)| state.waiting.iter().map(move |w| (w.offset, key.clone())))
            .collect();
        all.sort();
        all
    }
}

fn waits(offset: u64, version: i64) -> Waiting {
    Waiting {
        offset: Offset::new(offset),
        version,
        id: format!("e{offset}"),
        attempts: 1,
        spent: 1,
    }
}

fn letter(offset: u64, key: &str, version: i64) -> DeadLetter {
    DeadLetter {
        offset: Offset::new(offset),
        id: format!("e{offset}"),
        key: key.to_owned(),
        version,
        history: vec![Death {
            class: Class::Poison,
            reason: "no".to_owned(),
            attempts: 1,
            at: Offset::new(offset),
            resolved: None,
        }],
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

/// Changes `touched` keys (each with a row, some with a waiting event and an open letter) and
/// flushes them as one batch with `round` as checkpoint.
pub(super) fn flush(store: &dyn StateStore, model: &mut Model, round: u64, touched: &[String]) {
    let old = model.waiting();
    let mut letters = Vec::new();
    for (index, key) in (0_u64..).zip(touched) {
        let offset = round * 10_000 + index * 3;
        let state = model.keys.entry(key.clone()).or_default();
        state.row = Some(RawRow {
            version: signed(round),
            state: Some(round.to_le_bytes().to_vec()),
            moved_at: Offset::new(offset),
        });
        state.waiting.clear();
        if index % 2 == 0 {
            state.add_waiting(waits(offset + 1, signed(round) + 3));
        }
        if index % 3 == 0 {
            let version = signed(round) + 2;
            state.add_open(version, Offset::new(offset + 2));
            letters.push(letter(offset + 2, key, version));
        }
    }
    for letter in &letters {
        model.letters.insert(letter.offset, letter.clone());
    }
    let new = model.waiting();
    let mut waiting: Vec<(Offset, Option<&str>)> = Vec::new();
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (old.iter().collect(), new.iter().collect());
    for gone in old.difference(&new) {
        waiting.push((gone.0, None));
    }
    for fresh in new.difference(&old) {
        waiting.push((fresh.0, Some(&fresh.1)));
    }
    waiting.sort();
    let mut keys: Vec<_> = touched
        .iter()
        .map(|key| (key.as_str(), model.keys.get(key)))
        .collect();
    keys.sort_by_key(|(key, _)| *key);
    let changes = Changes {
        keys,
        letters: letters.iter().collect(),
        waiting,
    };
    let batch = meta::encode_flush(0, &changes, &part(round, model)).unwrap();
    assert!(batch.is_sorted_by(|a, b| a.0 < b.0), "in the order of keys");
    store.apply(&batch).unwrap();
}

fn part(round: u64, model: &Model) -> PartitionMeta {
    PartitionMeta {
        checkpoint: Offset::new(round),
        frame_crc: 7,
        budget: 3,
        totals: model.totals(),
    }
}

fn global(partitions: u32) -> Global {
    Global {
        format: meta::STATE_FORMAT,
        log_id: 1,
        epoch: 0,
        revision: 1,
        partitions,
    }
}

fn fresh(states: &FakeStates) -> Arc<dyn StateStore> {
    let store = states.open(DIR).unwrap();
    found(&*store);
    store
}

/// Writes the meta of a consumer that has folded nothing.
pub(super) fn found(store: &dyn StateStore) {
    let empty = Meta {
        global: global(1),
        partitions: vec![PartitionMeta::default()],
    };
    store.apply(&meta::encode_all(&empty, 0).unwrap()).unwrap();
}

fn keys(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("order-{n:03}")).collect()
}

fn filled(states: &FakeStates, model: &mut Model) -> Arc<dyn StateStore> {
    let store = fresh(states);
    flush(&*store, model, 1, &keys(0..30));
    flush(&*store, model, 2, &keys(20..40));
    flush(&*store, model, 3, &keys(10..15));
    store
}

pub(super) fn ground(store: &Arc<dyn StateStore>, share: Share) -> StateGround {
    StateGround::new(
        Arc::clone(store),
        Arc::new(|_| Err(crate::Error::Closed)),
        Arc::from("c"),
        share,
    )
}

#[test]
fn the_audit_passes_after_every_flush_and_every_crash_between_them() {
    for lost in 0..=3 {
        let states = FakeStates::new();
        drop(filled(&states, &mut Model::default()));
        states.crash(Keep::Lose(lost));
        let meta = audit(&*states.open(DIR).unwrap()).unwrap().unwrap();
        assert_eq!(meta.checkpoint(), Offset::new(3 - lost as u64));
    }
    let states = FakeStates::new();
    assert_eq!(audit(&*states.open(DIR).unwrap()).unwrap(), None);
}

#[test]
fn the_audit_refuses_every_missing_entry_and_every_entry_from_an_older_flush() {
    let states = FakeStates::new();
    drop(filled(&states, &mut Model::default()));
    let old = states.copy();
    old.crash(Keep::Lose(1));
    let older: BTreeMap<_, _> = old.entries(DIR).into_iter().collect();
    let entries = states.entries(DIR);
    let (mut missing, mut mixed) = (0, 0);
    for (key, value) in &entries {
        let gone = states.copy();
        gone.damage(DIR, key, None);
        assert!(audit(&*gone.open(DIR).unwrap()).is_err(), "{key:?} missing");
        missing += 1;
        if older.get(key) != Some(value) {
            let mix = states.copy();
            mix.damage(DIR, key, older.get(key).map(Vec::as_slice));
            assert!(audit(&*mix.open(DIR).unwrap()).is_err(), "{key:?} older");
            mixed += 1;
        }
    }
    // Back to life: entries that the last flush removed.
    for (key, value) in older
        .iter()
        .filter(|(key, _)| !entries.iter().any(|e| e.0 == **key))
    {
        let mix = states.copy();
        mix.damage(DIR, key, Some(value));
        assert!(audit(&*mix.open(DIR).unwrap()).is_err(), "{key:?} is back");
        mixed += 1;
    }
    assert!(
        missing > 60 && mixed > 10,
        "{missing} missing, {mixed} mixed"
    );
}

#[test]
fn meta_of_another_format_or_without_a_partition_is_refused() {
    let states = FakeStates::new();
    let store = fresh(&states);
    let mut two = Meta {
        global: global(2),
        partitions: vec![PartitionMeta::default(); 2],
    };
    store.apply(&meta::encode_all(&two, 1).unwrap()).unwrap();
    assert_eq!(meta::read(&*store).unwrap().as_ref(), Some(&two));
    // From two partitions to one: the second's entry goes in the same batch.
    let one = Meta {
        global: global(1),
        partitions: vec![PartitionMeta::default()],
    };
    store.apply(&meta::encode_all(&one, 2).unwrap()).unwrap();
    assert_eq!(meta::read(&*store).unwrap().as_ref(), Some(&one));
    // One entry for two partitions, two entries for one.
    two.partitions.pop();
    store.apply(&meta::encode_all(&two, 1).unwrap()).unwrap();
    let error = meta::read(&*store).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error}");
    for format in [0, 2] {
        let mut other = one.clone();
        other.global.format = format;
        store.apply(&meta::encode_all(&other, 2).unwrap()).unwrap();
        let error = meta::read(&*store).unwrap_err();
        assert!(matches!(error, StateError::Format { .. }), "{error}");
    }
    store.apply(&[(b"mg".to_vec(), None)]).unwrap();
    let error = meta::read(&*store).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error}");
}

#[test]
fn the_ground_lists_what_the_model_holds_in_order_and_by_limit() {
    let states = FakeStates::new();
    let store = fresh(&states);
    let mut model = Model::default();
    // More than two chunks of a scan, and keys that are prefixes of one another.
    let mut names = keys(0..600);
    names.extend(["a", "a\0", "ab", "a\0b", "é"].map(str::to_owned));
    flush(&*store, &mut model, 1, &names);
    let ground = ground(&store, Share::ALL);
    let all: Vec<_> = model.keys.clone().into_iter().collect();
    for limit in [0, 1, 255, 256, 257, 512, 9_999] {
        let expected = &all[..limit.min(all.len())];
        assert_eq!(ground.keys_after(None, limit).unwrap(), expected);
    }
    for (index, (key, state)) in all.iter().enumerate() {
        assert_eq!(ground.key(key).unwrap().as_ref(), Some(state));
        let next = ground.keys_after(Some(key), 1).unwrap();
        assert_eq!(next.first(), all.get(index + 1), "after {key:?}");
    }
    assert_eq!(ground.key("a\0c").unwrap(), None);
    let waiting = model.waiting();
    assert!(waiting.len() > 300);
    assert_eq!(ground.waiting_after(Offset::ZERO, 9_999).unwrap(), waiting);
    let (third, _) = waiting[2];
    assert_eq!(ground.waiting_after(third, 2).unwrap(), waiting[2..4]);
    assert_eq!(
        ground.waiting_after(third.next(), 1).unwrap(),
        waiting[3..4]
    );
    let letters: Vec<_> = model.letters.values().cloned().collect();
    assert_eq!(ground.letters_after(Offset::ZERO, 9_999).unwrap(), letters);
    assert_eq!(
        ground.letters_after(letters[5].offset, 1).unwrap(),
        letters[5..6]
    );
    assert_eq!(
        ground.letter(letters[5].offset).unwrap().as_ref(),
        letters.get(5)
    );
    assert_eq!(ground.letter(Offset::new(1)).unwrap(), None);
}

#[test]
fn partitions_see_their_own_keys_and_together_all() {
    let states = FakeStates::new();
    let store = fresh(&states);
    let mut model = Model::default();
    flush(&*store, &mut model, 1, &keys(0..600));
    let (mut seen, mut waiting, mut letters) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..7 {
        let ground = ground(&store, Share { index, of: 7 });
        let own = ground.keys_after(None, 9_999).unwrap();
        assert!(own.iter().all(|(key, _)| crate::partition(key, 7) == index));
        assert_eq!(ground.keys_after(None, 5).unwrap(), own[..5]);
        seen.extend(own);
        waiting.extend(ground.waiting_after(Offset::ZERO, 9_999).unwrap());
        letters.extend(ground.letters_after(Offset::ZERO, 9_999).unwrap());
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    waiting.sort();
    letters.sort_by_key(|letter| letter.offset);
    assert_eq!(seen, model.keys.into_iter().collect::<Vec<_>>());
    assert_eq!(letters, model.letters.into_values().collect::<Vec<_>>());
    let mut expected: Vec<_> = seen
        .iter()
        .flat_map(|(key, state)| state.waiting.iter().map(move |w| (w.offset, key.clone())))
        .collect();
    expected.sort();
    assert_eq!(waiting, expected);
}

#[test]
fn bytes_that_do_not_decode_are_a_state_error_that_names_the_consumer() {
    let states = FakeStates::new();
    let store = filled(&states, &mut Model::default());
    states.damage(DIR, b"korder-001", Some(b"\x01\xff\xff"));
    let error = ground(&store, Share::ALL).key("order-001").unwrap_err();
    let crate::Error::State { consumer, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(consumer, "c");
}
