//! An independent model of the fold, written from the design page alone: a vector of records and a
//! plain fold over standard maps.
//!
//! Slow on purpose. It keeps no counter, index or cache: what is held, which letters are open and
//! every figure is found by scanning, so that it shares no clever step, and no mistake, with the
//! fold it judges. Of foldlog it uses only the plain data types of the log.
//!
//! Where the design leaves a choice, the comment starting with "Choice" says what was chosen.
//!
//! A test file that uses only a part of it says so with `#[expect(dead_code, reason = "…")]`.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "a model that overflows should panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use foldlog::{Action, Body, Decision, Event, FixRow};

type Check = dyn Fn(&Event) -> Result<(), String>;
type Apply<S> = dyn Fn(Option<&S>, &Event) -> Result<S, String>;
type Encode<S> = dyn Fn(&S) -> Vec<u8>;
type Decode<S> = dyn Fn(u32, &[u8]) -> Option<S>;

/// The rules of a machine, as closures.
pub(crate) struct Machine<S> {
    pub(crate) revision: u32,
    pub(crate) check: Box<Check>,
    pub(crate) apply: Box<Apply<S>>,
    pub(crate) encode: Box<Encode<S>>,
    /// From a revision and bytes; also covers the machine's `upgrade`.
    pub(crate) decode: Box<Decode<S>>,
}

/// In the order of their encoding.
const ORDER_STATES: [&str; 4] = ["CREATED", "INVENTORY_RESERVED", "PAID", "FULFILLED"];

/// The order machine of design section 8; states by their published names, encoded as bincode does
/// the variants of an enum.
pub(crate) fn orders() -> Machine<String> {
    fn state_of(event: &Event) -> Result<String, String> {
        let (version, state) = match event.kind.as_str() {
            "reserve" => (1, "INVENTORY_RESERVED"),
            "pay" => (2, "PAID"),
            "fulfill" => (3, "FULFILLED"),
            other => return Err(format!("unknown kind {other}")),
        };
        if event.version == version {
            Ok(state.to_owned())
        } else {
            Err(format!("{} is not version {version}", event.version))
        }
    }
    Machine {
        revision: 1,
        check: Box::new(|event| state_of(event).map(drop)),
        apply: Box::new(|_, event| state_of(event)),
        encode: Box::new(|state| {
            let place = ORDER_STATES.iter().position(|name| name == state);
            vec![u8::try_from(place.unwrap()).unwrap()]
        }),
        decode: Box::new(|_, bytes| {
            let [place] = bytes else { return None };
            let name = ORDER_STATES.get(usize::from(*place))?;
            Some((*name).to_owned())
        }),
    }
}

/// Any kind, any next version; the state is the kind of the last event, encoded as bincode does:
/// its length, then its bytes.
pub(crate) fn sequence() -> Machine<String> {
    Machine {
        revision: 1,
        check: Box::new(|_| Ok(())),
        apply: Box::new(|_, event| Ok(event.kind.clone())),
        encode: Box::new(|state| {
            let mut bytes = vec![u8::try_from(state.len()).unwrap()];
            assert!(bytes[0] < 251, "a longer string has a longer length");
            bytes.extend_from_slice(state.as_bytes());
            bytes
        }),
        decode: Box::new(|_, bytes| {
            let (len, text) = bytes.split_first()?;
            let text = String::from_utf8(text.to_vec()).ok()?;
            (usize::from(*len) == text.len()).then_some(text)
        }),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row<S> {
    pub(crate) version: i64,
    pub(crate) state: Option<S>,
    pub(crate) moved_at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) version: i64,
    /// Counts for ever.
    pub(crate) attempts: u32,
    /// Restarts at a redrive; what the budget looks at.
    pub(crate) spent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Poison,
    Conflict,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Redriven,
    Discarded,
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) class: Class,
    /// The machine's words, cut; empty where foldlog itself gives the reason.
    pub(crate) reason: String,
    pub(crate) attempts: u32,
    /// The record that killed it.
    pub(crate) at: u64,
    pub(crate) resolved: Option<(How, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) version: i64,
    pub(crate) history: Vec<Death>,
}

