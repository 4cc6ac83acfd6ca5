//! What the model says where the published figures do not decide: small logs worked out by hand
//! from the design page. The fold must agree with the model on all of them.

#[cfg(test)]
#[expect(dead_code, reason = "the figures of the data are checked elsewhere")]
mod model;

use foldlog::{Action, Event, FixRow, Offset};
use model::{Class, Effect, Fate, How, Model, Outcome, State, Waiting};

fn sequence() -> Model<String> {
    Model::new(model::sequence(), "c")
}

/// An event of key `k`; its kind is its id.
fn event(id: &str, version: i64) -> Event {
    Event::new(id, "k", version, id)
}

fn log(events: &[(&str, i64)]) -> Model<String> {
    let mut model = sequence();
    for (id, version) in events {
        model.append(event(id, *version));
    }
    model
}

fn spent(state: &State<String>, offset: u64) -> Option<(u32, u32)> {
    let waiting: Option<&Waiting> = state.waiting.get(&offset);
    waiting.map(|waiting| (waiting.attempts, waiting.spent))
}

fn fates(state: &State<String>) -> Vec<Fate> {
    state.assert_sound();
    state.fates.values().copied().collect()
}

fn row(state: &State<String>) -> Option<(i64, Option<&str>, u64)> {
    let row = state.rows.get("k")?;
    Some((row.version, row.state.as_deref(), row.moved_at))
}

fn at(offset: u64) -> Offset {
    Offset::new(offset)
}

#[test]
fn first_wait_spends_one_attempt_and_a_held_one_none() {
    let state = log(&[("c", 3), ("d", 4)]).state();
    assert_eq!(
        (spent(&state, 0), spent(&state, 1)),
        (Some((1, 1)), Some((0, 0)))
    );
    assert_eq!(state.held(), [1]);
}

#[test]
fn repeat_of_a_waiting_event_merges_as_an_attempt_unless_held() {
    let state = log(&[("c", 3), ("d", 4), ("c", 3), ("d", 4)]).state();
    assert_eq!(
        (spent(&state, 0), spent(&state, 1)),
        (Some((2, 2)), Some((0, 0)))
    );
    assert_eq!(
        fates(&state),
        [Fate::Waiting, Fate::Waiting, Fate::Merged, Fate::Merged]
    );
    assert_eq!(state.figures().retry, 4);
}

#[test]
fn merge_that_spends_the_budget_kills_the_waiting_event() {
    let state = log(&[("c", 3), ("c", 3), ("c", 3), ("d", 4)]).state();
    assert_eq!(
        fates(&state),
        [Fate::Dead, Fate::Merged, Fate::Merged, Fate::Waiting]
    );
    assert_eq!(state.outcomes[&2], Outcome::Dead);
    let death = &state.letters[&0].history[0];
    assert_eq!(
        (death.class, death.attempts, death.at),
        (Class::Conflict, 3, 2)
    );
    assert_eq!(spent(&state, 3), Some((0, 0)), "held by the letter");
}

#[test]
fn same_version_under_another_id_waits_beside_and_ends_as_a_duplicate() {
    let state = log(&[("c", 2), ("x", 2), ("a", 1)]).state();
    assert_eq!(
        fates(&state),
        [Fate::Applied, Fate::Duplicate, Fate::Applied]
    );
    assert_eq!(row(&state), Some((2, Some("c"), 2)));
}

#[test]
fn drained_event_that_the_machine_refuses_is_dead_and_the_next_of_its_version_applies() {
    let mut machine = model::sequence();
    machine.apply = Box::new(|_, event| match event.kind.as_str() {
        "bad" => Err("refused".to_owned()),
        "boom" => panic!("as planned"),
        kind => Ok(kind.to_owned()),
    });
    let mut model = Model::new(machine, "c");
    for (id, version) in [("bad", 2), ("boom", 2), ("good", 2), ("a", 1)] {
        model.append(event(id, version));
    }
    let state = model.state();
    assert_eq!(
        fates(&state),
        [Fate::Dead, Fate::Dead, Fate::Applied, Fate::Applied]
    );
    let letter = |offset: u64| {
        let death = &state.letters[&offset].history[0];
        (death.class, death.reason.as_str(), death.attempts, death.at)
    };
    assert_eq!(letter(0), (Class::Poison, "refused", 2, 3));
    assert_eq!(letter(1), (Class::Poison, "panicked", 2, 3));
    assert_eq!(row(&state), Some((2, Some("good"), 3)));
}

#[test]
fn held_is_judged_before_the_round_starts() {
    // With budget 2 the round kills the first; the second, held when the round began, spends none.
    let mut model = sequence();
    model.decide(Action::Configure { max_attempts: 2 });
    model.append(event("c", 3));
    model.append(event("d", 4));
    model.append(event("e", 9));
    model.decide(Action::Redeliver { below: at(3) });
    let state = model.state();
    assert_eq!(fates(&state), [Fate::Dead, Fate::Waiting, Fate::Waiting]);
    assert_eq!(
        (spent(&state, 2), spent(&state, 3)),
        (Some((0, 0)), Some((0, 0)))
    );
    // Discarded, it holds no longer: the next round spends on the second, not on the third.
    model.decide(Action::Discard { offset: at(1) });
    model.decide(Action::Redeliver { below: at(9) });
    let state = model.state();
    assert_eq!(
        (spent(&state, 2), spent(&state, 3)),
        (Some((1, 1)), Some((0, 0)))
    );
}

