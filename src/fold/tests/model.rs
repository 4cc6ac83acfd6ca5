//! The fold against an independent model: the rules written down as they are worded, with lists
//! and loops, no index and no counter that is kept up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::super::counters::Counters;
use super::super::ground::{EmptyGround, Ground};
use super::super::letter::{Class, Resolved};
use super::super::overlay::{Overlay, Totals, totals_from_scratch};
use super::super::testing::{CONSUMER, Harness, Log, read_event};
use super::super::{Crashes, DecisionEffect, Judge, Outcome, Pass, Unwatched};
use crate::codec;
use crate::event::{Action, Body, Decision, Event, FixRow};
use crate::machine::{Poison, StateMachine};
use crate::offset::Offset;

const REVISION: u32 = 2;
type Trace = Arc<Mutex<Vec<(String, i64)>>>;

/// Appends the event's id to its state, and notes every version it applied, per key.
#[derive(Clone, Debug, Default)]
struct Machine {
    applied: Trace,
}

fn refuses(kind: &str, state: Option<&String>) -> bool {
    kind == "refuse" || (kind == "moody" && state.is_some_and(|state| state.len() % 2 == 1))
}

impl StateMachine for Machine {
    type State = String;
    const REVISION: u32 = REVISION;

    fn check(&self, event: &Event) -> Result<(), Poison> {
        if event.kind == "bad" {
            return Err(Poison::new("bad kind"));
        }
        Ok(())
    }

    fn apply(&self, state: Option<&String>, event: &Event) -> Result<String, Poison> {
        if refuses(&event.kind, state) {
            return Err(Poison::new("refused"));
        }
        let mut applied = self.applied.lock().unwrap();
        applied.push((event.key.clone(), event.version));
        Ok(next_state(state, &event.id))
    }

    fn upgrade(&self, revision: u32, bytes: &[u8]) -> Option<String> {
        (revision == 1).then(|| String::from_utf8(bytes.to_vec()).unwrap())
    }
}

fn next_state(state: Option<&String>, id: &str) -> String {
    format!("{}{id};", state.map_or("", String::as_str))
}

#[derive(Clone, Debug, PartialEq)]
struct ModelRow {
    version: i64,
    state: Option<String>,
    moved_at: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct ModelWaiting {
    offset: u64,
    attempts: u32,
    spent: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct ModelDeath {
    class: Class,
    attempts: u32,
    at: u64,
    resolved: Option<(Resolved, u64)>,
}

/// What became of an event, once and for all or for now.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Applied,
    Duplicate,
    Merged,
    Waiting,
    Dead,
}

#[derive(Default)]
struct Model {
    events: BTreeMap<u64, Event>,
    fates: BTreeMap<u64, Fate>,
    rows: BTreeMap<String, ModelRow>,
    waiting: Vec<ModelWaiting>,
    letters: BTreeMap<u64, Vec<ModelDeath>>,
    retry: u64,
    budget: u32,
    fixes: [u64; 3],
    decisions: u64,
    crashes: BTreeMap<(u64, u64), u32>,
}

impl Model {
    fn version(&self, key: &str) -> i64 {
        self.rows.get(key).map_or(0, |row| row.version)
    }

    fn is_open(&self, offset: u64) -> bool {
        let deaths = self.letters.get(&offset);
        deaths.is_some_and(|deaths| deaths.last().unwrap().resolved.is_none())
    }

    fn held(&self, key: &str, version: i64) -> bool {
        let waiting = self.waiting.iter().map(|waiting| waiting.offset);
        let open = self.letters.keys().copied().filter(|o| self.is_open(*o));
        waiting
            .chain(open)
            .map(|offset| &self.events[&offset])
            .any(|known| {
                known.key == key && known.version > self.version(key) && known.version < version
            })
    }

    fn die(&mut self, offset: u64, at: u64, class: Class, attempts: u32) -> Outcome {
        self.waiting.retain(|waiting| waiting.offset != offset);
        self.fates.insert(offset, Fate::Dead);
        self.letters.entry(offset).or_default().push(ModelDeath {
            class,
            attempts,
            at,
            resolved: None,
        });
        Outcome::Dead
    }

