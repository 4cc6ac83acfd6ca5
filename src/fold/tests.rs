//! What the fold must do, rule by rule. `tests/model.rs` compares it with an independent model,
//! `tests/figures.rs` with the known answers of real data.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::let_underscore_must_use,
    clippy::unnecessary_wraps,
    reason = "in a test an overflow is a failure, and some outcomes are beside the point"
)]

mod figures;
mod model;

use super::letter::{Class, Resolved};
use super::overlay::{Overlay, Totals};
use super::testing::{Harness, Log, MemoryGround};
use super::{Crashes, DecisionEffect, Judge, Outcome, Pass, Watch};
use crate::error::{Error, Result};
use crate::event::{Action, Body, Decision, Event, FixRow, Record};
use crate::machine::{Poison, StateMachine};
use crate::offset::Offset;
use crate::orders::{OrderStatus, Orders};
use crate::sequence::Sequence;

fn order(key: &str, version: i64) -> Event {
    let kind = ["reserve", "pay", "fulfill"][usize::try_from(version - 1).unwrap()];
    Event::new(format!("{key}-{version}"), key, version, kind)
}

fn step(key: &str, version: i64) -> Event {
    Event::new(
        format!("{key}-{version}"),
        key,
        version,
        format!("s{version}"),
    )
}

fn at(offset: u64) -> Offset {
    Offset::new(offset)
}

fn encoded(state: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(state.len()).unwrap()];
    bytes.extend_from_slice(state.as_bytes());
    bytes
}

fn row(version: i64, state: &str) -> Option<FixRow> {
    Some(FixRow {
        version,
        state: Some(encoded(state)),
    })
}

fn fix(key: &str, from: Option<FixRow>, to: Option<FixRow>) -> Action {
    Action::Fix {
        key: key.to_owned(),
        from,
        to,
        revision: 1,
    }
}

/// `(offset, version, attempts, spent)` of everything that waits on `key`.
fn waits<M: StateMachine>(harness: &Harness<M>, key: &str) -> Vec<(u64, i64, u32, u32)> {
    let waiting = harness.state(key).waiting;
    waiting
        .iter()
        .map(|w| (w.offset.get(), w.version, w.attempts, w.spent))
        .collect()
}

#[test]
fn out_of_order_is_rejected_then_converges() {
    let mut h = Harness::new(Orders);
    assert_eq!(h.event(order("o", 2)), Outcome::Retry);
    let below = h.end();
    let round = h.decide(Action::Redeliver { below });
    assert_eq!(round, DecisionEffect::Redelivered { spent: 1, dead: 0 });
    assert_eq!(waits(&h, "o"), [(0, 2, 2, 2)]);
    assert_eq!(h.event(order("o", 1)), Outcome::Applied);
    let state = h.state("o").row.unwrap();
    assert_eq!(state.version, 2);
    assert_eq!(state.state, Some(vec![2]), "PAID");
    assert_eq!(state.moved_at, at(2));
    let counters = h.overlay.counters();
    assert_eq!((counters.applied, counters.dead), (2, 0));
}

#[test]
fn poison_goes_straight_to_the_dead_letters() {
    let mut h = Harness::new(Orders);
    assert_eq!(h.event(Event::new("a", "o", 1, "cancel")), Outcome::Dead);
    assert_eq!(h.event(Event::new("b", "o", 5, "reserve")), Outcome::Dead);
    assert_eq!(h.overlay.counters().dead, 2);
    for offset in [0, 1] {
        let letter = h.letter(offset);
        assert_eq!(letter.attempts(), 1);
        assert_eq!(letter.class(), Class::Poison);
        assert_eq!(letter.history[0].at, at(offset));
        assert!(letter.is_open());
    }
    assert_eq!(h.letter(0).reason(), "unknown kind \"cancel\"");
}

#[test]
fn conflict_exhausts_the_retry_budget() {
    let mut h = Harness::new(Orders);
    assert_eq!(h.event(order("o", 3)), Outcome::Retry);
    h.settle();
    let letter = h.letter(0);
    assert_eq!(letter.class(), Class::Conflict);
    assert_eq!(letter.attempts(), 3);
    assert_eq!(letter.history[0].at, at(2), "the second round killed it");
    assert_eq!(h.end(), at(4), "and the third found nothing to do");
}

