//! A crash at every storage call of a life of a store (log, state markers, decisions, rolls, close,
//! reopen, rebuild), in every mode of the simulated disk, then again inside the recovery; each time
//! opened, appended to, closed and opened again.
//!
//! What is allowed is decided by plain lists here and by the independent model in `tests/model`:
//! every acknowledged event is there, in order, nothing but whole attempted calls follows them,
//! offsets have no hole, and the state is the fold of exactly those records.
#![cfg(feature = "sim")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "tests panic, index and count"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use foldlog::orders::Orders;
use foldlog::state::fake::{FakeStates, Keep};
use foldlog::storage::sim::{CrashMode, SimDisk};
use foldlog::{Body, Consumer, ConsumerOptions, Event, Filter, Offset, Result, Store};

#[expect(dead_code, reason = "a part of it is for other tests")]
mod model;

/// What the caller of a store knows: every call it made with events, in order, and how many of them
/// were acknowledged (all before the last acknowledged one were, too: it calls one at a time).
#[derive(Clone, Default)]
struct Caller {
    calls: Vec<Vec<Event>>,
    acked: usize,
    /// Which of them came from the upstream.
    upstream: Option<usize>,
}

impl Caller {
    /// Notes a call as made, makes it, and notes the answer.
    fn call(&mut self, count: usize, make: impl FnOnce(&[Event]) -> Result<()>) -> Result<()> {
        let before = self.calls.iter().map(Vec::len).sum::<usize>();
        let events: Vec<Event> = (before..before + count).map(event).collect();
        self.calls.push(events.clone());
        make(&events)?;
        self.acked = self.calls.len();
        Ok(())
    }
}

/// The n-th event of every life: early, double, poison and held ones among them.
fn event(n: usize) -> Event {
    let version = [1, 3, 2, 2, 4, 1][n % 6];
    let kind = ["reserve", "fulfill", "pay", "pay", "refund", "reserve"][n % 6];
    Event::new(format!("e{n}"), format!("k{}", n / 4), version, kind).with_payload(vec![7; 150])
}

fn open(disk: &SimDisk, states: &FakeStates) -> Result<Store> {
    Store::options()
        .segment_bytes(4096)
        .storage(Arc::new(disk.clone()))
        .state_backend(Arc::new(states.clone()))
        .open("store")
}

fn consumer(store: &Store) -> Result<Consumer<Orders>> {
    store.consumer_with(
        "orders",
        Orders,
        ConsumerOptions::default().partitions(2).flush_entries(4),
    )
}

/// The life: returns at the first error, which is the crash.
fn live(disk: &SimDisk, states: &FakeStates, caller: &mut Caller) -> Result<()> {
    let store = open(disk, states)?;
    for _ in 0..3 {
        caller.call(1, |events| store.append(&events[0]).map(drop))?;
    }
    caller.call(4, |events| store.append_batch(events).map(drop))?;
    let orders = consumer(&store)?;
    caller.upstream = Some(caller.calls.len());
    caller.call(2, |events| store.append_from("up", 10, events).map(drop))?;
    orders.settle()?;
    // Two writes and their sync: acknowledged together.
    let acked = caller.acked;
    for _ in 0..2 {
        caller.call(1, |events| store.write(&events[0]).map(drop))?;
        caller.acked = acked;
    }
    store.sync()?;
    caller.acked = caller.calls.len();
    drop(orders.redrive_all(&Filter::all(), 1, Some("again"))?);
    drop(orders.discard_all(&Filter::all(), 1, None)?);
    orders.flush()?;
    for _ in 0..9 {
        caller.call(3, |events| store.append_batch(events).map(drop))?;
        orders.catch_up()?;
    }
    drop(orders);
    store.close()?;
    drop(store);
    let store = open(disk, states)?;
    let orders = consumer(&store)?;
    caller.call(1, |events| store.append(&events[0]).map(drop))?;
    orders.catch_up()?;
    orders.rebuild()?;
    caller.call(1, |events| store.append(&events[0]).map(drop))?;
    Ok(())
}

/// Everything that must hold of a store after a crash.
fn check(store: &Store, caller: &Caller, context: &str) {
    let mut bodies = Vec::new();
    let mut from = Offset::ZERO;
    while from < store.durable_end() {
        let batch = store.next_batch(from, 7).unwrap();
        for record in batch.records {
            assert_eq!(
                record.offset.get(),
                bodies.len() as u64,
                "{context}: a hole"
            );
            bodies.push(record.body);
        }
        from = batch.next;
    }
    let stored: Vec<&Event> = bodies
        .iter()
        .filter_map(|body| match body {
            Body::Event(event) => Some(event),
            Body::Decision(_) => None,
        })
        .collect();
    let mut at = 0;
    let mut whole = 0;
    for call in &caller.calls {
        if at == stored.len() {
            break;
        }
        let part: Vec<&Event> = call.iter().collect();
        assert!(
            stored[at..].starts_with(&part),
            "{context}: call {whole} is torn or altered"
        );
        at += call.len();
        whole += 1;
    }
    assert_eq!(at, stored.len(), "{context}: events nobody appended");
    assert!(
        whole >= caller.acked,
        "{context}: {whole} calls are there, {} were acknowledged",
        caller.acked
    );
    let took = caller.upstream.is_some_and(|call| call < whole);
    assert_eq!(
        store.upstream_position("up"),
        took.then_some(10),
        "{context}: position and events"
    );

    check_state(store, bodies, context);
}