    /// Steps 2 and 3 for an event that may be applied now; `None` if it is in a gap.
    fn try_apply(&mut self, offset: u64, at: u64, attempts: u32) -> Option<Outcome> {
        let event = self.events[&offset].clone();
        let row = self.version(&event.key);
        if event.version <= row {
            self.fates.insert(offset, Fate::Duplicate);
            return Some(Outcome::Duplicate);
        }
        if event.version != row + 1 {
            return None;
        }
        if let Some(starts) = self.crashes.get(&(at, offset)) {
            let attempts = attempts + starts;
            return Some(self.die(offset, at, Class::Crashed, attempts));
        }
        let state = self.rows.get(&event.key).and_then(|row| row.state.clone());
        if refuses(&event.kind, state.as_ref()) {
            return Some(self.die(offset, at, Class::Poison, attempts + 1));
        }
        self.rows.insert(
            event.key,
            ModelRow {
                version: event.version,
                state: Some(next_state(state.as_ref(), &event.id)),
                moved_at: at,
            },
        );
        self.fates.insert(offset, Fate::Applied);
        Some(Outcome::Applied)
    }

    fn drain(&mut self, key: &str, at: u64) {
        loop {
            let mut queue: Vec<_> = self
                .waiting
                .iter()
                .filter(|waiting| self.events[&waiting.offset].key == key)
                .map(|waiting| (self.events[&waiting.offset].version, waiting.clone()))
                .collect();
            queue.sort_by_key(|(version, waiting)| (*version, waiting.offset));
            let mut moved = false;
            for (_, waiting) in queue {
                let outcome = self.try_apply(waiting.offset, at, waiting.attempts);
                if outcome.is_some() {
                    self.waiting.retain(|other| other.offset != waiting.offset);
                }
                moved |= outcome == Some(Outcome::Applied);
            }
            if !moved {
                return;
            }
        }
    }

    fn spend(&mut self, offset: u64, at: u64) -> Outcome {
        let waiting = self.waiting.iter_mut().find(|w| w.offset == offset);
        let waiting = waiting.unwrap();
        waiting.attempts += 1;
        waiting.spent += 1;
        let attempts = waiting.attempts;
        if waiting.spent >= self.budget {
            return self.die(offset, at, Class::Conflict, attempts);
        }
        Outcome::Retry
    }

    fn deliver(&mut self, offset: u64, at: u64, attempts: u32) -> Outcome {
        let event = self.events[&offset].clone();
        if let Some(starts) = self.crashes.get(&(at, offset)) {
            let attempts = attempts + starts;
            return self.die(offset, at, Class::Crashed, attempts);
        }
        if event.kind == "bad" || event.version < 1 {
            return self.die(offset, at, Class::Poison, attempts + 1);
        }
        if let Some(outcome) = self.try_apply(offset, at, attempts) {
            if outcome == Outcome::Applied {
                self.drain(&event.key, at);
            }
            return outcome;
        }
        let held = self.held(&event.key, event.version);
        let twin = self.waiting.iter().map(|w| w.offset).find(|other| {
            let other = &self.events[other];
            (&other.id, &other.key, other.version) == (&event.id, &event.key, event.version)
        });
        if let Some(twin) = twin {
            self.fates.insert(offset, Fate::Merged);
            return if held {
                Outcome::Retry
            } else {
                self.spend(twin, at)
            };
        }
        self.fates.insert(offset, Fate::Waiting);
        self.waiting.push(ModelWaiting {
            offset,
            attempts,
            spent: 0,
        });
        if held {
            Outcome::Retry
        } else {
            self.spend(offset, at)
        }
    }

    fn event(&mut self, offset: u64, event: &Event) -> Outcome {
        self.events.insert(offset, event.clone());
        let outcome = self.deliver(offset, offset, 0);
        self.retry += u64::from(outcome == Outcome::Retry);
        outcome
    }