#[test]
fn reconcile_repairs_a_dead_lettered_order() {
    let mut h = Harness::new(Orders);
    let _ = h.event(order("o", 1));
    let _ = h.event(Event::new("x", "o", 2, "cancel"));
    let from = Some(FixRow {
        version: 1,
        state: Some(vec![1]),
    });
    let to = Some(FixRow {
        version: 2,
        state: Some(vec![2]),
    });
    assert_eq!(h.decide(fix("o", from, to)), DecisionEffect::Fixed);
    let row = h.state("o").row.unwrap();
    assert_eq!((row.version, row.state), (2, Some(vec![2])));
    let counters = h.overlay.counters();
    assert_eq!((counters.fixes, counters.dead), (1, 1));
}

#[test]
fn one_poison_holds_its_successors_and_they_spend_nothing() {
    let mut h = Harness::new(Orders);
    let _ = h.event(order("k", 1));
    assert_eq!(h.event(Event::new("x", "k", 2, "cancel")), Outcome::Dead);
    assert_eq!(h.event(order("k", 3)), Outcome::Retry);
    h.settle();
    assert_eq!(waits(&h, "k"), [(2, 3, 0, 0)]);
    assert_eq!(h.overlay.counters().held, 1);
    assert_eq!(h.overlay.counters().dead, 1);
    assert_eq!(h.state("k").blocking_letter(), Some((2, at(1))));
}

#[test]
fn a_discard_ends_the_hold_and_the_successors_spend_from_then_on() {
    let mut h = Harness::new(Sequence);
    assert_eq!(h.event(Event::new("x", "k", 0, "s")), Outcome::Dead);
    assert_eq!(h.event(step("k", 3)), Outcome::Retry);
    h.settle();
    // 1 and 2 are missing; 3 died of it and now holds 5.
    assert_eq!(h.event(step("k", 5)), Outcome::Retry);
    assert_eq!(waits(&h, "k"), [(5, 5, 0, 0)]);
    h.settle();
    assert_eq!(h.overlay.counters().held, 1);
    let discard = Action::Discard { offset: at(1) };
    assert_eq!(h.decide(discard.clone()), DecisionEffect::Discarded);
    assert_eq!(h.overlay.counters().held, 0);
    assert_eq!(
        h.decide(discard),
        DecisionEffect::AlreadyResolved(Resolved::Discarded)
    );
    h.settle();
    assert_eq!(h.letter(5).attempts(), 3);
    let counters = h.overlay.counters();
    assert_eq!((counters.dead, counters.discarded), (2, 1));
}

#[test]
fn a_waiting_event_is_held_as_soon_as_an_earlier_one_is_known() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 9));
    assert_eq!(waits(&h, "k"), [(0, 9, 1, 1)]);
    let _ = h.event(step("k", 5));
    let _ = h.event(step("k", 5).with_payload(*b"repeat"));
    assert_eq!(waits(&h, "k"), [(1, 5, 2, 2), (0, 9, 1, 1)]);
    let below = h.end();
    let round = h.decide(Action::Redeliver { below });
    assert_eq!(round, DecisionEffect::Redelivered { spent: 1, dead: 1 });
    assert_eq!(waits(&h, "k"), [(0, 9, 1, 1)], "held by the letter now");
    assert_eq!(h.overlay.counters().held, 1);
}

#[test]
fn a_repeat_of_a_waiting_event_is_merged_and_may_kill_it() {
    let mut h = Harness::new(Sequence);
    for outcome in [Outcome::Retry, Outcome::Retry, Outcome::Dead] {
        assert_eq!(h.event(step("k", 2)), outcome);
    }
    let letter = h.letter(0);
    assert_eq!(letter.attempts(), 3);
    assert_eq!(letter.history[0].at, at(2), "the third delivery killed it");
    let counters = h.overlay.counters();
    assert_eq!((counters.merged, counters.retry, counters.dead), (2, 2, 1));
    // The same version under another id is another event.
    let _ = h.event(Event::new("other", "k", 2, "s"));
    let _ = h.event(step("k", 2));
    assert_eq!(waits(&h, "k"), [(3, 2, 1, 1), (4, 2, 1, 1)]);
    assert_eq!(h.overlay.counters().merged, 2);
}

