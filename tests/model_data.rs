//! The model against the published figures of the data with known answers, and the vectors.
//!
//! The data stands beside the repository, not in it (licence); without it the tests say that they
//! were skipped.
#![expect(
    clippy::unwrap_used,
    reason = "helper functions of a test: a broken input file should fail it"
)]

#[cfg(test)]
mod model;

use std::io::Write;
use std::path::PathBuf;

use foldlog::{Action, Event, Offset};
use model::{Class, Figures, Model, Outcome, State, Truth};
use serde_json::Value;

/// A file of `../shared`, or `None` with the reason printed.
fn shared(name: &str) -> Option<Vec<Value>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../shared")
        .join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(
            text.lines()
                .map(|l| serde_json::from_str(l).unwrap())
                .collect(),
        ),
        Err(error) => {
            // Not through `eprintln!`: that is shown for failed tests only, and `.ci/run` looks
            // for this line.
            let line = format!("data test skipped: {}: {error}\n", path.display());
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
    }
}

fn event(line: &Value) -> Event {
    let text = |name: &str| line[name].as_str().unwrap().to_owned();
    let key = if line["key"].is_string() {
        "key"
    } else {
        "order_id"
    };
    Event::new(
        text("id"),
        text(key),
        line["version"].as_i64().unwrap(),
        text("type"),
    )
}

fn append_all(model: &mut Model<String>, lines: &[Value]) {
    for line in lines {
        model.append(event(line));
    }
}