impl Letter {
    pub(crate) fn is_open(&self) -> bool {
        self.history.last().unwrap().resolved.is_none()
    }
}

/// What one delivery came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Applied,
    Duplicate,
    Retry,
    Dead,
}

/// Where an event is now: exactly one of these (invariant I6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    Applied,
    Duplicate,
    Merged,
    Waiting,
    Dead,
    Discarded,
    Skipped,
}

/// What a decision came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Done,
    NotFound,
    AlreadyResolved,
    NotNext,
    Stale,
    Unreadable,
    /// For another consumer.
    None,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) events: usize,
    pub(crate) applied: usize,
    pub(crate) duplicate: usize,
    pub(crate) merged: usize,
    pub(crate) retry: usize,
    pub(crate) waiting: usize,
    pub(crate) held: usize,
    pub(crate) dead: usize,
    pub(crate) discarded: usize,
    pub(crate) skipped: usize,
    pub(crate) rows: usize,
    pub(crate) fixes: usize,
    pub(crate) stale_fixes: usize,
    pub(crate) unreadable_fixes: usize,
    pub(crate) decisions: usize,
}

/// Everything a consumer knows after some prefix of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State<S> {
    pub(crate) budget: u32,
    pub(crate) rows: BTreeMap<String, Row<S>>,
    pub(crate) waiting: BTreeMap<u64, Waiting>,
    pub(crate) letters: BTreeMap<u64, Letter>,
    /// The outcome of each event record's first judgement.
    pub(crate) outcomes: BTreeMap<u64, Outcome>,
    pub(crate) fates: BTreeMap<u64, Fate>,
    /// The effect of each decision record.
    pub(crate) effects: BTreeMap<u64, Effect>,
    /// The offsets of the fixes that were for this consumer.
    pub(crate) fixes: BTreeSet<u64>,
    /// Attempts by record and event, known before the fold starts.
    crashed: BTreeMap<(u64, u64), u32>,
}

impl<S> State<S> {
    fn new() -> Self {
        Self {
            budget: 3,
            rows: BTreeMap::new(),
            waiting: BTreeMap::new(),
            letters: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            fates: BTreeMap::new(),
            effects: BTreeMap::new(),
            fixes: BTreeSet::new(),
            crashed: BTreeMap::new(),
        }
    }

    pub(crate) fn version(&self, key: &str) -> i64 {
        self.rows.get(key).map_or(0, |row| row.version)
    }

    /// Whether `version` is the one after the row's. Nothing comes after the largest.
    pub(crate) fn is_next(&self, key: &str, version: i64) -> bool {
        self.version(key).checked_add(1) == Some(version)
    }

    /// Whether a known event of `key` sits in the gap between the row and `version`.
    pub(crate) fn is_held(&self, key: &str, version: i64) -> bool {
        let row = self.version(key);
        let in_gap = |k: &str, u: i64| k == key && row < u && u < version;
        self.waiting.values().any(|w| in_gap(&w.key, w.version))
            || (self.letters.values()).any(|l| l.is_open() && in_gap(&l.key, l.version))
    }

    /// Offsets of the waiting events that are held.
    pub(crate) fn held(&self) -> Vec<u64> {
        let held = |w: &Waiting| self.is_held(&w.key, w.version);
        let all = self.waiting.iter();
        all.filter(|(_, w)| held(w)).map(|(o, _)| *o).collect()
    }

    /// Open letters of one class.
    pub(crate) fn dead(&self, class: Class) -> usize {
        let open = self.letters.values().filter(|l| l.is_open());
        open.filter(|l| l.history.last().unwrap().class == class)
            .count()
    }

    /// How many waiting events stand behind each open letter, by the letter's offset.
    pub(crate) fn holds(&self) -> BTreeMap<u64, usize> {
        let mut holds = BTreeMap::new();
        for (offset, letter) in self.letters.iter().filter(|(_, l)| l.is_open()) {
            let row = self.version(&letter.key);
            let behind = |w: &&Waiting| {
                w.key == letter.key && row < letter.version && w.version > letter.version
            };
            holds.insert(*offset, self.waiting.values().filter(behind).count());
        }
        holds
    }