#[test]
fn a_repeat_of_a_held_event_is_merged_and_spends_nothing() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 2));
    for _ in 0..5 {
        assert_eq!(h.event(step("k", 4)), Outcome::Retry);
    }
    assert_eq!(waits(&h, "k"), [(0, 2, 1, 1), (1, 4, 0, 0)]);
    assert_eq!(h.overlay.counters().merged, 4);
    assert_eq!(h.overlay.counters().retry, 6);
}

/// Applies anything but the kinds it refuses; its state is what was applied, in order.
#[derive(Debug)]
struct Trail;

impl StateMachine for Trail {
    type State = String;
    const REVISION: u32 = 1;

    fn check(&self, event: &Event) -> Result<(), Poison> {
        assert_ne!(event.kind, "panic in check", "as asked");
        Ok(())
    }

    fn apply(&self, state: Option<&String>, event: &Event) -> Result<String, Poison> {
        assert_ne!(event.kind, "panic", "as asked");
        if event.kind == "refuse" {
            return Err(Poison::new("ä".repeat(1000)));
        }
        let before = state.map_or("", String::as_str);
        Ok(format!("{before}{},", event.id))
    }

    fn upgrade(&self, revision: u32, bytes: &[u8]) -> Option<String> {
        assert_ne!(revision, 99, "as asked");
        (revision == 0).then(|| String::from_utf8_lossy(bytes).into_owned())
    }
}

fn trail<M: StateMachine>(h: &Harness<M>, key: &str) -> String {
    let state = h.state(key).row.unwrap().state.unwrap();
    String::from_utf8_lossy(&state[1..]).into_owned()
}

#[test]
fn a_moved_row_lets_its_waiting_events_go_in_version_then_offset_order() {
    let mut h = Harness::new(Trail);
    let _ = h.event(Event::new("d", "k", 4, "s"));
    let _ = h.event(Event::new("b-late", "k", 3, "refuse"));
    let _ = h.event(Event::new("c", "k", 3, "s"));
    let _ = h.event(Event::new("c-twin", "k", 3, "s"));
    let _ = h.event(Event::new("f", "k", 6, "s"));
    let _ = h.event(Event::new("b", "k", 2, "s"));
    let _ = h.event(Event::new("a", "k", 1, "s"));
    assert_eq!(trail(&h, "k"), "a,b,c,d,");
    assert_eq!(h.state("k").row.unwrap().moved_at, at(6));
    // It was refused in its turn, and its place in the row was taken by the next.
    let dead = h.letter(1);
    assert_eq!((dead.class(), dead.history[0].at), (Class::Poison, at(6)));
    assert_eq!(dead.attempts(), 2, "one wait, then held, then the refusal");
    assert_eq!(dead.reason().len(), 1024, "cut at a character boundary");
    assert_eq!(waits(&h, "k"), [(4, 6, 0, 0)]);
    let counters = h.overlay.counters();
    assert_eq!((counters.duplicate, counters.applied), (1, 4));
    assert_eq!(counters.held, 0, "the letter is behind the row");
    assert!(counters.add_up());
}

#[test]
fn a_panic_of_the_machine_is_poison_and_its_text_is_not_kept() {
    let mut h = Harness::new(Trail);
    assert_eq!(h.event(Event::new("a", "k", 1, "panic")), Outcome::Dead);
    assert_eq!(
        h.event(Event::new("b", "k", 9, "panic in check")),
        Outcome::Dead
    );
    for offset in [0, 1] {
        let letter = h.letter(offset);
        assert_eq!(letter.class(), Class::Poison);
        assert_eq!(letter.reason(), "panicked");
    }
    assert_eq!(h.state("k").row, None);
}

#[test]
fn a_redrive_judges_again_with_a_fresh_budget_and_attempts_count_on() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 3));
    h.settle();
    assert_eq!(h.letter(0).attempts(), 3);
    let redrive = Action::Redrive { offset: at(0) };
    let effect = h.decide(redrive.clone());
    let redriven_at = h.end().get() - 1;
    assert_eq!(effect, DecisionEffect::Redriven(Outcome::Retry));
    assert_eq!(waits(&h, "k"), [(0, 3, 4, 1)]);
    assert_eq!(h.overlay.counters().dead, 0);
    assert_eq!(
        h.decide(redrive.clone()),
        DecisionEffect::AlreadyResolved(Resolved::Redriven)
    );
    h.settle();
    let letter = h.letter(0);
    let resolved = letter.history[0].resolved.unwrap();
    assert_eq!(resolved.how, Resolved::Redriven);
    assert_eq!(resolved.at, at(redriven_at));
    assert_eq!(letter.history.len(), 2);
    assert_eq!(letter.attempts(), 6);
    let _ = h.event(step("k", 1));
    let _ = h.event(step("k", 2));
    assert_eq!(
        h.decide(redrive),
        DecisionEffect::Redriven(Outcome::Applied)
    );
    let counters = *h.overlay.counters();
    assert_eq!(
        (counters.dead, counters.applied, counters.events),
        (0, 3, 3)
    );
    assert!(counters.add_up());
}

