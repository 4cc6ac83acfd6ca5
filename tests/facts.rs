//! Seven facts about order events, end to end through a store on disk.
#![expect(clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use foldlog::orders::{OrderStatus, Orders};
use foldlog::{
    Class, ConsumerOptions, Error, Event, Fold, MapSource, Offset, Outcome, Store, partition,
};

fn order(key: &str, version: i64) -> Event {
    let kind = match version {
        1 => "reserve",
        2 => "pay",
        3 => "fulfill",
        other => panic!("no kind for {other}"),
    };
    Event::new(format!("{key}-{version}"), key, version, kind)
}

#[test]
fn partition_affinity() {
    let place = |order: u32| partition(&format!("order-{order}"), 4);
    let places: Vec<u32> = (0..8).map(place).collect();
    assert_eq!(places, (0..8).map(place).collect::<Vec<_>>(), "stable");
    assert_eq!(
        places.iter().collect::<BTreeSet<_>>().len(),
        4,
        "all used: {places:?}"
    );
    assert!(places.iter().all(|place| *place < 4));

    // All events of one order are folded in one partition, in order, whatever the others do.
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for version in 1..=3 {
        for key in 0..8 {
            store
                .append(&order(&format!("order-{key}"), version))
                .unwrap();
        }
    }
    let options = ConsumerOptions::default().partitions(4);
    let orders = store.consumer_with("orders", Orders, options).unwrap();
    let rows: BTreeMap<_, _> = orders.rows().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 8);
    assert!(
        rows.values()
            .all(|row| row.state == Some(OrderStatus::Fulfilled))
    );
}

#[test]
fn out_of_order_is_rejected_then_converges() {
    // With a broker of one's own: the second event comes first, is refused, and comes again.
    let mut fold = Fold::new(Orders, 3);
    let mut attempts = 0;
    let mut deliver = |version: i64, attempt: u32| {
        attempts += 1;
        fold.handle(&order("o", version), attempt).unwrap()
    };
    assert_eq!(deliver(2, 1), Outcome::Retry);
    assert_eq!(deliver(1, 1), Outcome::Applied);
    assert_eq!(deliver(2, 2), Outcome::Applied);
    assert_eq!(attempts, 3);

    // With the log, which keeps the early event waiting.
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let orders = store.consumer("orders", Orders).unwrap();
    store.append(&order("o", 2)).unwrap();
    assert_eq!(orders.catch_up().unwrap().retry(), 1);
    assert!(orders.get("o").unwrap().is_none());
    store.append(&order("o", 1)).unwrap();
    assert_eq!(orders.catch_up().unwrap().applied(), 2);
    let row = orders.get("o").unwrap().unwrap();
    assert_eq!((row.version, row.state), (2, Some(OrderStatus::Paid)));
    assert_eq!(orders.dead_letters().count(), 0);
    assert_eq!(orders.counters().applied, 2);
}

#[test]
fn poison_goes_straight_to_the_dlq() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.append(&Event::new("e1", "o", 1, "cancel")).unwrap();
    store.append(&Event::new("e2", "o", 1, "pay")).unwrap();
    let orders = store.consumer("orders", Orders).unwrap();
    let letters: Vec<_> = orders.dead_letters().map(Result::unwrap).collect();
    assert_eq!(letters.len(), 2);
    for letter in &letters {
        assert_eq!((letter.attempts(), letter.class()), (1, Class::Poison));
    }
    assert_eq!(orders.counters().dead, 2);
}

#[test]
fn conflict_exhausts_the_retry_budget() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let options = ConsumerOptions::default().max_attempts(3);
    let orders = store.consumer_with("orders", Orders, options).unwrap();
    store.append(&order("o", 2)).unwrap();
    let progress = orders.settle().unwrap();
    assert_eq!(
        progress.rounds, 2,
        "the first delivery and two rounds are three attempts"
    );
    let letters: Vec<_> = orders.dead_letters().map(Result::unwrap).collect();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].attempts(), letters[0].class()),
        (3, Class::Conflict)
    );
    assert_eq!(orders.counters().waiting, 0);
}

#[test]
fn reconcile_repairs_a_dead_lettered_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let orders = store.consumer("orders", Orders).unwrap();
    store.append(&order("o", 1)).unwrap();
    store.append(&Event::new("bad", "o", 2, "refund")).unwrap();
    orders.catch_up().unwrap();
    assert_eq!(orders.get("o").unwrap().unwrap().version, 1);
    assert_eq!(orders.counters().dead, 1);

    let mut source = MapSource::new();
    source.insert("o", 2, OrderStatus::Paid);
    let keys = vec!["o".to_owned(), "unknown".to_owned()];
    let fixes = orders.reconcile(&source, &keys, Some("test")).unwrap();
    assert_eq!(fixes.len(), 1);
    assert_eq!(
        fixes[0].from,
        Some((1, Some(OrderStatus::InventoryReserved)))
    );
    assert_eq!(fixes[0].to, (2, OrderStatus::Paid));
    let row = orders.get("o").unwrap().unwrap();
    assert_eq!((row.version, row.state), (2, Some(OrderStatus::Paid)));
    assert_eq!(
        orders.counters().dead,
        1,
        "the letter is history that a person ends"
    );
    assert_eq!(orders.reconcile(&source, &keys, None).unwrap(), vec![]);
}

#[test]
fn replay_rebuilds_the_projection() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for (key, version) in [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)] {
        store.append(&order(key, version)).unwrap();
    }
    let orders = store.consumer("orders", Orders).unwrap();
    let digest = orders.digest();
    let rebuilt = orders.rebuild().unwrap();
    assert_eq!(rebuilt.counters.events, 5);
    assert_eq!(rebuilt.counters.applied, 5);
    assert_eq!((rebuilt.before, rebuilt.after), (digest, digest));
    let replay = orders.replay(Offset::new(3)).unwrap();
    assert_eq!((replay.events, replay.duplicate, replay.lost), (2, 2, 0));
    assert_eq!(replay.offset, Offset::new(5));
}

#[test]
fn next_batch_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for version in 1..=3 {
        store.append(&order("o", version)).unwrap();
    }
    let read = |from: u64, max: usize| store.next_batch(Offset::new(from), max);
    let batch = read(0, 2).unwrap();
    assert_eq!((batch.records.len(), batch.next), (2, Offset::new(2)));
    let batch = read(1, 10).unwrap();
    assert_eq!((batch.records.len(), batch.next), (2, Offset::new(3)));
    let drained = read(3, 10).unwrap();
    assert_eq!((drained.records.len(), drained.next), (0, Offset::new(3)));
    let beyond = read(4, 10).unwrap_err();
    let Error::OffsetOutOfRange {
        requested,
        first,
        end,
    } = beyond
    else {
        panic!("{beyond}")
    };
    assert_eq!(
        (requested, first, end),
        (Offset::new(4), Offset::ZERO, Offset::new(3))
    );
    assert!(matches!(read(0, 0), Err(Error::ZeroBatch)));
}