/// The consumer's state is the model's fold of exactly the records that are there.
fn check_state(store: &Store, bodies: Vec<Body>, context: &str) {
    let orders = consumer(store).unwrap();
    assert_eq!(orders.checkpoint(), store.durable_end(), "{context}");
    let mut model = model::Model::new(model::orders(), "orders");
    model.log = bodies;
    let fold = model.state();
    fold.assert_sound();
    let rows: Vec<_> = orders.rows().map(|row| row.unwrap()).collect();
    assert_eq!(rows.len(), fold.rows.len(), "{context}");
    for (key, row) in rows {
        let expected = &fold.rows[&key];
        assert_eq!(
            (row.version, row.moved_at.get()),
            (expected.version, expected.moved_at),
            "{context}: {key}"
        );
    }
    let waiting: Vec<u64> = orders.waiting().map(|w| w.unwrap().offset.get()).collect();
    assert_eq!(
        waiting,
        fold.waiting.keys().copied().collect::<Vec<_>>(),
        "{context}"
    );
    for letter in orders.dead_letters() {
        let letter = letter.unwrap();
        let expected = &fold.letters[&letter.offset.get()];
        assert_eq!(
            letter.is_open(),
            expected.is_open(),
            "{context}: letter {}",
            letter.offset
        );
        assert_eq!(
            letter.attempts(),
            expected.history.last().unwrap().attempts,
            "{context}"
        );
    }
    let counters = orders.counters();
    let figures = fold.figures();
    assert_eq!(
        [
            counters.events,
            counters.applied,
            counters.duplicate,
            counters.waiting,
            counters.dead
        ],
        [
            figures.events,
            figures.applied,
            figures.duplicate,
            figures.waiting,
            figures.dead
        ]
        .map(|n| n as u64),
        "{context}"
    );
    assert!(orders.verify().unwrap().is_sound(), "{context}");
}

/// Opens, checks, appends, closes, opens again and checks again.
fn survive(disk: &SimDisk, states: &FakeStates, caller: &Caller, context: &str) {
    let mut caller = caller.clone();
    for round in ["first open", "second open"] {
        let store = match open(disk, states) {
            Ok(store) => store,
            Err(error) => panic!("{context}: {round}: {error}"),
        };
        let context = format!("{context}: {round}");
        check(&store, &caller, &context);
        // The caller learns what is there before it goes on, as a producer would.
        let mut stored = 0;
        let mut from = Offset::ZERO;
        while from < store.durable_end() {
            let batch = store.next_batch(from, 100).unwrap();
            stored += batch
                .records
                .iter()
                .filter(|r| matches!(r.body, Body::Event(_)))
                .count();
            from = batch.next;
        }
        let mut whole = 0;
        let mut sum = 0;
        while sum < stored {
            sum += caller.calls[whole].len();
            whole += 1;
        }
        caller.calls.truncate(whole);
        caller.upstream = caller.upstream.filter(|call| *call < whole);
        caller.acked = whole;
        caller
            .call(1, |events| store.append(&events[0]).map(drop))
            .unwrap();
        check(&store, &caller, &context);
        if round == "first open" {
            store.close().unwrap();
        }
    }
}

#[test]
fn a_crash_at_every_storage_call_loses_nothing_acknowledged() {
    let disk = SimDisk::with_seed(1);
    let mut caller = Caller::default();
    live(&disk, &FakeStates::new(), &mut caller).unwrap();
    let calls = disk.calls();
    let mut images = BTreeSet::new();
    let (mut cases, mut inside) = (0, 0);
    for call in 0..calls {
        let disk = SimDisk::with_seed(1);
        let states = FakeStates::new();
        disk.crash_at(call);
        let mut caller = Caller::default();
        let _crashed = live(&disk, &states, &mut caller);
        for (number, mode) in CrashMode::ALL.into_iter().enumerate() {
            let seeds = if mode.is_seeded() { 2 } else { 1 };
            for seed in 0..seeds {
                let seed = call * 31 + seed;
                let after = disk.crash(mode, seed);
                let kept = states.copy();
                kept.crash([Keep::All, Keep::Synced, Keep::Lose(1)][(call as usize + number) % 3]);
                let context = format!("call {call}, {mode:?}, seed {seed}");
                cases += 1;
                if !images.insert(after.image_hash()) {
                    continue;
                }
                // Every so often, a second crash inside the recovery of the first.
                if images.len() % 16 == 0 {
                    let probe = after.fork();
                    let before = probe.calls();
                    drop(open(&probe, &kept.copy()));
                    let during = probe.calls() - before;
                    for inner in 0..during {
                        let twice = after.fork();
                        twice.crash_at(twice.calls() + inner);
                        assert!(open(&twice, &kept.copy()).is_err() || twice.crashed());
                        let twice = twice.crash(mode, seed + inner);
                        images.insert(twice.image_hash());
                        survive(
                            &twice,
                            &kept.copy(),
                            &caller,
                            &format!("{context}, recovery call {inner}"),
                        );
                        inside += 1;
                    }
                }
                survive(&after, &kept, &caller, &context);
            }
        }
    }
    println!(
        "{calls} storage calls, {cases} crashes, {inside} more inside recoveries, \
         {} distinct disk images, 0 violations",
        images.len()
    );
    assert!(images.len() > 1000);
}
