//! The known answers of the real data beside the repository, where it is there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::super::counters::Counters;
use super::super::ground::Ground;
use super::super::letter::Class;
use super::super::testing::Harness;
use super::super::{DecisionEffect, Outcome};
use crate::event::{Action, Event};
use crate::machine::StateMachine;
use crate::offset::Offset;
use crate::orders::{OrderStatus, Orders};
use crate::sequence::Sequence;
use crate::source::{MapSource, Row, compare};

/// The data directory, or `None` with a word about it: the data may not be copied in here.
fn data(test: &str) -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    if dir.is_dir() {
        return Some(dir);
    }
    // Past the test harness, which hides what a passing test prints: CI looks for these words.
    let mut err = std::io::stderr().lock();
    writeln!(
        err,
        "data test skipped: {test}, ../shared/data is not there"
    )
    .unwrap();
    None
}

fn lines(file: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.map(Result::unwrap).collect()
}

fn feed<M: StateMachine>(h: &mut Harness<M>, file: &Path) {
    for line in lines(file) {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let key = text("key").or_else(|| text("order_id")).unwrap();
        let version = line["version"].as_i64().unwrap();
        let event = Event::new(text("id").unwrap(), key, version, text("type").unwrap());
        let _ = h.event(event);
        if h.end().get().is_multiple_of(5000) {
            h.flush();
        }
    }
}

/// One fix per difference, until none remains.
fn reconcile(h: &mut Harness<Orders>, source: &MapSource<OrderStatus>) -> u64 {
    let mut fixes = 0;
    loop {
        let mut found = 0;
        for key in source.keys() {
            let row = h.state(key).row;
            if let Some(difference) = compare(source, key, row.as_ref()).unwrap() {
                let fix = Action::Fix {
                    key: key.to_owned(),
                    from: difference.from,
                    to: Some(difference.to),
                    revision: Orders::REVISION,
                };
                assert_eq!(h.decide(fix), DecisionEffect::Fixed);
                found += 1;
            }
        }
        if found == 0 {
            return fixes;
        }
        fixes += found;
    }
}

/// How many rows are `FULFILLED`, `PAID`, `INVENTORY_RESERVED`.
fn by_state(h: &Harness<Orders>) -> [u64; 3] {
    let mut count = BTreeMap::new();
    for (key, state) in h.overlay.keys_after(None, usize::MAX).unwrap() {
        if let Some(row) = state.row {
            let row = Row::<OrderStatus>::decode(&key, &row).unwrap();
            *count.entry(row.state.unwrap()).or_insert(0) += 1;
        }
    }
    let states = [
        OrderStatus::Fulfilled,
        OrderStatus::Paid,
        OrderStatus::InventoryReserved,
    ];
    states.map(|status| count.remove(&status).unwrap_or(0))
}

fn dead_of<M: StateMachine>(h: &Harness<M>, class: Class) -> usize {
    let letters = h.overlay.letters_after(Offset::ZERO, usize::MAX).unwrap();
    let open = letters.iter().filter(|letter| letter.is_open());
    open.filter(|letter| letter.class() == class).count()
}

struct Figures {
    drained: [u64; 6],
    dead: [usize; 2],
    held: [u64; 2],
    rows: u64,
    settled: [u64; 3],
    fixes: u64,
    reconciled: [u64; 3],
}

fn check_orders(dir: &Path, name: &str, figures: &Figures) {
    let mut h = Harness::with_cache(Orders, 100_000);
    feed(&mut h, &dir.join(name));
    let c = *h.overlay.counters();
    let drained = [c.events, c.duplicate, c.merged, c.retry, c.waiting];
    h.settle();
    let c = *h.overlay.counters();
    let drained = [
        drained[0], c.applied, drained[1], drained[2], drained[3], drained[4],
    ];
    assert_eq!(drained, figures.drained, "{name}");
    assert!(c.add_up());
    let dead = [Class::Poison, Class::Conflict].map(|class| dead_of(&h, class));
    assert_eq!(dead, figures.dead, "{name}");
    assert_eq!((c.held, c.waiting), (figures.held[0], figures.held[0]));
    assert_eq!(c.rows, figures.rows);
    assert_eq!(by_state(&h), figures.settled);

    let truth = lines(&dir.join("orders_truth.jsonl"));
    let source: MapSource<OrderStatus> = truth
        .iter()
        .map(|line| {
            let status = line["status"].as_str().unwrap().parse().unwrap();
            let key = line["order_id"].as_str().unwrap();
            (key, line["version"].as_i64().unwrap(), status)
        })
        .collect();
    assert_eq!(reconcile(&mut h, &source), figures.fixes, "{name}");
    assert_eq!(reconcile(&mut h, &source), 0);
    let c = *h.overlay.counters();
    assert_eq!(c.held, figures.held[1]);
    assert_eq!(by_state(&h), figures.reconciled);
    assert!(c.add_up());
}

#[test]
fn figures_of_orders() {
    let Some(dir) = data("figures_of_orders") else {
        return;
    };
    let figures = Figures {
        drained: [23_711, 22_477, 0, 0, 77, 0],
        dead: [1_234, 0],
        held: [0, 0],
        rows: 8_135,
        settled: [6_353, 1_636, 146],
        fixes: 1,
        reconciled: [6_354, 1_635, 146],
    };
    check_orders(&dir, "orders.jsonl", &figures);
}

#[test]
fn figures_of_orders_lossy() {
    let Some(dir) = data("figures_of_orders_lossy") else {
        return;
    };
    let figures = Figures {
        drained: [24_470, 21_683, 778, 352, 7_428, 380],
        dead: [1_277, 265],
        held: [115, 2],
        rows: 7_994,
        settled: [6_003, 1_683, 308],
        fixes: 365,
        reconciled: [6_350, 1_599, 167],
    };
    check_orders(&dir, "orders_lossy.jsonl", &figures);
}

#[test]
fn figures_of_permits() {
    let Some(dir) = data("figures_of_permits") else {
        return;
    };
    let mut h = Harness::with_cache(Sequence, 100_000);
    let figures = |c: &Counters| [c.events, c.applied, c.waiting, c.dead, c.rows];
    feed(&mut h, &dir.join("permits.jsonl"));
    assert_eq!(figures(h.overlay.counters()), [8_557, 8_311, 246, 0, 1_414]);
    h.settle();
    assert_eq!(
        figures(h.overlay.counters()),
        [8_557, 8_311, 226, 20, 1_414]
    );
    feed(&mut h, &dir.join("permits_late.jsonl"));
    h.settle();
    assert_eq!(
        figures(h.overlay.counters()),
        [8_577, 8_331, 226, 20, 1_434]
    );
    for key in ["case-4808", "case-4978", "case-6335"] {
        let state = h.state(key);
        assert_eq!((state.held(), state.waiting.len()), (16, 16), "{key}");
    }
    let letters = h.overlay.letters_after(Offset::ZERO, usize::MAX).unwrap();
    assert_eq!(letters.len(), 20);
    for letter in letters {
        let redrive = Action::Redrive {
            offset: letter.offset,
        };
        let effect = h.decide(redrive);
        assert_eq!(effect, DecisionEffect::Redriven(Outcome::Applied));
    }
    assert_eq!(figures(h.overlay.counters()), [8_577, 8_577, 0, 0, 1_434]);
    assert!(h.overlay.counters().add_up());
}
