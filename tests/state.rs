//! State is a cache: whatever happens to it is healed from the log, or refused with files
//! untouched.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests index, count, and harm files behind the store's back"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foldlog::orders::{OrderStatus, Orders};
use foldlog::sequence::Sequence;
use foldlog::{Consumer, Error, Event, Filter, MapSource, Offset, Poison, StateMachine, Store};

/// Events with every outcome in them: applied, duplicate, early, poison, held.
fn fill(store: &Store, orders: u64) {
    let mut events = Vec::new();
    for order in 0..orders {
        let key = format!("order-{order}");
        let step = |version: i64, kind: &str| {
            Event::new(
                format!("{key}-{version}-{kind}"),
                key.clone(),
                version,
                kind,
            )
        };
        match order % 5 {
            0 => events.extend([step(1, "reserve"), step(2, "pay"), step(3, "fulfill")]),
            1 => events.extend([step(2, "pay"), step(1, "reserve"), step(1, "reserve")]),
            2 => events.extend([step(1, "reserve"), step(2, "refund"), step(3, "fulfill")]),
            3 => events.extend([step(3, "fulfill"), step(3, "fulfill")]),
            _ => events.extend([step(1, "reserve")]),
        }
    }
    for chunk in events.chunks(17) {
        store.append_batch(chunk).unwrap();
    }
}

fn settled(store: &Store) -> Consumer<Orders> {
    let orders = store.consumer("orders", Orders).unwrap();
    orders.settle().unwrap();
    orders
}

/// Every file under `dir`: name, length, bytes.
fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                files.insert(path.clone(), std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn deleted_state_is_folded_anew_to_the_same_digest() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 200);
    let orders = settled(&store);
    orders
        .redrive_all(&Filter::all().key("order-2"), 9, Some("try"))
        .unwrap();
    orders
        .discard_all(&Filter::all().key("order-7"), 9, None)
        .unwrap();
    let skipped = orders
        .skip_all(&Filter::all().key("order-12"), 9, Some("skip"))
        .unwrap();
    assert_eq!(skipped.len(), 1);
    let mut truth = MapSource::new();
    truth.insert("order-17", 3, OrderStatus::Fulfilled);
    let fixes = orders.reconcile(&truth, &["order-17".to_owned()], None);
    assert_eq!(fixes.unwrap().len(), 1);
    let (digest, counters) = (orders.digest(), orders.counters());
    drop((orders, store));

    std::fs::remove_dir_all(dir.path().join("state")).unwrap();
    for _ in 0..2 {
        let store = Store::open(dir.path()).unwrap();
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!((orders.digest(), orders.counters()), (digest, counters));
        assert!(orders.verify().unwrap().is_sound());
        assert_eq!(orders.rebuild().unwrap().after, digest);
    }
}

#[test]
fn a_lost_current_file_or_generation_is_reported_and_folded_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 50);
    let digest = settled(&store).digest();
    drop(store);
    let state = dir.path().join("state/orders");
    for round in 0..2 {
        if round == 0 {
            std::fs::remove_file(state.join("CURRENT")).unwrap();
        } else {
            std::fs::write(state.join("CURRENT"), b"nonsense").unwrap();
        }
        let store = Store::open(dir.path()).unwrap();
        let orders = store.consumer("orders", Orders).unwrap();
        assert!(orders.opening().rebuilt.is_some(), "{:?}", orders.opening());
        assert_eq!(orders.digest(), digest);
        drop((orders, store));
        let store = Store::open(dir.path()).unwrap();
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!(orders.opening().rebuilt, None, "healed once, for good");
        assert_eq!(orders.digest(), digest);
    }
}

/// The newest file that sled keeps its pages in.
fn database(dir: &Path) -> PathBuf {
    snapshot(&dir.join("state/orders"))
        .into_keys()
        .filter(|path| path.file_name().is_some_and(|name| name == "db"))
        .max()
        .unwrap()
}