#[test]
fn redrive_keeps_attempts_and_starts_the_budget_again() {
    let mut model = log(&[("c", 3), ("d", 4)]);
    model.settle();
    let state = model.state();
    assert_eq!(fates(&state), [Fate::Dead, Fate::Waiting]);
    assert_eq!(state.letters[&0].history[0].attempts, 3);
    let redrive = model.decide(Action::Redrive { offset: at(0) });
    let state = model.state();
    assert_eq!(spent(&state, 0), Some((4, 1)));
    let death = &state.letters[&0].history[0];
    assert_eq!(death.resolved, Some((How::Redriven, redrive)));
    // Again to the end of the budget: a second death on the same letter.
    model.settle();
    let state = model.state();
    let deaths = &state.letters[&0].history;
    assert_eq!(
        deaths.iter().map(|d| d.attempts).collect::<Vec<_>>(),
        [3, 6]
    );
    let again = model.decide(Action::Redrive { offset: at(1) });
    assert_eq!(model.state().effects[&again], Effect::NotFound);
}

#[test]
fn redrive_merges_into_a_waiting_twin() {
    let mut model = log(&[("c", 3), ("c", 3), ("c", 3), ("c", 3)]);
    assert_eq!(
        model.state().fates[&3],
        Fate::Waiting,
        "a letter's repeat is an event of its own"
    );
    model.decide(Action::Redrive { offset: at(0) });
    let state = model.state();
    assert_eq!(
        fates(&state),
        [Fate::Merged, Fate::Merged, Fate::Merged, Fate::Waiting]
    );
    assert_eq!(spent(&state, 3), Some((2, 2)));
}

#[test]
fn skip_moves_the_row_only_if_it_is_the_next_version() {
    let mut model = sequence();
    model.decide(Action::Configure { max_attempts: 1 });
    let first = model.append(event("b", 2));
    let early = model.decide(Action::Skip { offset: at(first) });
    model.append(event("", 1));
    assert_eq!(model.state().effects[&early], Effect::NotNext);

    // A poisoned first version: skipping it gives (1, none), and the second applies.
    let mut machine = model::sequence();
    machine.check = Box::new(|event| match event.kind.as_str() {
        "bad" => Err(String::new()),
        _ => Ok(()),
    });
    let mut model = Model::new(machine, "c");
    model.append(event("bad", 1));
    model.append(event("c", 3));
    let skip = model.decide(Action::Skip { offset: at(0) });
    let state = model.state();
    assert_eq!(row(&state), Some((1, None, skip)));
    assert_eq!(fates(&state), [Fate::Skipped, Fate::Waiting]);
    let again = model.decide(Action::Discard { offset: at(0) });
    assert_eq!(model.state().effects[&again], Effect::AlreadyResolved);
    model.append(event("b", 2));
    assert_eq!(row(&model.state()), Some((3, Some("c"), 4)));
}

#[test]
fn fix_is_guarded_and_releases_what_waits() {
    let side = |version, state: &str| {
        Some(FixRow {
            version,
            state: Some((model::sequence().encode)(&state.to_owned())),
        })
    };
    let fix = |from, to| Action::Fix {
        key: "k".to_owned(),
        from,
        to,
        revision: 1,
    };
    let mut model = log(&[("c", 3), ("b", 2), ("d", 5)]);
    let stale = model.decide(fix(side(1, "a"), side(2, "b")));
    let good = model.decide(fix(None, side(2, "x")));
    let state = model.state();
    assert_eq!(
        (state.effects[&stale], state.effects[&good]),
        (Effect::Stale, Effect::Done)
    );
    assert_eq!(row(&state), Some((3, Some("c"), good)));
    assert_eq!(
        fates(&state),
        [Fate::Applied, Fate::Duplicate, Fate::Waiting]
    );
    let unreadable = FixRow {
        version: 9,
        state: Some(vec![0xff]),
    };
    let bad = model.decide(fix(None, Some(unreadable)));
    let gone = model.decide(fix(side(3, "c"), None));
    let state = model.state();
    assert_eq!(
        (state.effects[&bad], state.effects[&gone]),
        (Effect::Unreadable, Effect::Done)
    );
    assert_eq!(row(&state), None);
    let figures = state.figures();
    let fixes = (figures.fixes, figures.stale_fixes, figures.unreadable_fixes);
    assert_eq!(fixes, (2, 1, 1));
}

#[test]
fn crashed_takes_effect_at_its_record_and_the_first_of_two_counts() {
    let mut model = log(&[("b", 2), ("a", 1)]);
    for attempts in [3, 7] {
        model.decide(Action::Crashed {
            at: at(1),
            event: at(0),
            attempts,
        });
    }
    let state = model.fold(2);
    assert_eq!(fates(&state), [Fate::Dead, Fate::Applied]);
    let death = &state.letters[&0].history[0];
    assert_eq!(
        (death.class, death.attempts, death.at),
        (Class::Crashed, 4, 1)
    );
    assert_eq!(fates(&model.state()), fates(&state));
}

#[test]
fn poison_comes_before_duplicate_and_below_one_is_poison() {
    let mut model = Model::new(model::orders(), "c");
    model.append(Event::new("e", "k", 1, "reserve"));
    model.append(Event::new("f", "k", 1, "pay"));
    model.append(Event::new("g", "k", 1, "reserve"));
    let state = model.state();
    assert_eq!(fates(&state), [Fate::Applied, Fate::Dead, Fate::Duplicate]);
    let state = log(&[("z", 0), ("y", i64::MIN), ("x", i64::MAX)]).state();
    assert_eq!(fates(&state), [Fate::Dead, Fate::Dead, Fate::Waiting]);
    assert_eq!(state.dead(Class::Poison), 2);
}