#[test]
fn a_redriven_event_that_waits_under_another_offset_is_merged() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 3));
    h.settle();
    let repeat = h.end().get();
    let _ = h.event(step("k", 3));
    assert_eq!(waits(&h, "k"), [(repeat, 3, 1, 1)]);
    let effect = h.decide(Action::Redrive { offset: at(0) });
    assert_eq!(effect, DecisionEffect::Redriven(Outcome::Retry));
    assert_eq!(waits(&h, "k"), [(repeat, 3, 2, 2)]);
    let counters = h.overlay.counters();
    assert_eq!(
        (counters.merged, counters.dead, counters.waiting),
        (1, 0, 1)
    );
    assert_eq!(counters.retry, 2, "a redrive is no event record");
    assert!(counters.add_up());
}

#[test]
fn a_redrive_after_the_poison_is_gone_applies_and_releases_what_it_held() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 2));
    h.settle();
    let _ = h.event(step("k", 3));
    let _ = h.event(step("k", 1));
    assert_eq!(waits(&h, "k").len(), 1);
    let effect = h.decide(Action::Redrive { offset: at(0) });
    assert_eq!(effect, DecisionEffect::Redriven(Outcome::Applied));
    assert_eq!(h.state("k").version(), 3);
    assert!(waits(&h, "k").is_empty());
}

#[test]
fn decisions_about_letters_that_are_not_there_change_nothing() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 1));
    let before = h.overlay.totals().digest;
    for offset in [at(0), at(7), Offset::MAX] {
        for action in [
            Action::Redrive { offset },
            Action::Discard { offset },
            Action::Skip { offset },
        ] {
            assert_eq!(h.decide(action), DecisionEffect::NotFound);
        }
    }
    assert_eq!(h.overlay.totals().digest, before);
    assert_eq!(h.overlay.counters().decisions, 9);
}

#[test]
fn a_skip_moves_the_row_past_the_letter_and_keeps_its_state() {
    let mut h = Harness::new(Orders);
    let _ = h.event(order("k", 1));
    let _ = h.event(Event::new("x", "k", 2, "cancel"));
    let _ = h.event(order("k", 3));
    assert_eq!(
        h.decide(Action::Skip { offset: at(1) }),
        DecisionEffect::Skipped
    );
    let row = h.state("k").row.unwrap();
    assert_eq!((row.version, row.state), (3, Some(vec![3])));
    let counters = h.overlay.counters();
    assert_eq!((counters.skipped, counters.dead, counters.held), (1, 0, 0));
    assert_eq!(h.letter(1).resolution().unwrap().how, Resolved::Skipped);
}

#[test]
fn a_skipped_first_version_gives_a_row_without_a_state() {
    let mut h = Harness::new(Trail);
    let _ = h.event(Event::new("x", "k", 1, "refuse"));
    let _ = h.decide(Action::Skip { offset: at(0) });
    let row = h.state("k").row.unwrap();
    assert_eq!((row.version, row.state, row.moved_at), (1, None, at(1)));
    assert_eq!(h.overlay.counters().rows, 1);
    assert_eq!(h.event(Event::new("b", "k", 2, "s")), Outcome::Applied);
    assert_eq!(trail(&h, "k"), "b,");
}

#[test]
fn only_the_next_version_can_be_skipped() {
    let mut h = Harness::new(Trail);
    let _ = h.event(step("k", 3));
    h.settle();
    assert_eq!(
        h.decide(Action::Skip { offset: at(0) }),
        DecisionEffect::NotNext {
            version: 3,
            next: 1
        }
    );
    assert!(h.letter(0).is_open());
    let _ = h.decide(fix("k", None, row(5, "fixed")));
    assert_eq!(
        h.decide(Action::Skip { offset: at(0) }),
        DecisionEffect::NotNext {
            version: 3,
            next: 6
        }
    );
}