fn truth(lines: &[Value]) -> Truth<String> {
    let entry = |line: &Value| {
        let key = line["order_id"].as_str().unwrap().to_owned();
        let status = line["status"].as_str().unwrap().to_owned();
        (key, (line["version"].as_i64().unwrap(), status))
    };
    lines.iter().map(entry).collect()
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
fn orders_give_the_published_figures() {
    let (Some(lines), Some(source)) = (
        shared("data/orders.jsonl"),
        shared("data/orders_truth.jsonl"),
    ) else {
        return;
    };
    let mut model = Model::new(model::orders(), "orders");
    append_all(&mut model, &lines);

    let drained = model.state();
    assert_eq!(drained.waiting.len(), 0);
    assert_eq!(model.settle(), 0);
    let settled = model.state();
    settled.assert_sound();
    let figures = Figures {
        events: 23_711,
        applied: 22_477,
        retry: 77,
        dead: 1_234,
        rows: 8_135,
        ..Figures::default()
    };
    assert_eq!(settled.figures(), figures);
    assert_eq!(settled.dead(Class::Conflict), 0);
    assert_eq!(by_state(&settled), [6_353, 1_636, 146]);

    let truth = truth(&source);
    assert_eq!(model.reconcile(&truth), 1);
    assert_eq!(model.reconcile(&truth), 0);
    let reconciled = model.state();
    reconciled.assert_sound();
    assert_eq!(by_state(&reconciled), [6_354, 1_635, 146]);
}

#[test]
fn lossy_orders_give_the_published_figures() {
    let (Some(lines), Some(source)) = (
        shared("data/orders_lossy.jsonl"),
        shared("data/orders_truth.jsonl"),
    ) else {
        return;
    };
    let mut model = Model::new(model::orders(), "orders");
    append_all(&mut model, &lines);

    assert_eq!(model.state().waiting.len(), 380);
    let rounds = model.settle();
    let settled = model.state();
    settled.assert_sound();
    let figures = Figures {
        events: 24_470,
        applied: 21_683,
        duplicate: 778,
        merged: 352,
        retry: 7_428,
        waiting: 115,
        held: 115,
        dead: 1_277 + 265,
        rows: 7_994,
        decisions: rounds,
        ..Figures::default()
    };
    assert_eq!(settled.figures(), figures);
    assert_eq!(settled.dead(Class::Poison), 1_277);
    assert_eq!(settled.dead(Class::Conflict), 265);
    assert_eq!(by_state(&settled), [6_003, 1_683, 308]);

    let truth = truth(&source);
    assert_eq!(model.reconcile(&truth), 365);
    assert_eq!(model.reconcile(&truth), 0);
    let reconciled = model.state();
    reconciled.assert_sound();
    assert_eq!(reconciled.held().len(), 2);
    assert_eq!(by_state(&reconciled), [6_350, 1_599, 167]);
}

#[test]
fn permits_give_the_published_figures() {
    let (Some(lines), Some(late)) = (
        shared("data/permits.jsonl"),
        shared("data/permits_late.jsonl"),
    ) else {
        return;
    };
    let mut model = Model::new(model::sequence(), "sequence");
    let check = |state: &State<String>, expected: [usize; 5]| {
        state.assert_sound();
        let f = state.figures();
        assert_eq!([f.events, f.applied, f.waiting, f.dead, f.rows], expected);
    };
    append_all(&mut model, &lines);
    check(&model.state(), [8_557, 8_311, 246, 0, 1_414]);
    model.settle();
    check(&model.state(), [8_557, 8_311, 226, 20, 1_414]);
    append_all(&mut model, &late);
    model.settle();
    let state = model.state();
    check(&state, [8_577, 8_331, 226, 20, 1_434]);

    let holds = state.holds();
    let most = holds.values().copied().max().unwrap();
    assert_eq!(most, 16);
    let keys = holds
        .iter()
        .filter(|(_, n)| **n == most)
        .map(|(o, _)| &*state.letters[o].key);
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    assert_eq!(keys, ["case-4808", "case-4978", "case-6335"]);

    let open: Vec<u64> = holds.into_keys().collect();
    assert_eq!(open.len(), 20);
    for offset in open {
        model.decide(Action::Redrive {
            offset: Offset::new(offset),
        });
    }
    check(&model.state(), [8_577, 8_577, 0, 0, 1_434]);
}

#[test]
fn handle_agrees_with_the_vectors() {
    let Some(scenarios) = shared("vectors/handle_and_reconcile.jsonl") else {
        return;
    };
    let mut outcomes = 0;
    for scenario in &scenarios {
        let name = scenario["name"].as_str().unwrap();
        let model = Model::new(model::orders(), "orders");
        let mut state = model.state();
        let budget = scenario["max_attempts"].as_i64().unwrap();
        state.budget = if budget < 1 {
            3
        } else {
            u32::try_from(budget).unwrap()
        };
        for op in scenario["ops"].as_array().unwrap() {
            if op["op"] == "handle" {
                let attempt = u32::try_from(op["attempt"].as_u64().unwrap()).unwrap();
                let outcome = match model.handle(&mut state, &event(&op["event"]), attempt) {
                    Outcome::Applied => "applied",
                    Outcome::Duplicate => "duplicate",
                    Outcome::Retry => "retry",
                    Outcome::Dead => "dead",
                };
                assert_eq!(op["outcome"], outcome, "{name}: {op}");
                outcomes += 1;
            } else {
                set_to_source(&mut state, op);
            }
        }
        let applied = state
            .outcomes
            .values()
            .filter(|o| **o == Outcome::Applied)
            .count();
        assert_eq!(scenario["applied"], applied, "{name}");
        let rows = state.rows.iter().map(|(key, row)| {
            (
                key.clone(),
                serde_json::json!({ "version": row.version, "status": row.state }),
            )
        });
        assert_eq!(scenario["orders"], Value::Object(rows.collect()), "{name}");
        let dlq: Vec<(u64, &str)> = scenario["dlq"].as_array().map_or_else(Vec::new, |dlq| {
            let entry = |l: &'_ Value| l["attempts"].as_u64().unwrap();
            dlq.iter()
                .map(|l| (entry(l), l["class"].as_str().unwrap()))
                .collect()
        });
        let letters = state.letters.values().map(|letter| {
            let death = &letter.history[0];
            let class = if death.class == Class::Poison {
                "poison"
            } else {
                "conflict"
            };
            (u64::from(death.attempts), class)
        });
        assert_eq!(letters.collect::<Vec<_>>(), dlq, "{name}");
    }
    assert!(outcomes > 1_000, "only {outcomes} outcomes were compared");
}

/// What reconcile does to the rows of the plain rule.
fn set_to_source(state: &mut State<String>, op: &Value) {
    let source = op["source"].as_object().cloned().unwrap_or_default();
    for key in op["order_ids"].as_array().into_iter().flatten() {
        let key = key.as_str().unwrap();
        if let Some(row) = source.get(key) {
            let row = model::Row {
                version: row["version"].as_i64().unwrap(),
                state: Some(row["status"].as_str().unwrap().to_owned()),
                moved_at: 0,
            };
            state.rows.insert(key.to_owned(), row);
        }
    }
}
