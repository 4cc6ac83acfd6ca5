//! State as it was at every single offset of a log, each caught up to the digest of the whole fold.
//!
//! The state is flushed after each record, so that taking flushes away one by one gives every one.
#![cfg(feature = "sim")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests panic, index and count"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use foldlog::orders::{OrderStatus, Orders};
use foldlog::state::fake::{FakeStates, Keep};
use foldlog::{Consumer, ConsumerOptions, Event, Filter, MapSource, Store};

const RECORDS: u64 = 300;

fn open(dir: &Path, states: &FakeStates) -> (Store, Consumer<Orders>) {
    let store = Store::options()
        .state_backend(Arc::new(states.clone()))
        .open(dir)
        .unwrap();
    let options = ConsumerOptions::default().batch_max(1).flush_entries(0);
    let orders = store.consumer_with("orders", Orders, options).unwrap();
    (store, orders)
}

/// Events of every outcome, redelivery rounds, redrives, discards, skips and fixes.
fn fill(store: &Store, orders: &Consumer<Orders>) {
    let kinds = ["reserve", "pay", "fulfill", "refund"];
    for n in 0.. {
        if store.durable_end().get() >= RECORDS {
            break;
        }
        let (key, step) = (format!("o{}", n * 7 % 23), n * 5 % 11 % 4);
        match n % 13 {
            3 => drop(orders.redrive_all(&Filter::all(), 2, None).unwrap()),
            5 => drop(orders.discard_all(&Filter::all(), 1, None).unwrap()),
            7 => drop(orders.skip_all(&Filter::all(), 1, None).unwrap()),
            9 => drop(orders.settle().unwrap()),
            11 => {
                let mut truth = MapSource::new();
                truth.insert(key.clone(), 2, OrderStatus::Paid);
                drop(orders.reconcile(&truth, &[key], None).unwrap());
            }
            _ => {
                let version = i64::try_from(step).unwrap() % 3 + 1;
                let event = Event::new(format!("{key}-{version}"), key, version, kinds[step]);
                store.append(&event).unwrap();
            }
        }
    }
    orders.catch_up().unwrap();
}

#[test]
fn state_left_at_every_offset_and_caught_up_is_the_whole_fold() {
    let dir = tempfile::tempdir().unwrap();
    let states = FakeStates::new();
    let (store, orders) = open(dir.path(), &states);
    fill(&store, &orders);
    let (digest, counters, end) = (orders.digest(), orders.counters(), store.durable_end());
    assert!(counters.fixes > 0 && counters.skipped > 0 && counters.discarded > 0);
    drop((orders, store));
    let mut found = BTreeSet::new();
    for lost in 0.. {
        let left = states.copy();
        left.crash(Keep::Lose(lost));
        let (_store, orders) = open(dir.path(), &left);
        let at = orders.opening().found_at.get();
        assert_eq!(
            (orders.digest(), orders.counters()),
            (digest, counters),
            "state at {at}"
        );
        found.insert(at);
        if at == 0 {
            break;
        }
    }
    assert!(found.iter().copied().eq(0..=end.get()), "{found:?}");
    println!("{} states, each caught up to digest {digest}", found.len());
}