#[test]
fn a_fix_applies_only_while_the_row_is_what_it_was_computed_against() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 1));
    let digest = h.overlay.totals().digest;
    for from in [None, row(2, "s1"), row(1, "s2"), row(0, "")] {
        let stale = h.decide(fix("k", from, row(7, "x")));
        assert_eq!(stale, DecisionEffect::Stale);
    }
    assert_eq!(h.decide(fix("l", row(0, ""), None)), DecisionEffect::Stale);
    assert_eq!(h.overlay.totals().digest, digest);
    assert_eq!(h.overlay.counters().stale_fixes, 5);
    let _ = h.event(step("k", 9));
    let fixed = h.decide(fix("k", row(1, "s1"), row(8, "s8")));
    assert_eq!(fixed, DecisionEffect::Fixed);
    assert_eq!(h.state("k").version(), 9, "and what waited for it went on");
    assert_eq!(
        h.decide(fix("k", row(9, "s9"), None)),
        DecisionEffect::Fixed
    );
    assert_eq!(h.state("k").row, None);
    assert_eq!(h.overlay.counters().rows, 0);
}

#[test]
fn a_fix_of_another_revision_goes_through_upgrade() {
    let mut h = Harness::new(Trail);
    let old = |version, state: &str| {
        Some(FixRow {
            version,
            state: Some(state.as_bytes().to_vec()),
        })
    };
    let of = |revision, from, to| Action::Fix {
        key: "k".to_owned(),
        from,
        to,
        revision,
    };
    assert_eq!(h.decide(of(0, None, old(2, "two,"))), DecisionEffect::Fixed);
    assert_eq!(trail(&h, "k"), "two,");
    let step = of(0, old(2, "two,"), old(3, "three,"));
    assert_eq!(h.decide(step), DecisionEffect::Fixed);
    // A revision that upgrade does not know, or panics on; bytes this revision cannot decode.
    for revision in [7, 99, 1] {
        let fix = of(revision, old(3, "three,"), old(4, "\u{7f}"));
        assert_eq!(h.decide(fix), DecisionEffect::Unreadable);
    }
    assert_eq!(trail(&h, "k"), "three,");
    let counters = h.overlay.counters();
    assert_eq!((counters.fixes, counters.unreadable_fixes), (2, 3));
}

#[test]
fn a_fix_that_takes_the_row_back_makes_passed_letters_hold_again() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 3));
    h.settle();
    let _ = h.decide(fix("k", None, row(4, "s")));
    let _ = h.event(step("k", 6));
    assert_eq!(h.overlay.counters().held, 0);
    let _ = h.decide(fix("k", row(4, "s"), row(1, "s")));
    assert_eq!(h.overlay.counters().held, 1);
    assert_eq!(h.state("k").blocking_letter(), Some((3, at(0))));
}

#[test]
fn the_budget_comes_from_the_log_and_kills_nothing_by_itself() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 5));
    let below = h.end();
    let _ = h.decide(Action::Redeliver { below });
    let set = h.decide(Action::Configure { max_attempts: 1 });
    assert_eq!(set, DecisionEffect::Configured { max_attempts: 1 });
    assert_eq!(waits(&h, "k"), [(0, 5, 2, 2)]);
    assert_eq!(h.event(step("l", 2)), Outcome::Dead, "no second attempt");
    assert_eq!(h.letter(3).attempts(), 1);
    let round = h.decide(Action::Redeliver { below });
    assert_eq!(round, DecisionEffect::Redelivered { spent: 1, dead: 1 });
    let set = h.decide(Action::Configure { max_attempts: 0 });
    assert_eq!(set, DecisionEffect::Configured { max_attempts: 3 });
}

#[test]
fn a_round_reaches_only_events_below_its_bound() {
    let mut h = Harness::new(Sequence);
    for key in ["a", "b", "c"] {
        let _ = h.event(step(key, 2));
    }
    let round = h.decide(Action::Redeliver { below: at(2) });
    assert_eq!(round, DecisionEffect::Redelivered { spent: 2, dead: 0 });
    assert_eq!(waits(&h, "c"), [(2, 2, 1, 1)]);
}

