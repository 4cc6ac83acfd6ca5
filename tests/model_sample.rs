//! The sample of the README against figures that were worked out by hand, order by order.
//!
//! | orders | story | after settle |
//! |---|---|---|
//! | 1001 to 1008 | in order | fulfilled |
//! | 1009, 1010, 1011 | not finished | paid, paid, reserved |
//! | 1012, 1013 | early steps | fulfilled |
//! | 1014 | two steps twice | fulfilled, 2 duplicates |
//! | 1015 | repeat of an early step | paid, 1 merged |
//! | 1016 | unknown kind `cancel` | paid, 1 dead |
//! | 1017 | payment under version 3, then under 2 | fulfilled, 1 dead (settled) |
//! | 1018 | reservation lost | no row, payment dead, holds 1 |
//! | 1019 | payment lost | reserved, fulfilment dead |
//! | 1020 | unknown kind `payment` | reserved, 1 dead, holds 1 |
//! | 1021 | unknown kind `create` | no row, 1 dead, holds 2 |
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helper functions of a test: a broken input file should fail it"
)]

#[cfg(test)]
#[expect(dead_code, reason = "some parts are for other machines")]
mod model;

use foldlog::{Action, Event, Offset};
use model::{Class, Figures, Model, State, Truth};
use serde_json::Value;

fn lines(text: &str) -> impl Iterator<Item = Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap())
}

fn text(line: &Value, name: &str) -> String {
    line[name].as_str().unwrap().to_owned()
}

fn sample() -> Model<String> {
    let mut model = Model::new(model::orders(), "orders");
    for line in lines(include_str!("../examples/orders.jsonl")) {
        let version = line["version"].as_i64().unwrap();
        let [id, key, kind] = ["id", "order_id", "type"].map(|name| text(&line, name));
        model.append(Event::new(id, key, version, kind));
    }
    model
}

fn truth() -> Truth<String> {
    let lines = lines(include_str!("../examples/orders_truth.jsonl"));
    let entry = |line: Value| {
        let row = (line["version"].as_i64().unwrap(), text(&line, "status"));
        (text(&line, "order_id"), row)
    };
    lines.map(entry).collect()
}

/// How many rows are fulfilled, paid, reserved.
fn by_state(state: &State<String>) -> [usize; 3] {
    ["FULFILLED", "PAID", "INVENTORY_RESERVED"].map(|name| {
        let rows = state.rows.values();
        rows.filter(|row| row.state.as_deref() == Some(name))
            .count()
    })
}

#[test]
fn sample_gives_the_figures_worked_out_by_hand() {
    let mut model = sample();
    let drained = Figures {
        events: 60,
        applied: 47,
        duplicate: 2,
        merged: 1,
        retry: 11,
        waiting: 6,
        held: 4,
        dead: 4,
        rows: 19,
        ..Figures::default()
    };
    assert_eq!(model.state().figures(), drained);

    let rounds = model.settle();
    let settled = Figures {
        waiting: 4,
        dead: 6,
        decisions: rounds,
        ..drained
    };
    let state = model.state();
    assert_eq!(state.figures(), settled);
    assert_eq!(
        (state.dead(Class::Poison), state.dead(Class::Conflict)),
        (4, 2)
    );
    assert_eq!(by_state(&state), [12, 4, 3]);
    let holds = state.holds().into_values().filter(|n| *n > 0);
    let mut holds: Vec<usize> = holds.collect();
    holds.sort_unstable();
    assert_eq!(holds, [1, 1, 2]);

    // Orders 1010, 1018, 1019 and 1022; the fix of 1018 makes what waited there a duplicate.
    assert_eq!(model.reconcile(&truth()), 4);
    assert_eq!(model.reconcile(&truth()), 0);
    let reconciled = Figures {
        duplicate: 3,
        waiting: 3,
        held: 3,
        rows: 21,
        fixes: 4,
        decisions: rounds.saturating_add(4),
        ..settled
    };
    let state = model.state();
    assert_eq!(state.figures(), reconciled);
    assert_eq!(by_state(&state), [15, 4, 2]);
}

#[test]
fn skipping_what_blocks_the_sample_frees_what_it_holds() {
    let mut model = sample();
    model.settle();
    model.reconcile(&truth());
    let state = model.state();
    let holding = state.holds().into_iter().filter(|(_, n)| *n > 0);
    for (offset, _) in holding {
        let offset = Offset::new(offset);
        model.decide(Action::Skip { offset });
    }
    let state = model.state();
    let figures = state.figures();
    let left = (figures.waiting, figures.dead, figures.skipped, figures.rows);
    assert_eq!(left, (0, 4, 2, 22));
    assert_eq!(by_state(&state), [17, 4, 1]);
}