#[test]
fn damaged_state_is_set_aside_or_caught_up_never_served() {
    let pristine = tempfile::tempdir().unwrap();
    let store = Store::open(pristine.path()).unwrap();
    fill(&store, 300);
    let digest = settled(&store).digest();
    drop(store);
    let length = std::fs::metadata(database(pristine.path())).unwrap().len();
    let mut cases = 0;
    let mut aside = 0;
    let mut damage = |name: &str, harm: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        copy_dir(pristine.path(), dir.path());
        harm(dir.path());
        let store = Store::open(dir.path()).unwrap();
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!(orders.digest(), digest, "{name}: {:?}", orders.opening());
        assert!(orders.verify().unwrap().is_sound(), "{name}");
        if let Some(kept) = &orders.opening().set_aside {
            assert!(
                dir.path().join(kept).exists(),
                "{name}: the damaged state is kept"
            );
            aside += 1;
        }
        drop((orders, store));
        let store = Store::open(dir.path()).unwrap();
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!(
            (orders.digest(), orders.opening().rebuilt.clone()),
            (digest, None),
            "{name}"
        );
        cases += 1;
    };
    for part in 0..12 {
        damage("flip", &|dir| {
            let path = database(dir);
            let mut bytes = std::fs::read(&path).unwrap();
            let at = usize::try_from(length * part / 12 + 40).unwrap() % bytes.len();
            bytes[at] ^= 0x10;
            std::fs::write(path, bytes).unwrap();
        });
    }
    for part in 0..4 {
        damage("truncate", &|dir| {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(database(dir))
                .unwrap();
            file.set_len(length * part / 4).unwrap();
        });
    }
    damage("stray snapshot", &|dir| {
        let stray = database(dir).with_file_name("snap.ffffffffffffffff.generating");
        std::fs::write(stray, b"garbage").unwrap();
    });
    damage("no database", &|dir| {
        std::fs::remove_file(database(dir)).unwrap();
    });
    damage("no conf", &|dir| {
        std::fs::remove_file(database(dir).with_file_name("conf")).unwrap();
    });
    println!("{cases} damaged states, {aside} of them set aside, all with the right digest");
    assert!(aside > 0, "no case was ever set aside");
}

#[test]
fn state_of_another_log_is_refused_and_untouched() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&a, &b] {
        let store = Store::open(dir.path()).unwrap();
        fill(&store, 20);
        settled(&store);
    }
    for with_anchor in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        copy_dir(b.path(), dir.path());
        std::fs::remove_dir_all(dir.path().join("state")).unwrap();
        copy_dir(&a.path().join("state"), &dir.path().join("state"));
        if !with_anchor {
            std::fs::remove_file(dir.path().join("state/orders/ANCHOR")).unwrap();
        }
        let before = snapshot(&dir.path().join("state"));
        let store = Store::open(dir.path()).unwrap();
        let error = store.consumer("orders", Orders).unwrap_err();
        assert!(matches!(error, Error::WrongLog { .. }), "{error}");
        assert!(
            snapshot(&dir.path().join("state")) == before,
            "anchor: {with_anchor}"
        );
    }
}

#[test]
fn state_ahead_of_the_log_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let old = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 20);
    settled(&store);
    drop(store);
    copy_dir(&dir.path().join("log"), &old.path().join("log"));
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 60);
    settled(&store);
    drop(store);
    std::fs::remove_dir_all(dir.path().join("log")).unwrap();
    copy_dir(&old.path().join("log"), &dir.path().join("log"));

    // The anchor proves that more was durable: the log itself is refused.
    let before = snapshot(dir.path());
    let error = Store::open(dir.path()).unwrap_err();
    assert!(
        matches!(error, Error::LogShorterThanAnchor { .. }),
        "{error}"
    );
    assert!(
        snapshot(&dir.path().join("log"))
            == before
                .iter()
                .filter(|(p, _)| p.starts_with(dir.path().join("log")))
                .map(|(p, b)| (p.clone(), b.clone()))
                .collect()
    );

    // Without the anchor the log opens, and the state is refused.
    std::fs::remove_file(dir.path().join("state/orders/ANCHOR")).unwrap();
    let before = snapshot(&dir.path().join("state"));
    let store = Store::open(dir.path()).unwrap();
    let error = store.consumer("orders", Orders).unwrap_err();
    assert!(matches!(error, Error::StateAheadOfLog { .. }), "{error}");
    assert!(snapshot(&dir.path().join("state")) == before);
}

struct Revised;

impl StateMachine for Revised {
    type State = String;
    const REVISION: u32 = 99;
    fn apply(&self, _: Option<&String>, event: &Event) -> Result<String, Poison> {
        Ok(event.kind.to_uppercase())
    }
}

#[test]
fn another_revision_of_the_machine_folds_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 10);
    let digest = settled(&store).digest();
    let revised = store.consumer("orders", Revised).unwrap();
    assert!(revised.opening().rebuilt.is_some());
    assert_eq!(
        revised.get("order-0").unwrap().unwrap().state.as_deref(),
        Some("FULFILL")
    );
    drop(revised);
    let orders = store.consumer("orders", Orders).unwrap();
    assert!(orders.opening().rebuilt.is_some());
    assert_eq!(orders.digest(), digest);
}