#[test]
fn a_round_pages_through_more_events_than_it_lists_at_once() {
    let mut h = Harness::new(Sequence);
    for n in 0..3000 {
        let _ = h.event(step(&format!("k{n}"), 2));
        if n == 1700 {
            h.flush();
        }
    }
    let below = h.end();
    let round = h.decide(Action::Redeliver { below });
    assert_eq!(
        round,
        DecisionEffect::Redelivered {
            spent: 3000,
            dead: 0
        }
    );
    h.settle();
    assert_eq!(h.overlay.counters().dead, 3000);
    assert_eq!(h.overlay.counters().waiting, 0);
}

#[test]
fn a_decision_for_another_consumer_has_no_effect() {
    let mut h = Harness::new(Sequence);
    let _ = h.event(step("k", 2));
    let effect = h.append(Body::Decision(Decision {
        consumer: "other".to_owned(),
        note: None,
        action: Action::Redeliver { below: at(9) },
    }));
    assert_eq!((effect.outcome, effect.decision), (None, None));
    assert_eq!(waits(&h, "k"), [(0, 2, 1, 1)]);
    assert_eq!(h.overlay.counters().decisions, 0);
}

/// Takes the process down on one kind: here, fails the test if it is ever called with it.
struct Deadly;

impl StateMachine for Deadly {
    type State = String;
    const REVISION: u32 = 1;

    fn check(&self, event: &Event) -> Result<(), Poison> {
        assert_ne!(event.kind, "kills check", "called the machine");
        Ok(())
    }

    fn apply(&self, _: Option<&String>, event: &Event) -> Result<String, Poison> {
        assert_ne!(event.kind, "kills apply", "called the machine");
        Ok(event.kind.clone())
    }
}

#[test]
fn a_crash_takes_effect_at_its_record_without_calling_the_machine() {
    let mut h = Harness::new(Deadly);
    h.crashes = [((at(0), at(0)), 3), ((at(2), at(1)), 4)].into();
    let first = Event::new("a", "k", 1, "kills check");
    assert_eq!(h.event(first), Outcome::Dead);
    let held = Event::new("b", "l", 2, "kills apply");
    assert_eq!(h.event(held), Outcome::Retry);
    assert_eq!(h.event(step("l", 1)), Outcome::Applied);
    for (offset, attempts, died_at) in [(0, 3, 0), (1, 5, 2)] {
        let letter = h.letter(offset);
        assert_eq!(letter.class(), Class::Crashed, "not {}", letter.reason());
        assert_eq!(letter.attempts(), attempts);
        assert_eq!(letter.history[0].at, at(died_at));
    }
    assert_eq!(h.letter(0).reason(), "took the process down 3 times");
    let crashed = Action::Crashed {
        at: at(0),
        event: at(0),
        attempts: 3,
    };
    assert_eq!(h.decide(crashed), DecisionEffect::Noted);
}

#[test]
fn the_watch_is_told_of_every_event_before_the_machine_sees_it() {
    #[derive(Default)]
    struct Told(Vec<(u64, u64)>);
    impl Watch for Told {
        fn judging(&mut self, at: Offset, event: Offset) -> Result<()> {
            self.0.push((at.get(), event.get()));
            if self.0.len() == 4 {
                return Err(Error::Closed);
            }
            Ok(())
        }
    }
    let log = Log::default();
    let mut overlay = Overlay::new(MemoryGround::new(log.clone()), Totals::default(), u64::MAX);
    let mut told = Told::default();
    let mut pass = Pass {
        budget: 3,
        crashes: &Crashes::new(),
        watch: &mut told,
        counts_shared: true,
    };
    let judge = Judge::new(&Sequence, "test");
    let events = [step("k", 3), step("k", 2), step("k", 1)];
    let mut results = Vec::new();
    for (event, offset) in events.into_iter().zip(0..) {
        let record = Record {
            offset: at(offset),
            recorded_at_ms: 0,
            body: Body::Event(event),
        };
        log.borrow_mut().push(record.clone());
        results.push(judge.record(&mut overlay, &mut pass, &record).is_ok());
    }
    assert_eq!(told.0, [(0, 0), (1, 1), (2, 2), (2, 1)]);
    assert_eq!(results, [true, true, false]);
    // The third record is folded in part: nothing of it may be flushed or built upon.
    assert!(overlay.is_spoiled());
    let mut pass = Pass {
        budget: 3,
        crashes: &Crashes::new(),
        watch: &mut super::Unwatched,
        counts_shared: true,
    };
    let again = judge.event(&mut overlay, &mut pass, at(3), &step("l", 1));
    assert!(matches!(again, Err(Error::State { .. })));
}

