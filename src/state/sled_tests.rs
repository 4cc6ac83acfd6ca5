//! sled as a state store: order and bounds, reopening, damage, kills, and calls that do not end.
#![cfg(feature = "sim")]
#![expect(
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    reason = "a test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fake::FakeStates;
use super::ground::{Share, audit};
use super::ground_tests::{Model, flush, found, ground};
use super::guard::{bounded, close_gate, read_guarded};
use super::sled_store::SledBackend;
use super::{Change, StateBackend, StateError, StateStore};
use crate::fold::ground::Ground;
use crate::num::to_usize;
use crate::offset::Offset;
use crate::storage::disk::Disk;

const DIR: &str = "state/c/1";

fn backend(root: &Path) -> SledBackend {
    SledBackend::new(Arc::new(Disk::open(root)))
}

/// xorshift: the same numbers each time.
fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn put(key: &[u8], value: &[u8]) -> Change {
    (key.to_vec(), Some(value.to_vec()))
}

fn all(store: &dyn StateStore) -> Vec<(Vec<u8>, Vec<u8>)> {
    store.scan(Bound::Unbounded, b"", usize::MAX).unwrap()
}

#[test]
fn sled_and_the_fake_scan_like_a_sorted_map() {
    let root = tempfile::tempdir().unwrap();
    let states = FakeStates::new();
    let stores = [
        backend(root.path()).open(DIR).unwrap(),
        states.open(DIR).unwrap(),
    ];
    let mut model = BTreeMap::new();
    let mut seed = 0x5eed_u64;
    let bytes = [0, 1, b'a', b'b', 254, 255];
    let key = |seed: &mut u64| -> Vec<u8> {
        let len = random(seed) % 4;
        (0..=len)
            .map(|_| bytes[to_usize(random(seed) % 6)])
            .collect()
    };
    for round in 0..200_u64 {
        let batch: Vec<Change> = (0..20)
            .map(|_| {
                let remove = random(&mut seed).is_multiple_of(3);
                let value = round.to_le_bytes().to_vec();
                (key(&mut seed), (!remove).then_some(value))
            })
            .collect();
        for (key, value) in &batch {
            match value {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(key),
            };
        }
        let (prefix, from) = (key(&mut seed), key(&mut seed));
        let limit = to_usize(random(&mut seed) % 9);
        let bounds = [
            Bound::Unbounded,
            Bound::Included(from.as_slice()),
            Bound::Excluded(from.as_slice()),
        ];
        for store in &stores {
            store.apply(&batch).unwrap();
            for bound in bounds {
                let expected: Vec<_> = model
                    .range::<[u8], _>((bound, Bound::Unbounded))
                    .filter(|(key, _)| key.starts_with(&prefix))
                    .take(limit)
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                let got = store.scan(bound, &prefix, limit).unwrap();
                assert_eq!(
                    got, expected,
                    "round {round} {store:?} {bound:?} {prefix:?}"
                );
            }
            assert_eq!(store.get(&from).unwrap(), model.get(&from).cloned());
        }
    }
    assert!(model.len() > 100);
    assert_eq!(all(&*stores[0]), all(&*stores[1]));
    assert!(stores[0].size_bytes() > 0);
}

#[test]
fn seventy_thousand_waiting_offsets_come_in_numeric_order() {
    let root = tempfile::tempdir().unwrap();
    let store = backend(root.path()).open(DIR).unwrap();
    let numbers: Vec<u64> = (0..70_000).collect();
    for chunk in numbers.chunks(10_000) {
        let batch: Vec<_> = chunk
            .iter()
            .map(|n| put(&super::waiting::key_of(Offset::new(*n)), b"\x01k"))
            .collect();
        store.apply(&batch).unwrap();
    }
    let ground = ground(&store, Share::ALL);
    let mut from = Offset::ZERO;
    let mut next = 0;
    loop {
        let some = ground.waiting_after(from, 777).unwrap();
        for (offset, _) in &some {
            assert_eq!(offset.get(), next);
            next += 1;
        }
        let Some((last, _)) = some.last() else { break };
        from = last.next();
    }
    assert_eq!(next, 70_000);
}