    fn decide(&mut self, at: u64, action: &Action) -> DecisionEffect {
        self.decisions += 1;
        match action {
            Action::Configure { max_attempts } => {
                self.budget = if *max_attempts < 1 { 3 } else { *max_attempts };
                DecisionEffect::Configured {
                    max_attempts: self.budget,
                }
            }
            Action::Redeliver { below } => self.round(at, below.get()),
            Action::Redrive { offset } => self.letter(offset.get(), |model, offset| {
                let deaths = model.letters.get_mut(&offset).unwrap();
                let death = deaths.last_mut().unwrap();
                death.resolved = Some((Resolved::Redriven, at));
                let attempts = death.attempts;
                DecisionEffect::Redriven(model.deliver(offset, at, attempts))
            }),
            Action::Discard { offset } => self.letter(offset.get(), |model, offset| {
                let deaths = model.letters.get_mut(&offset).unwrap();
                deaths.last_mut().unwrap().resolved = Some((Resolved::Discarded, at));
                DecisionEffect::Discarded
            }),
            Action::Skip { offset } => self.letter(offset.get(), |model, offset| {
                let event = model.events[&offset].clone();
                let next = model.version(&event.key) + 1;
                if event.version != next {
                    let version = event.version;
                    return DecisionEffect::NotNext { version, next };
                }
                let deaths = model.letters.get_mut(&offset).unwrap();
                deaths.last_mut().unwrap().resolved = Some((Resolved::Skipped, at));
                let row = ModelRow {
                    version: next,
                    state: model.rows.get(&event.key).and_then(|row| row.state.clone()),
                    moved_at: at,
                };
                model.rows.insert(event.key.clone(), row);
                model.drain(&event.key, at);
                DecisionEffect::Skipped
            }),
            Action::Fix {
                key,
                from,
                to,
                revision,
            } => self.fix(at, key, (from.as_ref(), to.as_ref()), *revision),
            Action::Crashed { .. } => DecisionEffect::Noted,
        }
    }

    fn round(&mut self, at: u64, below: u64) -> DecisionEffect {
        let mut due: Vec<u64> = self
            .waiting
            .iter()
            .map(|waiting| waiting.offset)
            .filter(|offset| *offset < below)
            .filter(|offset| {
                let event = &self.events[offset];
                !self.held(&event.key, event.version)
            })
            .collect();
        due.sort_unstable();
        let spent = u64::try_from(due.len()).unwrap();
        let dead = due
            .into_iter()
            .filter(|offset| self.spend(*offset, at) == Outcome::Dead)
            .count();
        DecisionEffect::Redelivered {
            spent,
            dead: u64::try_from(dead).unwrap(),
        }
    }

    fn letter(
        &mut self,
        offset: u64,
        decide: impl FnOnce(&mut Self, u64) -> DecisionEffect,
    ) -> DecisionEffect {
        let Some(deaths) = self.letters.get(&offset) else {
            return DecisionEffect::NotFound;
        };
        match deaths.last().unwrap().resolved {
            Some((how, _)) => DecisionEffect::AlreadyResolved(how),
            None => decide(self, offset),
        }
    }

    fn fix(
        &mut self,
        at: u64,
        key: &str,
        (from, to): (Option<&FixRow>, Option<&FixRow>),
        revision: u32,
    ) -> DecisionEffect {
        let read = |side: Option<&FixRow>| match side {
            None => Ok(None),
            Some(FixRow { version, state }) => {
                let state = match (state, revision) {
                    (None, _) => None,
                    (Some(bytes), REVISION) => Some(codec::decode(bytes, 1 << 20).unwrap()),
                    (Some(bytes), 1) => Some(String::from_utf8(bytes.clone()).unwrap()),
                    (Some(_), _) => return Err(()),
                };
                Ok(Some((*version, state)))
            }
        };
        let (Ok(from), Ok(to)) = (read(from), read(to)) else {
            self.fixes[2] += 1;
            return DecisionEffect::Unreadable;
        };
        let row = self.rows.get(key);
        if row.map(|row| (row.version, row.state.clone())) != from {
            self.fixes[1] += 1;
            return DecisionEffect::Stale;
        }
        self.fixes[0] += 1;
        match to {
            None => drop(self.rows.remove(key)),
            Some((version, state)) => {
                let row = ModelRow {
                    version,
                    state,
                    moved_at: at,
                };
                self.rows.insert(key.to_owned(), row);
            }
        }
        self.drain(key, at);
        DecisionEffect::Fixed
    }