    pub(crate) fn figures(&self) -> Figures {
        let fate = |fate: Fate| self.fates.values().filter(|f| **f == fate).count();
        let effect = |want: Effect| {
            let effects = self.effects.iter().filter(|(o, _)| self.fixes.contains(o));
            effects.filter(|(_, effect)| **effect == want).count()
        };
        Figures {
            events: self.fates.len(),
            applied: fate(Fate::Applied),
            duplicate: fate(Fate::Duplicate),
            merged: fate(Fate::Merged),
            retry: (self.outcomes.values())
                .filter(|o| **o == Outcome::Retry)
                .count(),
            waiting: fate(Fate::Waiting),
            held: self.held().len(),
            dead: fate(Fate::Dead),
            discarded: fate(Fate::Discarded),
            skipped: fate(Fate::Skipped),
            rows: self.rows.len(),
            fixes: effect(Effect::Done),
            stale_fixes: effect(Effect::Stale),
            unreadable_fixes: effect(Effect::Unreadable),
            decisions: (self.effects.values())
                .filter(|e| **e != Effect::None)
                .count(),
        }
    }

    /// Checks what must hold in every state: each event has one fate, and the fates agree with
    /// the maps.
    pub(crate) fn assert_sound(&self) {
        for (offset, fate) in &self.fates {
            let open = self.letters.get(offset).is_some_and(Letter::is_open);
            let waits = self.waiting.contains_key(offset);
            assert_eq!(*fate == Fate::Waiting, waits, "event {offset}: {fate:?}");
            assert_eq!(*fate == Fate::Dead, open, "event {offset}: {fate:?}");
        }
        for (offset, waiting) in &self.waiting {
            let gap = !self.is_next(&waiting.key, waiting.version)
                && waiting.version > self.version(&waiting.key);
            assert!(gap, "event {offset} waits without a gap: {waiting:?}");
        }
    }
}

/// A log and the rules to fold it by.
pub(crate) struct Model<S> {
    pub(crate) machine: Machine<S>,
    pub(crate) consumer: String,
    /// The offset of a record is its place.
    pub(crate) log: Vec<Body>,
}

/// One row as the truth outside has it.
pub(crate) type Truth<S> = BTreeMap<String, (i64, S)>;