#[test]
fn three_hundred_quick_reopens_never_fail_and_keep_everything() {
    let root = tempfile::tempdir().unwrap();
    let backend = backend(root.path());
    for round in 0..300_u32 {
        let store = backend.open(DIR).unwrap();
        assert_eq!(all(&*store).len(), to_usize(u64::from(round)));
        store.apply(&[put(&round.to_le_bytes(), b"v")]).unwrap();
        if round % 50 == 0 {
            store.sync().unwrap();
        }
    }
}

#[test]
fn a_second_handle_is_busy_after_a_bounded_wait_and_free_after_the_first_is_dropped() {
    let root = tempfile::tempdir().unwrap();
    let mut backend = backend(root.path());
    backend.lock_wait = Duration::from_millis(50);
    let store = backend.open(DIR).unwrap();
    let began = Instant::now();
    let error = backend.open(DIR).unwrap_err();
    assert!(
        matches!(&error, StateError::Busy { dir } if dir == DIR),
        "{error:?}"
    );
    assert!(!error.is_damage(), "a rebuild beside a live handle");
    assert!(began.elapsed() >= Duration::from_millis(50));
    drop(store);
    backend.lock_wait = Duration::from_secs(5);
    assert!(backend.open(DIR).is_ok());
}

#[test]
fn a_stray_snapshot_is_damage_and_can_be_set_aside() {
    for content in [&b""[..], b"short", &[0xa5; 4096]] {
        let root = tempfile::tempdir().unwrap();
        let backend = backend(root.path());
        let store = backend.open(DIR).unwrap();
        store.apply(&[put(b"a", b"1")]).unwrap();
        drop(store);
        let stray = "snap.FFFFFFFFFFFFFFFF.generating";
        fs::write(root.path().join(DIR).join(stray), content).unwrap();
        for _ in 0..2 {
            let error = backend.open(DIR).unwrap_err();
            assert!(error.is_damage(), "{error:?}");
        }
        backend.set_aside(DIR, "quarantine/state-c-1").unwrap();
        let aside = root.path().join("quarantine/state-c-1");
        assert_eq!(fs::read(aside.join(stray)).unwrap(), content);
        assert!(!backend.exists(DIR).unwrap());
        assert!(backend.list("state/c").unwrap().is_empty());
        assert_eq!(all(&*backend.open(DIR).unwrap()), []);
        assert_eq!(backend.list("state/c").unwrap(), ["1"]);
        backend.remove(DIR).unwrap();
        backend.remove(DIR).unwrap();
        assert!(!backend.exists(DIR).unwrap());
    }
}