    fn counters(&self) -> Counters {
        let fate = |fate: Fate| self.fates.values().filter(|other| **other == fate).count();
        let count = |n: usize| u64::try_from(n).unwrap();
        let last = |how: Option<Resolved>| {
            let deaths = self.letters.values().map(|deaths| deaths.last().unwrap());
            count(
                deaths
                    .filter(|death| death.resolved.map(|(how, _)| how) == how)
                    .count(),
            )
        };
        let held = self.waiting.iter().filter(|waiting| {
            let event = &self.events[&waiting.offset];
            self.held(&event.key, event.version)
        });
        Counters {
            events: count(self.events.len()),
            applied: count(fate(Fate::Applied)),
            duplicate: count(fate(Fate::Duplicate)),
            merged: count(fate(Fate::Merged)),
            retry: self.retry,
            waiting: count(self.waiting.len()),
            held: count(held.count()),
            dead: last(None),
            discarded: last(Some(Resolved::Discarded)),
            skipped: last(Some(Resolved::Skipped)),
            rows: count(self.rows.len()),
            fixes: self.fixes[0],
            stale_fixes: self.fixes[1],
            unreadable_fixes: self.fixes[2],
            decisions: self.decisions,
        }
    }
}

/// One step of a history. Numbers are taken modulo what is there.
#[derive(Clone, Debug)]
enum Step {
    Event {
        key: u8,
        version: i64,
        kind: &'static str,
        twin: bool,
    },
    Configure(u32),
    Redeliver(Option<u8>),
    Letter(u8, u8),
    Fix {
        key: u8,
        stale: bool,
        to: Option<(i64, Option<u8>)>,
        revision: u32,
    },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        12 => Just("ok"),
        1 => Just("bad"),
        1 => Just("refuse"),
        2 => Just("moody"),
    ];
    let event = (0..3_u8, 0..8_i64, kind, any::<bool>());
    let to = prop::option::weighted(0.8, (-1..8_i64, prop::option::weighted(0.8, 0..4_u8)));
    let step = prop_oneof![
        14 => event.prop_map(|(key, version, kind, twin)| Step::Event { key, version, kind, twin }),
        1 => (0..5_u32).prop_map(Step::Configure),
        4 => prop::option::of(any::<u8>()).prop_map(Step::Redeliver),
        6 => (0..3_u8, any::<u8>()).prop_map(|(what, which)| Step::Letter(what, which)),
        2 => (0..3_u8, prop::bool::weighted(0.2), to, 0..4_u32)
            .prop_map(|(key, stale, to, revision)| Step::Fix { key, stale, to, revision }),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..80)
}

fn side(version: i64, state: Option<&String>, revision: u32) -> FixRow {
    FixRow {
        version,
        state: state.map(|state| match revision {
            REVISION => codec::encode(state, 1 << 20).unwrap(),
            _ => state.clone().into_bytes(),
        }),
    }
}

/// The body of the record that `step` stands for after what `model` has seen.
fn body(model: &Model, end: u64, step: &Step) -> Option<Body> {
    let action = match step {
        Step::Event {
            key,
            version,
            kind,
            twin,
        } => {
            let id = format!("{version}{}", if *twin { "t" } else { "" });
            return Some(Body::Event(Event::new(
                id,
                format!("k{key}"),
                *version,
                *kind,
            )));
        }
        Step::Flush => return None,
        Step::Configure(max_attempts) => Action::Configure {
            max_attempts: *max_attempts,
        },
        Step::Redeliver(below) => Action::Redeliver {
            below: Offset::new(below.map_or(end, |below| u64::from(below) % (end + 1))),
        },
        Step::Letter(what, which) => {
            let which = u64::from(*which);
            let letters: Vec<_> = model.letters.keys().copied().collect();
            // Mostly a letter, resolved or not; sometimes any offset.
            let offset = match usize::try_from(which).unwrap() % (letters.len() + 1) {
                0 => which % (end + 1),
                n => letters[n - 1],
            };
            let offset = Offset::new(offset);
            match what {
                0 => Action::Redrive { offset },
                1 => Action::Discard { offset },
                _ => Action::Skip { offset },
            }
        }
        Step::Fix {
            key,
            stale,
            to,
            revision,
        } => {
            let key = format!("k{key}");
            let from = match model.rows.get(&key) {
                _ if *stale => Some(side(3, None, *revision)),
                None => None,
                Some(row) => Some(side(row.version, row.state.as_ref(), *revision)),
            };
            let to = to.map(|(version, state)| {
                let state = state.map(|n| format!("fixed{n};"));
                side(version, state.as_ref(), *revision)
            });
            Action::Fix {
                key,
                from,
                to,
                revision: *revision,
            }
        }
    };
    Some(Body::Decision(Decision {
        consumer: CONSUMER.to_owned(),
        note: None,
        action,
    }))
}