impl<S: Clone + PartialEq> Model<S> {
    pub(crate) fn new(machine: Machine<S>, consumer: &str) -> Self {
        Self {
            machine,
            consumer: consumer.to_owned(),
            log: Vec::new(),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        u64::try_from(self.log.len()).unwrap()
    }

    pub(crate) fn append(&mut self, event: Event) -> u64 {
        self.log.push(Body::Event(event));
        self.end() - 1
    }

    pub(crate) fn decide(&mut self, action: Action) -> u64 {
        self.log.push(Body::Decision(Decision {
            consumer: self.consumer.clone(),
            note: None,
            action,
        }));
        self.end() - 1
    }

    /// The state after the whole log.
    pub(crate) fn state(&self) -> State<S> {
        self.fold(self.end())
    }

    /// The state after the records below `to`. The `Crashed` decisions of the whole log count.
    pub(crate) fn fold(&self, to: u64) -> State<S> {
        let mut state = State::new();
        state.crashed = self.crashes();
        for at in 0..to {
            self.record(&mut state, at);
        }
        state
    }

    /// Redelivery rounds until none spends; answers how many it took.
    ///
    /// Choice: a round that would spend nothing is not written to the log.
    pub(crate) fn settle(&mut self) -> usize {
        let mut rounds = 0;
        loop {
            let state = self.state();
            if state.waiting.len() == state.held().len() {
                return rounds;
            }
            let below = foldlog::Offset::new(self.end());
            self.decide(Action::Redeliver { below });
            rounds += 1;
        }
    }

    /// Makes every key that the truth knows equal to it; answers the number of fixes.
    pub(crate) fn reconcile(&mut self, truth: &Truth<S>) -> usize {
        let mut fixes = 0;
        loop {
            let state = self.state();
            let before = fixes;
            for (key, (version, status)) in truth {
                let row = state.rows.get(key);
                let same =
                    row.is_some_and(|r| r.version == *version && r.state.as_ref() == Some(status));
                if same {
                    continue;
                }
                let action = Action::Fix {
                    key: key.clone(),
                    from: row.map(|row| FixRow {
                        version: row.version,
                        state: row.state.as_ref().map(&self.machine.encode),
                    }),
                    to: Some(FixRow {
                        version: *version,
                        state: Some((self.machine.encode)(status)),
                    }),
                    revision: self.machine.revision,
                };
                self.decide(action);
                fixes += 1;
            }
            if fixes == before {
                return fixes;
            }
        }
    }

    /// The plain rule for a caller that counts deliveries: steps 1 to 4, nothing waits.
    pub(crate) fn handle(&self, state: &mut State<S>, event: &Event, attempt: u32) -> Outcome {
        let row = state.version(&event.key);
        let at = u64::try_from(state.outcomes.len()).unwrap();
        let outcome = if let Err(reason) = self.check(event) {
            bury(state, at, event, (Class::Poison, &reason), (attempt, at));
            Outcome::Dead
        } else if event.version <= row {
            Outcome::Duplicate
        } else if !state.is_next(&event.key, event.version) {
            if attempt >= state.budget {
                bury(state, at, event, (Class::Conflict, ""), (attempt, at));
                Outcome::Dead
            } else {
                Outcome::Retry
            }
        } else {
            match self.apply(state, at, event) {
                Ok(()) => Outcome::Applied,
                Err(reason) => {
                    bury(state, at, event, (Class::Poison, &reason), (attempt, at));
                    Outcome::Dead
                }
            }
        };
        state.outcomes.insert(at, outcome);
        outcome
    }

    fn record(&self, state: &mut State<S>, at: u64) {
        match &self.log[usize::try_from(at).unwrap()] {
            Body::Event(_) => {
                let outcome = self.deliver(state, at, at, 0);
                state.outcomes.insert(at, outcome);
            }
            Body::Decision(decision) if decision.consumer == self.consumer => {
                if matches!(decision.action, Action::Fix { .. }) {
                    state.fixes.insert(at);
                }
                let effect = self.decision(state, at, &decision.action);
                state.effects.insert(at, effect);
            }
            Body::Decision(_) => {
                state.effects.insert(at, Effect::None);
            }
        }
    }

    /// Steps 1 to 5 for the event at `offset`, delivered by the record `at`. `attempts` were made
    /// before (not 0 only at a redrive).
    fn deliver(&self, state: &mut State<S>, at: u64, offset: u64, attempts: u32) -> Outcome {
        let event = self.event(offset);
        let row = state.version(&event.key);
        if let Some(crashes) = state.crashed.get(&(at, offset)).copied() {
            let attempts = (attempts + crashes, at);
            bury(state, offset, event, (Class::Crashed, ""), attempts);
            return Outcome::Dead;
        }
        if let Err(reason) = self.check(event) {
            let attempts = (attempts + 1, at);
            bury(state, offset, event, (Class::Poison, &reason), attempts);
            return Outcome::Dead;
        }
        if event.version <= row {
            state.fates.insert(offset, Fate::Duplicate);
            return Outcome::Duplicate;
        }
        if !state.is_next(&event.key, event.version) {
            return self.wait(state, at, offset, attempts);
        }
        match self.apply(state, at, event) {
            Ok(()) => {
                state.fates.insert(offset, Fate::Applied);
                self.drain(state, at, &event.key);
                Outcome::Applied
            }
            Err(reason) => {
                let attempts = (attempts + 1, at);
                bury(state, offset, event, (Class::Poison, &reason), attempts);
                Outcome::Dead
            }
        }
    }

    /// Step 4: the event is in a gap.
    fn wait(&self, state: &mut State<S>, at: u64, offset: u64, attempts: u32) -> Outcome {
        let event = self.event(offset);
        // Choice: a held delivery, first or merged, counts in neither number.
        let one = u32::from(!state.is_held(&event.key, event.version));
        let same =
            |w: &Waiting| w.id == event.id && w.key == event.key && w.version == event.version;
        let there = state.waiting.iter().find(|(_, w)| same(w));
        let place = there.map_or(offset, |(place, _)| *place);
        let waiting = state.waiting.entry(place).or_insert(Waiting {
            id: event.id.clone(),
            key: event.key.clone(),
            version: event.version,
            attempts,
            spent: 0,
        });
        waiting.attempts += one;
        waiting.spent += one;
        let merged = place != offset;
        state.fates.insert(place, Fate::Waiting);
        if merged {
            state.fates.insert(offset, Fate::Merged);
        }
        if one == 1 && self.give_up(state, at, place) {
            Outcome::Dead
        } else {
            Outcome::Retry
        }
    }

    /// Buries a waiting event whose budget is spent.
    fn give_up(&self, state: &mut State<S>, at: u64, place: u64) -> bool {
        let waiting = &state.waiting[&place];
        if waiting.spent < state.budget {
            return false;
        }
        let attempts = (waiting.attempts, at);
        state.waiting.remove(&place);
        let event = self.event(place);
        bury(state, place, event, (Class::Conflict, ""), attempts);
        true
    }

    /// Step 5: the row of `key` has moved.
    fn drain(&self, state: &mut State<S>, at: u64, key: &str) {
        // Each pass looks for the first waiting event, by version and offset, that is no longer in
        // a gap, and starts over when it found one.
        loop {
            let row = state.version(key);
            let mine = state.waiting.iter().filter(|(_, w)| w.key == key);
            let ready = mine.filter(|(_, w)| w.version <= row || state.is_next(key, w.version));
            let Some((_, offset)) = ready.map(|(o, w)| (w.version, *o)).min() else {
                return;
            };
            let waiting = state.waiting.remove(&offset).unwrap();
            let event = self.event(offset);
            if waiting.version <= row {
                state.fates.insert(offset, Fate::Duplicate);
            } else if let Some(crashes) = state.crashed.get(&(at, offset)).copied() {
                let attempts = (waiting.attempts + crashes, at);
                bury(state, offset, event, (Class::Crashed, ""), attempts);
            } else if let Err(reason) = self.apply(state, at, event) {
                let attempts = (waiting.attempts + 1, at);
                bury(state, offset, event, (Class::Poison, &reason), attempts);
            } else {
                state.fates.insert(offset, Fate::Applied);
            }
        }
    }

    fn decision(&self, state: &mut State<S>, at: u64, action: &Action) -> Effect {
        match action {
            Action::Configure { max_attempts } => {
                state.budget = if *max_attempts < 1 { 3 } else { *max_attempts };
                Effect::Done
            }
            Action::Redeliver { below } => {
                let held = state.held();
                let round = state.waiting.range(..below.get()).map(|(o, _)| *o);
                let round: Vec<u64> = round.filter(|o| !held.contains(o)).collect();
                for offset in round {
                    let waiting = state.waiting.get_mut(&offset).unwrap();
                    waiting.attempts += 1;
                    waiting.spent += 1;
                    self.give_up(state, at, offset);
                }
                Effect::Done
            }
            Action::Redrive { offset } => self.resolve(state, at, offset.get(), How::Redriven),
            Action::Discard { offset } => self.resolve(state, at, offset.get(), How::Discarded),
            Action::Skip { offset } => self.resolve(state, at, offset.get(), How::Skipped),
            Action::Fix {
                key,
                from,
                to,
                revision,
            } => self.fix(state, at, key, (from.as_ref(), to.as_ref(), *revision)),
            // Its effect is at the record it names.
            Action::Crashed { .. } => Effect::Done,
            _ => panic!("the model does not know {action:?}"),
        }
    }

    fn resolve(&self, state: &mut State<S>, at: u64, offset: u64, how: How) -> Effect {
        let Some(letter) = state.letters.get(&offset) else {
            return Effect::NotFound;
        };
        if !letter.is_open() {
            return Effect::AlreadyResolved;
        }
        let (key, version) = (letter.key.clone(), letter.version);
        if how == How::Skipped && !state.is_next(&key, version) {
            return Effect::NotNext;
        }
        let letter = state.letters.get_mut(&offset).unwrap();
        let death = letter.history.last_mut().unwrap();
        death.resolved = Some((how, at));
        let attempts = death.attempts;
        match how {
            How::Redriven => {
                self.deliver(state, at, offset, attempts);
            }
            How::Discarded => {
                state.fates.insert(offset, Fate::Discarded);
            }
            How::Skipped => {
                state.fates.insert(offset, Fate::Skipped);
                let row = state.rows.entry(key.clone()).or_insert(Row {
                    version,
                    state: None,
                    moved_at: at,
                });
                row.version = version;
                row.moved_at = at;
                self.drain(state, at, &key);
            }
        }
        Effect::Done
    }

    fn fix(
        &self,
        state: &mut State<S>,
        at: u64,
        key: &str,
        (from, to, revision): (Option<&FixRow>, Option<&FixRow>, u32),
    ) -> Effect {
        // Choice: a fix of which either side cannot be read is unreadable, stale or not.
        let read = |side: Option<&FixRow>| -> Option<Option<(i64, Option<S>)>> {
            let Some(row) = side else { return Some(None) };
            let state = match &row.state {
                None => None,
                Some(bytes) => Some((self.machine.decode)(revision, bytes)?),
            };
            Some(Some((row.version, state)))
        };
        let (Some(from), Some(to)) = (read(from), read(to)) else {
            return Effect::Unreadable;
        };
        let now = state.rows.get(key).map(|r| (r.version, r.state.clone()));
        if now != from {
            return Effect::Stale;
        }
        match to {
            None => state.rows.remove(key),
            Some((version, to)) => state.rows.insert(
                key.to_owned(),
                Row {
                    version,
                    state: to,
                    moved_at: at,
                },
            ),
        };
        self.drain(state, at, key);
        Effect::Done
    }

    fn event(&self, offset: u64) -> &Event {
        match &self.log[usize::try_from(offset).unwrap()] {
            Body::Event(event) => event,
            Body::Decision(_) => panic!("no event at {offset}"),
        }
    }

    /// Every `Crashed` decision of the whole log: how often judging an event at a record took the
    /// process down.
    ///
    /// Choice: of two about the same judgement the first counts, so that a later one cannot
    /// change the past.
    fn crashes(&self) -> BTreeMap<(u64, u64), u32> {
        let mut crashes = BTreeMap::new();
        for body in &self.log {
            let Body::Decision(decision) = body else {
                continue;
            };
            let Action::Crashed {
                at,
                event,
                attempts,
            } = &decision.action
            else {
                continue;
            };
            if decision.consumer == self.consumer {
                crashes.entry((at.get(), event.get())).or_insert(*attempts);
            }
        }
        crashes
    }

    fn check(&self, event: &Event) -> Result<(), String> {
        let checked = catch_unwind(AssertUnwindSafe(|| (self.machine.check)(event)));
        checked.unwrap_or_else(|_| Err("panicked".to_owned()))?;
        if event.version < 1 {
            return Err(String::new());
        }
        Ok(())
    }

    fn apply(&self, state: &mut State<S>, at: u64, event: &Event) -> Result<(), String> {
        let row = state
            .rows
            .get(&event.key)
            .and_then(|row| row.state.as_ref());
        let applied = catch_unwind(AssertUnwindSafe(|| (self.machine.apply)(row, event)));
        let next = applied.unwrap_or_else(|_| Err("panicked".to_owned()))?;
        let row = Row {
            version: event.version,
            state: Some(next),
            moved_at: at,
        };
        state.rows.insert(event.key.clone(), row);
        Ok(())
    }
}

fn bury<S>(
    state: &mut State<S>,
    offset: u64,
    event: &Event,
    (class, reason): (Class, &str),
    (attempts, at): (u32, u64),
) {
    let mut reason = reason.to_owned();
    while reason.len() > 1024 {
        reason.pop();
    }
    let letter = state.letters.entry(offset).or_insert(Letter {
        id: event.id.clone(),
        key: event.key.clone(),
        version: event.version,
        history: Vec::new(),
    });
    letter.history.push(Death {
        class,
        reason,
        attempts,
        at,
        resolved: None,
    });
    state.fates.insert(offset, Fate::Dead);
}
