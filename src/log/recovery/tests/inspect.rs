//! Reading without writing, alone and beside a writer.

use super::*;
use crate::log::recovery::{Inspected, inspect};
use crate::log::{Ingested, Log};
use crate::storage::sim::{CallKind, Fault, Filter, Repeat};

fn look(disk: &SimDisk) -> Result<Inspected> {
    let (anchors, _) = anchor::read_all(disk)?;
    inspect(&storage(disk), &options(), &anchors)
}

fn served(inspected: &Inspected) -> Vec<String> {
    ids_of(&inspected.catalog).unwrap()
}

#[test]
fn inspection_writes_nothing() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]).data(&["c"]);
    let sealed = lay.clone().seal();
    let next = sealed.next().zeros(300);
    let roll = disk(&[&sealed]);
    roll.write_file(&next.fresh_name(), &next.bytes).unwrap();
    let undo = disk(&[&lay]);
    undo.write_file(&next.fresh_name(), b"half made").unwrap();
    let cases = [
        (disk(&[&lay.clone().zeros(300)]), 1, false),
        (disk(&[&lay.clone().note()]), 3, false),
        (disk(&[&lay.clone().put(b"torn").zeros(300)]), 1, true),
        (disk(&[&sealed, &next]), 3, false),
        (roll, 3, false),
        (undo, 1, false),
    ];
    for (disk, proven, torn) in cases {
        // As on a read-only file system.
        disk.fail(Filter::changes(), 1, Fault::Permission, Repeat::Forever);
        let syncs = [CallKind::Sync, CallKind::SyncDir, CallKind::TryLock];
        disk.fail(Filter::kinds(&syncs), 1, Fault::Permission, Repeat::Forever);
        let before = disk.image_hash();
        let inspected = look(&disk).unwrap();
        assert_eq!(served(&inspected), ["a", "b", "c"]);
        assert_eq!(inspected.end().get(), 3);
        assert_eq!(inspected.report.end.get(), 3);
        assert_eq!(inspected.report.proven_end.get(), proven);
        let found = inspected.report.trimmed.clone();
        assert_eq!(found.as_ref().map(|torn| torn.bytes), torn.then_some(4));
        assert_eq!(found.map(|torn| torn.quarantine), torn.then(String::new));
        assert!(!inspected.live);
        assert_eq!(disk.faults_struck(), 0);
        assert_eq!(disk.image_hash(), before);
    }
}

#[test]
fn inspection_of_damage_and_of_nothing_is_an_error() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]).note();
    let damaged = disk(&[&lay.flip(70)]);
    assert!(matches!(look(&damaged), Err(Error::Corrupt { .. })));
    assert!(matches!(look(&SimDisk::new()), Err(Error::NoStore { .. })));
    let strict = LogOptions {
        strict: true,
        ..options()
    };
    let torn = disk(&[&Lay::first().data(&["a"]).put(b"torn")]);
    let answer = inspect(&storage(&torn), &strict, &[]);
    assert!(matches!(answer, Err(Error::TornTail { .. })));
}

#[test]
fn beside_a_writer_only_what_is_proven_is_served() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]).data(&["c"]);
    for (lay, expected) in [
        (lay.clone().zeros(300), &["a"][..]),
        (lay.clone().note(), &["a", "b", "c"]),
        (lay.clone().put(b"being written").zeros(300), &["a"]),
        (Lay::first(), &[]),
    ] {
        let disk = disk(&[&lay]);
        let _lock = lock(&disk);
        let inspected = look(&disk).unwrap();
        assert_eq!(served(&inspected), expected);
        assert!(inspected.live);
        assert_eq!(inspected.report.trimmed, None, "a write may be under way");
    }
    // What an unfinished write cannot explain is refused, after it was looked at again.
    let damaged = disk(&[&lay.sync().data(&["d"]).flip(70)]);
    let _lock = lock(&damaged);
    assert_eq!(corrupt_at(&look(&damaged).unwrap_err()).1, 64);
}

#[test]
fn refresh_follows_a_writer_across_rolls() {
    let disk = SimDisk::new();
    let log = Log::open(storage(&disk), options()).unwrap();
    let mut inspected = look(&disk).unwrap();
    let mut expected = Vec::new();
    let mut lagged = 0;
    for n in 0..120_u64 {
        let id = format!("{n}");
        let event = Event::new(&id[..], "k", 1, "x").with_payload(vec![1; 150]);
        if n % 3 == 0 {
            let stored = log.append_from("up", n + 1, &[event]);
            assert!(matches!(stored, Ok(Ingested::Stored(_))));
        } else {
            log.append(&[event]).unwrap();
        }
        expected.push(id);
        let before = inspected.end();
        let end = inspected.refresh().unwrap();
        assert!(end >= before);
        // An idle writer leaves a note, so a reader is behind only where a roll ended a segment.
        let found = served(&inspected);
        assert_eq!(found, expected[..found.len()]);
        lagged += expected.len() - found.len();
        assert_eq!(
            inspected.upstreams["up"],
            end.get().saturating_sub(1) / 3 * 3 + 1
        );
        if n % 40 == 0 {
            let fresh = look(&disk).unwrap();
            assert_eq!(fresh.end(), end);
        }
    }
    assert_eq!(lagged, 0);
    assert!(log.segments().len() > 4);
    assert_eq!(inspected.catalog.segments(), log.segments());
    // The log is closed, cut short by nobody, and read to its end.
    log.close().unwrap();
    assert_eq!(inspected.refresh().unwrap().get(), 120);
    assert!(!inspected.live);
}

#[test]
fn refresh_serves_the_unproven_rest_once_the_writer_is_gone_and_never_goes_back() {
    let lay = Lay::first().data(&["a"]).sync().data(&["b"]).data(&["c"]);
    let disk = disk(&[&lay.zeros(300)]);
    let held = lock(&disk);
    let mut inspected = look(&disk).unwrap();
    assert_eq!(inspected.refresh().unwrap().get(), 1);
    drop(held);
    assert_eq!(inspected.refresh().unwrap().get(), 3);
    assert_eq!(inspected.report.proven_end.get(), 1);
    assert_eq!(served(&inspected), ["a", "b", "c"]);
    let _held = lock(&disk);
    assert_eq!(inspected.refresh().unwrap().get(), 3);
}