fn assert_same_state(harness: &Harness<Machine>, model: &Model) {
    let mut waiting = Vec::new();
    let mut rows = BTreeMap::new();
    for (key, state) in harness.overlay.keys_after(None, usize::MAX).unwrap() {
        waiting.extend(state.waiting.iter().map(|waiting| {
            let event = &model.events[&waiting.offset.get()];
            assert_eq!((&event.id, event.version), (&waiting.id, waiting.version));
            ModelWaiting {
                offset: waiting.offset.get(),
                attempts: waiting.attempts,
                spent: waiting.spent,
            }
        }));
        if let Some(row) = state.row {
            let state = row.state.map(|s| codec::decode(&s, 1 << 20).unwrap());
            let (version, moved_at) = (row.version, row.moved_at.get());
            rows.insert(
                key,
                ModelRow {
                    version,
                    state,
                    moved_at,
                },
            );
        }
    }
    assert_eq!(rows, model.rows);
    waiting.sort_by_key(|waiting| waiting.offset);
    let mut expected = model.waiting.clone();
    expected.sort_by_key(|waiting| waiting.offset);
    assert_eq!(waiting, expected);
    let listed = harness.overlay.waiting_after(Offset::ZERO, 2).unwrap();
    let listed: Vec<_> = listed.iter().map(|(offset, _)| offset.get()).collect();
    let first: Vec<_> = expected.iter().map(|w| w.offset).take(2).collect();
    assert_eq!(listed, first);
    let letters = harness.overlay.letters_after(Offset::ZERO, usize::MAX);
    let letters: BTreeMap<u64, Vec<ModelDeath>> = letters
        .unwrap()
        .into_iter()
        .map(|letter| {
            let deaths = letter.history.into_iter().map(|death| ModelDeath {
                class: death.class,
                attempts: death.attempts,
                at: death.at.get(),
                resolved: death.resolved.map(|r| (r.how, r.at.get())),
            });
            (letter.offset.get(), deaths.collect())
        })
        .collect();
    assert_eq!(letters, model.letters);
}

/// I6 and the digest: what is kept up to date equals what is there.
fn assert_conserved(harness: &mut Harness<Machine>, model: &Model) {
    let totals = harness.overlay.totals();
    assert!(totals.counters.add_up(), "I6: {:?}", totals.counters);
    assert_eq!(totals.counters, model.counters());
    let scratch = totals_from_scratch(&harness.overlay, 2).unwrap();
    assert_eq!(totals.digest, scratch.digest);
    let kept = totals.counters;
    let seen = scratch.counters;
    assert_eq!(
        (kept.rows, kept.waiting, kept.held, kept.dead),
        (seen.rows, seen.waiting, seen.held, seen.dead)
    );
}

/// I7: what one record applied goes up by one from where the record found the row, or put it.
fn assert_steps(before: &BTreeMap<String, i64>, effect: Option<(&str, i64)>, trace: &Trace) {
    let mut at = before.clone();
    if let Some((key, version)) = effect {
        at.insert(key.to_owned(), version);
    }
    for (key, version) in trace.lock().unwrap().drain(..) {
        let row = at.entry(key).or_insert(0);
        assert_eq!(version, *row + 1);
        *row = version;
    }
}

fn versions(model: &Model) -> BTreeMap<String, i64> {
    let rows = model.rows.iter();
    rows.map(|(key, row)| (key.clone(), row.version)).collect()
}

/// Where a fix or a skip put a row, if it did.
fn put<'a>(model: &'a Model, action: &'a Action, effect: DecisionEffect) -> Option<(&'a str, i64)> {
    match (action, effect) {
        (Action::Fix { key, to, .. }, DecisionEffect::Fixed) => {
            Some((key, to.as_ref().map_or(0, |to| to.version)))
        }
        (Action::Skip { offset }, DecisionEffect::Skipped) => {
            let event = &model.events[&offset.get()];
            Some((&event.key, event.version))
        }
        _ => None,
    }
}