/// Which keys flush `round` touches.
fn touched(round: u64) -> Vec<String> {
    let mut keys: Vec<_> = (0..400)
        .map(|n| format!("order-{:05}", (round * 211 + n * 37) % 4_000))
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The states after 0, 1, … flushes, without a store.
fn history(rounds: u64) -> Vec<Model> {
    let states = FakeStates::new();
    let store = states.open(DIR).unwrap();
    found(&*store);
    let mut model = Model::default();
    let mut all = vec![model.clone()];
    for round in 1..=rounds {
        flush(&*store, &mut model, round, &touched(round));
        all.push(model.clone());
    }
    all
}

/// Whether `store` is sound: then it must be one of `history`, to the last row.
fn is_sound(store: &Arc<dyn StateStore>, history: &[Model]) -> Result<Option<u64>, StateError> {
    let Some(meta) = audit(&**store)? else {
        return Ok(None);
    };
    let round = meta.checkpoint().get();
    let expected = &history[to_usize(round)];
    let found = ground(store, Share::ALL)
        .keys_after(None, usize::MAX)
        .unwrap();
    let found: BTreeMap<_, _> = found.into_iter().collect();
    assert!(
        found == expected.keys,
        "audited rows of round {round} differ"
    );
    Ok(Some(round))
}

#[derive(Debug, Default)]
struct Tally {
    newest: u32,
    older: u32,
    empty: u32,
    refused_by_audit: u32,
    failed: u32,
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Damage number `case` to the sled directory `dir`.
fn damage(dir: &Path, case: u64, seed: &mut u64) {
    let db = dir.join("db");
    let mut bytes = fs::read(&db).unwrap();
    let at = to_usize(random(seed)) % bytes.len();
    match case % 8 {
        0..=2 => bytes[at] ^= 1 << (case % 7),
        3 => bytes.truncate(at),
        4 => {
            let page = at / 4096 * 4096;
            let end = bytes.len().min(page + 4096);
            bytes[page..end].fill(0);
        }
        5 => {
            let end = bytes.len().min(at + 64);
            for byte in &mut bytes[at..end] {
                *byte = random(seed).to_le_bytes()[0];
            }
        }
        6 => fs::remove_file(dir.join("conf")).unwrap(),
        _ if case % 16 == 7 => return fs::remove_file(&db).unwrap(),
        _ => {
            let snapshot = fs::read_dir(dir).unwrap().find_map(|entry| {
                let path = entry.unwrap().path();
                path.file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with("snap.")
                    .then_some(path)
            });
            return fs::write(snapshot.unwrap(), b"rot").unwrap();
        }
    }
    fs::write(db, bytes).unwrap();
}

#[test]
fn damaged_sled_files_end_in_a_known_state_or_a_state_error() {
    const ROUNDS: u64 = 24;
    let root = tempfile::tempdir().unwrap();
    let backend = backend(root.path());
    let history = history(ROUNDS);
    let mut model = Model::default();
    let mut store = backend.open(DIR).unwrap();
    found(&*store);
    for round in 1..=ROUNDS {
        if round % 10 == 0 {
            // sled writes its snapshot at open.
            drop(store);
            store = backend.open(DIR).unwrap();
        }
        flush(&*store, &mut model, round, &touched(round));
    }
    assert_eq!(is_sound(&store, &history).unwrap(), Some(ROUNDS));
    drop(store);
    let mut tally = Tally::default();
    let mut seed = 0xdead_beef_u64;
    for case in 0..64 {
        let dir = format!("state/c/{}", case + 100);
        let path = root.path().join(&dir);
        copy_dir(&root.path().join(DIR), &path);
        damage(&path, case, &mut seed);
        let began = Instant::now();
        match backend.open(&dir) {
            Ok(store) => match is_sound(&store, &history) {
                Ok(Some(ROUNDS)) => tally.newest += 1,
                Ok(Some(_)) => tally.older += 1,
                Ok(None) => tally.empty += 1,
                Err(error) => {
                    assert!(error.is_damage(), "case {case}: {error:?}");
                    tally.refused_by_audit += 1;
                }
            },
            Err(error) => {
                assert!(error.is_damage(), "case {case}: {error:?}");
                tally.failed += 1;
            }
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "case {case} took too long"
        );
        fs::remove_dir_all(path).unwrap();
    }
    println!("{tally:?}");
    let cases = tally.newest + tally.older + tally.empty + tally.refused_by_audit + tally.failed;
    assert_eq!(cases, 64);
    // Four cases have a snapshot but no database file, four a rotten snapshot.
    assert!(tally.failed >= 8, "{tally:?}");
    // Eight miss only the file that sled writes anew.
    assert!(tally.newest >= 8, "{tally:?}");
}

/// Not a test: the process that [`kills_leave_a_sound_store`] kills.
#[test]
#[ignore = "child of kills_leave_a_sound_store"]
fn child_that_is_killed() {
    let Ok(root) = std::env::var("FOLDLOG_TEST_KILL_ROOT") else {
        return;
    };
    let store = backend(Path::new(&root)).open(DIR).unwrap();
    let meta = audit(&*store).unwrap();
    if meta.is_none() {
        found(&*store);
    }
    let from = meta.map_or(0, |meta| meta.checkpoint().get());
    let mut model = history(from).pop().unwrap();
    println!("ready");
    for round in from + 1.. {
        flush(&*store, &mut model, round, &touched(round));
        if round % 3 == 0 {
            store.sync().unwrap();
        }
    }
}

#[test]
fn kills_leave_a_sound_store_or_one_that_is_refused() {
    const KILLS: u32 = 6;
    let root = tempfile::tempdir().unwrap();
    let backend = backend(root.path());
    let mut seed = 0x0b5e_55ed_u64;
    let (mut sound, mut refused, mut last) = (0, 0, 0);
    for _ in 0..KILLS {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "state::sled_tests::child_that_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env("FOLDLOG_TEST_KILL_ROOT", root.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            let read = std::io::BufRead::read_line(&mut out, &mut line).unwrap();
            assert!(read > 0, "the child ended early");
        }
        std::thread::sleep(Duration::from_millis(random(&mut seed) % 120));
        child.kill().unwrap();
        child.wait().unwrap();
        let opened = backend.open(DIR).and_then(|store| {
            let round = audit(&*store)?.map_or(0, |meta| meta.checkpoint().get());
            is_sound(&store, &history(round))
        });
        match opened {
            Ok(round) => {
                sound += 1;
                last = round.unwrap_or(0).max(last);
            }
            Err(error) => {
                assert!(error.is_damage(), "{error:?}");
                refused += 1;
                backend.remove(DIR).unwrap();
            }
        }
    }
    println!("{sound} sound, {refused} refused, up to round {last}");
    assert_eq!(sound + refused, KILLS);
    assert!(sound > 0 && last > 0, "no child got anywhere");
}

#[test]
fn a_call_that_does_not_end_is_given_up_and_its_late_result_is_dropped() {
    let root = tempfile::tempdir().unwrap();
    let mut hasty = backend(root.path());
    hasty.call_timeout = Duration::ZERO;
    let error = hasty.open(DIR).unwrap_err();
    assert!(
        matches!(error, StateError::Hung { op: "open", .. }),
        "{error:?}"
    );
    assert!(error.is_damage());
    // The database that opened too late was closed again, so the next one gets the lock.
    assert!(backend(root.path()).open(DIR).is_ok());
}

#[test]
fn a_panic_in_a_call_is_an_error_with_its_text() {
    let ten = Duration::from_secs(10);
    let error = bounded::<()>("apply", ten, || panic!("number {}", 7)).unwrap_err();
    let StateError::Panicked { op: "apply", text } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(text, "number 7");
    let error = read_guarded::<()>("get", ten, || panic!("static")).unwrap_err();
    assert!(matches!(&error, StateError::Panicked { text, .. } if text == "static"));
}

#[test]
fn a_read_does_not_wait_for_ever_for_a_batch_that_hangs() {
    let gate = close_gate();
    let error = read_guarded::<()>("get", Duration::from_millis(20), || Ok(())).unwrap_err();
    drop(gate);
    assert!(
        matches!(error, StateError::Hung { op: "get", .. }),
        "{error:?}"
    );
    assert!(read_guarded("get", Duration::from_secs(60), || Ok(())).is_ok());
}

#[test]
fn a_handle_is_out_of_use_after_a_failure_and_a_new_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    let backend = backend(root.path());
    let store = backend.open_store(DIR).unwrap();
    store.apply(&[put(b"a", b"1")]).unwrap();
    let failure = StateError::Damaged {
        op: "get",
        reason: "planned".to_owned(),
    };
    assert!(store.break_off::<()>(Err(failure)).is_err());
    assert!(matches!(store.get(b"a"), Err(StateError::Broken { .. })));
    assert!(matches!(store.apply(&[]), Err(StateError::Broken { .. })));
    assert!(matches!(store.sync(), Err(StateError::Broken { .. })));
    assert_eq!(store.size_bytes(), 0);
    drop(store);
    assert_eq!(
        backend.open(DIR).unwrap().get(b"a").unwrap(),
        Some(b"1".to_vec())
    );
}

#[test]
fn a_value_as_large_as_a_state_may_be_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let backend = backend(root.path());
    let large = vec![0x5a; crate::limits::STATE_BYTES_MAX];
    let longest_key = vec![b'k'; crate::limits::KEY_BYTES_MAX + 1];
    let store = backend.open(DIR).unwrap();
    store
        .apply(&[put(&longest_key, &large), put(b"m", b"1")])
        .unwrap();
    drop(store);
    let store = backend.open(DIR).unwrap();
    assert!(store.get(&longest_key).unwrap() == Some(large));
    assert_eq!(all(&*store).len(), 2);
}