#[test]
fn several_consumers_fold_one_log_each_with_its_own_machine() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 30);
    let orders = settled(&store);
    let steps = store.consumer("steps", Sequence).unwrap();
    assert!(matches!(
        store.consumer("steps", Sequence),
        Err(Error::ConsumerOpen { .. })
    ));
    // A decision for one is nothing to the other.
    let digest = steps.digest();
    orders.discard_all(&Filter::all(), 3, None).unwrap();
    steps.catch_up().unwrap();
    assert_eq!(steps.digest(), digest);
    assert_eq!(
        steps.get("order-2").unwrap().unwrap().version,
        3,
        "any kind is fine for it"
    );
    assert_eq!(store.consumers().unwrap(), ["orders", "steps"]);
}

#[test]
fn the_number_of_partitions_changes_between_opens_and_the_digest_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, 100);
    let mut digest = settled(&store).digest();
    for (round, partitions) in [3, 1, 8, 2].into_iter().enumerate() {
        let options = foldlog::ConsumerOptions::default().partitions(partitions);
        let orders = store.consumer_with("orders", Orders, options).unwrap();
        assert_eq!(orders.digest(), digest, "{partitions}");
        assert!(orders.verify().unwrap().is_sound(), "{partitions}");
        let late = Event::new(
            format!("late-{round}"),
            format!("late-{round}"),
            1,
            "reserve",
        );
        store.append(&late).unwrap();
        orders.catch_up().unwrap();
        digest = orders.digest();
        assert_eq!(orders.checkpoint(), store.durable_end());
    }
}

#[test]
fn state_taken_at_any_offset_and_caught_up_is_the_whole_fold() {
    // The log of 300 records grows one record at a time; the state directory is copied at each.
    let dir = tempfile::tempdir().unwrap();
    let copies = tempfile::tempdir().unwrap();
    let store = Store::options()
        .segment_bytes(8192)
        .open(dir.path())
        .unwrap();
    let kinds = ["reserve", "pay", "fulfill", "refund"];
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    while store.durable_end() < Offset::new(300) {
        let at = store.durable_end().get();
        let orders = store.consumer("orders", Orders).unwrap();
        match random(12) {
            0 => drop(orders.redrive_all(&Filter::all(), 2, None).unwrap()),
            1 => drop(orders.discard_all(&Filter::all(), 1, None).unwrap()),
            2 => drop(orders.skip_all(&Filter::all(), 1, None).unwrap()),
            3 => drop(orders.settle().unwrap()),
            4 => {
                let key = format!("o{}", random(20));
                let mut truth = MapSource::new();
                truth.insert(key.clone(), 2, OrderStatus::Paid);
                drop(orders.reconcile(&truth, &[key], Some("truth")).unwrap());
            }
            _ => {
                let version = i64::try_from(random(4)).unwrap() + 1;
                let kind =
                    kinds[usize::try_from(version - 1 + i64::from(random(9) == 0)).unwrap() % 4];
                let key = format!("o{}", random(20));
                let event = Event::new(format!("{key}-{version}"), key, version, kind);
                store.append(&event).unwrap();
                orders.catch_up().unwrap();
            }
        }
        drop(orders);
        copy_dir(
            &dir.path().join("state"),
            &copies.path().join(at.to_string()),
        );
    }
    let orders = store.consumer("orders", Orders).unwrap();
    let (digest, counters) = (orders.digest(), orders.counters());
    for from in 0..=orders.checkpoint().get() {
        let replay = orders.replay(Offset::new(from)).unwrap();
        assert_eq!(
            (replay.lost, orders.digest()),
            (0, digest),
            "replay from {from}: {replay:?}"
        );
    }
    assert_eq!(orders.rebuild().unwrap().after, digest);
    assert!(orders.rebuild_preview().unwrap().is_empty());
    drop((orders, store));
    let mut tried = 0;
    for copy in std::fs::read_dir(copies.path()).unwrap() {
        std::fs::remove_dir_all(dir.path().join("state")).unwrap();
        copy_dir(&copy.unwrap().path(), &dir.path().join("state"));
        let store = Store::open(dir.path()).unwrap();
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!((orders.digest(), orders.counters()), (digest, counters));
        tried += 1;
    }
    println!("{tried} states of different offsets, each caught up to digest {digest}");
    assert!(tried > 150);
}

#[test]
fn rebuild_of_nothing_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let orders = store.consumer("orders", Orders).unwrap();
    for _ in 0..2 {
        let rebuilt = orders.rebuild().unwrap();
        assert_eq!(
            (
                rebuilt.records,
                rebuilt.counters.events,
                rebuilt.counters.rows
            ),
            (0, 0, 0)
        );
        assert_eq!(orders.digest().to_string(), "0".repeat(32));
    }
    assert_eq!(orders.replay(store.durable_end()).unwrap().events, 0);
    assert!(orders.verify().unwrap().is_sound());
}