/// Folds `records` of the keys in `partition` of `partitions`, in one go, in memory.
fn refold(log: &Log, crashes: &Crashes, partition: u32, partitions: u32) -> Totals {
    let machine = Machine::default();
    let judge = Judge::new(&machine, CONSUMER);
    let ground = EmptyGround::new(|offset| read_event(log, offset));
    let mut overlay = Overlay::new(ground, Totals::default(), u64::MAX);
    let mut pass = Pass {
        budget: 3,
        crashes,
        watch: &mut Unwatched,
        counts_shared: partition == 0,
    };
    let key_of = |offset: Offset| read_event(log, offset).map_or(String::new(), |e| e.key);
    for record in log.borrow().iter() {
        let key = match &record.body {
            Body::Event(event) => Some(event.key.clone()),
            Body::Decision(decision) => match &decision.action {
                Action::Redrive { offset }
                | Action::Discard { offset }
                | Action::Skip { offset } => Some(key_of(*offset)),
                Action::Fix { key, .. } => Some(key.clone()),
                Action::Configure { .. } | Action::Redeliver { .. } | Action::Crashed { .. } => {
                    None
                }
            },
        };
        if key.is_none_or(|key| crate::partition(&key, partitions) == partition) {
            judge.record(&mut overlay, &mut pass, record).unwrap();
        }
    }
    overlay.totals()
}

fn run(steps: &[Step], crash_seed: &BTreeSet<(u8, u8)>, cache: u64) {
    let machine = Machine::default();
    let trace = Arc::clone(&machine.applied);
    let mut harness = Harness::with_cache(machine, cache);
    let mut model = Model {
        budget: 3,
        ..Model::default()
    };
    for (at, event) in crash_seed {
        let (at, event) = (u64::from(*at), u64::from(*event));
        // Half of them at a first delivery, half wherever `at` judges an older event.
        let event = if event % 2 == 0 { at } else { event };
        model.crashes.insert((at, event), 2);
        let crash = (Offset::new(at), Offset::new(event));
        harness.crashes.insert(crash, 2);
    }
    for step in steps {
        let end = harness.end().get();
        let Some(body) = body(&model, end, step) else {
            harness.flush();
            continue;
        };
        // A fix at a record that crashes is unreadable; the model leaves that rule to a test of
        // its own.
        if matches!(step, Step::Fix { .. }) && model.crashes.contains_key(&(end, end)) {
            continue;
        }
        let before = versions(&model);
        let effect = harness.append(body.clone());
        match &body {
            Body::Event(event) => {
                assert_eq!(effect.outcome, Some(model.event(end, event)), "{step:?}");
                assert_steps(&before, None, &trace);
            }
            Body::Decision(decision) => {
                let expected = model.decide(end, &decision.action);
                assert_eq!(effect.decision, Some(expected), "{step:?}");
                assert_steps(&before, put(&model, &decision.action, expected), &trace);
            }
        }
        assert_same_state(&harness, &model);
        assert_conserved(&mut harness, &model);
    }
    let totals = harness.overlay.totals();
    for partitions in 1..4 {
        let mut sum = Totals::default();
        for partition in 0..partitions {
            let part = refold(&harness.log, &harness.crashes, partition, partitions);
            sum.counters = sum.counters.merge(part.counters);
            sum.digest = sum.digest.plus(part.digest);
        }
        assert_eq!(sum, totals, "{partitions} partitions");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_record_does_what_the_rules_say_and_nothing_is_lost(
        steps in steps(),
        crashes in prop::collection::btree_set((0..80_u8, 0..80_u8), 0..6),
        cache in prop_oneof![Just(0_u64), Just(600), Just(u64::MAX)],
    ) {
        run(&steps, &crashes, cache);
    }
}

#[test]
fn a_fix_at_a_record_that_crashes_is_unreadable() {
    let mut harness = Harness::new(Machine::default());
    harness.crashes.insert((Offset::ZERO, Offset::ZERO), 3);
    let fix = Action::Fix {
        key: "k".to_owned(),
        from: None,
        to: Some(side(1, None, REVISION)),
        revision: REVISION,
    };
    assert_eq!(harness.decide(fix), DecisionEffect::Unreadable);
}
