//! Real orders and permits, with figures computed by an independent model and published with the
//! data. Every file, several numbers of partitions and batch sizes, one digest.
#![cfg(feature = "sim")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::print_stdout,
    reason = "tests index, count and print"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::orders::{OrderStatus, Orders};
use foldlog::sequence::Sequence;
use foldlog::state::fake::FakeStates;
use foldlog::storage::sim::SimDisk;
use foldlog::{Consumer, ConsumerOptions, Counters, Digest, Filter, Store};

const SHAPES: [(u32, usize); 5] = [(1, 1024), (2, 7), (4, 1), (8, 333), (1, 100_000)];

/// The figures of the data's README, in its order; `None` where it has none.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    events: u64,
    applied: u64,
    duplicate: u64,
    merged: u64,
    retry: u64,
    waiting_when_drained: u64,
    dead: u64,
    held: u64,
    rows: u64,
    by_state: [u64; 3],
    fixes: usize,
    held_after: u64,
    by_state_after: [u64; 3],
}

const ORDERS: Figures = Figures {
    events: 23_711,
    applied: 22_477,
    duplicate: 0,
    merged: 0,
    retry: 77,
    waiting_when_drained: 0,
    dead: 1_234,
    held: 0,
    rows: 8_135,
    by_state: [6_353, 1_636, 146],
    fixes: 1,
    held_after: 0,
    by_state_after: [6_354, 1_635, 146],
};

const LOSSY: Figures = Figures {
    events: 24_470,
    applied: 21_683,
    duplicate: 778,
    merged: 352,
    retry: 7_428,
    waiting_when_drained: 380,
    dead: 1_277 + 265,
    held: 115,
    rows: 7_994,
    by_state: [6_003, 1_683, 308],
    fixes: 365,
    held_after: 2,
    by_state_after: [6_350, 1_599, 167],
};

fn by_state(orders: &Consumer<Orders>) -> [u64; 3] {
    let mut count: BTreeMap<_, u64> = BTreeMap::new();
    for row in orders.rows() {
        let state = row.unwrap().1.state.unwrap();
        *count.entry(format!("{state:?}")).or_default() += 1;
    }
    let states = [
        OrderStatus::Fulfilled,
        OrderStatus::Paid,
        OrderStatus::InventoryReserved,
    ];
    states.map(|state| count.remove(&format!("{state:?}")).unwrap_or(0))
}

fn add_up(counters: &Counters) {
    let sum = counters.applied + counters.duplicate + counters.merged + counters.waiting;
    let sum = sum + counters.dead + counters.discarded + counters.skipped;
    assert_eq!(
        sum, counters.events,
        "every event is accounted for: {counters:?}"
    );
}

fn run(name: &str, partitions: u32, batch: usize) -> Option<(Figures, Digest)> {
    let path = common::real_data(name)?;
    let (source, keys) = common::truth(&common::real_data("orders_truth.jsonl")?);
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for events in common::events(&path).chunks(1000) {
        store.append_batch(events).unwrap();
    }
    let options = ConsumerOptions::default()
        .partitions(partitions)
        .batch_max(batch);
    let orders = store.consumer_with("orders", Orders, options).unwrap();
    let drained = orders.counters();
    add_up(&drained);
    orders.settle().unwrap();
    let settled = orders.counters();
    add_up(&settled);
    let states = by_state(&orders);
    let fixes = orders.reconcile(&source, &keys, None).unwrap();
    assert_eq!(
        orders.reconcile(&source, &keys, None).unwrap().len(),
        0,
        "a second run"
    );
    add_up(&orders.counters());
    let digest = orders.digest();
    let verified = orders.verify().unwrap();
    assert!(verified.is_sound(), "{verified:?}");
    let figures = Figures {
        events: settled.events,
        applied: settled.applied,
        duplicate: settled.duplicate,
        merged: settled.merged,
        retry: settled.retry,
        waiting_when_drained: drained.waiting,
        dead: settled.dead,
        held: settled.held,
        rows: settled.rows,
        by_state: states,
        fixes: fixes.len(),
        held_after: orders.counters().held,
        by_state_after: by_state(&orders),
    };
    Some((figures, digest))
}