#[test]
fn versions_at_the_ends_of_their_range_are_judged_without_overflow() {
    let mut h = Harness::new(Sequence);
    assert_eq!(h.event(step("k", i64::MIN)), Outcome::Dead);
    assert_eq!(h.event(step("k", 0)), Outcome::Dead);
    assert_eq!(h.event(step("k", i64::MAX)), Outcome::Retry);
    let _ = h.decide(fix("k", None, row(i64::MAX - 1, "s")));
    assert_eq!(h.state("k").version(), i64::MAX);
    assert_eq!(h.event(step("k", i64::MAX)), Outcome::Duplicate);
    assert_eq!(h.overlay.counters().dead, 2);
}

#[test]
fn created_at_version_0_is_a_row() {
    let mut h = Harness::new(Orders);
    let to = Some(FixRow {
        version: 0,
        state: Some(vec![0]),
    });
    assert_eq!(h.decide(fix("o", None, to)), DecisionEffect::Fixed);
    let row = crate::source::Row::<OrderStatus>::decode("o", &h.state("o").row.unwrap());
    assert_eq!(row.unwrap().state, Some(OrderStatus::Created));
    assert_eq!(h.event(order("o", 1)), Outcome::Applied);
    assert_eq!(h.overlay.counters().rows, 1);
}

#[test]
fn partition_affinity() {
    let place = |n: u32| crate::partition(&format!("order-{n}"), 4);
    let places: Vec<u32> = (1..=8).map(place).collect();
    assert_eq!(places, (1..=8).map(place).collect::<Vec<_>>(), "stable");
    for partition in 0..4 {
        assert!(places.contains(&partition), "{partition} is not used");
    }
}

#[test]
fn a_known_key_costs_no_look_up_in_the_ground() {
    /// A ground that may be asked once only.
    struct Once(std::cell::Cell<u32>);
    impl super::ground::Ground for Once {
        fn key(&self, _: &str) -> Result<Option<super::key::KeyState>> {
            self.0.set(self.0.get() + 1);
            Ok(None)
        }
        fn letter(&self, _: Offset) -> Result<Option<super::letter::DeadLetter>> {
            panic!("no letter is of interest")
        }
        fn waiting_after(&self, _: Offset, _: usize) -> Result<Vec<(Offset, String)>> {
            panic!("nothing waits")
        }
        fn letters_after(&self, _: Offset, _: usize) -> Result<Vec<super::letter::DeadLetter>> {
            panic!("no letter is of interest")
        }
        fn keys_after(
            &self,
            _: Option<&str>,
            _: usize,
        ) -> Result<Vec<(String, super::key::KeyState)>> {
            panic!("no list is of interest")
        }
        fn event(&self, _: Offset) -> Result<Event> {
            panic!("nothing was waiting")
        }
    }
    let mut overlay = Overlay::new(Once(0.into()), Totals::default(), u64::MAX);
    let mut pass = Pass {
        budget: 3,
        crashes: &Crashes::new(),
        watch: &mut super::Unwatched,
        counts_shared: true,
    };
    let judge = Judge::new(&Sequence, "test");
    for version in 1..100 {
        let offset = at(u64::try_from(version).unwrap());
        let outcome = judge.event(&mut overlay, &mut pass, offset, &step("k", version));
        assert_eq!(outcome.unwrap(), Outcome::Applied);
    }
    assert_eq!(overlay.ground().0.get(), 1);
}

#[test]
fn events_that_fill_gaps_one_by_one_release_one_each() {
    let mut h = Harness::new(Sequence);
    for version in 1..500 {
        assert_eq!(h.event(step("k", 2 * version)), Outcome::Retry);
    }
    assert_eq!(h.overlay.counters().held, 498);
    h.flush();
    for version in 1..500 {
        assert_eq!(h.event(step("k", 2 * version - 1)), Outcome::Applied);
        assert_eq!(h.state("k").version(), 2 * version);
    }
    let counters = h.overlay.counters();
    assert_eq!((counters.applied, counters.waiting), (998, 0));
}