fn all_shapes(name: &str, expected: &Figures) {
    let mut digests = Vec::new();
    for (partitions, batch) in SHAPES {
        let Some((figures, digest)) = run(name, partitions, batch) else {
            return;
        };
        assert_eq!(
            figures, *expected,
            "{name}, {partitions} partitions, batches of {batch}"
        );
        digests.push(digest);
    }
    assert!(
        digests.iter().all(|digest| *digest == digests[0]),
        "{digests:?}"
    );
    println!("{name}: {} shapes, digest {}", SHAPES.len(), digests[0]);
}

#[test]
fn orders_give_the_published_figures_in_every_shape() {
    all_shapes("orders.jsonl", &ORDERS);
}

#[test]
fn lossy_orders_give_the_published_figures_in_every_shape() {
    all_shapes("orders_lossy.jsonl", &LOSSY);
}

#[test]
fn permits_give_the_published_figures_in_every_shape() {
    let mut digests = Vec::new();
    for (partitions, batch) in SHAPES {
        let Some(path) = common::real_data("permits.jsonl") else {
            return;
        };
        let Some(late) = common::real_data("permits_late.jsonl") else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        for events in common::events(&path).chunks(1000) {
            store.append_batch(events).unwrap();
        }
        let options = ConsumerOptions::default()
            .partitions(partitions)
            .batch_max(batch);
        let permits = store.consumer_with("sequence", Sequence, options).unwrap();
        let figures = |permits: &Consumer<Sequence>| {
            let c = permits.counters();
            add_up(&c);
            [c.events, c.applied, c.waiting, c.dead, c.rows]
        };
        assert_eq!(figures(&permits), [8_557, 8_311, 246, 0, 1_414], "drained");
        permits.settle().unwrap();
        assert_eq!(figures(&permits), [8_557, 8_311, 226, 20, 1_414], "settled");
        let mut held: Vec<(u64, String)> = permits
            .dead_letters()
            .map(|letter| letter.unwrap().key)
            .map(|key| (permits.blocked(&key).unwrap().map_or(0, |b| b.held), key))
            .collect();
        held.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let most: Vec<_> = held
            .iter()
            .take(3)
            .map(|(n, key)| (*n, key.as_str()))
            .collect();
        assert_eq!(
            most,
            [(16, "case-4808"), (16, "case-4978"), (16, "case-6335")]
        );
        store.append_batch(&common::events(&late)).unwrap();
        permits.settle().unwrap();
        assert_eq!(
            figures(&permits),
            [8_577, 8_331, 226, 20, 1_434],
            "late events"
        );
        let done = permits
            .redrive_all(&Filter::all(), usize::MAX, Some("late events came"))
            .unwrap();
        assert_eq!(done.len(), 20);
        assert_eq!(figures(&permits), [8_577, 8_577, 0, 0, 1_434], "redriven");
        assert!(permits.verify().unwrap().is_sound());
        digests.push(permits.digest());
    }
    assert!(
        digests.iter().all(|digest| *digest == digests[0]),
        "{digests:?}"
    );
    println!("permits: {} shapes, digest {}", SHAPES.len(), digests[0]);
}

#[test]
fn state_of_sampled_offsets_of_the_real_data_caught_up_is_the_whole_fold() {
    let Some(path) = common::real_data("orders_lossy.jsonl") else {
        return;
    };
    let Some(truth) = common::real_data("orders_truth.jsonl") else {
        return;
    };
    let (source, keys) = common::truth(&truth);
    let (disk, states) = (SimDisk::new(), FakeStates::new());
    let open = |states: &FakeStates| {
        Store::options()
            .storage(Arc::new(disk.clone()))
            .state_backend(Arc::new(states.clone()))
            .open("store")
            .unwrap()
    };
    let store = open(&states);
    let orders = store.consumer("orders", Orders).unwrap();
    let mut samples = Vec::new();
    for events in common::events(&path).chunks(1_777) {
        store.append_batch(events).unwrap();
        orders.catch_up().unwrap();
        orders.flush().unwrap();
        samples.push((orders.checkpoint(), states.copy()));
    }
    orders.settle().unwrap();
    orders.reconcile(&source, &keys, None).unwrap();
    let (digest, counters) = (orders.digest(), orders.counters());
    drop((orders, store));
    println!("{} sampled offsets, digest {digest}", samples.len());
    for (offset, states) in &samples {
        let store = open(states);
        let orders = store.consumer("orders", Orders).unwrap();
        assert_eq!(orders.opening().found_at, *offset);
        assert_eq!(orders.opening().rebuilt, None);
        assert_eq!(
            (orders.digest(), orders.counters()),
            (digest, counters),
            "from {offset}"
        );
    }
}
